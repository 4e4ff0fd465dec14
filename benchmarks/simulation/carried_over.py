"""How far the duration models carry: to kernels of traces, to other machines, and their intervals.

Every function leaves out what it tests: one trace's program (`trace_kernels.source_of`), one GPU
or one chip at a time. `durations.py` prints the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np

import collective_fit
import duration_data
import family_fit
import fit_durations
import gemm_fit
import neusight_rows
import trace_kernels
import vector_fit
from torchtraceap.ops.devices import load_devices
from torchtraceap.ops.durations import families, gemm, kernels, scaling
from torchtraceap.ops.durations.estimate import UnknownDurationError
from trace_kernels import Kernels

Line = dict[str, Any]


def _line(label: str, error: np.ndarray, inside: np.ndarray | None, **more: Any) -> Line:
    """`error` is the logarithm of measured over estimated time."""
    far = np.abs(np.expm1(-error))
    line = {"rows": label, "n": len(error), **more, "median error": 100 * float(np.median(far)),
            "MAPE": 100 * float(far.mean())}  # fmt: skip
    return line if inside is None else line | {"interval holds": float(inside.mean())}


# Products ----------------------------------------------------------------------------------------


def products_of_traces(folder: Path, rows: Kernels) -> list[Line]:
    """Products of traces whose program was left out, by architecture and type."""
    sums = neusight_rows.test_rows(folder)
    chosen = [gemm_fit.of_matrix_units(rows), vector_fit.of_vector_units(rows)]
    shipped = gemm.load_products()
    lines = []
    for kind, part in zip(("matrix", "vector"), chosen, strict=True):
        told = np.empty((len(part), 3))
        for source in np.unique(part.source):
            here = part.source == source
            others = part.take(~here)
            if kind == "matrix":
                transfer = gemm_fit.fit_transfer(others, shipped.models)
                products = gemm.Products(shipped.models, transfer, shipped.vector)
            else:
                vector = vector_fit.shipped_model(sums, others)
                products = gemm.Products(shipped.models, shipped.transfer, vector)
            told[here] = _asked(part.take(here), products)
        lines += _by_type(part, told)
    return lines


def _asked(rows: Kernels, products: gemm.Products) -> np.ndarray:
    """Time and both ends of the interval, one row each."""
    shape, told = gemm_fit.shapes_of(rows), np.empty((len(rows), 3))
    for at in range(len(rows)):
        dtype = rows.peak[at].split()[0]
        found = gemm.estimate_gemms(
            shape[at], dtype, load_devices()[rows.device[at]], products=products
        )
        told[at] = found.ns[0], found.low_ns[0], found.high_ns[0]
    return told


def _by_type(rows: Kernels, told: np.ndarray) -> list[Line]:
    error = np.log(rows.ns / told[:, 0])
    inside = (rows.ns >= told[:, 1]) & (rows.ns <= told[:, 2])
    labels = np.array([f"{load_devices()[d].name}, {p}" for d, p in
                       zip(rows.device, rows.peak, strict=True)])  # fmt: skip
    roofline = np.log(rows.ns / np.maximum(rows.moving, rows.computing))
    groups = [(label, labels == label) for label in np.unique(labels)]
    groups.append(("all on " + rows.peak[0].split()[1] + " units", np.ones(len(rows), bool)))
    return [
        _line(label, error[own], inside[own], programs=len(np.unique(rows.source[own])),
              roofline=100 * float(np.median(np.abs(np.expm1(-roofline[own])))))
        for label, own in groups
    ]  # fmt: skip


def neusight_products(folder: Path) -> list[Line]:
    """Sums of FC and BMM: NeuSight's own split, each GPU left out, and a model left out on a GPU
    that is known."""
    rows = neusight_rows.test_rows(folder)
    if not rows:
        return []
    held = np.array([row.held_out for row in rows])
    names = np.array([row.device.name for row in rows])
    models = np.array([row.model for row in rows])
    told = {split: {kind: np.empty(len(rows)) for kind in vector_fit.KINDS} for split in SPLITS}
    for split, groups in (("unseen GPU or model", [held]), ("each GPU left out", _each(names)),
                          ("unseen model, GPU known", _each(models)),
                          ("as shipped", [])):  # fmt: skip
        # What is shipped has seen all of them.
        for group in groups or [np.ones(len(rows), dtype=bool)]:
            seen = _chosen(rows, ~group) if groups else rows
            fitted = vector_fit.fit(seen)
            for kind in vector_fit.KINDS:
                told[split][kind][group] = fitted.ms(_chosen(rows, group), kind)
    published = neusight_rows.published_errors(folder)
    return [
        _sum_line(rows, kind, split, told[split][kind], published[kind], held)
        for kind in vector_fit.KINDS
        for split in SPLITS
    ]


SPLITS = ("unseen GPU or model", "each GPU left out", "unseen model, GPU known", "as shipped")


def _each(values: np.ndarray) -> list[np.ndarray]:
    return [values == value for value in np.unique(values)]


def _chosen(rows: Sequence[neusight_rows.Row], chosen: np.ndarray) -> list[neusight_rows.Row]:
    return [row for row, one in zip(rows, chosen, strict=True) if one]


def _sum_line(
    rows: Sequence[neusight_rows.Row],
    kind: str,
    split: str,
    told: np.ndarray,
    published: float,
    held: np.ndarray,
) -> Line:
    """On the rows that NeuSight's paper marks as out of distribution."""
    measured = np.array([row.measured[kind] for row in rows])
    theirs = np.array([row.theirs[kind] for row in rows])
    mape = [100 * float(np.abs(one / measured - 1)[held].mean()) for one in (told, theirs)]
    return {"rows": f"{kind}: {split}", "n": int(held.sum()), "ours MAPE": mape[0],
            "NeuSight same rows": mape[1], "NeuSight published": published}  # fmt: skip


