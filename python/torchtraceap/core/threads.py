"""Work on several ranks at the same time: the core lets go of Python's lock while it computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TypeVar

from torchtraceap import _core

__all__ = ["core_count", "map_on_threads"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def core_count() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_on_threads(
    function: Callable[[Item], Result], items: Iterable[Item], *, threads: int = 0
) -> list[Result]:
    """`function` of every item, in their order.

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
