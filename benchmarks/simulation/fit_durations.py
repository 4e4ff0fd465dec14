#!/usr/bin/env python3
"""Fits the duration models that the package ships, from folders of public measurements.

    python benchmarks/simulation/fit_durations.py ORACLES [--traces FOLDER] [--out FOLDER]

writes collectives.json, gemm.json and kernels.json, and families.json where a folder of traces is
given; `duration_data.py` says what ORACLES must hold, and what it lacks is left out. Products of
matrices need scikit-learn, families SciPy. The functions are used by
durations.py, which measures the error on rows that were left out of the fit.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import collective_fit
import curves
import duration_data
import family_fit
import gemm_fit
import neusight_rows
import trace_kernels
import tree_text
import vector_fit
from torchtraceap.ops.devices import Device
from torchtraceap.ops.durations import gemm, kernels, trees
from torchtraceap.ops.durations.collectives import Curve

DATA = Path(gemm.__file__).parent / "data"
# Origin of the measurements by source: repository, commit and licence.
ORIGINS = {
    "aiconfigurator": ("ai-dynamo/aiconfigurator", "095f58a51", "Apache-2.0"),
    "vtrain": ("VIA-Research/vTrain", "f8dda84", "MIT"),
    "vidur": ("microsoft/vidur", "7d47513", "MIT"),
    "neusight": ("sitar-lab/NeuSight", "6945927", "MIT"),
}
SAYS = {
    "aiconfigurator": "nccl-tests (ai-dynamo/aiconfigurator)",
    "vtrain": "nccl-tests, all-reduce (VIA-Research/vTrain)",
    "vidur": "timed from Python, host overhead included (microsoft/vidur)",
}
# Measurements of many sizes are thinned until the rest tells them within this error.
TOLERANCE = 0.01
VIDUR_PER_OCTAVE = 8
TREES = {
    "learning_rate": 0.05,
    "max_leaf_nodes": 63,
    "max_iter": 800,
    "min_samples_leaf": 3,
    "max_features": 0.1,
    "l2_regularization": 1.0,
    "early_stopping": False,
    "random_state": 0,
}
# For a few hundred rows.
FEW_TREES = TREES | {"max_leaf_nodes": 8, "max_iter": 400, "min_samples_leaf": 5}
# Kernels: logarithms of the start (ns), the factor and the spilled share, the trend, and the
# logarithm of the factor of narrow rows; where the search begins, and how far a number may go from
# there without proof. By operator: which are fitted.
KERNEL_BEGIN = (np.log(20e3), np.log(1.4), np.log(0.4), 0.0, np.log(1.6))
KERNEL_LOOSE = (0.7, 0.4, 0.25, 0.05, 0.3)
KERNEL_HELD = 0.15
OF_FEW_GPUS = 2.0
# What the form of layer norm misses: bins of lengths, rows that a bin needs, and the octaves in
# which it fades beyond them.
MISSED_BINS = 12
FEWEST_MISSED = 5
FADING = 0.15
KERNEL_FREE = {
    "softmax": (True, True, False, True, True),
    "layer_norm": (True, True, True, False, False),
}
FAMILY_NUMBERS = ("bend", "memory", "compute", "amd_start", "amd_work")


def provenance(source: str, rows: int, **more: Any) -> dict[str, Any]:
    repository, commit, licence = ORIGINS[source]
    return {"repository": repository, "commit": commit, "licence": licence, "rows": rows, **more}


def curve_of(series: duration_data.Series, tolerance: float = TOLERANCE) -> Curve:
    """The curve of one series, as dense as its source warrants."""
    sizes, ns = series.arrays()
    if series.source == "vidur":
        return curves.fit_curve(sizes, ns, tolerance=tolerance, per_octave=VIDUR_PER_OCTAVE)
    return curves.fit_curve(sizes, ns, tolerance=tolerance if len(sizes) > 100 else 0.0)


def fit_collectives(folder: Path) -> dict[str, Any]:
    """All tables of machines whose links the name of the device tells."""
    series = duration_data.nccl_series(folder)
    series += duration_data.vtrain_series(folder)
    series += [s for s in duration_data.vidur_series(folder) if "pairwise" not in s.file]
    series = [s for s in series if duration_data.known(s.device)]
    used = [name for name in SAYS if any(s.source == name for s in series)]
    return {
        "schema": "torchtraceap.collectives/3",
        "made": datetime.date.today().isoformat(),
        "sources": {
            name: provenance(
                name,
                sum(len(s.sizes) for s in series if s.source == name),
                files=sorted({s.file for s in series if s.source == name}),
                rank=rank,
                says=SAYS[name],
            )
            for rank, name in enumerate(used)
        },
        **_rounded(collective_fit.fit_beside_tables(series)),
        "tables": [_table(one) for one in series],
    }


def _table(series: duration_data.Series) -> dict[str, Any]:
    curve = curve_of(series)
    return {
        "source": series.source,
        "device": series.device,
        "kind": series.kind,
        "ranks": series.ranks,
        "nodes": series.nodes,
        "dtype": series.dtype,
        "library": series.library,
        "bytes": [int(size) for size in curve.sizes],
        "ns": [round(float(ns)) for ns in curve.ns],
    }


def fit_products(
    shapes: np.ndarray, ns: np.ndarray, dtype: str, device: Device, **settings: Any
) -> gemm.GemmModel:
    """A model of products of matrices from rows of (batch, m, n, k) and their times.

    `settings` go to scikit-learn's HistGradientBoostingRegressor.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor

    rows = gemm.gemm_features(shapes, dtype, device)
    target = np.log(ns / gemm.base_ns(shapes, dtype, device))
    chosen = settings or (TREES if len(ns) > 2000 else FEW_TREES)
    fitted = HistGradientBoostingRegressor(**chosen).fit(rows, target)
    encoded = tree_text.encode_trees(*_nodes(fitted), rows.shape[1])
    return gemm.GemmModel(
        device=device,
        dtype=dtype,
        trees=trees.BoostedTrees.from_json(encoded),
        largest=tuple(shapes.max(axis=0).tolist()),
        smallest=tuple(shapes.min(axis=0).tolist()),
        source="",
    )


