#!/usr/bin/env python3
"""Measures the duration models on rows that they were not fitted to, beside simpler models.

    python benchmarks/simulation/durations.py ORACLES [--traces FOLDER] [--json FILE] [--folds 5]

Prints one table for collectives, products of matrices, scaling to another GPU, fp32 kernels and
NeuSight's test rows, embedding bags, intervals, and kernels of a folder of traces; every line says
how many held-out rows it rests on.
`duration_data.py` says what the folder holds. Products of matrices need scikit-learn; without it
they are left out, and that is said.

MAPE is the mean absolute error in % of the measured time; GMAE is the geometric mean of the
absolute errors (at least 0.01 % each), as Lin et al. report it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

import baselines
import carried_over
import curves
import duration_data
import fit_durations
import neusight_rows
import trace_kernels
from torchtraceap.ops.durations import collectives, embedding, gemm

Line = dict[str, Any]


def mape(predicted: np.ndarray, measured: np.ndarray) -> float:
    return float(100 * np.mean(np.abs(predicted / measured - 1)))


def gmae(predicted: np.ndarray, measured: np.ndarray) -> float:
    errors = np.maximum(np.abs(predicted / measured - 1), 1e-4)
    return float(100 * np.exp(np.mean(np.log(errors))))


# Collectives ------------------------------------------------------------------------------------


def held_out_sizes(count: int, parity: int) -> np.ndarray:
    """Every other size; the first and the last are always measured."""
    held = np.arange(count) % 2 == parity
    held[[0, -1]] = False
    return held


def thinned(sizes: np.ndarray) -> np.ndarray:
    """All but those next to powers of two, for tables of equal steps."""
    powers = 2.0 ** np.arange(np.ceil(np.log2(sizes[0])), np.log2(sizes[-1]) + 0.01)
    kept = np.searchsorted(sizes, powers).clip(0, len(sizes) - 1)
    held = np.ones(len(sizes), bool)
    held[kept] = held[[0, -1]] = False
    return held


Curves = dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]]

CURVES: Curves = {
    "ours": lambda size, ns, at: curves.fit_curve(size, ns).at(at),
    "log-log": lambda size, ns, at: baselines.log_log_ns(size, tables_isotonic(ns), at),
    "sigmoid": lambda size, ns, at: baselines.fit_sigmoid(size, ns).at(at),
    "alpha-beta": lambda size, ns, at: baselines.fit_alpha_beta(size, ns).at(at),
}


def tables_isotonic(ns: np.ndarray) -> np.ndarray:
    return np.exp(curves.isotonic(np.log(ns)))


def collective_errors(
    series: Iterable[duration_data.Series],
    held: Callable[[duration_data.Series, np.ndarray], list[np.ndarray]],
    curves: Curves = CURVES,
) -> list[Line]:
    """One line per file and one for all: errors of each curve on the held-out sizes."""
    found: dict[str, dict[str, list[np.ndarray]]] = defaultdict(lambda: defaultdict(list))
    for one in series:
        sizes, ns = one.arrays()
        for test in held(one, sizes):
            found[one.file]["measured"].append(ns[test])
            for name, curve in curves.items():
                found[one.file][name].append(curve(sizes[~test], ns[~test], sizes[test]))
    lines = []
    files = sorted(found)
    for label, group in [(file, [file]) for file in files] + [("all", files)]:
        joined = {
            name: np.concatenate([part for file in group for part in found[file][name]])
            for name in ("measured", *curves)
        }
        line: Line = {"rows": label, "n": len(joined["measured"])}
        for name in curves:
            line[f"{name} GMAE"] = gmae(joined[name], joined["measured"])
            line[f"{name} MAPE"] = mape(joined[name], joined["measured"])
        lines.append(line)
    return lines if files else []


def nccl_errors(folder: Path) -> list[Line]:
    """Every other size held out, once the odd and once the even ones."""
    return collective_errors(
        duration_data.nccl_series(folder),
        lambda _, sizes: [held_out_sizes(len(sizes), parity) for parity in (0, 1)],
    )


def vtrain_errors(folder: Path) -> list[Line]:
    """Fitted to powers of two between 1 and 1024 MiB, tested on all other sizes."""
    return collective_errors(duration_data.vtrain_series(folder), lambda _, sizes: [thinned(sizes)])


def vidur_errors(folder: Path) -> list[Line]:
    """Every other size; ours takes medians over eighths of an octave."""
    ours = CURVES | {
        "ours": lambda size, ns, at: curves.fit_curve(
            size, ns, per_octave=fit_durations.VIDUR_PER_OCTAVE
        ).at(at)
    }
    return collective_errors(
        duration_data.vidur_series(folder),
        lambda _, sizes: [held_out_sizes(len(sizes), parity) for parity in (0, 1)],
        ours,
    )


def rank_errors(folder: Path) -> list[Line]:
    """A number of ranks that was left out, between two that were not."""
    series = [*duration_data.nccl_series(folder), *duration_data.vtrain_series(folder)]
    groups: dict[tuple[str, ...], dict[int, duration_data.Series]] = defaultdict(dict)
    for one in series:
        file = one.file.split("_AR_GPU")[0] if one.source == "vtrain" else one.file
        groups[file, one.kind, one.dtype][one.ranks] = one
    errors: dict[tuple[str, int], list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)
    for (_, kind, _), by_ranks in groups.items():
        for ranks in sorted(set(by_ranks) - {2, 4, 8}) or [4]:
            low, high = (2, 4) if ranks == 3 else (2, 8) if ranks == 4 else (4, 8)
            if {low, high, ranks} <= set(by_ranks):
                pair = _between_ranks(by_ranks[low], by_ranks[ranks], by_ranks[high])
                machine = by_ranks[ranks].device
                errors[f"{kind}, {machine}", ranks].append(pair)
    return [
        {
            "rows": f"{kind}, {ranks} ranks",
            "n": sum(len(m) for _, m in parts),
            "ours MAPE": mape(*(np.concatenate(side) for side in zip(*parts, strict=True))),
        }
        for (kind, ranks), parts in sorted(errors.items())
    ]


def _between_ranks(
    low: duration_data.Series, one: duration_data.Series, high: duration_data.Series
) -> tuple[np.ndarray, np.ndarray]:
    sizes, ns = one.arrays()
    shipped = [
        collectives.CollectiveTable(
            "h100_sxm", s.kind, s.ranks, 1, "", "", 0, "", curves.fit_curve(*s.arrays())
        )
        for s in (low, high)
    ]
    inside = [size for size in sizes if all(t.curve.covers(size) for t in shipped)]
    predicted = [
        collectives.estimate_collective(one.kind, size, one.ranks, "h100_sxm", tables=shipped).ns
        for size in inside
    ]
    return np.array(predicted), ns[np.isin(sizes, inside)]


# Products of matrices ---------------------------------------------------------------------------


def shape_families(shapes: np.ndarray) -> np.ndarray:
    """Products that differ by one row only (128 and 129) are one family; a number for each."""
    rows = shapes[:, 1]
    even = np.where((rows >= 17) & (rows % 2 == 1), rows - 1, rows)
    return np.unique(np.column_stack([even, shapes[:, 2:]]), axis=0, return_inverse=True)[1].ravel()


def weight_pairs(shapes: np.ndarray) -> np.ndarray:
    """A number for each pair of n and k."""
    return np.unique(shapes[:, 2:], axis=0, return_inverse=True)[1].ravel()


def folds_of(groups: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """Which fold each row is in; a group is never split."""
    order = np.random.default_rng(seed).permutation(groups.max() + 1)
    return order[groups] % folds


def gemm_errors(folder: Path, folds: int, seeds: int) -> list[Line]:
    """80 % to fit and 20 % to test, by family and by weights; few samples; the trivial models."""
    lines = []
    for one in duration_data.products(folder):
        for name, groups in (
            ("families of shapes", shape_families(one.shapes)),
            ("weights (n, k)", weight_pairs(one.shapes)),
        ):
            fold = folds_of(groups, 5, seed=0)
            predicted = np.full(len(one.ns), np.nan)
            for number in range(folds):
                test = fold == number
                model = fit_durations.fit_products(
                    one.shapes[~test], one.ns[~test], one.dtype, one.device
                )
                predicted[test] = model.predict(one.shapes[test])
            done = ~np.isnan(predicted)
            line = _product_line(one, f"{one.file}: unseen {name}", predicted, done)
            lines.append(line | {"folds": folds})
        lines.append(few_samples(one, seeds))
    return lines


def _product_line(
    one: duration_data.Products, label: str, predicted: np.ndarray, rows: np.ndarray
) -> Line:
    base = gemm.base_ns(one.shapes, one.dtype, one.device)
    constant = np.exp(np.median(np.log(one.ns[rows] / base[rows])))
    return {
        "rows": label,
        "n": int(rows.sum()),
        "ours MAPE": mape(predicted[rows], one.ns[rows]),
        "ours GMAE": gmae(predicted[rows], one.ns[rows]),
        "roofline MAPE": mape(base[rows] - gemm.LAUNCH_NS, one.ns[rows]),
        "roofline + launch MAPE": mape(base[rows], one.ns[rows]),
        "scaled MAPE": mape(constant * base[rows], one.ns[rows]),
    }


def few_samples(one: duration_data.Products, seeds: int, count: int = 500) -> Line:
    """Fitted to a few hundred products, tested on the families that none of them is of."""
    errors = []
    for seed in range(seeds):
        chosen = np.random.default_rng(seed).permutation(len(one.ns))[:count]
        families = shape_families(one.shapes)
        test = ~np.isin(families, families[chosen])
        model = fit_durations.fit_products(
            one.shapes[chosen], one.ns[chosen], one.dtype, one.device, **fit_durations.FEW_TREES
        )
        errors.append(mape(model.predict(one.shapes[test]), one.ns[test]))
    return {
        "rows": f"{one.file}: {count} samples, mean of {seeds} seeds",
        "n": int(test.sum()),
        "ours MAPE": float(np.mean(errors)),
        "worst seed": max(errors),
    }


def scaling_errors(folder: Path) -> list[Line]:
    """Time on another GPU: the measured time times a ratio; unseen weights on both GPUs.

    "ours": ratio of two fitted models. "one model": only the first GPU was measured, and its
    correction is read with the other's peaks. "roofline", "flops": ratios of those.
    """
    entries = duration_data.products(folder)
    lines = []
    for old in entries:
        for new in entries:
            if old.device.id != new.device.id and old.dtype == new.dtype:
                lines.append(_scaled(old, new))
    return lines


def _scaled(old: duration_data.Products, new: duration_data.Products) -> Line:
    _, at_old, at_new = np.intersect1d(_codes(old.shapes), _codes(new.shapes), return_indices=True)
    shapes, before, after = old.shapes[at_old], old.ns[at_old], new.ns[at_new]
    test = folds_of(weight_pairs(shapes), 5, seed=0) == 0
    fit = [
        fit_durations.fit_products(shapes[~test], ns[~test], one.dtype, one.device)
        for one, ns in ((old, before), (new, after))
    ]
    asked, dtype = shapes[test], old.dtype
    moved = gemm.GemmModel(
        new.device, dtype, fit[0].trees, fit[0].largest, fit[0].smallest, ""
    ).predict(asked)
    own = fit[0].predict(asked)
    bases = [gemm.base_ns(asked, dtype, one.device) for one in (new, old)]
    flops = old.device.matrix[dtype] / new.device.matrix[dtype]
    ratios = {
        "ours": fit[1].predict(asked) / own,
        "one model": moved / own,
        "roofline": bases[0] / bases[1],
        "flops": np.full(len(asked), flops),
    }
    line: Line = {"rows": f"{old.device.name} to {new.device.name}", "n": int(test.sum())}
    for name, ratio in ratios.items():
        line[f"{name} MAPE"] = mape(before[test] * ratio, after[test])
    return line


def _codes(shapes: np.ndarray) -> np.ndarray:
    _, m, n, k = shapes.T.astype(np.int64)
    return (m << 42) | (n << 21) | k


# fp32 kernels -----------------------------------------------------------------------------------

GROUPS = {"softmax": "softmax", "layer_norm": "LN"}


def kernel_errors(folder: Path) -> list[Line]:
    """By kind: rows of unseen lengths on a measured GPU, and a GPU that was left out."""
    rows = duration_data.kernel_rows(folder)
    pairs: dict[tuple[str, str], list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)
    for (op, name), measured in rows.items():
        kind = GROUPS.get(op, "EW")
        device = duration_data.device_of(name)
        if device is None:
            continue
        block = folds_of((measured[:, 1] // 128).astype(int), 5, seed=0)
        splits = [("unseen lengths, GPU known", block == number) for number in range(5)]
        splits += [
            ("lengths above 3,072 from those below", measured[:, 1] > 3072),
            ("lengths above 2,048 from those below", measured[:, 1] > 2048),
            ("lengths below 768 from those above", measured[:, 1] < 768),
        ]
        for split, test in splits:
            if kind == "EW" and split != splits[0][0]:
                continue
            model = fit_durations.fit_kernel(op, measured[~test], device)
            pairs[kind, split].append(_called(model, measured[test], device))
        others = fit_durations.kernel_models({k: v for k, v in rows.items() if k[0] == op}, name)
        pair = _called(others[op, ""], measured, device)
        pairs[kind, "unseen GPU (each once)"].append(pair)
        roofline = _moved(op, measured) / device.bandwidth * 1e9
        pairs[kind, "pure roofline"].append((roofline, measured[:, 2]))
    lines = []
    for (kind, split), parts in sorted(pairs.items()):
        predicted, ns = (np.concatenate(side) for side in zip(*parts, strict=True))
        lines.append(
            {
                "rows": f"{kind}: {split}",
                "n": len(ns),
                "ours MAPE": mape(predicted, ns),
                "ours GMAE": gmae(predicted, ns),
            }
        )
    return lines


def _moved(op: str, rows: np.ndarray) -> np.ndarray:
    return fit_durations.kernels.tensors_moved(op) * 4.0 * rows[:, 0] * rows[:, 1]


def _called(model: Any, rows: np.ndarray, device: Any) -> tuple[np.ndarray, np.ndarray]:
    """Times of calls (with the start that the host sees), and those measured."""
    return fit_durations.called_ns(model, rows, device), rows[:, 2]


# NeuSight's test rows ----------------------------------------------------------------------------


def neusight_errors(folder: Path) -> list[Line]:
    """Mean absolute error in % over the rows that NeuSight's paper marks as out of distribution."""
    rows = neusight_rows.test_rows(folder)
    if not rows:
        return []
    published = neusight_rows.published_errors(folder)
    models = fit_durations.kernel_models(duration_data.kernel_rows(folder))
    lines = []
    for kind in ("EW", *GROUPS.values()):
        terms = np.array([_terms(row, kind, models) for row in rows])
        for split, predicted in (
            ("unseen GPU or model", from_training_rows(rows, kind, terms)),
            ("unseen model, GPU known", from_other_models(rows, kind, terms)),
        ):
            lines.append(_neusight_line(rows, kind, split, predicted, published[kind]))
    return lines + carried_over.neusight_products(folder)


