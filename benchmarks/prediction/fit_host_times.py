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
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import host_data
import numpy as np

from torchtraceap.lab.prediction.lowering import host
from torchtraceap.lab.prediction.lowering.recorded_host import UNKNOWN_CROSSING
from torchtraceap.ops.devices import device_named

OUT = Path(host.__file__).parent / "data" / "host_times.json"
_LEVELS = 5
# A class draws on its own traces against its family's mean as if that were one machine; few calls
# of a machine count less than many.
PRIOR_MACHINES = 0.5
ENOUGH_CALLS = 4.0
# A single call counts at most as so many times its class's median: what is more is a pause of the
# process, or happens once.
MOST = 8.0
LEAST_NS = 20.0
# Logarithms of what surrounds a step: of one or two machines, and the least of more.
FEW_MACHINES_DEVIATION, LEAST_DEVIATION = 1.0, 0.3
# Models that the means have seen differ by less than others: at this factor of the variance 80 %
# of the models left out lie within the interval (host_times.py).
MODELS_LEFT_OUT = 2.0
# Deviations of the logarithms of gaps, calls and launches between models on one machine, as if
# that many more models had shown them: few machines have several models.
MODEL_PRIOR, PRIOR_DEGREES = (0.4, 0.12, 0.15), 4
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
            for index, value in zip(*one.calls.times(quantity), strict=True):
                call = one.calls.call_contexts[int(index)]
                if call.crossing == UNKNOWN_CROSSING:
                    call = replace(call, crossing=crossings.get(call.name, crossings[""]))
                chain = [keys.setdefault(key, len(keys)) for key in call.classes(quantity)]
                chains.append(chain + chain[-1:] * (_LEVELS - len(chain)))
                traces.append(trace)
                values.append(float(value) / call.scale(quantity))
        self.names = list(keys)
        self.chains = np.array(chains, dtype=np.int64)
        self.trace = np.array(traces, dtype=np.int64)
        self.value = np.array(values, dtype=np.float64)

    def shared_classes(self, machine: np.ndarray) -> np.ndarray:
        """Of each row the narrowest class that more than one machine has."""
        of = machine[self.trace]
        found = np.zeros(len(of), dtype=np.int64)
        for level in range(self.chains.shape[1]):
            key = self.chains[:, level]
            least, most = np.full(len(self.names), len(machine)), np.full(len(self.names), -1)
            np.minimum.at(least, key, of)
            np.maximum.at(most, key, of)
            found = np.where((least < most)[key] | (level == 0), key, found)
        return found


def usual_crossings(data: Sequence[host_data.HostData]) -> dict[str, str]:
    """By name, where modules were recorded; "" for the rest."""
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for one in data:
        for call in one.calls.call_contexts:
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
        factors = trace_factors(rows, means, machine)
        factors -= middle(factors, machine)
    table = host.HostTable(
        means={quantity: named(rows[quantity].names, means[quantity]) for quantity in rows},
        crossings=crossings,
        machines=known_machines(factors, data),
        model_covariance=model_covariance(factors, data),
        parts=fit_parts(factors, data),
    )
    return table, factors


def named(names: Sequence[str], values: np.ndarray) -> dict[str, float]:
    pairs = zip(names, np.round(values, 1).tolist(), strict=True)
    return dict(sorted(pairs))


def class_means(rows: Rows, factor: np.ndarray, machine: np.ndarray) -> np.ndarray:
    """Of every key, the widest first: each drawn towards the one above it."""
    value = rows.value / factor[rows.trace]
    of_machine = machine[rows.trace]
    logs = np.zeros(len(rows.names))
    for level in range(rows.chains.shape[1]):
        key = rows.chains[:, level]
        total, weight = _over_machines(key, of_machine, value, len(rows.names))
        if level:
            above = np.zeros(len(rows.names), dtype=np.int64)
            above[key] = rows.chains[:, level - 1]
            total, weight = total + PRIOR_MACHINES * logs[above], weight + PRIOR_MACHINES
        # Short chains repeat their last class, which has its mean already.
        here = np.unique(key if not level else key[key != rows.chains[:, level - 1]])
        logs[here] = total[here] / weight[here]
    return np.exp(logs)


