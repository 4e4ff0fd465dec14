"""Executors run tasks behind one interface of four methods, so that a cluster fits in.

`submit` takes a task, `results` yields outcomes as they come and ends when every task has one,
`cancel` drops what has not begun, `close` ends the workers. A worker that dies, takes too long or
too much memory costs its own run, and is replaced.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any, Protocol

from torchtraceap.core.records import dataclass
from torchtraceap.corpus.analyse import Failure, Outcome, Task, analyse, failed
from torchtraceap.errors import MissingDependencyError, OptionError

__all__ = ["Executor", "InlineExecutor", "PoolExecutor", "RayExecutor"]


class Executor(Protocol):
    """An object that runs tasks and yields their results."""

    def submit(self, task: Task) -> None:
        """Queue a task."""

    def results(self) -> Iterator[Outcome]:
        """Yield an outcome for each task, as they come."""

    def cancel(self) -> None:
        """Drop the tasks that have not begun."""

    def close(self) -> None:
        """End the workers."""


class InlineExecutor:
    """Runs tasks one by one in this process: for stores that live in it, such as `memory://`."""

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()

    def submit(self, task: Task) -> None:
        self._tasks.append(task)

    def results(self) -> Iterator[Outcome]:
        while self._tasks:
            yield analyse(self._tasks.popleft())

    def cancel(self) -> None:
        self._tasks.clear()

    def close(self) -> None:
        self.cancel()


RUNS_OF_A_WORKER = 1000
LOOK_SECONDS = 0.2
"""Between looks at the time and memory of workers."""


@dataclass(slots=True)
class _Worker:
    process: Any
    pipe: Connection
    task: Task | None = None
    begun: float = 0.0
    runs: int = 0


class PoolExecutor:
    """Runs tasks in processes of this machine, which import once and handle many runs.

    Args:
        jobs: The number of processes.
        seconds: The longest that a run may take.
        most_bytes: The most memory that a worker may have resident; None for no limit.
    """

    def __init__(self, jobs: int, *, seconds: float, most_bytes: int | None = None) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["torchtraceap.corpus.worker"])
        self._jobs, self._seconds, self._most_bytes = jobs, seconds, most_bytes
        self._tasks: deque[Task] = deque()
        self._workers: list[_Worker] = []

    def submit(self, task: Task) -> None:
        self._tasks.append(task)

    def results(self) -> Iterator[Outcome]:
        while self._tasks or any(worker.task for worker in self._workers):
            self._hand_out()
            by_pipe = {worker.pipe: worker for worker in self._workers if worker.task}
            for pipe in wait(list(by_pipe), LOOK_SECONDS):
                yield self._receive(by_pipe[pipe])  # type: ignore[index]
            for worker in list(self._workers):
                failure = self._overdrawn(worker)
                if failure and worker.task:
                    yield failed(worker.task, failure)
                    self._end(worker)

    def cancel(self) -> None:
        self._tasks.clear()

    def close(self) -> None:
        self.cancel()
        for worker in list(self._workers):
            self._end(worker)

    def _hand_out(self) -> None:
        while self._tasks and len(self._workers) < self._jobs:
            self._workers.append(self._start())
        for worker in self._workers:
            if worker.task is None and self._tasks:
                worker.task, worker.begun = self._tasks.popleft(), time.monotonic()
                with contextlib.suppress(OSError):  # it has died: `results` finds that
                    worker.pipe.send(worker.task)

    def _start(self) -> _Worker:
        from torchtraceap.corpus.worker import serve

        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=serve, args=(theirs,), daemon=True)
        with _without_main():
            process.start()
        theirs.close()
        return _Worker(process, ours)

    def _receive(self, worker: _Worker) -> Outcome:
        assert worker.task is not None
        try:
            outcome: Outcome = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join()
            code = worker.process.exitcode or 0
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"code {code}"
            outcome = failed(
                worker.task, Failure("crashed", f"the process ended with {name}", 128 - code)
            )
            self._end(worker)
            return outcome
        worker.task = None
        worker.runs += 1
        if worker.runs >= RUNS_OF_A_WORKER:
            self._end(worker)
        return outcome

    def _overdrawn(self, worker: _Worker) -> Failure | None:
        if worker.task is None:
            return None
        if time.monotonic() - worker.begun > self._seconds:
            return Failure("timeout", f"takes more than {self._seconds:g} s", 124)
        if self._most_bytes is not None and _resident(worker.process.pid) > self._most_bytes:
            return Failure("memory", f"needs more than {self._most_bytes:,} bytes of memory", 137)
        return None

    def _end(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the program that called us, which every worker would run again: its script may lack the
    guard that `multiprocessing` asks for, and workers need nothing of it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as stream:
            return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


class RayExecutor:
    """Runs tasks on a cluster of Ray, each of which retries what a lost node was doing.

    Args:
        address: The cluster; "auto", or "local" for one of this machine.
        seconds: The longest that a run may take.
    """

    def __init__(self, address: str, *, seconds: float) -> None:
        try:
            import ray
        except ImportError:
            raise MissingDependencyError(
                "--ray needs Ray: pip install 'torchtraceap[distributed]'"
            ) from None
        self._ray, self._seconds = ray, seconds
        self._ours = not ray.is_initialized()
        if self._ours:
            try:
                ray.init(address, log_to_driver=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise OptionError(f"--ray {address}: {error}") from None
        self._run = ray.remote(max_retries=5, num_cpus=1, max_calls=RUNS_OF_A_WORKER)(analyse)
        self._tasks: deque[Task] = deque()
        self._running: dict[Any, tuple[Task, float]] = {}

    def submit(self, task: Task) -> None:
        self._tasks.append(task)

    def results(self) -> Iterator[Outcome]:
        ray = self._ray
        overdue: set[Any] = set()
        while self._tasks or self._running:
            # As many as can run, so that the time of none counts while it is queued.
            cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
            while self._tasks and len(self._running) < cores:
                task = self._tasks.popleft()
                self._running[self._run.remote(task)] = (task, time.monotonic())
            done, _ = ray.wait(list(self._running), timeout=LOOK_SECONDS, fetch_local=True)
            for reference in done:
                task, _ = self._running.pop(reference)
                try:
                    yield ray.get(reference)
                except ray.exceptions.OutOfMemoryError as error:
                    yield failed(task, Failure("memory", str(error).split("\n")[0], 137))
                except ray.exceptions.RayError as error:
                    text = f"takes more than {self._seconds:g} s"
                    late = Failure("timeout", text, 124)
                    crash = Failure("crashed", str(error).split("\n")[0], 1)
                    yield failed(task, late if reference in overdue else crash)
            for reference, (_, begun) in self._running.items():
                if reference not in overdue and time.monotonic() - begun > self._seconds:
                    overdue.add(reference)
                    ray.cancel(reference, force=True)

    def cancel(self) -> None:
        self._tasks.clear()
        for reference in self._running:
            self._ray.cancel(reference)

    def close(self) -> None:
        if self._ours:
            self._ray.shutdown()