def _neusight_line(
    rows: Sequence[neusight_rows.Row],
    kind: str,
    split: str,
    predicted: np.ndarray,
    published: float,
) -> Line:
    held = np.array([row.held_out for row in rows]) & np.isfinite(predicted)
    measured = np.array([row.measured[kind] for row in rows])
    theirs = np.array([row.theirs[kind] for row in rows])
    return {
        "rows": f"{kind}: {split}",
        "n": int(held.sum()),
        "ours MAPE": mape(predicted[held], measured[held]),
        "NeuSight same rows": mape(theirs[held], measured[held]),
        "NeuSight published": published,
    }


def _terms(row: neusight_rows.Row, kind: str, models: dict[Any, Any]) -> list[float]:
    """What a sum is a combination of, in ms but for the first, which counts calls in thousands.

    Bytes are told by the mean model of single kernels, backward passes of element-wise kernels
    included.
    """
    mine = [kernel for kernel in row.kernels if kernel.kind == kind]
    calls = sum(kernel.count for kernel in mine) / 1e3
    return [calls, sum(kernel.count * _moving_ms(kernel, row, models) for kernel in mine)]


def _moving_ms(kernel: Any, row: neusight_rows.Row, models: dict[Any, Any]) -> float:
    moved = kernel.bytes + (kernel.backward if row.train else 0.0)
    return float(models[kernel.op, ""].moving_ns(moved, kernel.columns, row.device)) / 1e6