def _over_machines(
    key: np.ndarray, machine: np.ndarray, value: np.ndarray, keys: int
) -> tuple[np.ndarray, np.ndarray]:
    """By key: the weighted sum of the logarithms of the machines' means, and of the weights."""
    order = np.lexsort((value, machine, key))
    key, machine, value = key[order], machine[order], value[order]
    begins = np.flatnonzero(np.r_[True, (np.diff(key) != 0) | (np.diff(machine) != 0)])
    counts = np.diff(np.r_[begins, len(key)])
    median = np.maximum(value[begins + counts // 2], LEAST_NS)
    clipped = np.minimum(value, MOST * np.repeat(median, counts))
    mean = np.maximum(np.add.reduceat(clipped, begins) / counts, LEAST_NS)
    weight = counts / (counts + ENOUGH_CALLS)
    total = np.bincount(key[begins], weight * np.log(mean), minlength=keys)
    return total, np.bincount(key[begins], weight, minlength=keys)


def trace_factors(
    rows: dict[str, Rows], means: dict[str, np.ndarray], machine: np.ndarray
) -> np.ndarray:
    """Logarithms of measured over expected times of each group and trace, as `host.log_ratios`.

    Expected by classes that several machines have: one that a machine has alone follows it.
    """
    found = np.zeros((len(machine), len(host.GROUPS)))
    for place, group in enumerate(host.GROUPS):
        traces, ratios, weights = [], [], []
        for quantity, one in rows.items():
            if host.QUANTITIES[quantity] == group:
                pair = one.trace * len(one.names) + one.shared_classes(machine)
                pairs, index = np.unique(pair, return_inverse=True)
                measured = np.bincount(index, one.value)
                expected = np.bincount(index) * means[quantity][pairs % len(one.names)]
                traces.append(pairs // len(one.names))
                ratios.append(np.log(np.maximum(measured, 1.0) / expected))
                weights.append(expected)
        trace, ratio, weight = map(np.concatenate, (traces, ratios, weights))
        for one_trace in np.unique(trace).tolist():
            mine = trace == one_trace
            found[one_trace, place] = host.weighted_median(ratio[mine], weight[mine])
    return found


def middle(factors: np.ndarray, machine: np.ndarray) -> np.ndarray:
    """Of the machines: half are slower."""
    return np.median([factors[machine == one].mean(axis=0) for one in np.unique(machine)], axis=0)


def known_machines(
    factors: np.ndarray, data: Sequence[host_data.HostData]
) -> tuple[host.Machine, ...]:
    """Each machine once for each profiler that it was recorded with."""
    groups: dict[tuple[str, str, str], list[np.ndarray]] = defaultdict(list)
    for one, row in zip(data, factors, strict=True):
        groups[one.source.machine, one.source.profiler, one.source.device].append(row)
    return tuple(
        host.Machine(profiler, host.is_recent(device_named(device)), np.mean(rows, axis=0))
        for (_, profiler, device), rows in groups.items()
    )


def fit_parts(factors: np.ndarray, data: Sequence[host_data.HostData]) -> dict[str, host.PartMean]:
    """Medians over machines of what surrounds a step, against their gaps."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one, row in zip(data, factors, strict=True):
        for name, ns in one.parts.items():
            found[name][one.source.machine].append(np.log(max(ns, 1.0)) - row[0])
    parts = {}
    for name, machines in sorted(found.items()):
        logs = np.array([np.median(each) for each in machines.values()])
        deviation = float(logs.std(ddof=1)) if len(logs) > 2 else FEW_MACHINES_DEVIATION
        ns = round(float(np.exp(np.median(logs))), 1)
        parts[name] = host.PartMean(ns, round(max(deviation, LEAST_DEVIATION), 3), len(logs))
    return parts


def model_covariance(factors: np.ndarray, data: Sequence[host_data.HostData]) -> np.ndarray:
    """Of the factors' logarithms over models on one machine, under one profiler."""
    groups = defaultdict(list)
    for one, row in zip(data, factors, strict=True):
        groups[one.source.machine, one.source.profiler].append((one.source.model, row))
    total, degrees = np.diag(np.square(MODEL_PRIOR)) * PRIOR_DEGREES, PRIOR_DEGREES
    for entries in groups.values():
        models = {model for model, _ in entries}
        rows = np.array([np.mean([r for m, r in entries if m == one], axis=0) for one in models])
        off = rows - rows.mean(axis=0)
        total += off.T @ off
        degrees += len(rows) - 1
    return total / degrees * MODELS_LEFT_OUT


def as_json(table: host.HostTable, data: Sequence[host_data.HostData]) -> dict[str, Any]:
    return {
        "schema": "torchtraceap.host_times/1",
        "made": datetime.date.today().isoformat(),
        "sources": [
            {
                "trace": one.source.path,
                "machine": one.source.machine,
                "model": one.source.model,
                "device": one.source.device,
                "profiler": one.source.profiler,
                "calls": len(one.calls),
            }
            for one in data
        ],
        "means": table.means,
        "crossings": table.crossings,
        "machines": [
            {
                "profiler": each.profiler,
                "is_recent": each.is_recent,
                "factors": np.round(each.factors, 4).tolist(),
            }
            for each in table.machines
        ],
        "model_covariance": np.round(table.model_covariance, 5).tolist(),
        "parts": {name: asdict(each) for name, each in table.parts.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args()
    data = host_data.load_sources(chosen.traces)
    table, factors = fit(data)
    for one, row in zip(data, np.exp(factors), strict=True):
        print(f"{one.source.path:60} {len(one.calls):6}", *(f"{each:6.2f}" for each in row))
    chosen.out.write_text(json.dumps(as_json(table, data)) + "\n", "utf-8")


if __name__ == "__main__":
    main()
