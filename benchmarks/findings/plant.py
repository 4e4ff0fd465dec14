"""Faults with a known place and cost in real traces: are they found, there, and at that price?

    python benchmarks/findings/plant.py TRACE ... [--places 4] [--share 0.15] [--output FILE]

Each fault is put into a copy of each trace at four places, so that it costs 20 % of the time that
was profiled (`torchtraceap/lab/generation/event_injection.py`); look-alikes cost nothing.
`found`: the type is present and was not before, or costs more by half of the truth. `place`: the
intersection over the union of its intervals with the truth, within 1 ms of the blocks. `cost`: what
its cost grew by, over the truth, minus 1. A fault that the trace holds already is left out, for
what is planted then mixes with what was there.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torchtraceap as ttap
from torchtraceap.lab.generation.event_faults import FILLS, Fill, Interval
from torchtraceap.lab.generation.event_injection import Recording, inject
from torchtraceap.lab.generation.faults import EVENT_FAULTS

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import write_results

_NEAR_US = 1_000.0


@dataclass(frozen=True)
class Row:
    """What was said of one planted fault or decoy."""

    trace: str
    planted: str
    found: bool
    place: float | None
    cost_error: float | None
    lead: str | None
    others: tuple[str, ...]
    """Types that are present now and were not before."""


def diagnose(trace: dict[str, Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_text(json.dumps(trace))
        return ttap.load(path).diagnose()


def present(diagnosis: Any) -> dict[str, Any]:
    return {finding.type: finding for finding in diagnosis.findings}


def overlap(a: Iterable[Interval], b: Iterable[Interval]) -> float:
    """Intersection over union."""
    one, two = _united(a), _united(b)
    both = _length(_united([*one, *two]))
    shared = _length(one) + _length(two) - both
    return shared / both if both else 0.0


def _united(intervals: Iterable[Interval]) -> list[Interval]:
    united: list[Interval] = []
    for begin, end in sorted(intervals):
        if united and begin <= united[-1][1]:
            united[-1] = united[-1][0], max(united[-1][1], end)
        else:
            united.append((begin, end))
    return united


def _length(intervals: Iterable[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)


def _near(intervals: Iterable[Interval], truth: list[Interval]) -> list[Interval]:
    """The parts of the intervals that lie within 1 ms of the truth."""
    near = _united((begin - _NEAR_US, end + _NEAR_US) for begin, end in truth)
    clipped = [(max(a, begin), min(b, end)) for a, b in intervals for begin, end in near]
    return [(a, b) for a, b in clipped if a < b]


def planted(
    recording: Recording, fill: Fill, us: float, places: int, drain: bool
) -> tuple[Any, list[Interval]]:
    """A diagnosis of the trace with the fault at so many places, and where it costs how much."""
    faulty = recording.copy()
    truth: list[Interval] = []
    later = 0.0
    for at, thread in faulty.places(places):
        new, shift = inject(faulty, (at + later, thread), lambda block: fill(block, us), drain)
        truth += new
        later += shift
    return diagnose(faulty.write()), truth


def judge(
    trace: Path, name: str, fill: Fill, before: Any, recording: Recording, options: Any
) -> Row:
    us, fault = recording.span_us() * options.share / options.places, EVENT_FAULTS[name]
    after, truth = planted(recording, fill, us, options.places, not fault.look_alike)
    was, now = present(before), present(after)
    new = tuple(sorted(set(now) - set(was)))
    lead = (after.to_dict()["lead"] or {}).get("type")
    if fault.look_alike:
        wrong = tuple(t for t in new if t in (fault.type, *fault.other_types))
        return Row(trace.name, name, not wrong, None, None, lead, wrong)
    finding = now.get(name)
    if finding is None:
        return Row(trace.name, name, False, None, None, lead, new)
    said = [(begin * 1e-3, end * 1e-3) for begin, end in finding.intervals.tolist()]
    cost = finding.cost_ns * 1e-3 - (was[name].cost_ns * 1e-3 if name in was else 0.0)
    place = overlap(_near(said, truth), truth)
    error = cost / _length(_united(truth)) - 1
    return Row(trace.name, name, True, place, error, lead, tuple(t for t in new if t != name))


def main() -> None:
    parser = argparse.ArgumentParser(description="faults planted into real traces")
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--places", type=int, default=4)
    parser.add_argument("--share", type=float, default=0.2, help="of the profiled time, planted")
    parser.add_argument("--only", nargs="*", default=[], help="faults and decoys, by name")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = []
    for path in options.traces:
        data = path.read_bytes()
        recording = Recording(json.loads(gzip.decompress(data) if path.suffix == ".gz" else data))
        before = diagnose(recording.write())
        for name, fill in FILLS.items():
            if (options.only and name not in options.only) or name in present(before):
                continue
            if name == "graph_recapture" and recording.steps() < 3:
                continue  # nothing tells a first recording from one of many
            row = judge(path, name, fill, before, recording, options)
            rows.append(row)
            place = "" if row.place is None else f"place {row.place:.2f} cost {row.cost_error:+.0%}"
            print(f"{path.name:36.36} {name:28} {row.found!s:6} {place:24} {row.lead} {row.others}")
    if options.output:
        write_results(options.output, rows=[asdict(row) for row in rows])


if __name__ == "__main__":
    main()
