#!/usr/bin/env python3
"""How true host times are on traces that the table has not seen.

python benchmarks/prediction/host_times.py TRACES [--out FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fit_host_times
import host_data
import numpy as np

from torchtraceap.devices import device_named
from torchtraceap.prediction.lifting import host


def sums(model: host.HostModel, one: host_data.HostData) -> tuple[host.HostTimes, float]:
    """Predicted times, and their sum over what was measured, ns."""
    times = model.times_of(one.calls.situations, one.calls.counts.tolist())
    known = np.isfinite(one.calls.before)
    gap = np.array([time.before for time in times.calls])
    return times, times.total_ns - float(gap[~known].sum())


def judge(
    data: Sequence[host_data.HostData],
    left_out: Callable[[host_data.Source, host_data.Source], bool],
) -> list[dict[str, Any]]:
    rows = []
    tables: dict[tuple[str, ...], host.HostTable] = {}
    for one in data:
        others = [each for each in data if not left_out(one.source, each.source)]
        key = tuple(each.source.path for each in others)
        if key not in tables:
            tables[key] = fit_host_times.fit(others)[0]
        table = tables[key]
        row: dict[str, Any] = {"trace": one.source.path}
        unknown = host.HostModel(device_named(one.source.device), table=table)
        times, best = sums(unknown, one)
        measured = one.calls.total_ns
        row |= {"measured_ns": measured, "unknown": best / measured}
        row["held"] = bool(times.low * best <= measured <= times.high * best)
        same = [
            each
            for each in others
            if (each.source.machine, each.source.profiler)
            == (one.source.machine, one.source.profiler)
        ]
        if same:
            times, best = sums(unknown.calibrated(each.calls for each in same), one)
            row["calibrated"] = best / measured
            row["calibrated_held"] = bool(times.low * best <= measured <= times.high * best)
            row["by"] = [each.source.model for each in same]
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    data = host_data.load_sources(chosen.traces)
    for name, rule in RULES.items():
        rows = judge(data, rule)
        print(name)
        for row in rows:
            shown = {k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()}
            print("  ", *shown.values())
        for mode in ("unknown", "calibrated"):
            logs = np.array([row[mode] - 1 for row in rows if mode in row])
            if len(logs):
                print(
                    "  ",
                    mode,
                    f"n {len(logs)} median {np.median(abs(logs)):.2f} worst {abs(logs).max():.2f}",
                )


RULES: dict[str, Callable[[host_data.Source, host_data.Source], bool]] = {
    "trace": lambda one, other: one.path == other.path,
    "model": lambda one, other: one.model == other.model,
    "machine": lambda one, other: one.machine == other.machine,
}


if __name__ == "__main__":
    main()
