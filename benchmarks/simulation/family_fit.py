"""Fits how fast the kernels of each family run, to those of public traces.

A family's six numbers start from those of its class, these from all kernels: the less a family was
seen, the nearer it stays. Rows of a program that differ in sizes alone are one sort of call. Sorts
weigh by the root of their rows, programs by the root of what their sorts weigh, so that none
decides alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from torchtraceap.ops.durations.families import FamilyModel
from trace_kernels import Kernels

CLASSES = {
    "stream": "elementwise activation copy memory_set dropout random foreach optimizer view "
    "gradient_accumulation triton rope quantization padding loss kv_cache strided",
    "rows": "normalization_forward normalization_backward softmax cross_entropy",
    "reduce": "reduction scan sort pooling",
    "gather": "indexing embedding concatenate interpolation",
    "product": "gemm grouped_gemm rnn linear_algebra",
    "convolution": "convolution_forward convolution_backward",
    "attention": "attention_forward attention_backward",
}
CLASS_OF = {family: name for name, listed in CLASSES.items() for family in listed.split()}
# Logarithms of start (ns), bend, factors of moving and computing, of AMD's start and work: where
# the search begins, and how far from its beginning a number may lie without much proof.
BEGIN = np.log([2500.0, 0.3, 1.3, 1.5, 1.3, 1.3])
LOOSE = np.array([0.7, 0.7, 0.5, 0.5, 0.4, 0.4])
# What the beginning counts for, in traces.
HELD = 1.0
ROUNDED = 0.1  # errors in logarithms below this count by their square
# What the spread of a family's class counts for against its own, and that of all against the
# class's: in programs.
PRIOR_PROGRAMS = 2.0


def sorts(rows: Kernels) -> np.ndarray:
    """A number for each sort of call of each program."""
    parts = zip(rows.source, rows.family, rows.alike, strict=True)
    names = np.array([" ".join(one) for one in parts])
    return np.asarray(np.unique(names, return_inverse=True)[1])


def weights(rows: Kernels) -> np.ndarray:
    """Of each row; see the module's docstring."""
    sort = sorts(rows)
    alone = 1.0 / np.sqrt(np.bincount(sort)[sort])
    _, program = np.unique(rows.source, return_inverse=True)
    return np.asarray(alone / np.sqrt(np.bincount(program, alone)[program]))


def model_of(numbers: np.ndarray, family: str = "") -> FamilyModel:
    values = np.exp(numbers)
    return FamilyModel(family, *values[:6].tolist(), (0.0, 0.0), (0.0, 0.0), "")


def predicted(model: FamilyModel, rows: Kernels) -> tuple[np.ndarray, np.ndarray]:
    """Times, and whether the start is the larger part."""
    ns, begins = np.empty(len(rows)), np.empty(len(rows), dtype=bool)
    amd = rows.amd()
    for maker in (False, True):
        at = amd == maker
        time, start = model.times(rows.moving[at], rows.computing[at], rows.launches[at], maker)
        ns[at], begins[at] = time, start > 0.5 * time
    return ns, begins


def _fit(rows: Kernels, begin: np.ndarray) -> np.ndarray:
    from scipy.optimize import minimize

    weight, logs, amd = weights(rows), np.log(rows.ns), rows.amd()

    def loss(numbers: np.ndarray) -> float:
        start, bend, memory, compute, amd_start, amd_work = np.exp(numbers)
        begins = rows.launches * start * np.where(amd, amd_start, 1.0)
        work = np.maximum(memory * rows.moving, compute * rows.computing)
        work = work * np.where(amd, amd_work, 1.0)
        error = logs - np.log(begins + work + 2.0 * bend * np.sqrt(begins * work))
        held = HELD * 0.5 * (((numbers - begin) / LOOSE) ** 2).sum()
        return float((weight * np.sqrt(error**2 + ROUNDED**2)).sum() + held)

    settings = {"maxiter": 2000, "xatol": 1e-3, "fatol": 1e-3}
    return np.asarray(minimize(loss, begin, method="Nelder-Mead", options=settings).x)


