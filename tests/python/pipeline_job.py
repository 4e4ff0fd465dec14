"""Jobs with pipeline and data parallelism, as workers run them: an answer that needs no graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pandas as pd

__all__ = ["Job", "Work"]

Work = Callable[[int, int, int], float]
"""Seconds of a compute operator by replica, stage and micro-batch."""


class Job:
    """Runs a 1F1B schedule, with several model chunks for each stage if `chunks` > 1.

    A worker goes through its program in order, begins a receive when it gets there and waits for
    it; sends don't block. Transfers take `transfer` seconds from when both sides have begun.
    """

    def __init__(
        self,
        stages: int = 1,
        replicas: int = 1,
        microbatches: int = 4,
        *,
        forward: Work | float = 1.0,
        backward: Work | float = 2.0,
        chunks: int = 1,
        transfer: float = 0.0,
        collective: float = 0.5,
        idle_exchanges: bool = False,
        overlapped: bool = False,
        steps: int = 1,
    ) -> None:
        self.stages, self.replicas, self.microbatches = stages, replicas, microbatches
        self.work = {"forward": _function(forward), "backward": _function(backward)}
        self.chunks, self.transfer, self.collective = chunks, transfer, collective
        self.idle_exchanges, self.overlapped = idle_exchanges, overlapped
        self.rows: list[dict[str, Any]] = []
        self.length = 0.0
        for step in range(steps):
            self.step, self.begin = step, 1000.0 * step
            self._run()

    def program(self, stage: int) -> list[tuple[str, int, int]]:
        """(direction, chunk, micro-batch) in order, as Megatron runs them."""
        p, v = self.stages, self.chunks
        total = self.microbatches * v
        warm_up = p - stage - 1 if v == 1 else 2 * (p - stage - 1) + (v - 1) * p
        warm_up = min(warm_up, total)

        def nth(direction: str, k: int) -> tuple[str, int, int]:
            if v == 1:
                return direction, 0, k
            chunk = k % (p * v) // p
            chunk = chunk if direction == "forward" else v - 1 - chunk
            return direction, chunk, k // (p * v) * p + k % p

        order = [nth("forward", k) for k in range(warm_up)]
        for k in range(total - warm_up):
            order += [nth("forward", warm_up + k), nth("backward", k)]
        return order + [nth("backward", k) for k in range(total - warm_up, total)]

    def add(
        self, name: str, replica: int, stage: int, start: float, end: float, chunk: int = -1
    ) -> None:
        place = chunk * self.stages + stage if chunk >= 0 and name.endswith("compute") else -1
        self.rows.append(
            {
                "dp_rank": replica,
                "stage": stage,
                "rank": replica + self.replicas * stage,
                "step": self.step,
                "optype": name,
                "start_ts": self.begin + start,
                "duration": end - start,
                "mc": chunk,
                "mb_id": -1,
                "gmc": place,
            }
        )

    def _run(self) -> None:
        free = {(r, s): 0.0 for r in range(self.replicas) for s in range(self.stages)}
        for worker in free:
            if self.replicas > 1:
                for chunk in range(self.chunks):
                    begin = (
                        self.collective if chunk else 0.0
                    )  # those of further chunks take no time
                    self.add("params-all-gather", *worker, begin, self.collective, chunk)
                free[worker] = self.collective
        for replica in range(self.replicas):
            self._run_pipeline(replica, free)
        self._finish(free)

    def _run_pipeline(self, replica: int, free: dict[tuple[int, int], float]) -> None:
        made: dict[tuple[str, int, int], float] = {}
        sends: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
        left = {stage: self.program(stage) for stage in range(self.stages)}
        last = self.stages * self.chunks - 1
        while any(left.values()):
            for stage, order in left.items():
                while order:
                    direction, chunk, batch = order[0]
                    place = chunk * self.stages + stage
                    source = place - 1 if direction == "forward" else place + 1
                    needs = 0 <= source <= last
                    if needs and (direction, source, batch) not in made:
                        break
                    posted = free[replica, stage]
                    arrival = posted
                    if needs:
                        done = made[direction, source, batch]
                        arrival = max(posted, done) + self.transfer
                        sends[direction, source % self.stages].append((done, arrival))
                    if needs or self.idle_exchanges:
                        self.add(f"{direction}-recv", replica, stage, posted, arrival)
                    end = arrival + self.work[direction](replica, stage, batch)
                    self.add(f"{direction}-compute", replica, stage, arrival, end, chunk)
                    made[direction, place, batch] = end
                    sink = place + 1 if direction == "forward" else place - 1
                    if self.idle_exchanges and not 0 <= sink <= last:
                        sends[direction, stage].append((end, end))
                    free[replica, stage] = end
                    order.pop(0)
        for (direction, stage), exchanges in sends.items():
            sent = 0.0  # one after the other on their stream
            for done, arrival in sorted(exchanges):
                begin = max(done, sent)
                sent = max(begin, arrival)
                self.add(f"{direction}-send", replica, stage, begin, sent)

    def _finish(self, free: dict[tuple[int, int], float]) -> None:
        workers = list(free)
        by_stage = [[(r, s) for r in range(self.replicas)] for s in range(self.stages)]
        for worker in workers:
            self.add("gc", *worker, free[worker], free[worker])
        if self.overlapped:
            for members in by_stage:
                done = 0.0
                for chunk in reversed(range(self.chunks)):
                    done = self._scatter_beside(members, chunk, done, free)
        for worker in workers:
            self.add("layernorm-grads-all-reduce", *worker, free[worker], free[worker])
        ends = sorted({0, self.stages - 1})
        for replica in range(self.replicas):
            self._meet("embedding-grads-all-reduce", [(replica, s) for s in ends], free)
        if self.replicas > 1:
            name = "separate-grads-all-reduce" if self.overlapped else "grads-reduce-scatter"
            for members in by_stage:
                self._meet(name, members, free)
        self._meet("optimizer-clip-main-grad", workers, free)
        for worker in workers:
            self.add("optimizer", *worker, free[worker], free[worker] + 0.25)
        self.length = max(free.values()) + 0.25

    def _meet(
        self, name: str, members: list[tuple[int, int]], free: dict[tuple[int, int], float]
    ) -> None:
        end = max(free[worker] for worker in members) + self.collective
        for worker in members:
            self.add(name, *worker, free[worker], end, 0)
            free[worker] = end

    def _scatter_beside(
        self,
        members: list[tuple[int, int]],
        chunk: int,
        before: float,
        free: dict[tuple[int, int], float],
    ) -> float:
        """After the chunk's last backward and the scatter that ended `before`; takes no time."""
        began = {
            (replica, stage): max(
                before,
                *(
                    row["start_ts"] + row["duration"] - self.begin
                    for row in self.rows
                    if (row["optype"], row["dp_rank"], row["stage"], row["mc"], row["step"])
                    == ("backward-compute", replica, stage, chunk, self.step)
                ),
            )
            for replica, stage in members
        }
        end = max(began.values())
        for worker in members:
            self.add("grads-reduce-scatter", *worker, began[worker], end, chunk)
            free[worker] = max(free[worker], end)
        return end

    @property
    def frame(self) -> pd.DataFrame:
        return pd.DataFrame(self.rows)


def _function(work: Work | float) -> Work:
    return work if callable(work) else lambda *_: work
