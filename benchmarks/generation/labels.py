"""Do the labels of generated traces hold, and does `diagnose` find what was put in?

    python benchmarks/generation/labels.py [--count 200] [--seed 1] [--jobs 2] [--base TRACE ...]
                                           [--output FILE]

Every trace is loaded as any other. `cost`: the length of a faulty trace minus that of its twin,
over the label, minus 1; the same of the sum of their steps. `idle or new`: of the intervals, the
share in which none of the compute kernels runs that the twin has too. `found`: the type is present
and is not in the twin, or costs more by half of the label. `lead`: the report puts it first.
`quiet`: of a decoy, what it looks like is not present where it is absent in the twin.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.analysis.iterations import iterations_of
from torchtraceap.generation.generate import generate

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import write_results


@dataclass(frozen=True)
class Row:
    """What was measured of one pair."""

    id: str
    form: str
    type: str
    decoy: bool
    base: str
    events: int
    severity: float
    cost_error: float | None
    """Of the length; of a decoy None."""
    steps_error: float | None
    decoy_share: float | None
    """Of a decoy by how much of a step its length differs."""
    idle_or_new: float | None
    found: bool | None
    lead: bool | None
    quiet: bool | None
    present: tuple[str, ...]
    """Types that are present and are not in the twin."""


def length_ns(part: Any) -> int:
    """From the first to the last complete event."""
    table = part.table
    rows = table.complete & (table.kind != _core.EventKind.PROFILER_TRACE)
    return int((table.ts_ns + table.dur_ns)[rows].max() - table.ts_ns[rows].min())


def steps_ns(part: Any) -> int:
    """The iterations of all steps."""
    return int(iterations_of(part).length_ns.sum())


def idle_or_new(label: dict[str, Any], bad: Any, good: Any) -> float:
    """Of the intervals, without the kernels that both traces have."""
    known = set(good.table.strings)
    table, lost = bad.table, np.array(label["intervals"])
    names = np.array([name in known and "nccl" not in name for name in table.strings])
    rows = names[table.name] & (table.kind == _core.EventKind.KERNEL)
    if label["form"] == "many_small_operators":  # of a name that the twin may have as well
        rows &= table.dur_ns > 2_000
    begins, ends = table.ts_ns[rows], (table.ts_ns + table.dur_ns)[rows]
    busy = 0
    for start, end in lost.tolist():
        near = slice(np.searchsorted(ends, start), np.searchsorted(begins, end))
        inside = np.minimum(ends[near], end) - np.maximum(begins[near], start)
        busy += int(np.maximum(inside, 0).sum())
    return 1 - busy / float(np.diff(lost, axis=1).sum())


def judge(folder: Path, label: dict[str, Any]) -> Row:
    """One trace and its twin."""
    bad, good = (ttap.load(folder / f"{label[which]}.json.gz") for which in ("id", "twin"))
    parts = bad.ranks[0], good.ranks[0]
    more_ns = length_ns(parts[0]) - length_ns(parts[1])
    more_in_steps_ns = steps_ns(parts[0]) - steps_ns(parts[1])
    said, before = bad.diagnose(), good.diagnose()
    costs = [{f.type: f.cost_ns for f in each.findings} for each in (said, before)]
    wanted, decoy = label["looks_like"], label["decoy"]
    grown = costs[0].get(wanted, 0) - costs[1].get(wanted, 0)
    found = wanted in costs[0] and (wanted not in costs[1] or grown > label["cost_ns"] / 2)
    lead = (said.to_dict()["lead"] or {}).get("type") == wanted
    step_ns = steps_ns(parts[1]) / max(1, label["steps"])
    cost_ns = label["cost_ns"]
    return Row(
        label["id"], label["form"], wanted, decoy, label["source"]["base"], len(parts[0].table),
        label["severity"],
        None if decoy else more_ns / cost_ns - 1,
        None if decoy else more_in_steps_ns / cost_ns - 1,
        max(abs(more_ns), abs(more_in_steps_ns)) / step_ns if decoy else None,
        None if decoy else idle_or_new(label, *parts),
        None if decoy else found,
        None if decoy else lead,
        not (wanted in costs[0] and wanted not in costs[1]) if decoy else None,
        tuple(sorted(set(costs[0]) - set(costs[1]))),
    )  # fmt: skip


def table(rows: Iterable[Row]) -> str:
    """By form, for a document."""
    lines = [
        "| form | pairs | cost, largest error | steps | idle or new, least | found | leads |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = list(rows)
    for form in sorted({row.form for row in rows if not row.decoy}):
        mine = [row for row in rows if row.form == form]
        cells = [form, str(len(mine))]
        cells += [f"{100 * max(abs(row.cost_error or 0) for row in mine):.1f} %"]
        cells += [f"{100 * max(abs(row.steps_error or 0) for row in mine):.1f} %"]
        cells += [f"{100 * min(row.idle_or_new or 0 for row in mine):.0f} %"]
        cells += [
            str(sum(bool(row.found) for row in mine)),
            str(sum(bool(row.lead) for row in mine)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| decoy | pairs | of a step, most | quiet |", "|---|---|---|---|"]
    for form in sorted({row.form for row in rows if row.decoy}):
        mine = [row for row in rows if row.form == form]
        most = max(row.decoy_share or 0 for row in mine)
        quiet = sum(bool(row.quiet) for row in mine)
        lines.append(f"| {form} | {len(mine)} | {100 * most:.2f} % | {quiet} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="labels of generated traces")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--base", action="append", default=[])
    parser.add_argument("--keep", type=Path, help="folder for the traces")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch) / "traces"
        is_new = not folder.exists()
        start = time.perf_counter()
        labels = generate(
            folder, options.count, options.seed, bases=options.base, jobs=options.jobs
        )
        seconds = time.perf_counter() - start if is_new else None
        said = [json.loads(line) for line in labels.read_text("utf-8").splitlines()]
        rows = [judge(folder, label) for label in said if label["twin"] is not None]
    print(table(rows))
    events = statistics.median(row.events for row in rows)
    took = "" if seconds is None else f": {seconds:.1f} s"
    print(f"\n{options.count} traces, {events:.0f} events each (median){took}")
    if options.output:
        more = {"count": options.count, "seed": options.seed, "jobs": options.jobs}
        rounded = [_rounded(asdict(row)) for row in rows]
        write_results(options.output, indent=None, seconds=seconds, **more, rows=rounded)


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {key: round(v, 5) if isinstance(v, float) else v for key, v in row.items()}


if __name__ == "__main__":
    main()
