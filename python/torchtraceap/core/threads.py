"""Work on several ranks at the same time: the core lets go of Python's lock while it computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable
from threading import Lock, RLock
from typing import Any, TypeVar

from torchtraceap import _core

__all__ = ["MemoCache", "core_count", "map_on_threads"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def core_count() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_on_threads(
    function: Callable[[Item], Result], items: Iterable[Item], *, threads: int = 0
) -> list[Result]:
    """Return `function` of every item, in their order.

    Args:
        function: Whatever it shares between items has to bear several threads.
        items: The arguments of the calls.
        threads: At most so many at the same time; 0 for the number of cores.

    Raises:
        Whatever `function` raised for the first item of those for which it failed; what other
        threads do in the core is then stopped, as it is by Ctrl-C.
    """
    listed = list(items)
    workers = min(threads or core_count(), len(listed))
    if workers < 2:
        return [function(item) for item in listed]
    from concurrent.futures import ThreadPoolExecutor

    stop = _core.Cancellation()

    def call(item: Item) -> Result:
        with stop:
            return function(item)

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(call, item) for item in listed]
        try:
            return [future.result() for future in futures]
        except BaseException:
            # The rest is not needed: neither waiting calls nor what the core computes for them.
            stop.cancel()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


T = TypeVar("T")


class MemoCache:
    """Values that several views of an object need, computed at first use and kept as long as it.

    Values should be small, and must not refer to the object: a cycle would keep the whole trace in
    memory until Python looks for cycles.
    """

    __slots__ = ("_computing", "_lock", "_values")

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}
        self._lock = Lock()
        self._computing: dict[Hashable, RLock] = {}

    def __call__(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the value of `key`, which `compute` gives at the first call.

        A thread that asks while another computes the same value waits for it. Each key has a lock
        of its own: values may need each other, and those of other ranks, in any order.
        """
        if key not in self._values:
            with self._lock:
                computing = self._computing.setdefault(key, RLock())
            with computing:
                if key not in self._values:
                    self._values[key] = compute()
        value: T = self._values[key]
        return value
