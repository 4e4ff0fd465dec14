"""What the operating system and Python's collector did to a process while it was recorded.

A profiler says what ran; where nothing ran it can't say whether the program slept, collected
garbage or had no processor to run on. Linux can: it counts for each thread how long it was ready
to run and waited (`/proc/PID/task/TID/schedstat`). What is not there (another system, an old
kernel) is not recorded, and rules that need it abstain.

Threads are sampled by a thread of their own every `PERIOD_S`, so that a wait has a place in the
step; the process and the machine at the borders of steps. Times are those of the system clock,
which is the clock of torch's profiler.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["METADATA", "ProcessState", "state_events", "state_metadata"]

METADATA = "ttap_process"
"""Top-level member of the trace with what does not change while it is recorded."""
THREAD_COUNTER = "processor time of a thread"
PROCESS_COUNTER = "state of the process"
MACHINE_COUNTER = "state of the machine"
COLLECTION = "garbage collection"
COLLECTION_CATEGORY = "garbage_collection"

PERIOD_S = 0.005
"""Half of the shortest silence that is noticed (host_silence)."""
MOST_THREADS = 32
MOST_WORKERS = 32
MOST_SAMPLES = 200_000
"""Of all threads together: some minutes of a few threads, 30 MB of text."""
LEAST_COLLECTION_NS = 100_000
"""Shorter collections are counted, and have no event: there may be thousands in a step."""
_READ_BYTES = 4096


class ProcessState:
    """Samples the state of this process from `start` to `finish`.

    Args:
        between_steps: Also sample threads within steps. Not where Python frames are recorded, as
            the sampling thread would be in the trace.
    """

    def __init__(self, *, between_steps: bool = True) -> None:
        self._between_steps = between_steps
        self._files: dict[tuple[int, int], int] = {}  # of (process, thread)
        self._throttling: list[int] = []
        self._threads: list[tuple[int, int, int, int, int]] = []
        self._samples: list[dict[str, int | float]] = []
        self._collections: list[tuple[int, int, int, int, int]] = []
        self._collected = [0, 0]  # how many, and ns
        self._collection_began = 0
        self._ended = threading.Event()
        self._sampler: threading.Thread | None = None
        self._is_running = False

    def start(self) -> None:
        """Begin, in the thread that trains."""
        self._is_running = True
        own = threading.get_native_id()
        self._open(os.getpid(), own)
        for thread in _busiest_threads(MOST_THREADS):
            self._open(os.getpid(), thread)
        self._throttling = list(_open_throttling())
        gc.callbacks.append(self._on_collection)
        self.sample()
        if self._between_steps and self._files:
            self._sampler = threading.Thread(
                target=self._sample_on, name="torchtraceap", daemon=True
            )
            self._sampler.start()

    def sample(self) -> None:
        """Tell that a step ends here and another begins."""
        if not self._is_running:
            return
        for worker in _children(MOST_WORKERS):
            self._open(worker, worker)
        self._sample_threads()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self._samples.append(
            {
                "time_ns": time.time_ns(),
                "user_ns": round(usage.ru_utime * 1e9),
                "system_ns": round(usage.ru_stime * 1e9),
                "involuntary_switches": usage.ru_nivcsw,
                "voluntary_switches": usage.ru_nvcsw,
                "minor_faults": usage.ru_minflt,
                "major_faults": usage.ru_majflt,
                "collections": self._collected[0],
                "collecting_ns": self._collected[1],
                **_machine(),
                **self._throttled(),
            }
        )

    def finish(self) -> dict[str, Any]:
        """End, and return what was sampled, for `state_events`; the same when called again."""
        if self._is_running:
            self.sample()
            self._is_running = False
            self._ended.set()
            if self._sampler is not None:
                self._sampler.join()
            with contextlib.suppress(ValueError):  # the program has emptied the list
                gc.callbacks.remove(self._on_collection)
            for file in (*self._files.values(), *self._throttling):
                os.close(file)
            self._files, self._throttling = {}, []
        return {
            "pid": os.getpid(),
            "machine": _limits(),
            "threads": self._threads,
            "samples": self._samples,
            "collections": self._collections,
        }

    # -- inside ------------------------------------------------------------------------------

    def _open(self, process: int, thread: int) -> None:
        if (process, thread) in self._files:
            return
        with contextlib.suppress(OSError):
            path = f"/proc/{process}/task/{thread}/schedstat"
            self._files[process, thread] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def _sample_threads(self) -> None:
        if len(self._threads) + len(self._files) > MOST_SAMPLES:
            return
        now = time.time_ns()
        for (process, thread), file in list(self._files.items()):
            try:
                ran, waited, _ = os.pread(file, _READ_BYTES, 0).split()
            except (OSError, ValueError):  # it has ended
                continue
            self._threads.append((now, process, thread, int(ran), int(waited)))

    def _sample_on(self) -> None:
        while not self._ended.wait(PERIOD_S):
            self._sample_threads()

    def _throttled(self) -> dict[str, int]:
        times = []
        for file in self._throttling:
            with contextlib.suppress(OSError, ValueError):
                times.append(_throttled_ns(os.pread(file, _READ_BYTES, 0)))
        return {"throttled_ns": sum(times)} if times else {}

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        now = time.time_ns()
        if phase == "start":
            self._collection_began = now
        elif self._collection_began:
            took_ns = max(0, now - self._collection_began)
            self._collected[0] += 1
            self._collected[1] += took_ns
            if took_ns >= LEAST_COLLECTION_NS and len(self._collections) < MOST_SAMPLES:
                began, thread = self._collection_began, threading.get_native_id()
                generation, freed = info.get("generation", 0), info.get("collected", 0)
                self._collections.append((began, took_ns, thread, generation, freed))
            self._collection_began = 0


# --------------------------------------------------------------------------------- the machine


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _busiest_threads(most: int) -> list[int]:
    """Return threads of this process, those that ran longest first."""
    ran = []
    for name in os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else ():
        numbers = _read(f"/proc/self/task/{name}/schedstat").split()
        if len(numbers) == 3:
            ran.append((-int(numbers[0]), int(name)))
    return [thread for _, thread in sorted(ran)[:most]]


def _children(most: int) -> list[int]:
    """Return processes that the calling thread started, such as the workers of a loader."""
    own = threading.get_native_id()
    return [int(each) for each in _read(f"/proc/self/task/{own}/children").split()[:most]]


def _machine() -> dict[str, int | float]:
    """Return how many threads of the machine want to run, its load, and what its host took."""
    found: dict[str, int | float] = {}
    load = _read("/proc/loadavg").split()
    if len(load) >= 4 and b"/" in load[3]:
        found |= {"runnable": int(load[3].split(b"/")[0]), "load_1m": float(load[0])}
    processors = _read("/proc/stat").split(b"\n", 1)[0].split()
    if len(processors) > 8:  # user nice system idle iowait irq softirq steal
        found["steal_ns"] = int(processors[8]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return found


def _limits() -> dict[str, int | float]:
    """Return how many processors there are, and how many this process may use."""
    found: dict[str, int | float] = {"cores": os.cpu_count() or 0}
    if hasattr(os, "sched_getaffinity"):
        found["usable_cores"] = len(os.sched_getaffinity(0))
    quotas = [quota for folder in _groups() if (quota := _quota(folder)) is not None]
    if quotas:
        found["cpu_limit"] = min(quotas)
    return found


def _groups() -> Iterator[Path]:
    """Yield control groups of processors that hold this process, and those around them."""
    for line in _read("/proc/self/cgroup").decode("utf-8", "replace").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0":
            root = Path("/sys/fs/cgroup")
        elif "cpu" in controllers.split(","):
            root = Path("/sys/fs/cgroup/cpu")
        else:
            continue
        folder = root / path.lstrip("/")
        # Inside a container the path may be that of the host, which is not there: the root is its.
        yield from (each for each in (folder, *folder.parents) if each.is_relative_to(root))


def _quota(folder: Path) -> float | None:
    """Return how many processors a control group may use; None where it has no limit."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # "max"
        return None


