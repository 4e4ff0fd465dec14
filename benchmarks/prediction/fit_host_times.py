#!/usr/bin/env python3
"""Fits the host times that the package ships, from public traces of GPU runs.

    python benchmarks/prediction/fit_host_times.py TRACES [--out FILE]

TRACES is a folder with the traces of host_data.py; those that it lacks are left out. The functions
are used by host_times.py, which measures the error on traces that were left out of the fit.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import erf, sqrt
from pathlib import Path
from typing import Any

import host_data
import numpy as np

from torchtraceap.prediction.lifting import host
from torchtraceap.prediction.lifting.situations import UNKNOWN_CROSSING, Situation

OUT = Path(host.__file__).parent / "data" / "host_times.json"
# A class draws on its own traces against its family's mean as if that were one machine; few calls
# of a machine count less than many.
PRIOR_MACHINES = 0.5
ENOUGH_CALLS = 4.0
# A single call counts at most as so many times its class's median: what is more is a pause of the
# process, or happens once.
MOST = 8.0
ROUNDS = 8


class Rows:
    """Single times of one quantity: which class chain, which trace, how long."""

    def __init__(
        self, data: Sequence[host_data.HostData], quantity: str, crossings: dict[str, str]
    ):
        self.quantity = quantity
        keys: dict[str, int] = {}
        chains, traces, values = [], [], []
        for trace, one in enumerate(data):
            for call, value in times_of(one, quantity):
                if call.crossing == UNKNOWN_CROSSING:
                    usual = crossings.get(call.name, crossings[""])
                    call = replace(call, crossing=usual)
                chain = [keys.setdefault(key, len(keys)) for key in call.classes(quantity)]
                chains.append(chain)
                traces.append(trace)
                values.append(value)
        self.names = list(keys)
        self.chains = np.array(chains, dtype=np.int64)
        self.trace = np.array(traces, dtype=np.int64)
        self.value = np.array(values, dtype=np.float64)


def times_of(one: host_data.HostData, quantity: str) -> Iterator[tuple[Situation, float]]:
    calls = one.calls
    for index in one.used.tolist():
        call, launches = calls.situations[index], calls.launches[index]
        if quantity == "before":
            if np.isfinite(calls.before[index]):
                yield call, float(calls.before[index])
        elif quantity == "alone":
            if not launches:
                yield call, float(calls.to_launch[index])
        elif launches and quantity == "launch":
            yield call, float(np.mean(launches))
        elif launches and (quantity != "between" or len(launches) > 1):
            yield call, float(getattr(calls, quantity)[index])


def usual_crossings(data: Sequence[host_data.HostData]) -> dict[str, str]:
    """By name, where modules were recorded; "" for the rest."""
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for one in data:
        for index in one.used.tolist():
            call = one.calls.situations[index]
            if call.crossing.startswith("modules") and call.crossing != UNKNOWN_CROSSING:
                seen[call.name][call.crossing] += 1
                seen[""][call.crossing] += 1
    return {name: counts.most_common(1)[0][0] for name, counts in sorted(seen.items())}


def fit(data: Sequence[host_data.HostData]) -> tuple[host.HostTable, np.ndarray]:
    """The table, and the logarithms of the traces' factors against its means."""
    machines = sorted({one.source.machine for one in data})
    machine = np.array([machines.index(one.source.machine) for one in data])
    crossings = usual_crossings(data)
    rows = {quantity: Rows(data, quantity, crossings) for quantity in host.QUANTITIES}
    factors = np.zeros((len(data), len(host.GROUPS)))
    means: dict[str, np.ndarray] = {}
    for _ in range(ROUNDS):
        for quantity, one in rows.items():
            group = host.GROUPS.index(host.QUANTITIES[quantity])
            means[quantity] = class_means(one, np.exp(factors[:, group]), machine)
        factors = trace_factors(rows, means, len(data))
        factors -= middle(factors, machine)
    table = host.HostTable(
        means={quantity: named(rows[quantity].names, means[quantity]) for quantity in rows},
        crossings=crossings,
        factors=np.zeros(len(host.GROUPS)),
        covariance=machine_covariance(factors, machine),
        class_deviation=class_deviation(rows, means, data),
        residuals={q: residuals(one, means[q], factors) for q, one in rows.items()},
        correlation=correlation(rows["before"], means["before"], factors),
    )
    return table, factors


def named(names: Sequence[str], values: np.ndarray) -> dict[str, float]:
    pairs = zip(names, np.round(values, 1).tolist(), strict=True)
    return dict(sorted(pairs))


def class_means(rows: Rows, factor: np.ndarray, machine: np.ndarray) -> np.ndarray:
    """Of every key, the widest first: each drawn towards the one above it."""
    value = rows.value / factor[rows.trace]
    of_machine = machine[rows.trace]
    found = np.full(len(rows.names), np.nan)
    for level in range(rows.chains.shape[1]):
        key = rows.chains[:, level]
        above = found[rows.chains[:, level - 1]] if level else np.full(len(key), np.nan)
        for one in np.unique(key).tolist():
            mine = key == one
            found[one] = class_mean(value[mine], of_machine[mine], float(above[mine][0]))
    return found


