"""Traces of several ranks, made by hand: a few collectives, work before them, a clock each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from report_samples import TraceMaker

import torchtraceap as ttap

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"


def describe(name: str, elements: int, ranks: Sequence[int], **more: Any) -> dict[str, Any]:
    """The `args` that Kineto writes for a collective."""
    return {
        "Collective name": name,
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "dtype": "Float",
        "Group size": len(ranks),
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": str(list(ranks)),
        **more,
    }


class Job:
    """Ranks that meet in all-reduces. Times in microseconds on one clock; `offsets` move clocks."""

    def __init__(self, ranks: int, *, world_size: int | None = None) -> None:
        self.world = list(range(world_size or ranks))
        self.ranks = [TraceMaker(rank=r, world_size=len(self.world)) for r in range(ranks)]

    def all_reduce(
        self, starts: Sequence[float | None], end: float, *, elements: int = 1 << 20, **more: Any
    ) -> Job:
        """A rank with start None has no such kernel."""
        for maker, start in zip(self.ranks, starts, strict=True):
            if start is not None:
                args = describe("allreduce", elements, self.world, **more)
                launch = max(1.0, start - 20)
                maker.gpu("kernel", ALL_REDUCE, start, end - start, launch=launch, **args)
                maker.events[-1]["args"]["stream"] = maker.events[-1]["tid"] = 20
        return self

    def kernel(self, rank: int, start: float, length: float) -> Job:
        self.ranks[rank].gpu("kernel", "gemm", start, length, launch=max(1.0, start - 20))
        return self

    def host(self, rank: int, name: str, start: float, length: float) -> Job:
        self.ranks[rank].host("user_annotation", name, start, length)
        return self

    def step(self, number: int, start: float, length: float) -> Job:
        for rank in range(len(self.ranks)):
            self.host(rank, f"ProfilerStep#{number}", start, length)
        return self

    def load(
        self, folder: Path, *, offsets: Sequence[float] = (), only: Sequence[int] = ()
    ) -> ttap.Trace:
        """Writes a file per rank and reads the folder."""
        folder.mkdir(exist_ok=True)
        for rank, maker in enumerate(self.ranks):
            shift = offsets[rank] if offsets else 0.0
            for event in maker.events:
                event["ts"] += shift
            if not only or rank in only:
                maker.write(folder / f"rank{rank}.json")
            for event in maker.events:
                event["ts"] -= shift
        return ttap.load(folder)


def late_rank(ranks: int = 4, steps: int = 6, *, late: int = 2) -> Job:
    """One rank comes 3 ms late to every all-reduce because its kernel takes that much longer."""
    job = Job(ranks)
    for s in range(steps):
        at = 10_000.0 * s + 100
        job.step(s, at, 10_000)
        for rank in range(ranks):
            job.kernel(rank, at + 50, 4_000 if rank == late else 1_000)
        job.all_reduce([at + (4_060 if r == late else 1_060) for r in range(ranks)], at + 4_300)
    return job
