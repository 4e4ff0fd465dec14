"""The faults: the inverse of what `simulation/edits/` mends, put into a run.

Each function puts one form into the steps of a scene, so that about `planting.ns` of host or GPU
time is lost in each. How much that costs the run, the replay says.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from torchtraceap._core import Phase
from torchtraceap.lab.generation.data_parallel import DataParallel
from torchtraceap.lab.generation.placement import Form, NoPlaceError, Planting
from torchtraceap.lab.generation.scene import Block, NewEvent

__all__ = ["FAULTS", "fetch", "hold_up", "read_item", "slow_down"]

_POINTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>, "
    "at::detail::Array<char*, 3>)"
)
_FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
_SAMPLE_NS = 2_500_000
"""What the host takes to decode one image, about."""
_MOST_OPS = 1_500
"""Small operators that are put into a step."""


# ------------------------------------------------------------------------- data


def slow_loader(planting: Planting) -> None:
    """The training process loads its batches itself."""
    for step in planting.steps:
        fetch(planting, step, planting.ns, collate=0.1)


def slow_collate(planting: Planting) -> None:
    """It puts them together for long, too."""
    for step in planting.steps:
        fetch(planting, step, planting.ns, collate=0.6)


def fetch(planting: Planting, step: int, ns: float, collate: float) -> None:
    """A fetch at the first place of a step takes so long; one that the step has becomes it."""
    rows = planting.program.loader_rows
    removed = rows[planting.program.step_of_rows(rows) == step].tolist()
    planting.scene.removed[planting.rank] += removed
    block = planting.block(planting.first(step))
    with block.range("annotation", _FETCH):
        samples = max(1, round(ns * (1 - collate) / _SAMPLE_NS))
        for _ in range(min(samples, 64)):
            with block.op("aten::empty", dims=[[]]):
                block.spend(3_000)
            block.spend(ns * (1 - collate) / min(samples, 64))
        with block.op("aten::stack", dims=[[]]), block.op("aten::cat", dims=[[]]):
            block.spend(ns * collate)
    block.close()


def pageable_upload(planting: Planting) -> None:
    """The batch comes from memory that is not pinned."""
    for step in planting.steps:
        _upload(planting, planting.first(step), planting.ns)


def uploads_by_sample(planting: Planting) -> None:
    """Each sample comes from such memory by itself."""
    parts = planting.rng.randint(4, 16)
    for step in planting.steps:
        for _ in range(parts):
            _upload(planting, planting.first(step), planting.ns / parts)


def _upload(planting: Planting, place: int, ns: float) -> None:
    block = planting.block(place)
    rate = planting.rng.uniform(3, 6)  # bytes per ns, as pageable copies of public traces
    size = round(ns * rate)
    with block.copying(size // 4):
        block.work("copy", "Memcpy HtoD (Pageable -> Device)", ns, blocking=True, bytes=size)
        block.wait("StreamSynchronize")
    block.close()


# ------------------------------------------------------------------------- copies and waits


def copies_back_and_forth(planting: Planting) -> None:
    """Layers whose activations go to the host and back."""
    count = planting.rng.randint(2, 10)
    for step in planting.steps:
        for place in planting.some(planting.among(step, Phase.FORWARD), count):
            ns = planting.ns / count / 2
            size = round(ns * planting.rng.uniform(8, 20))
            block = planting.block(place)
            for name in ("Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD (Pinned -> Device)"):
                with block.copying(size // 4):
                    block.work("copy", name, ns, bytes=size)
                    block.wait("StreamSynchronize")
            block.close()


def activations_read_back(planting: Planting) -> None:
    """Results that the host copies to memory that is not pinned, again and again."""
    count = planting.rng.randint(3, 12)
    for step in planting.steps:
        for place in planting.some(planting.among(step, Phase.FORWARD), count):
            ns = planting.ns / count
            size = max(round(ns * planting.rng.uniform(2, 6)), 1 << 17)
            block = planting.block(place)
            with block.copying(size // 4):
                name = "Memcpy DtoH (Device -> Pageable)"
                block.work("copy", name, ns, blocking=True, bytes=size)
                block.wait("StreamSynchronize")
            block.close()


def item_reads(planting: Planting) -> None:
    """The host reads single values on its way."""
    count = planting.rng.randint(3, 40)
    for step in planting.steps:
        for place in planting.some(planting.among(step), count):
            read_item(planting.block(place))


def read_item(block: Block) -> None:
    """`.item()`."""
    with block.op("aten::item", dims=[[]]), block.op("aten::_local_scalar_dense", dims=[[]]):
        block.work("copy", "Memcpy DtoH (Device -> Pageable)", 1_500, bytes=4)
        block.wait("StreamSynchronize")
    block.close()


def device_synchronize(planting: Planting) -> None:
    """The program waits for the device, as to measure times."""
    count = planting.rng.randint(2, 20)
    for step in planting.steps:
        for place in planting.some(planting.among(step), count):
            block = planting.block(place)
            block.wait("DeviceSynchronize")
            block.close()


def allocator_churn(planting: Planting) -> None:
    """Memory goes back to the device and is asked for again."""
    count = planting.rng.randint(3, 15)
    for step in planting.steps:
        for place in planting.some(planting.among(step), count):
            ns = planting.ns / count
            block = planting.block(place)
            with block.op("aten::empty", dims=[[]]):
                block.wait("Free")
                block.spend(ns * 0.1)
                block.call("Malloc", ns * 0.9)
            block.close()


# ------------------------------------------------------------------------- the host


def slow_host(planting: Planting) -> None:
    """The host takes longer for what it does anyway, as on a processor that others use."""
    for step in planting.steps:
        slow_down(planting, step, planting.ns)


def slow_down(planting: Planting, step: int, ns: float, start: int | None = None) -> None:
    """Work of the main thread from a place of a step on takes so much more in all."""
    scene, program = planting.scene, planting.program
    places = planting.among(step)
    begin = planting.rng.choice(places[: max(1, len(places) // 2)].tolist())
    begin = begin if start is None else start
    bounds = program.main.point[[begin, places[-1]]]
    edges = program.view.edges_into(np.arange(bounds[0] + 1, bounds[1]), "program_order")
    cost_ns = scene.cost_ns[planting.rank]
    factor = planting.rng.uniform(1, 4)
    grown = np.cumsum(cost_ns[edges]) * factor
    if not len(edges) or grown[-1] < ns:
        raise NoPlaceError
    chosen = edges[: int(np.searchsorted(grown, ns)) + 1]
    cost_ns[chosen] = np.rint(cost_ns[chosen] * (1 + factor))


def many_small_operators(planting: Planting) -> None:
    """What one kernel could do is done in hundreds."""
    op_ns = planting.program.view.operator_cost_ns * planting.rng.uniform(1, 2)
    parts = planting.rng.randint(1, 6)
    for step in planting.steps:
        count = min(_MOST_OPS, int(planting.ns / op_ns)) // parts
        for place in planting.some(planting.among(step, Phase.FORWARD), parts):
            block = planting.block(place)
            for _ in range(count):
                with block.op("aten::add", dims=[[64], [64], []]):
                    block.spend(op_ns / 2)
                    block.work("kernel", _POINTWISE, 1_600, grid=[1, 1, 1], block=[64, 1, 1])
                block.spend(op_ns / 2)
            block.close()


def pauses(planting: Planting) -> None:
    """The host does nothing that is recorded, as in a collection of garbage or a checkpoint."""
    for step in planting.steps:
        ns = max(planting.ns, 11e6)
        block = planting.block(planting.some(planting.among(step), 1)[0])
        block.spend(ns)
        block.close()


# ------------------------------------------------------------------------- compiled code


def compiled(planting: Planting) -> None:
    """The forward pass of each step is one compiled region; in the twin."""
    for step in planting.all_steps:
        _compile(planting, *_region(planting, step), [], 0)


def graph_breaks(planting: Planting) -> None:
    """Python between parts of the forward pass, which are compiled one by one."""
    broken = planting.steps
    count = planting.rng.randint(1, 4)
    for step in planting.all_steps:
        first, last = _region(planting, step)
        inside = np.arange(first + 1, last)
        cuts = planting.some(inside, count) if step in broken else []
        _compile(planting, first, last, cuts, planting.ns / count)


def _compile(planting: Planting, first: int, last: int, cuts: list[int], ns: float) -> None:
    """As dynamo records it: what is left behind a break is a region inside the first one."""
    regions: list[NewEvent] = []
    call: NewEvent | None = None
    for frame, place in enumerate([first, *cuts]):
        block = planting.block(place)
        if call is not None:
            block.shut(call)
            block.spend(ns)
        regions.append(block.open("op", f"Torch-Compiled Region: {frame}/0"))
        call = block.open("op", "CompiledFunction")
        block.close()
    block = planting.block(last)
    for event in (call, *reversed(regions)):
        if event is not None:
            block.shut(event)
    block.close()


def _region(planting: Planting, step: int) -> tuple[int, int]:
    """The longest stretch of places of the forward pass with nothing around that ends in it."""
    places = planting.among(step, Phase.FORWARD)
    parents = planting.program.main.parent[places]
    bounds = np.flatnonzero((np.diff(parents) != 0) | (np.diff(places) != 1)) + 1
    longest = max(np.split(places, bounds), key=len)
    if len(longest) < 8:
        raise NoPlaceError
    return int(longest[0]), int(longest[-1])


# ------------------------------------------------------------------------- collectives


def small_buckets(rng: random.Random, good: DataParallel) -> tuple[DataParallel, DataParallel]:
    """Gradients are reduced parameter by parameter, when they are there."""
    pieces = rng.randint(40, 120)
    good = replace(good, elements=pieces * rng.randint(500, 12_000))
    return good, replace(good, pieces=pieces)


def small_at_the_end(rng: random.Random, good: DataParallel) -> tuple[DataParallel, DataParallel]:
    """They are reduced one by one behind the backward pass."""
    pieces = rng.randint(15, 60)
    good = replace(good, elements=pieces * rng.randint(500, 12_000))
    return good, replace(good, pieces=pieces, late=True)


def waited_for(rng: random.Random, good: DataParallel) -> tuple[DataParallel, DataParallel]:
    """What computes waits for each bucket at once."""
    return good, replace(good, waits=True)


def behind_the_backward_pass(
    rng: random.Random, good: DataParallel
) -> tuple[DataParallel, DataParallel]:
    """All gradients are reduced when the last of them is there."""
    return good, replace(good, late=True)


# ------------------------------------------------------------------------- one rank


def late_rank(planting: Planting) -> None:
    """A rank stands still in each step."""
    hold_up(planting, planting.ns)


def late_rank_by_its_gpu(planting: Planting) -> None:
    """The GPU of a rank runs at a lower clock."""
    program, scene = planting.program, planting.scene
    edges = np.setdiff1d(program.run.edges_of("execution"), program.edges_through_collectives)
    factor = 1 + planting.ns / program.step_ns * 2
    cost_ns = scene.cost_ns[planting.rank]
    cost_ns[edges] = np.rint(cost_ns[edges] * factor)


def hold_up(planting: Planting, ns: float) -> None:
    """A rank stands still for so long in steps."""
    for step in planting.steps:
        place = planting.some(planting.among(step, Phase.FORWARD), 1)[0]
        block = planting.block(place)
        block.spend(ns)
        block.close()


FAULTS = (
    Form("slow_loader", "single_process_data_loading", slow_loader),
    Form("slow_collate", "single_process_data_loading", slow_collate),
    Form("pageable_upload", "no_memory_pin", pageable_upload),
    Form("uploads_by_sample", "no_memory_pin", uploads_by_sample),
    Form("copies_back_and_forth", "high_memcpy", copies_back_and_forth),
    Form("activations_read_back", "pageable_readback", activations_read_back),
    Form("item_reads", "host_sync_in_loop", item_reads),
    Form("device_synchronize", "explicit_synchronize", device_synchronize),
    Form("allocator_churn", "allocator_thrash", allocator_churn),
    Form("slow_host", "cpu_bound", slow_host),
    Form("many_small_operators", "cpu_bound", many_small_operators, idles=True),
    Form("pauses", "host_silence", pauses),
    Form("graph_breaks", "graph_break", graph_breaks, in_twin=compiled),
    Form("small_buckets", "small_nccl_kernels", spread=small_buckets),
    Form("small_at_the_end", "small_nccl_kernels", spread=small_at_the_end),
    Form("waited_for", "nccl_blocks_main_stream", spread=waited_for),
    Form(
        "behind_the_backward_pass", "nccl_compute_not_overlapped", spread=behind_the_backward_pass
    ),
    Form("late_rank", "straggler", late_rank, of_one_rank=True),
    Form("late_rank_by_its_gpu", "straggler", late_rank_by_its_gpu, of_one_rank=True),
    Form(
        "late_rank_by_its_loader", "straggler", slow_loader,
        of_one_rank=True, own_type="single_process_data_loading",
    ),
    Form(
        "late_rank_by_its_host", "straggler", slow_host, of_one_rank=True, own_type="cpu_bound"
    ),
)  # fmt: skip