def fit(rows: Kernels) -> dict[str, FamilyModel]:
    """A model for each family and class among the rows, "" for all; without intervals."""
    every = _fit(rows, BEGIN)
    classes = np.array([CLASS_OF.get(family, "") for family in rows.family])
    found = {"": every}
    for name in CLASSES:
        here = classes == name
        found[name] = _fit(rows.take(here), every) if here.any() else every
    for family in sorted({*CLASS_OF, *np.unique(rows.family).tolist()}):
        here = rows.family == family
        begin = found[CLASS_OF.get(family, "")]
        found[family] = _fit(rows.take(here), begin) if here.any() else begin
    return {name: model_of(numbers, name) for name, numbers in found.items()}


def predict(models: Mapping[str, FamilyModel], rows: Kernels) -> tuple[np.ndarray, np.ndarray]:
    ns, begins = np.empty(len(rows)), np.empty(len(rows), dtype=bool)
    for family in np.unique(rows.family).tolist():
        at = rows.family == family
        ns[at], begins[at] = predicted(models.get(family, models[""]), rows.take(at))
    return ns, begins


def left_out(rows: Kernels) -> tuple[np.ndarray, np.ndarray]:
    """As `predict`, each source by models that have not seen it."""
    ns, begins = np.empty(len(rows)), np.empty(len(rows), dtype=bool)
    for source in np.unique(rows.source):
        at = rows.source == source
        ns[at], begins[at] = predict(fit(rows.take(~at)), rows.take(at))
    return ns, begins


def with_intervals(
    models: Mapping[str, FamilyModel], rows: Kernels, ns: np.ndarray, begins: np.ndarray
) -> dict[str, FamilyModel]:
    """The models with intervals from the errors of `left_out`."""
    error = np.log(rows.ns / ns)
    return {
        family: replace(
            model,
            small=_interval(rows, error, begins, family),
            large=_interval(rows, error, ~begins, family),
        )
        for family, model in models.items()
    }


def _interval(
    rows: Kernels, error: np.ndarray, region: np.ndarray, family: str
) -> tuple[float, float]:
    """Logarithms of both ends, as far apart as the kernels of a new program may lie.

    The mean square error of programs that were left out holds what differs between programs and
    within one. A family's own counts as much as programs tell it, beside its class's, and that
    beside all; the end is the 90th percentile of Student's distribution for so many programs.
    """
    from scipy.stats import t

    classes = np.array([CLASS_OF.get(one, "") for one in rows.family])
    own = rows.family == family
    square, programs = 0.0, 0
    for part in (np.ones(len(rows), dtype=bool), classes == CLASS_OF.get(family, family), own):
        seen = np.flatnonzero(region & part)
        kept = rows.take(seen)
        programs = len(np.unique(kept.source))
        if programs:
            told = float(np.average(error[seen] ** 2, weights=weights(kept)))
            held = PRIOR_PROGRAMS if square else 0.0
            square = (programs * told + held * square) / (programs + held)
    end = round(float(t.ppf(0.9, programs + PRIOR_PROGRAMS - 1.0) * np.sqrt(square)), 3)
    return -end, end


def covered(rows: Kernels) -> tuple[np.ndarray, np.ndarray]:
    """Times and whether the interval holds the measured one, for each source left out in turn:
    neither its model nor its interval has seen it."""
    ns, inside = np.empty(len(rows)), np.empty(len(rows), dtype=bool)
    for source in np.unique(rows.source):
        at = rows.source == source
        known, asked = rows.take(~at), rows.take(at)
        models = with_intervals(fit(known), known, *left_out(known))
        ns[at], begins = predict(models, asked)
        error = np.log(asked.ns / ns[at])
        chosen = [models.get(family, models[""]) for family in asked.family]
        ends = np.array([m.small if b else m.large for m, b in zip(chosen, begins, strict=True)])
        inside[at] = (error >= ends[:, 0]) & (error <= ends[:, 1])
    return ns, inside
