#!/usr/bin/env python3
"""How much GPU time of traces the duration models answer for, and how far off they are.

    python benchmarks/simulation/expected.py TRACES... [--output FILE]

For each trace: the share of the GPU time that gets an estimate (and that gets one from a model: a
table, or work over the peaks), and three tests in each of which no time is estimated from itself:

- *models*: as they are. Kinds of calls, each with the median of its times.
- *later*: units of the second half of the trace; the first half calibrates and stands for its own
  kernels.
- *unseen*: a random half of the kinds; the other half calibrates and stands for its own kernels.

Each has the share of intervals that hold the measured time and the median absolute error. Families
that the models were fitted to on these very traces are no unseen traces: docs/results/durations.md
says which. Traces of one job's ranks count as one, by the first file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import write_results

import torchtraceap as ttap
from torchtraceap.errors import TraceError
from torchtraceap.tables.ops.expected import METHODS, Expectation
from torchtraceap.trace.ranks import RankTrace

Row = dict[str, Any]
_MODELS = 2  # methods before this one are models
_TESTS = ("models", "later", "unseen")


def measured(path: Path) -> Row | None:
    """The figures of a trace's first rank; None if it is no trace or has no GPU work."""
    try:
        part = ttap.load(path).ranks[0]
    except TraceError:
        return None
    plain = Expectation(part)
    work = plain.work
    whole = float(work.ns.sum())
    if not whole:
        return None
    row: Row = {
        "trace": path.name.removesuffix(".gz").removesuffix(".json"),
        "gpu_ms": whole / 1e6,
        "shapes": any(kind.call is not None for kind in work.kinds),
        "answered": float(work.ns[np.isfinite(plain.estimates.ns)].sum()) / whole,
    }
    for code, name in enumerate(METHODS):
        row[name] = float(work.ns[plain.method == code].sum()) / whole
    half = work.start_ns < np.median(work.start_ns)
    seen = np.random.default_rng(0).random(len(work.kinds)) < 0.5
    row["models"] = by_kind(plain, plain.method < _MODELS)
    row["later"] = by_unit(fitted_on(part, half), ~half)
    row["unseen"] = by_kind(fitted_on(part, seen[work.kind]), ~seen[work.kind])
    return row


def fitted_on(part: RankTrace, known: np.ndarray) -> Expectation:
    """Calibrated on some units, which alone stand for the trace's own kernels."""
    calibration = Expectation(part, known=known).fitted()
    return Expectation(part, calibration=calibration, known=known)


def by_unit(expectation: Expectation, chosen: np.ndarray) -> list[tuple[bool, float, float]]:
    """Of each unit: its time is inside, its absolute error, its time in ns."""
    work, found = expectation.work, expectation.estimates
    rows = np.flatnonzero(chosen & (work.ns > 0) & np.isfinite(found.ns))
    errors = np.abs(found.ns[rows] / work.ns[rows] - 1)
    return list(zip(expectation.inside[rows].tolist(), errors.tolist(), work.ns[rows].tolist(),
                    strict=True))  # fmt: skip


def by_kind(expectation: Expectation, chosen: np.ndarray) -> list[tuple[bool, float, float]]:
    """Of each kind: the median of its times is inside, its absolute error, its time in ns."""
    work, found = expectation.work, expectation.estimates
    rows = np.flatnonzero(chosen & (work.ns > 0) & np.isfinite(found.ns))
    result = []
    for kind in np.unique(work.kind[rows]).tolist():
        units = rows[work.kind[rows] == kind]
        time, first = float(np.median(work.ns[units])), units[0]
        inside = bool(found.low_ns[first] <= time <= found.high_ns[first])
        error = abs(float(found.ns[first]) / time - 1)
        result.append((inside, error, float(work.ns[units].sum())))
    return result


def summary(cases: list[tuple[bool, float, float]]) -> Row:
    if not cases:
        return {"n": 0}
    inside, error, ns = np.array(cases, dtype=np.float64).T
    return {
        "n": len(cases),
        "inside": float(inside.mean()),
        "inside_time": float((inside * ns).sum() / ns.sum()),
        "median_error": float(np.median(error)),
    }


def line(row: Row) -> str:
    tests = " | ".join(
        f"{row[test]['inside']:.2f} {100 * row[test]['median_error']:5.1f} % {row[test]['n']:6}"
        if row[test]["n"]
        else " " * 19
        for test in _TESTS
    )
    shares = f"{row['answered']:.2f} {row['table'] + row['work']:.2f}"
    return f"{row['trace'][:38]:<38} {row['gpu_ms']:8.1f} {shares} | {tests}"


def files_of(paths: list[Path]) -> list[Path]:
    """Traces below the paths; of the ranks of a job, which share a folder, the first."""
    files = [file for path in paths for file in sorted(path.rglob("*")) or [path]]
    traces = [file for file in files if file.name.endswith((".json", ".json.gz"))]
    return [file for file in traces
            if not file.name.startswith("rank") or file.name.startswith("rank0")]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, help="write the figures here too")
    options = parser.parse_args()
    rows = [row for file in files_of(options.traces) if (row := measured(file)) is not None]
    print(f"{'trace':<38} {'GPU ms':>8} answered model | models: inside error n | later | unseen")
    totals: dict[str, list[tuple[bool, float, float]]] = {test: [] for test in _TESTS}
    for row in rows:
        for test in _TESTS:
            totals[test] += row[test]
            row[test] = summary(row[test])
        print(line(row))
    told = {test: summary(cases) for test, cases in totals.items()}
    for test, found in told.items():
        print(f"all, {test}: {found}")
    with_shapes = [row for row in rows if row["shapes"]]
    answered = [row["answered"] for row in with_shapes]
    print(f"{len(with_shapes)} traces with shapes: answered {min(answered, default=0):.2f} or more")
    if options.output:
        write_results(options.output, traces=rows, all=told)
    return 0


if __name__ == "__main__":
    sys.exit(main())
