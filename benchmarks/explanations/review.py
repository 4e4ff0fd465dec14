"""Every segment that `explain` tells of a folder of traces, with the facts beside it, for review.

Each segment is printed with its text and with what the trace says of the same time: the share of
each finding, of each kind of GPU work and of each cause of idle time, and the longest events. Then
faults that a program can see are counted by class, one line each:

    python benchmarks/explanations/review.py ../shared/traces --text segments.txt --json counts.json

The classes that only a reader sees (is it true, useful, readable, is the diff the right one) are in
docs/results/explanations.md.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import torchtraceap as ttap
from torchtraceap.core.formatting import format_ns
from torchtraceap.core.intervals import covered_ns
from torchtraceap.core.results import Finding
from torchtraceap.diagnosis.result import Diagnosis
from torchtraceap.diagnosis.verdict import parts_over_time

LEAST = 0.1
"""Share of a segment below which a finding must not name it."""
MOST = 0.5
"""Share from which a finding costs most of a segment, or most of another finding's time."""
ZERO = re.compile(r"(?<![\d.,])(?<!ank )0(?:\.0+)? (?:ns|us|µs|ms|s|%|B|KiB|MiB|GiB|\w+)(?![\w])")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
REASON = re.compile(r"more than its own cost|the same change removes", re.IGNORECASE)
BUCKETS = re.compile(r"bucket|prefetch the next block")
EXCHANGE = re.compile(r"SendRecv|all_?to_?all", re.IGNORECASE)


def find_traces(folder: Path) -> Iterator[Path]:
    """Yield files of traces, and folders that hold the ranks of one run."""
    ranks = {path.parent for path in folder.rglob("*rank0*.json*")}
    for path in sorted([*folder.rglob("*.json"), *folder.rglob("*.json.gz"), *ranks]):
        if path.is_dir() or path.parent not in ranks:
            yield path


def shares_of(diagnosis: Diagnosis, start_ns: int, end_ns: int) -> dict[str, float]:
    """Return the share of each finding in a part of the trace, the mean over the ranks."""
    bounds_ns = np.array([start_ns, end_ns], dtype=np.int64)
    ranks = diagnosis.trace.ranks
    shares = {}
    for finding in diagnosis.findings:
        cost_ns = 0
        for rank in ranks:
            mine = [name == rank.rank for name in finding.interval_ranks]
            cost_ns += int(covered_ns(finding.intervals[mine], bounds_ns)[0])
        shares[finding.type] = cost_ns / max(1, (end_ns - start_ns) * len(ranks))
    return shares


def parts_of(diagnosis: Diagnosis, start_ns: int, end_ns: int) -> dict[str, float]:
    """Return the share of each kind of GPU work and cause of idle time, the mean over the ranks."""
    bounds_ns = np.array([start_ns, end_ns], dtype=np.int64)
    total: Counter[str] = Counter()
    for rank in diagnosis.trace.ranks:
        for name, ns in parts_over_time(rank, bounds_ns).items():
            total[name] += int(ns[0])
    length_ns = max(1, (end_ns - start_ns) * len(diagnosis.trace.ranks))
    return {name: ns / length_ns for name, ns in total.most_common() if ns >= 0.02 * length_ns}


def longest_events(diagnosis: Diagnosis, start_ns: int, end_ns: int, count: int = 5) -> list[str]:
    """Return the longest events by their time inside a part of the first rank, GPU and host."""
    rank = diagnosis.trace.ranks[0]
    table = rank.table
    begin_ns = np.maximum(table.ts_ns, start_ns)
    inside_ns = np.minimum(table.ts_ns + table.dur_ns, end_ns) - begin_ns
    order = np.argsort(-inside_ns, kind="stable")[: 3 * count]
    found = []
    for row in order.tolist():
        if inside_ns[row] > 0:
            found.append(f"{table.name_of(row)[:60]} {format_ns(int(inside_ns[row]))}")
    return found[: 2 * count]


def faults_of(
    segment: Mapping[str, Any], facts: Mapping[str, Any], told: Sequence[str]
) -> list[str]:
    """Return the classes of fault that a program can see in a segment.

    Args:
        segment: As in the document of `explain`.
        facts: What `facts_of` says of it.
        told: Types of the segments before it.
    """
    faults, shares = [], facts["findings"]
    name, prose = segment["type"], f"{segment['what']} {segment['why']}"
    if name in shares and shares[name] < LEAST:
        faults.append("named after a finding below a tenth")
    if name not in shares and shares and max(shares.values()) >= MOST:
        faults.append("no finding named, and one costs most of it")
    if ZERO.search(prose):
        faults.append("a figure of zero")
    values = {each["value"] for each in segment["citations"] if "metric" in each}
    said = {float(number.replace(",", "")) for number in NUMBER.findall(prose)}
    if not said <= values:
        faults.append("a number without citation")
    if facts["saving_ns"] > facts["cost_ns"] > 0 and not REASON.search(prose):
        faults.append("a saving above the cost, without a reason")
    if facts["shared"] and "counts once" not in prose:
        faults.append("time of another finding, not said")
    if name in told and name != "none":
        faults.append("one finding told twice")
    if name == "none" and "Nothing is known to change" in segment["change"]["text"]:
        faults.append("no finding named, and nothing said to do")
    if BUCKETS.search(segment["change"]["text"]) and facts["exchanges"]:
        faults.append("advice on gradients for an exchange without them")
    if "where" in segment and not segment["where"]["text"]:
        faults.append("no line of the program, and no option to record it")
    return faults


