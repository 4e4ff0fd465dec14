"""Do the labels of generated traces hold, and does `diagnose` find what was put in?

    python benchmarks/generation/labels.py [--count 200] [--seed 1] [--jobs 2] [--base TRACE ...]
                                           [--output FILE]

Every trace is loaded as any other, and where all ranks of a run are recorded, its folder. `cost`:
the length of a faulty trace minus that of its twin, over the label, minus 1; the same of the sum of
their steps; of ranks the largest. `idle or new`: of the intervals, the share in which none of the
compute kernels runs that the twin has too; of ranks the least, without one whose GPU is slow, as
its kernels are the same and longer. `windows`: of 100 those of which a tenth or more is lost and
that are not marked, or the other way round. `found`: the type is present and is not in the twin, or
costs more by half of the label. `late rank`: where all ranks are recorded, the straggler is that
rank. `lead`: the report puts it first. `quiet`: of a decoy, what it looks like is not present where
it is absent in the twin.
"""

from __future__ import annotations

import argparse
import json
import resource
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
from torchtraceap.lab.generation.generate import generate
from torchtraceap.tables.steps.iterations import iterations_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import write_results


@dataclass(frozen=True)
class Row:
    """What was measured of one pair of runs."""

    id: str
    form: str
    type: str
    decoy: bool
    base: str
    profiler: str | None
    strategy: str | None
    world_size: int
    recorded: int
    """Ranks of which there is a trace."""
    events: int
    """Of a trace, on average."""
    severity: float
    cost_error: float | None
    """Of the length; of a decoy None."""
    steps_error: float | None
    decoy_share: float | None
    """Of a decoy by how much of a step its length differs."""
    idle_or_new: float | None
    windows_off: int
    found: bool | None
    names_late_rank: bool | None
    """Of a late rank where all are recorded."""
    lead: bool | None
    quiet: bool | None
    present: tuple[str, ...]
    """Types that are present and are not in the twin."""


@dataclass(frozen=True)
class Side:
    """A rank's label, and its trace with the fault and without."""

    label: dict[str, Any]
    bad: Any
    good: Any

    @property
    def more_ns(self) -> tuple[int, int]:
        """By how much it is longer, and its steps."""
        lengths = length_ns(self.bad) - length_ns(self.good)
        return lengths, steps_ns(self.bad) - steps_ns(self.good)


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


def windows_off(side: Side) -> int:
    """Of 100 windows those whose mark the intervals do not bear out."""
    bounds = ttap.Trace([side.bad]).windows(count=100).bounds_ns
    lost = np.array(side.label["intervals"], dtype=np.int64).reshape(-1, 2)
    begins = np.maximum(lost[:, :1], bounds[None, :-1])
    inside = np.maximum(np.minimum(lost[:, 1:], bounds[None, 1:]) - begins, 0).sum(axis=0)
    marked = np.array(side.label["windows"]["100"], dtype=bool)
    return int((marked != (inside >= 0.1 * np.diff(bounds))).sum())


def loaded(folder: Path, run: str) -> Any:
    """All ranks of a run that are recorded."""
    place = folder / run
    return ttap.load(place if place.is_dir() else folder / f"{run}.json.gz")


def judge(folder: Path, labels: list[dict[str, Any]]) -> Row:
    """A run and its twin."""
    first = labels[0]
    runs = [loaded(folder, run) for run in (first["run"], first["twin"].partition("/")[0])]
    sides = [Side(*each) for each in zip(labels, runs[0].ranks, runs[1].ranks, strict=True)]
    diagnoses = [run.diagnose() for run in runs]
    costs = [{f.type: f.cost_ns for f in each.findings} for each in diagnoses]
    decoy, is_late = first["decoy"], first["late_rank"] is not None
    wanted = "straggler" if is_late else first["looks_like"]
    label_ns = sum(label["cost_ns"] for label in labels if label["looks_like"] == wanted)
    grown = costs[0].get(wanted, 0) - costs[1].get(wanted, 0)
    found = wanted in costs[0] and (wanted not in costs[1] or grown > label_ns / 2)
    named = None
    if is_late and len(sides) > 1 and not decoy:
        said = [f for f in diagnoses[0].findings if f.type == "straggler"]
        named = any(f.facts["late rank"].value == str(first["late_rank"]) for f in said)
    steps = [steps_ns(side.good) / max(1, side.label["steps"]) for side in sides]
    more = [side.more_ns for side in sides]
    kept = [side for side in sides if "gpu" not in first["form"] or side.label["role"] != "late"]
    return Row(
        first["run"], first["form"], wanted, decoy, first["source"]["base"], first["profiler"],
        first["strategy"], first["world_size"], len(sides),
        round(statistics.mean(len(side.bad.table) for side in sides)),
        max(label["severity"] for label in labels),
        None if decoy else largest(side.more_ns[0] / side.label["cost_ns"] - 1 for side in sides),
        None if decoy else largest(side.more_ns[1] / side.label["cost_ns"] - 1 for side in sides),
        max(max(map(abs, each)) / ns for each, ns in zip(more, steps, strict=True))
        if decoy else None,
        None if decoy else min(
            (idle_or_new(side.label, side.bad, side.good) for side in kept), default=None
        ),
        sum(map(windows_off, sides)),
        None if decoy else found,
        named,
        None if decoy else (diagnoses[0].to_dict()["lead"] or {}).get("type") == wanted,
        not (wanted in costs[0] and wanted not in costs[1]) if decoy else None,
        tuple(sorted(set(costs[0]) - set(costs[1]))),
    )  # fmt: skip


