"""The faults that are injected into the graph of a run, and their look-alikes.

Faults are the inverse of what `simulation/edits/` mends. A function injects one into the steps of a
scene, so that about `injection.ns` of host or GPU time is lost in each; the replay says how much
that costs the run. `faults.py` describes each by name.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from torchtraceap._core import Phase
from torchtraceap.lab.generation import faults
from torchtraceap.lab.generation.data_parallel import DataParallel
from torchtraceap.lab.generation.faults import Fault
from torchtraceap.lab.generation.scene import Block, Injection, NewEvent, NoPlaceError

__all__ = ["FAULTS", "LOOK_ALIKES", "GraphFault", "read_item"]

Injecting = Callable[[Injection], None]
Spreading = Callable[[random.Random, DataParallel], tuple[DataParallel, DataParallel]]

_POINTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>, "
    "at::detail::Array<char*, 3>)"
)
_FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
_SAMPLE_NS = 2_500_000
"""Host time to decode one image, about."""
_MOST_OPS = 1_500
"""Small operators that are injected into a step."""
_MARGIN = 1.3
"""A place has slack if it may be late by so many times as much as it gets."""


@dataclass(frozen=True, kw_only=True)
class GraphFault(Fault):
    """A fault with what injects it into a graph."""

    inject: Injecting = lambda injection: None
    spread: Spreading | None = None
    """For a fault of collectives, exchanges of gradients without it and with it, given an
    efficient one."""
    in_twin: Injecting | None = None
    """Injected into the twin in its place."""
    idles: bool = False
    """True if the GPU waits for the host during its cost."""
    of_one_rank: bool = False
    """True if it is injected into one rank, for which the others wait."""
    own_type: str | None = None
    """For a fault of one rank, the type that this rank itself shows, if it has another."""


_BACK_END: dict[str, GraphFault] = {}


def _injects(name: str, **facts: Any) -> Callable[[Injecting], Injecting]:
    """Register what injects a fault, with facts of `GraphFault`."""

    def add(inject: Injecting) -> Injecting:
        described = asdict(faults.GRAPH_FAULTS[name])
        _BACK_END[name] = GraphFault(**described, inject=inject, **facts)
        return inject

    return add


def _spreads(name: str) -> Callable[[Spreading], Spreading]:
    """Register what spreads gradients, for a fault of collectives."""

    def add(spread: Spreading) -> Spreading:
        _BACK_END[name] = GraphFault(**asdict(faults.GRAPH_FAULTS[name]), spread=spread)
        return spread

    return add


# ------------------------------------------------------------------------- data


def _fetch(injection: Injection, steps: Sequence[int], collate: float) -> None:
    """Inject a fetch at the first place of steps; one that a step has already becomes it."""
    for step in steps:
        rows = injection.program.loader_rows
        removed = rows[injection.program.step_of_rows(rows) == step].tolist()
        injection.scene.removed[injection.rank] += removed
        block = injection.block(injection.first_place(step))
        with block.range("annotation", _FETCH):
            samples = min(max(1, round(injection.ns * (1 - collate) / _SAMPLE_NS)), 64)
            for _ in range(samples):
                with block.op("aten::empty", dims=[[]]):
                    block.spend(3_000)
                block.spend(injection.ns * (1 - collate) / samples)
            with block.op("aten::stack", dims=[[]]), block.op("aten::cat", dims=[[]]):
                block.spend(injection.ns * collate)
        block.close()


@_injects("slow_loader")
@_injects("late_rank_by_its_loader", of_one_rank=True, own_type="single_process_data_loading")
def _slow_loader(injection: Injection) -> None:
    _fetch(injection, injection.steps, collate=0.1)


@_injects("slow_collate")
def _slow_collate(injection: Injection) -> None:
    _fetch(injection, injection.steps, collate=0.6)


@_injects("hidden_fetch")
def _hidden_fetch(injection: Injection) -> None:
    firsts = {injection.first_place(step): step for step in injection.steps}
    places = injection.with_slack(np.array(list(firsts)), _MARGIN * injection.ns)
    _fetch(injection, [firsts[place] for place in places], collate=0.1)


def _upload(injection: Injection, step: int, ns: float) -> None:
    block = injection.block(injection.first_place(step))
    rate = injection.rng.uniform(3, 6)  # bytes per ns, as pageable copies of public traces
    size = round(ns * rate)
    with block.copying(size // 4):
        block.work("copy", "Memcpy HtoD (Pageable -> Device)", ns, blocking=True, bytes=size)
        block.wait("StreamSynchronize")
    block.close()


@_injects("pageable_upload")
def _pageable_upload(injection: Injection) -> None:
    for step in injection.steps:
        _upload(injection, step, injection.ns)


@_injects("uploads_by_sample")
def _uploads_by_sample(injection: Injection) -> None:
    parts = injection.rng.randint(4, 16)
    for step in injection.steps:
        for _ in range(parts):
            _upload(injection, step, injection.ns / parts)


@_injects("hidden_upload")
def _hidden_upload(injection: Injection) -> None:
    for step in injection.steps:
        block = injection.block(injection.first_place(step))
        size = round(injection.ns * injection.rng.uniform(10, 20))
        with block.copying(size // 4):
            name = "Memcpy HtoD (Pinned -> Device)"
            block.work("copy", name, injection.ns, stream=4, bytes=size)
        block.close()


@_injects("small_constants")
def _small_constants(injection: Injection) -> None:
    count = injection.rng.randint(2, 8)
    for step in injection.steps:
        places = injection.with_slack(injection.places_in(step), count * 60_000)
        for place in injection.sample(np.array(places), count):
            block = injection.block(place)
            with block.copying(64):
                block.work("copy", "Memcpy HtoD (Pageable -> Device)", 1_200, stream=4, bytes=256)
            block.close()


# ------------------------------------------------------------------------- copies and waits


@_injects("copies_back_and_forth")
def _copies_back_and_forth(injection: Injection) -> None:
    count = injection.rng.randint(2, 10)
    for step in injection.steps:
        for place in injection.sample(injection.places_in(step, Phase.FORWARD), count):
            ns = injection.ns / count / 2
            size = round(ns * injection.rng.uniform(8, 20))
            block = injection.block(place)
            for name in ("Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD (Pinned -> Device)"):
                with block.copying(size // 4):
                    block.work("copy", name, ns, bytes=size)
                    block.wait("StreamSynchronize")
            block.close()


@_injects("activations_read_back")
def _activations_read_back(injection: Injection) -> None:
    count = injection.rng.randint(3, 12)
    for step in injection.steps:
        for place in injection.sample(injection.places_in(step, Phase.FORWARD), count):
            ns = injection.ns / count
            size = max(round(ns * injection.rng.uniform(2, 6)), 1 << 17)
            block = injection.block(place)
            with block.copying(size // 4):
                name = "Memcpy DtoH (Device -> Pageable)"
                block.work("copy", name, ns, blocking=True, bytes=size)
                block.wait("StreamSynchronize")
            block.close()


@_injects("hidden_readback")
def _hidden_readback(injection: Injection) -> None:
    for step in injection.steps:
        places = injection.by_queue(step, least_ns=_MARGIN * injection.ns)
        block = injection.block(injection.sample(places, 1)[0])
        size = round(injection.ns * injection.rng.uniform(10, 20))
        with block.copying(size // 4):
            name = "Memcpy DtoH (Device -> Pinned)"
            block.work("copy", name, injection.ns, stream=5, bytes=size)
        block.close()


def read_item(block: Block) -> None:
    """Inject `.item()`."""
    with block.op("aten::item", dims=[[]]), block.op("aten::_local_scalar_dense", dims=[[]]):
        block.work("copy", "Memcpy DtoH (Device -> Pageable)", 1_500, bytes=4)
        block.wait("StreamSynchronize")
    block.close()


@_injects("item_reads")
def _item_reads(injection: Injection) -> None:
    count = injection.rng.randint(3, 40)
    for step in injection.steps:
        for place in injection.sample(injection.places_in(step), count):
            read_item(injection.block(place))


@_injects("idle_read")
def _idle_read(injection: Injection) -> None:
    for step in injection.steps:
        read_item(injection.block(injection.sample(injection.by_queue(step, most_ns=0), 1)[0]))


@_injects("device_synchronize")
def _device_synchronize(injection: Injection) -> None:
    count = injection.rng.randint(2, 20)
    for step in injection.steps:
        for place in injection.sample(injection.places_in(step), count):
            block = injection.block(place)
            block.wait("DeviceSynchronize")
            block.close()


@_injects("idle_synchronize")
def _idle_synchronize(injection: Injection) -> None:
    for step in injection.steps:
        block = injection.block(injection.sample(injection.by_queue(step, most_ns=0), 1)[0])
        block.wait("DeviceSynchronize")
        block.close()


@_injects("allocator_churn")
def _allocator_churn(injection: Injection) -> None:
    count = injection.rng.randint(3, 15)
    for step in injection.steps:
        for place in injection.sample(injection.places_in(step), count):
            ns = injection.ns / count
            block = injection.block(place)
            with block.op("aten::empty", dims=[[]]):
                block.wait("Free")
                block.spend(ns * 0.1)
                block.call("Malloc", ns * 0.9)
            block.close()


@_injects("hidden_allocations")
def _hidden_allocations(injection: Injection) -> None:
    for step in injection.steps:
        places = injection.with_slack(injection.places_in(step), _MARGIN * injection.ns)
        block = injection.block(injection.rng.choice(places))
        with block.op("aten::empty", dims=[[]]):
            block.call("Malloc", injection.ns)
        block.close()


# ------------------------------------------------------------------------- the host


def _slow_down(injection: Injection, step: int, start: int | None = None) -> None:
    """Slow work of the main thread from a place of a step on, by so much in all."""
    scene, program = injection.scene, injection.program
    places = injection.places_in(step)
    begin = injection.rng.choice(places[: max(1, len(places) // 2)].tolist())
    begin = begin if start is None else start
    bounds = program.main.point[[begin, places[-1]]]
    edges = program.view.edges_into(np.arange(bounds[0] + 1, bounds[1]), "program_order")
    cost_ns = scene.cost_ns[injection.rank]
    factor = injection.rng.uniform(1, 4)
    grown = np.cumsum(cost_ns[edges]) * factor
    if not len(edges) or grown[-1] < injection.ns:
        raise NoPlaceError
    chosen = edges[: int(np.searchsorted(grown, injection.ns)) + 1]
    cost_ns[chosen] = np.rint(cost_ns[chosen] * (1 + factor))


@_injects("slow_host")
@_injects("late_rank_by_its_host", of_one_rank=True, own_type="cpu_bound")
def _slow_host(injection: Injection) -> None:
    for step in injection.steps:
        _slow_down(injection, step)


@_injects("hidden_slow_host")
def _hidden_slow_host(injection: Injection) -> None:
    for step in injection.steps:
        places = injection.places_in(step)
        held = injection.with_slack(places[: max(1, len(places) // 2)], _MARGIN * injection.ns)
        _slow_down(injection, step, start=injection.rng.choice(held))


@_injects("many_small_operators", idles=True)
def _many_small_operators(injection: Injection) -> None:
    op_ns = injection.program.view.operator_cost_ns * injection.rng.uniform(1, 2)
    parts = injection.rng.randint(1, 6)
    for step in injection.steps:
        count = min(_MOST_OPS, int(injection.ns / op_ns)) // parts
        for place in injection.sample(injection.places_in(step, Phase.FORWARD), parts):
            block = injection.block(place)
            for _ in range(count):
                with block.op("aten::add", dims=[[64], [64], []]):
                    block.spend(op_ns / 2)
                    block.work("kernel", _POINTWISE, 1_600, grid=[1, 1, 1], block=[64, 1, 1])
                block.spend(op_ns / 2)
            block.close()


@_injects("pauses")
def _pauses(injection: Injection) -> None:
    for step in injection.steps:
        ns = max(injection.ns, 11e6)
        block = injection.block(injection.sample(injection.places_in(step), 1)[0])
        block.spend(ns)
        block.close()


# ------------------------------------------------------------------------- compiled code


def _compile(injection: Injection, first: int, last: int, cuts: list[int]) -> None:
    """Inject ranges as dynamo records them: what follows a break is a region in the first one."""
    regions: list[NewEvent] = []
    call: NewEvent | None = None
    for frame, place in enumerate([first, *cuts]):
        block = injection.block(place)
        if call is not None:
            block.end_range(call)
            block.spend(injection.ns / len(cuts))
        regions.append(block.begin_range("op", f"Torch-Compiled Region: {frame}/0"))
        call = block.begin_range("op", "CompiledFunction")
        block.close()
    block = injection.block(last)
    for event in (call, *reversed(regions)):
        if event is not None:
            block.end_range(event)
    block.close()


def _region(injection: Injection, step: int) -> tuple[int, int]:
    """Return the ends of the longest stretch of places of the forward pass with nothing around
    that ends in it."""
    places = injection.places_in(step, Phase.FORWARD)
    parents = injection.program.main.parent[places]
    bounds = np.flatnonzero((np.diff(parents) != 0) | (np.diff(places) != 1)) + 1
    longest = max(np.split(places, bounds), key=len)
    if len(longest) < 8:
        raise NoPlaceError
    return int(longest[0]), int(longest[-1])


def _compiled(injection: Injection) -> None:
    """Make the forward pass of each step one compiled region."""
    for step in injection.program.steps:
        _compile(injection, *_region(injection, step), [])


@_injects("graph_breaks", in_twin=_compiled)
def _graph_breaks(injection: Injection) -> None:
    broken = injection.steps
    count = injection.rng.randint(1, 4)
    for step in injection.program.steps:
        first, last = _region(injection, step)
        inside = np.arange(first + 1, last)
        _compile(injection, first, last, injection.sample(inside, count) if step in broken else [])


# ------------------------------------------------------------------------- collectives


@_spreads("small_buckets")
def _small_buckets(rng: random.Random, good: DataParallel) -> tuple[DataParallel, DataParallel]:
    pieces = rng.randint(40, 120)
    good = replace(good, elements=pieces * rng.randint(500, 12_000))
    return good, replace(good, pieces=pieces)


@_spreads("small_at_the_end")
def _small_at_the_end(rng: random.Random, good: DataParallel) -> tuple[DataParallel, DataParallel]:
    pieces = rng.randint(15, 60)
    good = replace(good, elements=pieces * rng.randint(500, 12_000))
    return good, replace(good, pieces=pieces, late=True)


@_spreads("waited_for")
def _waited_for(rng: random.Random, good: DataParallel) -> tuple[DataParallel, DataParallel]:
    return good, replace(good, waits=True)


@_spreads("behind_the_backward_pass")
def _after_backward(rng: random.Random, good: DataParallel) -> tuple[DataParallel, DataParallel]:
    return good, replace(good, late=True)


@_spreads("more_buckets")
def _more_buckets(rng: random.Random, good: DataParallel) -> tuple[DataParallel, DataParallel]:
    pieces = rng.randint(2, 4)
    if good.elements < pieces * 20_000:
        raise NoPlaceError
    return good, replace(good, pieces=pieces)


# ------------------------------------------------------------------------- one rank


@_injects("late_rank", of_one_rank=True)
@_injects("late_but_awaited", of_one_rank=True)
def _late_rank(injection: Injection) -> None:
    for step in injection.steps:
        block = injection.block(injection.sample(injection.places_in(step, Phase.FORWARD), 1)[0])
        block.spend(injection.ns)
        block.close()


@_injects("late_rank_by_its_gpu", of_one_rank=True)
def _late_rank_by_its_gpu(injection: Injection) -> None:
    program, scene = injection.program, injection.scene
    edges = np.setdiff1d(program.run.edges_of("execution"), program.edges_through_collectives)
    factor = 1 + injection.ns / program.step_ns * 2
    cost_ns = scene.cost_ns[injection.rank]
    cost_ns[edges] = np.rint(cost_ns[edges] * factor)


_ALL = [_BACK_END[name] for name in faults.GRAPH_FAULTS]
FAULTS = tuple(fault for fault in _ALL if not fault.look_alike)
LOOK_ALIKES = tuple(fault for fault in _ALL if fault.look_alike)
