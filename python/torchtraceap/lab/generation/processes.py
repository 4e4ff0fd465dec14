"""`in_processes`: the same work on many items, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from torchtraceap.errors import OptionError

__all__ = ["in_processes"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_processes(
    function: Callable[[Item], Result], items: Sequence[Item], jobs: int
) -> Iterator[Result]:
    """`function` of every item, in their order, as they are done.

    Args:
        function: It and the items can be sent to another process.
        items: What to call it with.
        jobs: Processes; with one, or for one item, it is called here.

    Raises:
        OptionError: A process was killed, as by a system that is out of memory.
        Whatever `function` raised for the first item of those for which it failed.
    """
    if jobs == 1 or len(items) < 2:
        yield from map(function, items)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(jobs, len(items)), mp_context=context, initializer=_leave_with_parent
    )
    try:
        yield from pool.map(function, items)
    except BrokenProcessPool:
        raise OptionError(
            f"one of {jobs} processes was killed, perhaps for lack of memory: fewer need less, and "
            "what is done is kept"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _leave_with_parent() -> None:
    """A process whose parent was killed would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_leave_after, args=(parent,), daemon=True).start()


def _leave_after(parent: Any) -> None:
    parent.join()
    os._exit(1)