def _open_throttling() -> Iterator[int]:
    """Yield open files that count how long groups with a limit were kept from running."""
    for folder in _groups():
        if _quota(folder) is not None:
            with contextlib.suppress(OSError):
                yield os.open(folder / "cpu.stat", os.O_RDONLY | os.O_CLOEXEC)


def _throttled_ns(text: bytes) -> int:
    """Return the time in a `cpu.stat`: in us in the second version of control groups, else in
    ns."""
    for line in text.splitlines():
        key, _, value = line.partition(b" ")
        if key == b"throttled_usec":
            return int(value) * 1000
        if key == b"throttled_time":
            return int(value)
    raise ValueError("no throttled time")


# ------------------------------------------------------------------------------- into the trace

_OF_MACHINE = ("runnable", "load_1m", "steal_ns", "throttled_ns")


def state_metadata(state: dict[str, Any]) -> bytes:
    """Return the member of the trace that says what the process may use."""
    return b'"' + METADATA.encode() + b'": ' + json.dumps(state["machine"]).encode()


def state_events(state: dict[str, Any], base_ns: int) -> bytes:
    """Return events for a trace, parted by commas: counters, which count from the first sample on
    where they count, and collections.

    Args:
        state: As `ProcessState.finish` returns it.
        base_ns: What the trace's times are counted from: its `baseTimeNanoseconds`.
    """
    pid = state["pid"]
    events: list[dict[str, Any]] = []

    def add(
        phase: str, name: str, time_ns: int, tid: int, args: dict[str, Any], **more: Any
    ) -> None:
        place = {"pid": pid, "tid": tid, "ts": (time_ns - base_ns) / 1e3}
        events.append({"ph": phase, "name": name, **place, **more, "args": args})

    first: dict[tuple[int, int], tuple[int, int]] = {}
    for time_ns, process, thread, ran, waited in state["threads"]:
        ran_before, waited_before = first.setdefault((process, thread), (ran, waited))
        args = {"ran_ns": ran - ran_before, "waited_ns": waited - waited_before}
        if process != pid:
            args["worker"] = process
        add("C", THREAD_COUNTER, time_ns, thread, args, id=thread)
    for sample in state["samples"]:
        counts = {
            key: value - state["samples"][0].get(key, 0)
            if isinstance(value, int) and key != "runnable"
            else value
            for key, value in sample.items()
            if key != "time_ns"
        }
        machine = {key: counts.pop(key) for key in _OF_MACHINE if key in counts}
        add("C", PROCESS_COUNTER, sample["time_ns"], 0, counts)
        if machine:
            add("C", MACHINE_COUNTER, sample["time_ns"], 0, machine)
    for began, took_ns, thread, generation, freed in state["collections"]:
        args = {"generation": generation, "collected": freed}
        place = {"cat": COLLECTION_CATEGORY, "dur": took_ns / 1e3}
        add("X", COLLECTION, began, thread, args, **place)
    return ",\n".join(json.dumps(event) for event in events).encode()