def facts_of(diagnosis: Diagnosis, segment: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the trace says of a segment."""
    start_ns, end_ns = segment["start_ns"], segment["end_ns"]
    finding = next((each for each in diagnosis.findings if each.type == segment["type"]), None)
    shares = shares_of(diagnosis, start_ns, end_ns)
    cost_ns, saving_ns, shared, exchanges = 0, 0, "", False
    if finding is not None:
        steps = diagnosis.step.steps if diagnosis.step else 1
        ranks = len(diagnosis.trace.ranks)
        cost_ns = finding.cost_ns
        saving = finding.saving
        if saving and saving.simulated:
            saving_ns = saving.best_ns * (steps if saving.per_step else ranks)
        names = [each.name for each in finding.evidence]
        exchanges = bool(names) and all(EXCHANGE.search(each) for each in names)
        for other in diagnosis.findings:
            if other is not finding and both_ns(finding, other) >= MOST * finding.cost_ns > 0:
                shared = other.type
    return {
        "findings": {name: round(share, 3) for name, share in shares.items()},
        "parts": {n: round(s, 3) for n, s in parts_of(diagnosis, start_ns, end_ns).items()},
        "events": longest_events(diagnosis, start_ns, end_ns),
        "cost_ns": cost_ns,
        "saving_ns": saving_ns,
        "shared": shared,
        "exchanges": exchanges,
    }


def both_ns(one: Finding, other: Finding) -> int:
    """Return the time that two findings cost both, summed over the ranks."""
    total_ns = 0
    for rank in set(one.interval_ranks):
        mine = [each == rank for each in one.interval_ranks]
        others = [each == rank for each in other.interval_ranks]
        covered = covered_ns(other.intervals[others], one.intervals[mine].ravel())
        total_ns += int(covered[::2].sum())
    return total_ns


def review(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the segments of a trace with their facts and faults."""
    trace = ttap.load(path)
    diagnosis = trace.diagnose()
    document = diagnosis.explain().to_dict()
    told: list[str] = []
    whole_ns = max(1, diagnosis.windows.bounds_ns[-1] - diagnosis.windows.bounds_ns[0])
    for segment in document["segments"]:
        facts = facts_of(diagnosis, segment)
        yield {
            "trace": str(path),
            "ranks": len(trace.ranks),
            "role": diagnosis.role,
            "framework": diagnosis.framework,
            "computes_on": diagnosis.computes_on,
            "part_of_profiled": (segment["end_ns"] - segment["start_ns"]) / whole_ns,
            "begin_ns": segment["start_ns"] - document["begin_ns"],
            **facts,
            "segment": segment,
            "faults": faults_of(segment, facts, told),
        }
        told.append(segment["type"])


def as_text(number: int, found: Mapping[str, Any]) -> str:
    """Return a segment as a reader wants it."""
    segment = found["segment"]
    length = format_ns(segment["end_ns"] - segment["start_ns"])
    head = (
        f"#{number} {found['trace']} [{found['ranks']} ranks, {found['role']}, "
        f"{found['framework']}, on {found['computes_on']}] at {format_ns(found['begin_ns'])}, "
        f"{length}, {100 * found['part_of_profiled']:.0f} % of the profiled time"
    )
    lines = [head, f"  TYPE {segment['type']} {segment['confidence']:.2f}"]
    for title in ("what", "why"):
        lines += textwrap.wrap(f"  {title.upper()}: {segment[title]}", 160)
    if "where" in segment:
        lines += textwrap.wrap(f"  WHERE: {segment['where']['text']}", 160)
    lines += textwrap.wrap(f"  CHANGE: {segment['change']['text']}", 160)
    diff = [
        line
        for line in (segment["change"]["diff"] or "").splitlines()[3:]
        if line[:1] in ("+", "-")
    ]
    lines += [f"     {line}" for line in diff[:4]]
    lines += textwrap.wrap(f"  VERIFY: {segment['verify']}", 160)
    lines.append(f"  places: {len(segment.get('places', [0]))}")
    lines.append(f"  findings here: {found['findings']}")
    lines.append(f"  parts: {found['parts']}")
    lines.append(f"  events: {'; '.join(found['events'])}")
    if found["faults"]:
        lines.append(f"  FAULTS: {'; '.join(found['faults'])}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="of traces, searched with what is below it")
    parser.add_argument("--text", type=Path, help="write segments to read")
    parser.add_argument("--json", type=Path, help="write segments and counts")
    parser.add_argument("--most-bytes", type=float, default=60e6, help="of a file [60e6]")
    options = parser.parse_args()
    found: list[dict[str, Any]] = []
    for path in find_traces(options.folder):
        if path.is_file() and path.stat().st_size > options.most_bytes:
            continue
        try:
            found += review(path)
        except ttap.errors.TraceError as error:
            print(f"{path}: {str(error)[:100]}", file=sys.stderr)
    counts = Counter(fault for each in found for fault in each["faults"])
    traces = {each["trace"] for each in found}
    result = {"traces": len(traces), "segments": len(found), "faults": dict(counts)}
    if options.text:
        options.text.write_text("\n\n".join(as_text(n, each) for n, each in enumerate(found, 1)))
    if options.json:
        options.json.write_text(json.dumps({**result, "found": found}, indent=1) + "\n", "utf-8")
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