def non_negative(rows: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Least squares with no coefficient below zero, by trying every subset of columns."""
    best, least = np.zeros(rows.shape[1]), np.inf
    for size in range(1, rows.shape[1] + 1):
        for chosen in map(list, combinations(range(rows.shape[1]), size)):
            solved = np.linalg.lstsq(rows[:, chosen], target, rcond=None)[0]
            error = float(((rows[:, chosen] @ solved - target) ** 2).sum())
            if solved.min() >= 0 and error < least:
                best, least = np.zeros(rows.shape[1]), error
                best[chosen] = solved
    return best


def _fitted(
    rows: Sequence[neusight_rows.Row], kind: str, terms: np.ndarray, train: Sequence[int]
) -> np.ndarray:
    """All sums, from coefficients fitted to some; forward passes first, then what training adds.

    Softmax and layer norm: the backward pass takes a multiple of the forward one, the median of
    those fitted to.
    """
    forward = kind in GROUPS.values()
    sums = np.array([row.forward[kind] if forward else row.measured[kind] for row in rows])
    weights = non_negative(terms[train] / sums[train, None], np.ones(len(train)))
    predicted = terms @ weights
    if forward:
        both = [rows[at].measured[kind] / rows[at].forward[kind] for at in train if rows[at].train]
        if both:
            predicted = predicted * np.where([row.train for row in rows], np.median(both), 1.0)
        else:
            predicted[[row.train for row in rows]] = np.nan
    return predicted


def from_training_rows(
    rows: Sequence[neusight_rows.Row], kind: str, terms: np.ndarray
) -> np.ndarray:
    """Fitted to the rows of the GPUs and models that NeuSight was trained near."""
    return _fitted(rows, kind, terms, [at for at, row in enumerate(rows) if not row.held_out])


def from_other_models(
    rows: Sequence[neusight_rows.Row], kind: str, terms: np.ndarray
) -> np.ndarray:
    """Fitted to all other models on the same GPU, as one has who scales a measurement."""
    found = np.full(len(rows), np.nan)
    for at, row in enumerate(rows):
        others = [
            number
            for number, other in enumerate(rows)
            if other.device.name == row.device.name and other.model != row.model
        ]
        if others:
            found[at] = _fitted(rows, kind, terms, others)[at]
    return found


# Embedding bags ---------------------------------------------------------------------------------


def lru_hits(stream: Iterable[int], capacity: int) -> int:
    """Exact simulation of an LRU cache of so many rows, empty at first."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for row in stream:
        if row in held:
            held.move_to_end(row)
            hits += 1
        else:
            held[row] = None
            if len(held) > capacity:
                held.popitem(last=False)
    return hits


def stream_of(shares: Sequence[float], mean: float, unique: int, seed: int) -> np.ndarray:
    """A stream in random order whose histogram is the one given."""
    rng = np.random.default_rng(seed)
    counts, share = embedding.ReuseHistogram(tuple(shares), mean).counts()
    drawn = rng.choice(counts, size=unique, p=share)
    repeats = np.floor(drawn + rng.random(unique)).astype(int).clip(1)
    return rng.permutation(np.repeat(np.arange(unique), repeats))


def embedding_errors(folder: Path, seeds: int, unique: int = 20_000) -> list[Line]:
    """Hit rate: absolute error in points against an exact LRU cache, for the public histograms."""
    found: dict[float, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number, (_, mean, shares, _) in enumerate(duration_data.histograms(folder)[::8]):
        for seed in range(seeds):
            stream = stream_of(shares, mean, unique, seed=100 * number + seed)
            histogram = embedding.ReuseHistogram.from_indices(stream)
            counts, share = histogram.counts()
            for part in (0.01, 0.05, 0.2, 0.5):
                capacity = int(part * unique)
                exact = lru_hits(stream.tolist(), capacity) / len(stream)
                found[part]["exact"].append(exact)
                ours = embedding.che_hits(counts, share * unique, capacity) / len(stream)
                found[part]["ours"].append(abs(ours - exact))
                uniform = embedding.uniform_hit_rate(unique, len(stream), capacity)
                found[part]["uniform"].append(abs(uniform - exact))
    return [
        {
            "rows": f"cache of {part:.0%} of the distinct rows",
            "n": len(one["exact"]),
            "exact hit rate": 100 * float(np.mean(one["exact"])),
            "ours points": 100 * float(np.mean(one["ours"])),
            "uniform points": 100 * float(np.mean(one["uniform"])),
            "all from memory points": 100 * float(np.mean(one["exact"])),
        }
        for part, one in found.items()
    ]


# Output -----------------------------------------------------------------------------------------


def show(title: str, lines: Sequence[Line]) -> None:
    print(f"\n## {title}\n")
    if not lines:
        print("no data")
        return
    names = list(dict.fromkeys(name for line in lines for name in line))
    print("| " + " | ".join(names) + " |")
    print("|" + " --- |" * len(names))
    for line in lines:
        cells = (line.get(name, "") for name in names)
        print(
            "| " + " | ".join(f"{c:.2f}" if isinstance(c, float) else str(c) for c in cells) + " |"
        )
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("oracles", type=Path, help="folder of measurements")
    parser.add_argument("--traces", type=Path, help="folder of traces: how far models carry to it")
    parser.add_argument("--json", type=Path, help="write all tables there too")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folds", type=int, default=5, choices=range(1, 6), help="of five")
    parser.add_argument("--only", help="tables whose title contains this")
    options = parser.parse_args()
    folder, seeds = options.oracles, options.seeds
    plan: dict[str, Callable[[], list[Line]]] = {
        "Collectives: NCCL tables, every other size": lambda: nccl_errors(folder),
        "Collectives: vTrain, all but powers of two": lambda: vtrain_errors(folder),
        "Collectives: vidur, every other size": lambda: vidur_errors(folder),
        "Collectives: ranks left out": lambda: rank_errors(folder),
        "fp32 kernels": lambda: kernel_errors(folder),
        "fp32 sums over models: NeuSight's test rows": lambda: neusight_errors(folder),
        "Embedding bags: hit rates": lambda: embedding_errors(folder, seeds),
        "Products of matrices": lambda: gemm_errors(folder, options.folds, seeds),
        "Products of matrices: another GPU": lambda: scaling_errors(folder),
        "Intervals: collectives": lambda: carried_over.collective_intervals(folder),
        "Intervals: fp32 kernels": lambda: carried_over.kernel_intervals(folder),
    }
    if options.traces is not None:
        rows = trace_kernels.kernels_of(options.traces)
        plan["Traces: products of matrices, program left out"] = lambda: (
            carried_over.products_of_traces(folder, rows)
        )
        plan["Ratios: one GPU to another"] = lambda: carried_over.ratios(folder, options.traces)
        plan["Traces: families, program left out"] = lambda: carried_over.families_of_traces(rows)
    found = {}
    for title, measure in plan.items():
        if options.only and options.only.lower() not in title.lower():
            continue
        try:
            found[title] = measure()
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith(("sklearn", "scipy")):
                raise
            print(f"\n## {title}\n\nleft out: scikit-learn is not installed")
            continue
        show(title, found[title])
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