# Families ----------------------------------------------------------------------------------------


def families_of_traces(rows: Kernels) -> list[Line]:
    """Kernels of traces whose program neither the model nor its interval has seen."""
    ns, inside = family_fit.covered(rows)
    error = np.log(rows.ns / ns)
    sort = family_fit.sorts(rows)
    weight = 1.0 / np.bincount(sort)[sort]
    lines = []
    for family in [*np.unique(rows.family).tolist(), "all"]:
        own = (rows.family == family) | (family == "all")
        if own.sum() < 5:
            continue
        programs = [own & (rows.source == source) for source in np.unique(rows.source[own])]
        shares = [np.average(inside[one], weights=weight[one]) for one in programs]
        line = _line(family, error[own], None, sorts=len(np.unique(sort[own])),
                     programs=len(programs))  # fmt: skip
        lines.append(line | {
            "interval holds, kinds": float(inside[own].mean()),
            "interval holds, sorts": float(np.average(inside[own], weights=weight[own])),
            "interval holds, programs": float(np.mean(shares)),
        })  # fmt: skip
    return lines


# From one GPU to another -------------------------------------------------------------------------

FAMILIES = {"softmax": "softmax", "layer_norm": "normalization_forward"}
# Shorter calls are mostly start, which the host decides.
LEAST_MOVING_NS = 5e4


def ratios(folder: Path, traces: Path) -> list[Line]:
    """Ratios of times on two GPUs, by models that have seen neither: the families', whose traces
    hold no such rows, and their own (products: as shipped)."""
    pairs = {"fp32 kernels on five GPUs": _ratios_of_rows(folder),
             "programs in traces of two GPUs": _ratios_of_traces(traces)}  # fmt: skip
    return [
        _line(label, np.log(measured / told[:, 0]),
              (told[:, 1] <= measured) & (measured <= told[:, 2]))
        for label, (told, measured) in pairs.items()
        if len(measured)
    ]  # fmt: skip


