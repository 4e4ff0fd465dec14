"""Fits what `durations.collectives` knows beside its tables: how far they carry, and links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

import curves
from duration_data import Series
from torchtraceap.ops.devices import load_devices
from torchtraceap.ops.durations.collectives import ErrorInterval, LinkModel, bus_factor, has_switch

SMALL_BYTES = 1 << 16
ENDS = (0.1, 0.9)
NO_ENDS = ErrorInterval((0.0, 0.0), (0.0, 0.0))
# Logarithms of start and step (ns), bend and work: where the search begins.
BEGIN = np.log([5000.0, 1000.0, 0.3, 1.4])
LOOSE, HELD = 1.0, 1.0
RINGS = ("all_gather", "reduce_scatter", "all_reduce")
# Between how many measured ranks each left-out number lies.
AROUND = {3: (2, 4), 4: (2, 8), 5: (4, 8), 6: (4, 8), 7: (4, 8)}
# Machines without a switch have many forms, of which one was measured.
OTHER_FORMS = 1.5
# Tables of two or three chips tell less than all of those that tables are asked for.
OF_FEW_CHIPS = 1.5

Errors = tuple[np.ndarray, np.ndarray]
"""Sizes in bytes, and logarithms of measured over estimated time."""


def fit_beside_tables(series: Sequence[Series]) -> dict[str, Any]:
    links = fit_links(series)
    return {
        "measured": asdict(ends_of([*other_versions(series), *other_sizes(series)], OF_FEW_CHIPS)),
        "between": asdict(ends_of(left_out_ranks(series), OF_FEW_CHIPS)),
        "law": asdict(ends_of(other_kinds(series), OF_FEW_CHIPS)),
        "links": asdict(links),
    }


def ends_of(errors: Iterable[Errors], wider: float = 1.0) -> ErrorInterval:
    """10th and 90th percentile of errors, for small and large transfers."""
    sizes, logs = (np.concatenate(side) for side in zip(*errors, strict=True))
    small = sizes < SMALL_BYTES
    if not small.any():
        small = np.ones(len(sizes), dtype=bool)
    low, high = (wider * np.quantile(logs[one], ENDS) for one in (small, sizes >= SMALL_BYTES))
    return ErrorInterval((float(low[0]), float(low[1])), (float(high[0]), float(high[1])))


def _tested(series: Sequence[Series]) -> list[Series]:
    """Of nccl-tests, a few sizes each; tables timed from Python hold the host."""
    return [_thinned(one) for one in series if one.source != "vidur"]


def other_versions(series: Sequence[Series]) -> list[Errors]:
    """Each table by that of another version of NCCL, laboratory or board with the same chip."""
    alike: dict[tuple[object, ...], list[Series]] = defaultdict(list)
    for one in _tested(series):
        chip = load_devices()[one.device]
        narrow = one.dtype == "int8"
        alike[chip.architecture, chip.multiprocessors, one.kind, one.ranks, narrow].append(one)
    return [
        _against(curves.fit_curve(*other.arrays()), one)
        for group in alike.values()
        for one in group
        for other in group
        if other is not one and (other.library, other.device) != (one.library, one.device)
    ]


def other_sizes(series: Sequence[Series]) -> list[Errors]:
    """Every other size, by the sizes beside it."""
    found = []
    for one in _tested(series):
        sizes, ns = one.arrays()
        for parity in (0, 1):
            held = np.arange(len(sizes)) % 2 == parity
            held[[0, -1]] = False
            told = curves.fit_curve(sizes[~held], ns[~held]).at(sizes[held])
            found.append((sizes[held], np.log(ns[held] / told)))
    return found


def _against(curve: Any, one: Series) -> Errors:
    sizes, ns = one.arrays()
    inside = curve.covers(sizes)
    return sizes[inside], np.log(ns[inside] / curve.at(sizes[inside]))


def left_out_ranks(series: Sequence[Series]) -> list[Errors]:
    """Numbers of ranks on switched machines, by the nearest ones around them."""
    groups: dict[tuple[str, ...], dict[int, Series]] = defaultdict(dict)
    for one in _tested(series):
        if has_switch(load_devices()[one.device]):
            groups[one.device, one.kind, one.dtype, one.library][one.ranks] = one
    found = []
    for by_ranks in groups.values():
        for ranks, (low, high) in AROUND.items():
            if {low, ranks, high} <= set(by_ranks):
                sizes, ns = by_ranks[ranks].arrays()
                share = np.log2(ranks / low) / np.log2(high / low)
                ends = [curves.fit_curve(*by_ranks[at].arrays()).at(sizes) for at in (low, high)]
                found.append((sizes, np.log(ns / (ends[0] ** (1 - share) * ends[1] ** share))))
    return found


def other_kinds(series: Sequence[Series]) -> list[Errors]:
    """Each kind that NCCL runs as a ring by the tables of the others, where they bring as many
    bytes over each link."""
    groups: dict[tuple[object, ...], dict[str, Series]] = defaultdict(dict)
    for one in _tested(series):
        if one.kind in RINGS:
            groups[one.device, one.dtype, one.library, one.ranks, one.nodes][one.kind] = one
    return [_by_kind(one, other) for group in groups.values()
            for one in group.values() for other in group.values() if other is not one]  # fmt: skip


def _by_kind(one: Series, other: Series) -> Errors:
    sizes, ns = one.arrays()
    curve = curves.fit_curve(*other.arrays())
    over_links = sizes * (bus_factor(one.kind, one.ranks) / bus_factor(other.kind, one.ranks))
    inside = curve.covers(over_links)
    return sizes[inside], np.log(ns[inside] / curve.at(over_links[inside]))


# Links -------------------------------------------------------------------------------------------


def fit_links(series: Sequence[Series]) -> LinkModel:
    """A start and a share of the links' rate, for all switched machines; what a mesh adds."""
    tested = [one for one in _tested(series) if one.dtype != "int8"]
    switched = [one for one in tested if has_switch(load_devices()[one.device])]
    meshed = [one for one in tested if not has_switch(load_devices()[one.device])]
    model = _fit(switched)
    if not meshed:
        return replace(model, switched=ends_of(left_out_chips(switched)), unswitched=model.switched)
    slower = np.concatenate([_link_errors(model, one)[1] for one in meshed])
    model = replace(model, meshed=float(np.exp(np.median(slower[slower > 0.0]))))
    apart = ends_of([_link_errors(model, one) for one in meshed])
    even = ends_of(left_out_chips(switched))
    # Small transfers take a start, which links do not change.
    wide = [(OTHER_FORMS * low, OTHER_FORMS * high) for low, high in (even.small, apart.large)]
    return replace(model, switched=even, unswitched=ErrorInterval(*wide))


