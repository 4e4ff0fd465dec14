"""Made-up traces of the ranks of a served model with experts, of which each wait is known."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from served_model import Served, _event

MEETS = ("internode_ll::", "cross_device_reduce")
"""Words of the kernels in which all ranks meet."""


@dataclass
class ServedRanks:
    """Ranks that decode with the same graph and meet in its exchanges.

    Times are in microseconds. A kernel in which ranks meet ends on all of them `transfer_us` after
    the last one has come.
    """

    served: Served = field(default_factory=lambda: Served(dense=1, experts=6, iterations=5))
    ranks: int = 8
    transfer_us: float = 12.0
    expert_us: dict[tuple[int, int], float] = field(default_factory=dict)
    """By rank and layer: what its experts take longer."""
    jitter_us: float = 0.0
    """Up to so much longer takes each kernel of each rank."""
    clocks_us: tuple[float, ...] = ()
    """By rank: how far its clock is ahead."""
    missing: dict[int, int] = field(default_factory=dict)
    """By rank: iterations at the start that it did not record."""
    late_us: dict[int, float] = field(default_factory=dict)
    """By rank: how much later its host launches each graph."""
    beside: bool = False
    """Another half of the batch computes beside each exchange, on a stream of its own."""
    seed: int = 0

    def __post_init__(self) -> None:
        self.waits_us: dict[tuple[int, int, int], float] = {}
        """By iteration, place among the kernels in which ranks meet, and rank."""

    def traces(self) -> list[dict[str, Any]]:
        """Return the trace of each rank."""
        rng = random.Random(self.seed)
        events: list[list[dict[str, Any]]] = [[] for _ in range(self.ranks)]
        clocks = [1000.0] * self.ranks
        for iteration in range(self.served.iterations):
            kept = [iteration >= self.missing.get(rank, 0) for rank in range(self.ranks)]
            host = [clock + self.served.gap_us + self.late_us.get(rank, 0.0)
                    for rank, clock in enumerate(clocks)]  # fmt: skip
            correlation = 100 + iteration
            for rank, now in enumerate(host):
                if kept[rank]:
                    name = self.served.annotation.format(batch=self.served.batch)
                    events[rank] += [
                        _event("user_annotation", name, now, 60.0),
                        _event("cuda_runtime", "cudaGraphLaunch", now + 5.0, 40.0,
                               correlation=correlation),
                    ]  # fmt: skip
                clocks[rank] = now + 55.0
            met = 0
            for (_, kernel, role), layer in self.served.kernels():
                meets = any(word in kernel for word in MEETS)
                starts = list(clocks)
                end = max(starts) + self.transfer_us
                for rank in range(self.ranks):
                    length = 20.0 if "gemm" in kernel or "nvjet" in kernel else 5.0
                    length += rng.random() * self.jitter_us
                    if role in ("experts_up", "experts_down") and layer is not None:
                        length += self.expert_us.get((rank, layer), 0.0) / 2
                    clocks[rank] = end if meets else starts[rank] + length
                    clocks[rank] = round(clocks[rank], 3)
                    if meets:
                        wait = max(starts) - starts[rank]
                        self.waits_us[iteration, met, rank] = wait
                    if not kept[rank]:
                        continue
                    events[rank].append(
                        self._kernel(kernel, starts[rank], clocks[rank], correlation)
                    )
                    if meets and self.beside:
                        events[rank].append(
                            self._kernel("nvjet_other_half", starts[rank], clocks[rank],
                                         correlation, stream=9)
                        )  # fmt: skip
                met += meets
            # The hosts wait for the tokens before they schedule the next iteration.
            for rank, now in enumerate(host):
                if kept[rank]:
                    events[rank].append(
                        _event("cuda_runtime", "cudaStreamSynchronize", now + 61.0,
                               max(clocks[rank] - now - 60.0, 1.0))
                    )  # fmt: skip
        return [self._document(rank, rows) for rank, rows in enumerate(events)]

    def _document(self, rank: int, events: list[dict[str, Any]]) -> dict[str, Any]:
        ahead = self.clocks_us[rank] if self.clocks_us else 0.0
        for event in events:
            event["ts"] = round(event["ts"] + ahead, 3)
        return {
            "traceEvents": events,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": self.ranks},
        }

    @staticmethod
    def _kernel(
        name: str, start: float, end: float, correlation: int, *, stream: int = 7
    ) -> dict[str, Any]:
        event = _event("kernel", name, start, end - start, pid=0, tid=stream)
        event["args"] = {"correlation": correlation, "device": 0, "stream": stream}
        return event

    def write(self, folder: Path) -> Path:
        """Write a file for each rank; return the folder."""
        folder.mkdir(exist_ok=True)
        for rank, trace in enumerate(self.traces()):
            (folder / f"rank{rank}.json").write_text(json.dumps(trace))
        return folder