def _nodes(fitted: Any) -> tuple[list[tree_text.Node], float]:
    """scikit-learn's trees as ours."""

    def node(rows: np.ndarray, index: int) -> tree_text.Node:
        row = rows[index]
        if row["is_leaf"]:
            return tree_text.Node(value=float(row["value"]))
        return tree_text.Node(
            feature=int(row["feature_idx"]),
            cut=float(row["num_threshold"]),
            left=node(rows, row["left"]),
            right=node(rows, row["right"]),
        )

    roots = [node(tree.nodes, 0) for (tree,) in fitted._predictors]
    return roots, float(np.ravel(fitted._baseline_prediction)[0])


def fit_gemm(folder: Path, traces: Path | None) -> dict[str, Any]:
    """One model per file of measured products; what carries them over to other devices, from
    traces, or as it is shipped where there are none."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    models = []
    for one in duration_data.products(folder):
        rows = gemm.gemm_features(one.shapes, one.dtype, one.device)
        target = np.log(one.ns / gemm.base_ns(one.shapes, one.dtype, one.device))
        settings = TREES if len(target) > 2000 else FEW_TREES
        fitted = HistGradientBoostingRegressor(**settings).fit(rows, target)
        models.append(
            {
                "device": one.device.id,
                "dtype": one.dtype,
                "source": provenance("aiconfigurator", len(target), file=one.file),
                "says": f"fitted to {len(target):,} linear layers on {one.device.name} "
                "(ai-dynamo/aiconfigurator)",
                "smallest": one.shapes.min(axis=0).tolist(),
                "largest": one.shapes.max(axis=0).tolist(),
                "trees": tree_text.encode_trees(*_nodes(fitted), rows.shape[1]),
            }
        )
    return {
        "schema": "torchtraceap.gemm/3",
        "made": datetime.date.today().isoformat(),
        "models": models,
        **_carried_over(folder, models, traces),
    }


def _carried_over(
    folder: Path, models: list[dict[str, Any]], traces: Path | None
) -> dict[str, Any]:
    if traces is None:
        shipped = json.loads((DATA / "gemm.json").read_text(encoding="utf-8"))
        return {name: shipped[name] for name in ("transfer", "vector")}
    kernels_of_traces = trace_kernels.kernels_of(traces)
    on_matrix = gemm_fit.of_matrix_units(kernels_of_traces)
    transfer = gemm_fit.fit_transfer(
        on_matrix, [gemm.gemm_model_from_json(entry) for entry in models]
    )
    sums = neusight_rows.test_rows(folder)
    vector = vector_fit.shipped_model(sums, vector_fit.of_vector_units(kernels_of_traces))
    source = provenance("neusight", len(sums))
    return {
        "transfer": _rounded(asdict(transfer)),
        "vector": {"source": source, **_rounded(asdict(vector))},
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return round(float(value), 4) if isinstance(value, float) else value


def fit_kernel(op: str, rows: np.ndarray, device: Device) -> kernels.KernelModel:
    """Start and factors of one operator on one device, from rows of (B, H, ns)."""
    from scipy.optimize import minimize

    columns, ns = rows[:, 1], rows[:, 2]
    moved = kernels.tensors_moved(op) * 4.0 * rows[:, 0] * columns
    free = KERNEL_FREE.get(op, (True, True, False, False, False))

    def model(numbers: np.ndarray) -> kernels.KernelModel:
        values = np.array(KERNEL_BEGIN, dtype=np.float64)
        values[list(free)] = numbers
        start, factor, spilled, trend, narrow = values
        return kernels.KernelModel(
            op, device.id, float(np.exp(start)), float(np.exp(factor)),
            float(np.exp(spilled)) if free[2] else 0.0, float(trend), float(np.exp(narrow)),
            "", (0.0, 0.0),
        )  # fmt: skip

    def loss(numbers: np.ndarray) -> float:
        one = model(numbers)
        error = np.log(ns / (one.start_ns + one.moving_ns(moved, columns, device)))
        from_begin = (numbers - begin) / np.array(KERNEL_LOOSE)[list(free)]
        return float(np.sqrt(error**2 + 4e-4).sum() + KERNEL_HELD * (from_begin**2).sum())

    begin = np.array(KERNEL_BEGIN)[list(free)]
    settings = {"maxiter": 4000, "maxfev": 4000, "xatol": 1e-4, "fatol": 1e-4}
    found = model(minimize(loss, begin, method="Nelder-Mead", options=settings).x)
    return with_missed(found, rows, device) if op == "layer_norm" else found


def with_missed(
    model: kernels.KernelModel, rows: np.ndarray, device: Device
) -> kernels.KernelModel:
    """What the form misses between the measured lengths, by medians over equally many rows."""
    x = np.log2(rows[:, 1])
    moved = kernels.tensors_moved(model.op) * 4.0 * rows[:, 0] * rows[:, 1]
    moving = model.moving_ns(moved, rows[:, 1], device)
    missed = np.log(np.maximum(rows[:, 2] - model.start_ns, 0.2 * rows[:, 2]) / moving)
    edges = np.quantile(x, np.linspace(0.0, 1.0, MISSED_BINS + 1))
    widths, values = [float(x.min()) - FADING], [0.0]
    for low, high in pairwise(edges):
        inside = (x > low) & (x <= high)
        if inside.sum() >= FEWEST_MISSED:
            value = float(np.median(missed[inside]))
            held = inside.sum() / (inside.sum() + FEWEST_MISSED)
            widths.append(float(np.median(x[inside])))
            values.append(held * value)
    widths.append(float(x.max()) + FADING)
    return replace(model, widths=tuple(widths), missed=(*values, 0.0))


def pool(models: Sequence[kernels.KernelModel]) -> kernels.KernelModel:
    """The mean of several devices' models of one operator, for a device without one."""
    rows = np.array([[m.start_ns, m.factor, m.spilled, m.trend, m.narrow] for m in models])
    start, factor, spilled, trend, narrow = (
        np.median(rows[:, 0]), np.exp(np.log(rows[:, 1]).mean()), *rows[:, 2:].mean(axis=0)
    )  # fmt: skip
    return kernels.KernelModel(
        models[0].op, "", float(start), float(factor), float(spilled), float(trend),
        float(narrow), "", (0.0, 0.0),
    )  # fmt: skip