def left_out_chips(series: Sequence[Series]) -> list[Errors]:
    """Tables of each architecture by what was fitted to the others."""
    chips = [load_devices()[one.device].architecture for one in series]
    found = []
    for chip in sorted(set(chips)):
        others = [one for one, of in zip(series, chips, strict=True) if of != chip]
        model = _fit(others or series)
        found += [
            _link_errors(model, one) for one, of in zip(series, chips, strict=True) if of == chip
        ]
    return found


def _link_errors(model: LinkModel, one: Series) -> Errors:
    device = load_devices()[one.device]
    sizes, ns = one.arrays()
    told = model.at(one.kind, sizes, one.ranks, device.links["nvlink"], has_switch(device))
    return sizes, np.log(ns / told)


def _fit(series: Sequence[Series]) -> LinkModel:
    from scipy.optimize import minimize

    def model(numbers: np.ndarray) -> LinkModel:
        return LinkModel(*np.exp(numbers).tolist(), 1.0, NO_ENDS, NO_ENDS)

    def loss(numbers: np.ndarray) -> float:
        errors = [np.abs(_link_errors(model(numbers), one)[1]).mean() for one in series]
        return float(np.sum(errors) + HELD * 0.5 * (((numbers - BEGIN) / LOOSE) ** 2).sum())

    settings = {"maxiter": 400, "xatol": 1e-3, "fatol": 1e-3}
    return model(minimize(loss, BEGIN, method="Nelder-Mead", options=settings).x)


def _thinned(one: Series, most: int = 24) -> Series:
    """A few sizes of each table, evenly over their logarithms."""
    sizes, ns = one.arrays()
    wanted = np.geomspace(sizes[0], sizes[-1], most)
    kept = np.unique(np.searchsorted(sizes, wanted).clip(0, len(sizes) - 1))
    return replace(one, sizes=sizes[kept].tolist(), ns=ns[kept].tolist())