def class_mean(value: np.ndarray, machine: np.ndarray, above: float) -> float:
    logs, weights = [], []
    for one in np.unique(machine).tolist():
        mine = value[machine == one]
        clipped = np.minimum(mine, MOST * max(float(np.median(mine)), 50.0))
        logs.append(np.log(max(float(clipped.mean()), 10.0)))
        weights.append(len(mine) / (len(mine) + ENOUGH_CALLS))
    if np.isfinite(above):
        logs.append(np.log(above))
        weights.append(PRIOR_MACHINES)
    return float(np.exp(np.average(logs, weights=weights)))


def trace_factors(rows: dict[str, Rows], means: dict[str, np.ndarray], traces: int) -> np.ndarray:
    """Logarithms of measured over expected sums of each group."""
    found = np.zeros((traces, len(host.GROUPS)))
    for place, group in enumerate(host.GROUPS):
        measured, expected = np.zeros(traces), np.zeros(traces)
        for quantity, one in rows.items():
            if host.QUANTITIES[quantity] == group:
                mean = means[quantity][one.chains[:, -1]]
                np.add.at(measured, one.trace, one.value)
                np.add.at(expected, one.trace, mean)
        found[:, place] = np.log(np.maximum(measured, 1.0) / np.maximum(expected, 1.0))
    return found


def middle(factors: np.ndarray, machine: np.ndarray) -> np.ndarray:
    """Of the machines: half are slower."""
    return np.median([factors[machine == one].mean(axis=0) for one in np.unique(machine)], axis=0)


def machine_covariance(factors: np.ndarray, machine: np.ndarray) -> np.ndarray:
    by_machine = [factors[machine == one].mean(axis=0) for one in np.unique(machine)]
    return np.cov(np.array(by_machine).T)


def class_deviation(
    rows: dict[str, Rows], means: dict[str, np.ndarray], data: Sequence[host_data.HostData]
) -> float:
    """Of the logarithm of a step's sum between models on one machine, under one profiler."""
    measured, expected = np.zeros(len(data)), np.zeros(len(data))
    for quantity, one in rows.items():
        np.add.at(measured, one.trace, one.value)
        np.add.at(expected, one.trace, means[quantity][one.chains[:, -1]])
    ratio = np.log(measured / expected)
    groups = defaultdict(list)
    for one, value in zip(data, ratio.tolist(), strict=True):
        groups[one.source.machine, one.source.profiler].append((one.source.model, value))
    squares, degrees = 0.0, 0
    for entries in groups.values():
        by_model = [
            np.mean([v for m, v in entries if m == model]) for model in {m for m, _ in entries}
        ]
        squares += float(np.var(by_model) * len(by_model))
        degrees += len(by_model) - 1
    return float(np.sqrt(squares / degrees)) if degrees else 0.0


def correlation(rows: Rows, means: np.ndarray, factors: np.ndarray) -> float:
    """Of neighbouring calls' logarithms of measured over expected time."""
    group = host.GROUPS.index(host.QUANTITIES[rows.quantity])
    expected = means[rows.chains[:, -1]] * np.exp(factors[rows.trace, group])
    logs = np.log(np.maximum(rows.value, 10.0) / expected)
    same = rows.trace[1:] == rows.trace[:-1]
    return float(np.clip(np.corrcoef(logs[1:][same], logs[:-1][same])[0, 1], 0.0, 0.95))


def residuals(rows: Rows, means: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Ratios of single times to their expectation in their own trace, at `host.SCORES`; mean 1."""
    group = host.GROUPS.index(host.QUANTITIES[rows.quantity])
    ratio = rows.value / (means[rows.chains[:, -1]] * np.exp(factors[rows.trace, group]))
    shares = [0.5 * (1 + erf(score / sqrt(2))) for score in host.SCORES]
    found = np.quantile(np.maximum(ratio, 0.02), shares)
    weights = np.exp(-(host.SCORES**2) / 2)
    return found / np.average(found, weights=weights)


def as_json(table: host.HostTable, data: Sequence[host_data.HostData]) -> dict[str, Any]:
    return {
        "schema": "torchtraceap.host_times/1",
        "made": datetime.date.today().isoformat(),
        "sources": [
            {
                "trace": one.source.path,
                "machine": one.source.machine,
                "model": one.source.model,
                "profiler": one.source.profiler,
                "calls": len(one.used),
            }
            for one in data
        ],
        "means": table.means,
        "crossings": table.crossings,
        "factors": table.factors.tolist(),
        "covariance": np.round(table.covariance, 5).tolist(),
        "class_deviation": round(table.class_deviation, 4),
        "residuals": {key: np.round(v, 4).tolist() for key, v in table.residuals.items()},
        "correlation": round(table.correlation, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args()
    data = host_data.load_sources(chosen.traces)
    table, factors = fit(data)
    for one, row in zip(data, np.exp(factors), strict=True):
        print(f"{one.source.path:60} {len(one.used):6}", *(f"{each:6.2f}" for each in row))
    chosen.out.write_text(json.dumps(as_json(table, data)) + "\n", "utf-8")


if __name__ == "__main__":
    main()
