"""The decoys: what looks like a fault, where it costs nothing."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from torchtraceap.lab.generation.data_parallel import DataParallel
from torchtraceap.lab.generation.faults import fetch, hold_up, read_item, slow_down
from torchtraceap.lab.generation.placement import Form, NoPlaceError, Planting

__all__ = ["DECOYS"]

_MARGIN = 1.3
"""A place has slack if it may be so many times as late as it gets."""


def hidden_fetch(planting: Planting) -> None:
    """The training process loads a batch while the GPU still has work."""
    firsts = {planting.first(step): step for step in planting.steps}
    for place in planting.with_slack(np.array(list(firsts)), _MARGIN * planting.ns):
        fetch(planting, firsts[place], planting.ns, collate=0.1)


def hidden_upload(planting: Planting) -> None:
    """From pinned memory, on a stream of its own, beside what the GPU computes."""
    for step in planting.steps:
        block = planting.block(planting.first(step))
        size = round(planting.ns * planting.rng.uniform(10, 20))
        with block.copying(size // 4):
            name = "Memcpy HtoD (Pinned -> Device)"
            block.work("copy", name, planting.ns, stream=4, bytes=size)
        block.close()


def hidden_readback(planting: Planting) -> None:
    """Results are copied to pinned memory while the GPU computes, and nobody waits."""
    for step in planting.steps:
        places = planting.when_busy(step, _MARGIN * planting.ns)
        block = planting.block(planting.some(places, 1)[0])
        size = round(planting.ns * planting.rng.uniform(10, 20))
        with block.copying(size // 4):
            name = "Memcpy DtoH (Device -> Pinned)"
            block.work("copy", name, planting.ns, stream=5, bytes=size)
        block.close()


def small_constants(planting: Planting) -> None:
    """A few numbers from memory that is not pinned, while the GPU has work."""
    count = planting.rng.randint(2, 8)
    for step in planting.steps:
        places = planting.with_slack(planting.among(step), count * 60_000)
        for place in planting.some(np.array(places), count):
            block = planting.block(place)
            with block.copying(64):
                block.work("copy", "Memcpy HtoD (Pageable -> Device)", 1_200, stream=4, bytes=256)
            block.close()


def idle_read(planting: Planting) -> None:
    """One value a step, of work that is done already."""
    for step in planting.steps:
        read_item(planting.block(planting.some(planting.when_idle(step), 1)[0]))


def idle_synchronize(planting: Planting) -> None:
    """The program waits for a device that has nothing to do."""
    for step in planting.steps:
        block = planting.block(planting.some(planting.when_idle(step), 1)[0])
        block.wait("DeviceSynchronize")
        block.close()


def hidden_slow_host(planting: Planting) -> None:
    """The host takes longer, and the GPU has work for longer."""
    for step in planting.steps:
        places = planting.among(step)
        held = planting.with_slack(places[: max(1, len(places) // 2)], _MARGIN * planting.ns)
        slow_down(planting, step, planting.ns, start=planting.rng.choice(held))


def hidden_allocations(planting: Planting) -> None:
    """The allocator asks the device for memory while that has work."""
    for step in planting.steps:
        places = planting.with_slack(planting.among(step), _MARGIN * planting.ns)
        block = planting.block(planting.rng.choice(places))
        with block.op("aten::empty", dims=[[]]):
            block.call("Malloc", planting.ns)
        block.close()


def more_buckets(rng: random.Random, good: DataParallel) -> tuple[DataParallel, DataParallel]:
    """Smaller buckets, which the backward pass still hides."""
    pieces = rng.randint(2, 4)
    if good.elements < pieces * 20_000:
        raise NoPlaceError
    return good, replace(good, pieces=pieces)


def late_but_awaited(planting: Planting) -> None:
    """A rank is late by less than its collectives may be."""
    hold_up(planting, planting.ns)


DECOYS = (
    Form("hidden_fetch", "single_process_data_loading", hidden_fetch, decoy=True),
    Form("hidden_upload", "no_memory_pin", hidden_upload, decoy=True),
    Form("small_constants", "no_memory_pin", small_constants, decoy=True),
    Form("hidden_readback", "high_memcpy", hidden_readback, decoy=True),
    Form("idle_read", "host_sync_in_loop", idle_read, decoy=True),
    Form("idle_synchronize", "explicit_synchronize", idle_synchronize, decoy=True),
    Form("hidden_slow_host", "cpu_bound", hidden_slow_host, decoy=True),
    Form("hidden_allocations", "allocator_thrash", hidden_allocations, decoy=True),
    Form("more_buckets", "small_nccl_kernels", decoy=True, spread=more_buckets),
    Form("late_but_awaited", "straggler", late_but_awaited, decoy=True, of_one_rank=True),
)