def called_ns(model: kernels.KernelModel, rows: np.ndarray, device: Device) -> np.ndarray:
    """Times of calls, with the start that the host sees, for rows of (B, H, ns)."""
    moved = kernels.tensors_moved(model.op) * 4.0 * rows[:, 0] * rows[:, 1]
    return model.start_ns + model.moving_ns(moved, rows[:, 1], device)


def left_out_lengths(op: str, rows: np.ndarray, device: Device) -> np.ndarray:
    """Logarithms of measured over modelled time, for the longest and the shortest quarter of the
    lengths by what was fitted to the others."""
    low, high = np.quantile(rows[:, 1], [0.25, 0.75])
    found = []
    for held in (rows[:, 1] > high, rows[:, 1] < low):
        told = called_ns(fit_kernel(op, rows[~held], device), rows[held], device)
        found.append(np.log(rows[held, 2] / told))
    return np.concatenate(found)


def kernel_models(
    rows: dict[tuple[str, str], np.ndarray], leave_out: str = ""
) -> dict[tuple[str, str], kernels.KernelModel]:
    """Models by operator and id of the device; `leave_out` is the name of a device."""
    found: dict[tuple[str, str], kernels.KernelModel] = {}
    for (op, name), measured in rows.items():
        device = duration_data.device_of(name)
        if device is not None and name != leave_out:
            found[op, device.id] = fit_kernel(op, measured, device)
    for op in sorted({op for op, _ in found}):
        found[op, ""] = pool([model for (one, _), model in found.items() if one == op])
    return found


