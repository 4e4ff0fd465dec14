"""Records that lie or are missing, put into real traces: does the report believe them?

    python benchmarks/findings/damage.py TRACE ... [--only KIND ...] [--seed N] [--output FILE]

Each kind of damage is done to a copy of each trace. `told`: the recording's quality names it, where
it leaves something to be named. `false`: findings that cost more than in the trace as it was, by
over 2 % of its time; damage takes records away or makes them useless, so no cost may grow.
`healthy`: records are missing, and the report calls the run healthy or comparable. A trace whose
own recording has notes is no base and is passed over.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torchtraceap as ttap

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import write_results

Json = dict[str, Any]
Damage = Callable[[Json, Random], "str | None"]
"""Damages the document in place; returns the code of the note that it must leave, "" for none, or
None where it can't be done to this trace."""

LOST = "launches_without_gpu_work"
IMPOSSIBLE = "impossible_duration"
_GPU = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
_CALLS = ("cuda_runtime", "cuda_driver", "runtime")
_LEAST_LOST = 20
"""Fewer lost launches need no note."""
_MOST_GROWTH = 0.02
"""The share of the profiled time by which a cost may grow."""


def complete(document: Json) -> list[Json]:
    return [event for event in document["traceEvents"] if event.get("ph") == "X"]


def category(event: Json) -> str:
    return str(event.get("cat", "")).lower()


def gpu_events(document: Json) -> list[Json]:
    """GPU records, by start."""
    found = [event for event in complete(document) if category(event) in _GPU]
    return sorted(found, key=start_us)


def start_us(event: Json) -> float:
    return float(event["ts"])


def end_us(event: Json) -> float:
    return start_us(event) + float(event.get("dur", 0))


def correlation(event: Json) -> Any:
    return event.get("args", {}).get("correlation")


def remove(document: Json, lost: list[Json]) -> None:
    gone = {id(event) for event in lost}
    document["traceEvents"] = [e for e in document["traceEvents"] if id(e) not in gone]


def lose(document: Json, lost: list[Json]) -> str:
    """Removes GPU records; it must be told if launches of kernels are left without any."""
    remove(document, lost)
    kept = {correlation(event) for event in gpu_events(document)}
    called = {correlation(event) for event in complete(document) if category(event) in _CALLS}
    alone = {
        correlation(event)
        for event in lost
        if category(event) == "kernel" and correlation(event) not in kept
    }
    return LOST if len(alone & called) >= _LEAST_LOST else ""


def drop_the_first(document: Json, random: Random) -> str:
    gpu = gpu_events(document)
    return lose(document, gpu[: int(len(gpu) * random.uniform(0.2, 0.5))])


def drop_the_middle(document: Json, random: Random) -> str:
    gpu = gpu_events(document)
    begin = random.uniform(0.1, 0.5)
    return lose(document, gpu[int(len(gpu) * begin) : int(len(gpu) * (begin + 0.3))])


def drop_the_last(document: Json, random: Random) -> str:
    gpu = gpu_events(document)
    return lose(document, gpu[int(len(gpu) * random.uniform(0.4, 0.7)) :])


def drop_a_stream(document: Json, random: Random) -> str:
    """The stream with most kernels."""
    gpu = gpu_events(document)
    kernels = Counter(
        event.get("args", {}).get("stream") for event in gpu if category(event) == "kernel"
    )
    stream = kernels.most_common(1)[0][0]
    return lose(document, [e for e in gpu if e.get("args", {}).get("stream") == stream])


def drop_kernels(document: Json, random: Random) -> str:
    return lose(document, [e for e in gpu_events(document) if category(e) == "kernel"])


def drop_at_random(document: Json, random: Random) -> str:
    share = random.uniform(0.2, 0.5)
    return lose(document, [event for event in gpu_events(document) if random.random() < share])


def cut_the_host(document: Json, random: Random) -> str:
    """The host's events end before the GPU's do: behind 40 to 70 % of the launches."""
    events, gpu = complete(document), gpu_events(document)
    launched = {correlation(event) for event in gpu}
    calls = [e for e in events if category(e) in _CALLS and correlation(e) in launched]
    if not calls:
        return ""
    cut_us = sorted(map(start_us, calls))[int(len(calls) * random.uniform(0.4, 0.7))]
    on_gpu = {id(event) for event in gpu}
    remove(document, [e for e in events if end_us(e) >= cut_us and id(e) not in on_gpu])
    called = {correlation(event) for event in calls if end_us(event) < cut_us}
    alone = sum(correlation(event) not in called for event in gpu)
    return "gpu_work_without_launch" if alone > 0.3 * len(gpu) else ""