def _ratios_of_rows(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Value and both ends, and the measured ratio, for every second row that two GPUs have."""
    rows = duration_data.kernel_rows(folder)
    models = fit_durations.kernel_models(rows)
    calls: dict[tuple[str, float, float], dict[str, tuple[Any, float]]] = {}
    for (op, name), measured in rows.items():
        device = duration_data.device_of(name)
        if device is None:
            continue
        for batch, width, ns in measured[::2]:
            moved = 4.0 * kernels.tensors_moved(op) * batch * width
            if 1e9 * moved / device.bandwidth > LEAST_MOVING_NS:
                family = FAMILIES.get(op, "elementwise")
                found = families.estimate_work(family, 0.0, moved, "fp32", device)
                running = ns - models[op, device.id].start_ns
                calls.setdefault((op, batch, width), {})[name] = found, running
    told, ratio = [], []
    for times in calls.values():
        for (before, old), (after, new) in permutations(times.values(), 2):
            told.append(scaling.ratio_of(before, after)[:3])
            ratio.append(new / old)
    return np.array(told), np.array(ratio)


def _ratios_of_traces(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    told, ratio = [], []
    for call, times in trace_kernels.on_two_devices(folder):
        for old, new in combinations(sorted(times), 2):
            try:
                found = scaling.estimate_ratio(call, load_devices()[old], load_devices()[new])
            except UnknownDurationError:
                continue
            told.append(found[:3])
            ratio.append(times[new] / times[old])
    return np.array(told), np.array(ratio)


# Intervals of the other models --------------------------------------------------------------------


def collective_intervals(folder: Path) -> list[Line]:
    """Intervals from the tables of all other devices, tested on those of each device."""
    series = [*duration_data.nccl_series(folder), *duration_data.vtrain_series(folder)]
    series = [one for one in series if duration_data.known(one.device)]
    tests = {
        "a table for another version, laboratory or board": collective_fit.other_versions,
        "a number of ranks between two": collective_fit.left_out_ranks,
        "another kind, as many bytes over each link": collective_fit.other_kinds,
    }
    lines = []
    chips = np.array([load_devices()[one.device].architecture for one in series])
    for label, errors in tests.items():
        logs, inside = [], []
        for chip in np.unique(chips):
            own = [one for one, of in zip(series, chips, strict=True) if of == chip]
            rest = [one for one, of in zip(series, chips, strict=True) if of != chip]
            found, others = errors(own), errors(rest)
            if found and others:
                logs += [one for _, one in found]
                inside.append(
                    _holds(found, collective_fit.ends_of(others, collective_fit.OF_FEW_CHIPS))
                )
        lines.append(_line(label, np.concatenate(logs), np.concatenate(inside)))
    switched = [s for s in series if collective_fit.has_switch(load_devices()[s.device])]
    left_out = collective_fit.left_out_chips([s for s in switched if s.dtype != "int8"])
    return [*lines, _line("links, each chip left out", np.concatenate([e for _, e in left_out]),
                          None)]  # fmt: skip


def _holds(
    found: Iterable[collective_fit.Errors], ends: collective_fit.ErrorInterval
) -> np.ndarray:
    sizes, logs = (np.concatenate(side) for side in zip(*found, strict=True))
    low, high = ends.factors(sizes)
    return np.asarray((np.exp(logs) >= low) & (np.exp(logs) <= high))


def kernel_intervals(folder: Path) -> list[Line]:
    """Intervals from the left-out lengths of four GPUs, tested on those of the fifth; and of four
    GPUs that were left out, on the fifth."""
    rows = duration_data.kernel_rows(folder)
    known: dict[str, dict[str, np.ndarray]] = {}
    unseen: dict[str, dict[str, np.ndarray]] = {}
    for (op, name), measured in rows.items():
        device = duration_data.device_of(name)
        if device is not None:
            known.setdefault(op, {})[name] = fit_durations.left_out_lengths(op, measured, device)
            of_op = {key: value for key, value in rows.items() if key[0] == op}
            pooled = fit_durations.kernel_models(of_op, name)[op, ""]
            told = fit_durations.called_ns(pooled, measured, device)
            unseen.setdefault(op, {})[name] = np.log(measured[:, 2] / told)
    lines = []
    for label, errors in (("GPU known, lengths beyond", known), ("unseen GPU", unseen)):
        for kind in ("EW", "softmax", "layer_norm"):
            ops = [
                op
                for op in errors
                if op == kind or (kind == "EW" and op not in fit_durations.KERNEL_FREE)
            ]
            logs, inside = [], []
            for op in ops:
                for name, own in errors[op].items():
                    rest = [one for other, one in errors[op].items() if other != name]
                    low, high = fit_durations.kernel_ends(rest, unseen=errors is unseen)
                    logs.append(own)
                    inside.append((own >= low) & (own <= high))
            lines.append(_line(f"{kind}: {label}", np.concatenate(logs), np.concatenate(inside)))
    return lines
