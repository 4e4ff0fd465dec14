"""`DataParallel`: how ranks of one program exchange their gradients, well or badly.

The gradients of a step go in buckets. A bucket is reduced when the backward pass has come to its
place: the thread of the backward pass launches the collective on a stream of its own, which waits
for what computes the gradients, and the data moves when all ranks have come. The optimizer waits
for the last of them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from torchtraceap._core import Phase
from torchtraceap.core.aliases import Array
from torchtraceap.lab.generation.program import Places, Program
from torchtraceap.lab.generation.scene import Scene, Work
from torchtraceap.lab.prediction.timeline.profilers import collective_kernel
from torchtraceap.ops.durations import UnknownDurationError
from torchtraceap.ops.durations.collectives import estimate_collective

__all__ = ["DataParallel", "can_spread", "drawn"]

_STREAM = 13
"""NCCL's stream, numbers behind the program's."""
_LATENCY_NS, _BYTES_PER_NS = 20_000, 10.0
"""Of an all-reduce where nothing is known of the device: 10 GB/s."""
_HIDEABLE = 0.6
"""Of the backward pass, what exchanging gradients takes at most."""
_ANCIENT = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"
_OF_AMD = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"


@dataclass(frozen=True)
class DataParallel:
    """Ranks, and how they exchange gradients."""

    ranks: int
    buckets: int
    """Of a step."""
    elements: int
    """Of a bucket, fp32."""
    slower: float
    """The link, than a good one."""
    pieces: int = 1
    """Collectives for a bucket."""
    waits: bool = False
    """What computes waits for each of them at once."""
    late: bool = False
    """None of them begins before the backward pass has ended."""

    def lay(self, scene: Scene) -> None:
        """Puts the collectives of all steps into a scene."""
        program = scene.program
        for step in program.steps:
            places = np.flatnonzero(_in_backward(program) & (program.backward.step == step))
            if len(places) <= self.buckets:
                continue
            cuts = [len(places) * (i + 1) // self.buckets - 1 for i in range(self.buckets)]
            chosen = places[[len(places) - 1] * self.buckets if self.late else cuts]
            last: list[Work] = []
            for place in chosen.tolist():
                for _ in range(self.pieces):
                    last = self._reduce(scene, program.backward, place, last)
                if self.waits:
                    _wait(scene, program.backward, place, last)
            _wait_at_end(scene, step, int(places[-1]), last)

    def _reduce(self, scene: Scene, places: Places, place: int, before: list[Work]) -> list[Work]:
        """One collective on all ranks."""
        meeting = scene.point()
        elements = max(1, self.elements // self.pieces)
        transfer_ns = self._transfer_ns(scene.program, elements)
        slot = int(scene.program.slots(places.time_ns[place : place + 1])[0])
        works = []
        for rank in range(self.ranks):
            work = self._launch(scene, rank, places, place, elements)
            ends = [scene.last_before(rank, slot), *(each.end for each in before[rank : rank + 1])]
            for end in ends:
                if end is not None:
                    scene.edge(end, work.begin, scene.program.view.gap_ns)
            scene.edge(work.begin, meeting, 0)
            scene.edge(meeting, work.end, transfer_ns)
            works.append(work)
        return works

    def _launch(self, scene: Scene, rank: int, places: Places, place: int, elements: int) -> Work:
        """As c10d does it: NCCL's stream waits for what the current one was given."""
        program = scene.program
        block = scene.block(rank, places, place)
        says = {} if program.is_ancient else _arguments(elements, self.ranks)
        profiler = program.profiler
        on_op, on_kernel = (
            {key: value for key, value in says.items() if key in kept}
            for kept in (profiler.on_operators, profiler.on_kernels)
        )
        dims = [[elements]]
        is_old = program.is_ancient or program.runtime == "hip"
        call = "LaunchKernel" if is_old else "LaunchKernelExC"
        with block.op("c10d::allreduce_", dims=dims), block.op("record_param_comms", **on_op):
            block.call("EventRecord", 2_000)
            block.call("StreamWaitEvent", 1_500)
            with block.range("annotation", "nccl:all_reduce"):
                work = block.work(
                    "kernel", _kernel_name(program), 0, call=call, stream=_STREAM,
                    grid=[8, 1, 1], block=[512, 1, 1], **on_kernel,
                )  # fmt: skip
            block.call("EventRecord", 700)
        block.close()
        return work

    def _transfer_ns(self, program: Program, elements: int) -> float:
        return transfer_ns(program, 4 * elements, self.ranks) * self.slower


def _wait(scene: Scene, places: Places, place: int, works: list[Work]) -> None:
    """What computes goes on behind the collective of each rank."""
    for rank, work in enumerate(works):
        block = scene.block(rank, places, place)
        block.call("StreamWaitEvent", 1_500)
        block.close()
        behind = scene.first_behind(rank, block.slot)
        if behind is not None:
            scene.edge(work.end, behind, scene.program.view.gap_ns)


def _wait_at_end(scene: Scene, step: int, last: int, works: list[Work]) -> None:
    """The optimizer needs all gradients."""
    main, ended_ns = scene.program.main, int(scene.program.backward.time_ns[last])
    behind = np.flatnonzero((main.step == step) & (main.time_ns > ended_ns))
    optimizer = behind[main.phase[behind] == Phase.OPTIMIZER]
    behind = optimizer if len(optimizer) else behind
    if len(behind):
        _wait(scene, main, int(behind[0]), works)


def _kernel_name(program: Program) -> str:
    if program.is_ancient:
        return _ANCIENT
    if program.runtime == "hip":
        return _OF_AMD
    return collective_kernel("AllReduce_Sum", "f32", program.profiler)


def _arguments(elements: int, ranks: int) -> dict[str, Any]:
    return {
        "Collective name": "allreduce",
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": ranks,
        "dtype": "Float",
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": str(list(range(ranks))),
        "Global rank start": 0,
        "Global rank stride": 1,
    }


def _in_backward(program: Program) -> Array:
    found: Array = program.backward.phase == Phase.BACKWARD
    return found


def can_spread(program: Program) -> bool:
    """The program has a backward pass whose gradients ranks could exchange."""
    return bool(_in_backward(program).sum() >= 16) and program.backward_share > 0.1


def transfer_ns(program: Program, size: int, ranks: int) -> float:
    """How long an all-reduce of so many bytes takes."""
    device = program.view.device
    if device is not None:
        try:
            return float(estimate_collective("all_reduce", size, ranks, device).ns)
        except UnknownDurationError:
            pass
    return _LATENCY_NS + 2 * size * (ranks - 1) / ranks / _BYTES_PER_NS


def drawn(rng: random.Random, program: Program, ranks: int, scale: float) -> DataParallel:
    """Ranks that exchange their gradients well: in time, beside the backward pass.

    Args:
        rng: Draws.
        program: What each runs.
        ranks: How many.
        scale: With more there is more to exchange, as far as the backward pass hides it.
    """
    buckets = rng.randint(3, 8)
    elements = round(np.exp(rng.uniform(np.log(5e5), np.log(2e7))) * max(scale, 1.0))
    spread = DataParallel(ranks, buckets, elements, rng.uniform(1, 4))
    backward_ns = program.step_ns * program.backward_share
    share = min(_HIDEABLE, rng.uniform(0.2, _HIDEABLE) * scale)
    most_ns = share * backward_ns / buckets
    while spread.elements > 20_000 and spread._transfer_ns(program, spread.elements) > most_ns:
        spread = replace(spread, elements=spread.elements // 2)
    return spread