def stretch(document: Json, random: Random) -> str:
    kernels = [event for event in gpu_events(document) if category(event) == "kernel"]
    # Not the last ones, behind which nothing shows that they are too long.
    for event in random.sample(kernels[: len(kernels) * 9 // 10], 5):
        event["dur"] = 1e6 * random.uniform(2, 9)
    return IMPOSSIBLE


def zero(document: Json, random: Random) -> str:
    for event in gpu_events(document)[random.randrange(5, 50) :: 97]:
        event["ts"] = event["dur"] = 0
    return IMPOSSIBLE


def shift(document: Json, random: Random) -> str:
    for event in random.sample(gpu_events(document), 3):
        event["ts"] = start_us(event) + 1e9 * random.choice((-1, 1)) * random.uniform(0.5, 2)
    return IMPOSSIBLE


def duplicate(document: Json, random: Random) -> str:
    document["traceEvents"] += [dict(event) for event in gpu_events(document)]
    return IMPOSSIBLE


def merge(document: Json, random: Random) -> str:
    """A second process in the same file, with the same correlation ids."""
    for event in copy.deepcopy(document["traceEvents"]):
        if isinstance(event.get("pid"), int):
            event["pid"] += 100_000 if event["pid"] >= 100 else 40
        if isinstance(event.get("id"), int):
            event["id"] += 10**9
        if isinstance(event.get("args", {}).get("device"), int):
            event["args"]["device"] += 40
        document["traceEvents"].append(event)
    return "several_processes"


def skew(document: Json, random: Random) -> str | None:
    """The first collective waits for ranks that begin to record later."""
    gpu = gpu_events(document)
    collectives = [event for event in gpu if "nccl" in event["name"].lower()]
    if not collectives:
        return None
    first = collectives[0]
    alike = [event["dur"] for event in collectives if event["name"] == first["name"]][1:]
    if len(alike) < 4 or first["dur"] > 3 * max(alike):
        return None
    span_us = end_us(gpu[-1]) - start_us(gpu[0])
    later_us = max(0.3 * span_us, 15 * max(alike), 150 * sorted(alike)[len(alike) // 2])
    at_us = start_us(first)
    first["dur"] += later_us
    for event in complete(document):
        if event is not first and end_us(event) > at_us:
            if start_us(event) > at_us:
                event["ts"] = start_us(event) + later_us
            else:
                event["dur"] = float(event.get("dur", 0)) + later_us
    return "recording_start_skew"


KINDS: dict[str, Damage] = {
    damage.__name__: damage
    for damage in (
        drop_the_first, drop_the_middle, drop_the_last, drop_a_stream, drop_kernels,
        drop_at_random, cut_the_host, stretch, zero, shift, duplicate, merge, skew,
    )
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """The verdict on one damaged trace."""

    trace: str
    kind: str
    told: bool | None
    """None: nothing has to be told."""
    false: tuple[str, ...]
    healthy: bool
    refused: str = ""
    """The error, where the trace is not read."""


def read(path: Path) -> Json:
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    return document if isinstance(document, dict) else {"traceEvents": document}


def notes(trace: ttap.Trace) -> set[str]:
    return {note.code for note in trace.summary().quality.notes}


def judge(name: str, kind: str, code: str, path: Path, known: Any) -> Row:
    try:
        trace = ttap.load(path)
        diagnosis = trace.diagnose()
    except ttap.errors.TraceError as error:
        return Row(name, kind, None, (), False, str(error))
    copies = 2 if kind == "merge" else 1
    verdicts = {**known.verdicts, **known.further_verdicts}
    false = []
    for finding in diagnosis.findings:
        before = known.finding(finding.type)
        most_ns = (before.cost_ns if before else 0) + _MOST_GROWTH * known.profiled_ns
        if verdicts[finding.type] != "unknown" and finding.cost_ns > copies * most_ns:
            false.append(f"{finding.type} +{(finding.cost_ns - copies * most_ns) / 1e6:.1f} ms")
    healthy = code == LOST and ("Healthy" in str(diagnosis) or diagnosis.summary.quality.comparable)
    return Row(name, kind, code in notes(trace) if code else None, tuple(false), healthy)


def main() -> None:
    parser = argparse.ArgumentParser(description="records that lie or are missing in real traces")
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--only", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--seed", type=int, default=0, help="draws places and sizes")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    for path in options.traces:
        clean = ttap.load(path)
        if notes(clean):
            print(f"{path.name}: passed over, {', '.join(sorted(notes(clean)))}", flush=True)
            continue
        known = clean.diagnose()
        for kind in options.only:
            document = read(path)
            code = KINDS[kind](document, Random(f"{options.seed} {path.name} {kind}"))
            if code is None:
                continue
            with tempfile.TemporaryDirectory() as folder:
                damaged = Path(folder) / "trace.json"
                damaged.write_text(json.dumps(document))
                row = judge(path.name, kind, code, damaged, known)
            rows.append(row)
            if row.told is False or row.false or row.healthy or row.refused:
                told = "" if row.told is not False else f"{code} not told"
                print(f"{row.trace:34.34} {kind:16} {told} {'; '.join(row.false)}"
                      f"{' healthy' * row.healthy} {row.refused[:90]}", flush=True)  # fmt: skip
    print(f"{len(rows)} damaged copies of {len({row.trace for row in rows})} traces")
    for what, bad in (
        ("not told", sum(row.told is False for row in rows)),
        ("with false findings", sum(bool(row.false) for row in rows)),
        ("called healthy", sum(row.healthy for row in rows)),
        ("refused", sum(bool(row.refused) for row in rows)),
    ):
        print(f"{what}: {bad}")
    if options.output:
        write_results(options.output, rows=[asdict(row) for row in rows])


if __name__ == "__main__":
    main()
