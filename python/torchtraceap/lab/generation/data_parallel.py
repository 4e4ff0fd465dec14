"""`DataParallel`: the exchange of gradients between ranks of one program, efficient or not.

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
from torchtraceap.core import Array
from torchtraceap.lab.generation.program import Places, Program
from torchtraceap.lab.generation.scene import Block, Scene
from torchtraceap.lab.prediction.timeline.profilers import all_reduce_kernel
from torchtraceap.ops import UnknownDurationError, estimate_collective

__all__ = ["DataParallel", "can_spread", "draw_data_parallel"]

_STREAM = 13
"""Number of NCCL's stream relative to the program's."""
_LATENCY_NS, _BYTES_PER_NS = 20_000, 10.0
"""Model of an all-reduce where nothing is known of the device: 10 GB/s."""
_HIDEABLE = 0.6
"""Share of the backward pass that exchanging gradients takes at most."""
_ANCIENT = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"
_ON_AMD = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"


@dataclass(frozen=True)
class DataParallel:
    """Ranks, and the way in which they exchange gradients."""

    ranks: int
    buckets: int
    """Buckets in a step."""
    elements: int
    """Elements of a bucket, fp32."""
    slower: float
    """Factor on the times of a good link."""
    pieces: int = 1
    """Collectives for a bucket."""
    waits: bool = False
    """True if compute waits for each of them at once."""
    late: bool = False
    """True if none of them begins before the backward pass has ended."""

    def inject(self, scene: Scene) -> None:
        """Inject the collectives of all steps into a scene."""
        program = scene.program
        backward, main = program.backward, program.main
        for step in program.steps:
            places = np.flatnonzero(_in_backward(program) & (backward.step == step))
            if len(places) <= self.buckets:
                continue
            cuts = [len(places) * (i + 1) // self.buckets - 1 for i in range(self.buckets)]
            chosen = places[[len(places) - 1] * self.buckets if self.late else cuts]
            ends: list[int] = []
            for place in chosen.tolist():
                for _ in range(self.pieces):
                    ends = self._reduce(scene, place, ends)
                if self.waits:
                    _wait(scene, backward, place, ends)
            # The optimizer needs all gradients.
            ended_ns = int(backward.time_ns[places[-1]])
            behind = np.flatnonzero((main.step == step) & (main.time_ns > ended_ns))
            optimizer = behind[main.phase[behind] == Phase.OPTIMIZER]
            behind = optimizer if len(optimizer) else behind
            if len(behind):
                _wait(scene, main, int(behind[0]), ends)

    def _reduce(self, scene: Scene, place: int, before: list[int]) -> list[int]:
        """Inject one collective on all ranks, behind the previous ones; return its ends."""
        meeting = scene.point()
        elements = max(1, self.elements // self.pieces)
        transfer_ns = self.transfer_ns(scene.program, elements)
        places = scene.program.backward
        slot = int(scene.program.slots(places.time_ns[place : place + 1])[0])
        ends = []
        for rank in range(self.ranks):
            begin, end = self._launch(scene, rank, place, elements)
            for source in (scene.last_before(rank, slot), *before[rank : rank + 1]):
                if source is not None:
                    scene.edge(source, begin, scene.program.view.gap_ns)
            scene.edge(begin, meeting, 0)
            scene.edge(meeting, end, transfer_ns)
            ends.append(end)
        return ends

    def _launch(self, scene: Scene, rank: int, place: int, elements: int) -> tuple[int, int]:
        """Launch a collective as c10d does: NCCL's stream waits for the current stream."""
        program, profiler = scene.program, scene.program.profiler
        block = Block(scene, rank, program.backward, place)
        is_old = program.is_ancient or program.runtime == "hip"
        arguments: dict[str, Any] = {}
        kernel = _ANCIENT
        if not program.is_ancient:
            arguments = {
                "Collective name": "allreduce",
                "In msg nelems": elements,
                "Out msg nelems": elements,
                "Group size": self.ranks,
                "dtype": "Float",
                "In split size": "[]",
                "Out split size": "[]",
                "Process Group Name": "0",
                "Process Group Description": "default_pg",
                "Process Group Ranks": str(list(range(self.ranks))),
                "Global rank start": 0,
                "Global rank stride": 1,
            }
            kernel = _ON_AMD if is_old else all_reduce_kernel("float32", profiler)
        on_op, on_kernel = (
            {key: value for key, value in arguments.items() if key in kept}
            for kept in (profiler.on_operators, profiler.on_kernels)
        )
        call, dims = "LaunchKernel" if is_old else "LaunchKernelExC", [[elements]]
        with block.op("c10d::allreduce_", dims=dims), block.op("record_param_comms", **on_op):
            block.call("EventRecord", 2_000)
            block.call("StreamWaitEvent", 1_500)
            with block.range("annotation", "nccl:all_reduce"):
                work = block.work(
                    "kernel", kernel, 0, call=call, stream=_STREAM,
                    grid=[8, 1, 1], block=[512, 1, 1], **on_kernel,
                )  # fmt: skip
            block.call("EventRecord", 700)
        block.close()
        return work

    def transfer_ns(self, program: Program, elements: int) -> float:
        """Return the duration of an all-reduce of so many elements."""
        device, size = program.view.device, 4 * elements
        if device is not None:
            try:
                found = float(estimate_collective("all_reduce", size, self.ranks, device).ns)
                return found * self.slower
            except UnknownDurationError:
                pass
        moved = 2 * size * (self.ranks - 1) / self.ranks
        return (_LATENCY_NS + moved / _BYTES_PER_NS) * self.slower


def _wait(scene: Scene, places: Places, place: int, ends: list[int]) -> None:
    """Let compute of each rank go on behind the end of its collective."""
    for rank, end in enumerate(ends):
        block = Block(scene, rank, places, place)
        block.call("StreamWaitEvent", 1_500)
        block.close()
        behind = scene.first_behind(rank, block.slot)
        if behind is not None:
            scene.edge(end, behind, scene.program.view.gap_ns)


def _in_backward(program: Program) -> Array:
    found: Array = program.backward.phase == Phase.BACKWARD
    return found


def can_spread(program: Program) -> bool:
    """Return True if the program has a backward pass whose gradients ranks could exchange."""
    return bool(_in_backward(program).sum() >= 16) and program.backward_share > 0.1


def draw_data_parallel(
    rng: random.Random, program: Program, ranks: int, scale: float
) -> DataParallel:
    """Draw an exchange of gradients that the backward pass hides.

    Args:
        rng: Random numbers.
        program: The program of each rank.
        ranks: Number of ranks.
        scale: A larger scale exchanges more, as far as the backward pass hides it.
    """
    buckets = rng.randint(3, 8)
    elements = round(np.exp(rng.uniform(np.log(5e5), np.log(2e7))) * max(scale, 1.0))
    spread = DataParallel(ranks, buckets, elements, rng.uniform(1, 4))
    backward_ns = program.step_ns * program.backward_share
    share = min(_HIDEABLE, rng.uniform(0.2, _HIDEABLE) * scale)
    most_ns = share * backward_ns / buckets
    while spread.elements > 20_000 and spread.transfer_ns(program, spread.elements) > most_ns:
        spread = replace(spread, elements=spread.elements // 2)
    return spread