def largest(errors: Iterable[float]) -> float:
    """By size."""
    return max(errors, key=abs)


def table(rows: Iterable[Row]) -> str:
    """By form, for a document."""
    rows = list(rows)
    lines = [
        "| form | pairs | of ranks | cost, largest error | steps | idle or new, least | found | "
        "late rank | leads |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for form in sorted({row.form for row in rows if not row.decoy}):
        mine = [row for row in rows if row.form == form]
        idle = [row.idle_or_new for row in mine if row.idle_or_new is not None]
        named = [row.names_late_rank for row in mine if row.names_late_rank is not None]
        cells = [f"`{form}`", str(len(mine)), str(sum(row.recorded > 1 for row in mine))]
        cells += [f"{100 * max(abs(row.cost_error or 0) for row in mine):.1f} %"]
        cells += [f"{100 * max(abs(row.steps_error or 0) for row in mine):.1f} %"]
        cells += [f"{100 * min(idle):.0f} %" if idle else ""]
        cells += [str(sum(bool(row.found) for row in mine))]
        cells += [f"{sum(named)} of {len(named)}" if named else ""]
        cells += [str(sum(bool(row.lead) for row in mine))]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| decoy | pairs | of ranks | of a step, most | quiet |", "|---|---|---|---|---|"]
    for form in sorted({row.form for row in rows if row.decoy}):
        mine = [row for row in rows if row.form == form]
        most = max(row.decoy_share or 0 for row in mine)
        quiet = sum(bool(row.quiet) for row in mine)
        many = sum(row.recorded > 1 for row in mine)
        lines.append(f"| `{form}` | {len(mine)} | {many} | {100 * most:.2f} % | {quiet} |")
    off = sum(row.windows_off for row in rows)
    windows = 100 * sum(row.recorded for row in rows)
    return "\n".join([*lines, "", f"windows that are marked wrongly: {off} of {windows}"])


def by_run(labels: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Labels of faults and decoys, those of one run together, by rank."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for label in labels:
        if label["twin"] is not None:
            runs.setdefault(label["run"], []).append(label)
    return [sorted(each, key=lambda label: int(label["rank"])) for each in runs.values()]


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
        processor_s = processor_seconds() if is_new else None
        said = [json.loads(line) for line in labels.read_text("utf-8").splitlines()]
        rows = [judge(folder, each) for each in by_run(said)]
    print(table(rows))
    events = statistics.median(row.events for row in rows)
    took = f": {seconds:.1f} s, {processor_s:.1f} s of processor time" if seconds else ""
    print(f"\n{options.count} traces, {events:.0f} events each (median){took}")
    many = sum(row.recorded > 1 for row in rows)
    print(f"{len(rows)} pairs of runs, of which {many} have all ranks recorded")
    if options.output:
        more = {"count": options.count, "seed": options.seed, "jobs": options.jobs}
        rounded = [_rounded(asdict(row)) for row in rows]
        times = {"seconds": seconds, "processor_seconds": processor_s}
        write_results(options.output, indent=None, **times, **more, rows=rounded)


def processor_seconds() -> float:
    """Of this process and of those that it started, so far."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {key: round(v, 5) if isinstance(v, float) else v for key, v in row.items()}


if __name__ == "__main__":
    main()