def fit_kernels(folder: Path) -> dict[str, Any]:
    """All element-wise operators, softmax and layer norm, with intervals by operator: lengths and
    devices that were left out."""
    rows = duration_data.kernel_rows(folder)
    known: dict[str, list[np.ndarray]] = defaultdict(list)
    unseen: dict[str, list[np.ndarray]] = defaultdict(list)
    for (op, name), measured in rows.items():
        device = duration_data.device_of(name)
        if device is not None:
            known[op].append(left_out_lengths(op, measured, device))
            others = kernel_models({k: v for k, v in rows.items() if k[0] == op}, name)
            told = called_ns(others[op, ""], measured, device)
            unseen[op].append(np.log(measured[:, 2] / told))
    return {
        "schema": "torchtraceap.kernels/2",
        "made": datetime.date.today().isoformat(),
        "source": provenance("neusight", sum(map(len, rows.values()))),
        "says": "fp32 kernels on P100, V100, P4, T4 and A100 (sitar-lab/NeuSight)",
        "models": [
            {
                "op": model.op,
                "device": model.device,
                "start_ns": round(model.start_ns),
                **{name: round(getattr(model, name), 4)
                   for name in ("factor", "spilled", "trend", "narrow")},
                **({"widths": [round(x, 3) for x in model.widths],
                    "missed": [round(x, 4) for x in model.missed]} if model.widths else {}),
                "known": kernel_ends(known[model.op])
                if model.device
                else kernel_ends(unseen[model.op], unseen=True),
            }
            for model in kernel_models(rows).values()
        ],
    }  # fmt: skip


def kernel_ends(errors: Sequence[np.ndarray], *, unseen: bool = False) -> list[float]:
    """10th and 90th percentile, but no nearer than kernels of one shape differ between runs; for
    GPUs that were not measured wider the fewer were."""
    wider = 1.0 + OF_FEW_GPUS / len(errors) if unseen else 1.0
    low, high = wider * np.quantile(np.concatenate(errors), [0.1, 0.9])
    return [round(min(float(low), -gemm_fit.LEAST), 3), round(max(float(high), gemm_fit.LEAST), 3)]


def fit_families(traces: Path) -> dict[str, Any]:
    """How fast the kernels of each family run in the traces of a folder."""
    rows = trace_kernels.kernels_of(traces)
    models = family_fit.fit(rows)
    models = family_fit.with_intervals(models, rows, *family_fit.left_out(rows))
    classes = np.array([family_fit.CLASS_OF.get(family, "") for family in rows.family])

    def evidence(family: str) -> dict[str, Any]:
        """The kernels behind a model: the family's, else those of its class, else all."""
        kind = family_fit.CLASS_OF.get(family, "")
        own, alike = rows.family == family, classes == kind
        named, seen = next(
            (one for one in ((family, own), (kind, alike)) if one[0] and one[1].any()),
            ("all families", np.ones(len(rows), dtype=bool)),
        )
        sources = len(np.unique(rows.source[seen]))
        return {"kind": named, "rows": int(seen.sum()), "sources": sources}

    return {
        "schema": "torchtraceap.families/1",
        "made": datetime.date.today().isoformat(),
        "source": {
            "traces": sorted(set(rows.source.tolist())),
            "devices": sorted(set(rows.device.tolist())),
            "rows": len(rows),
        },
        "says": "work over the peaks with the efficiency of {rows} kinds of calls ({kind}) in "
        "{sources} public traces",
        "models": [
            {
                "family": family,
                **evidence(family),
                "start_ns": round(model.start_ns),
                **{name: round(getattr(model, name), 3) for name in FAMILY_NUMBERS},
                "small": model.small,
                "large": model.large,
            }
            for family, model in models.items()
            if family not in family_fit.CLASSES
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("oracles", type=Path, help="folder of measurements")
    parser.add_argument("--out", type=Path, default=DATA, help="default: the package's own")
    parser.add_argument("--only", choices=("collectives", "gemm", "kernels", "families"))
    parser.add_argument("--traces", type=Path, help="folder of traces, for the families")
    options = parser.parse_args()
    if not options.oracles.is_dir():
        print(f"no folder {options.oracles}", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    fits: dict[str, Callable[[Path], dict[str, Any]]] = {
        "collectives": fit_collectives,
        "gemm": lambda folder: fit_gemm(folder, options.traces),
        "kernels": fit_kernels,
    }
    if options.traces is not None:
        fits["families"] = lambda _: fit_families(options.traces)
    for name, fit in fits.items():
        if options.only in (None, name):
            document = fit(options.oracles)
            path = options.out / f"{name}.json"
            path.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")
            print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
