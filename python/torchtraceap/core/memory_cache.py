"""`Memory`: values that are computed once, whichever thread asks first."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock, RLock
from typing import Any, TypeVar

__all__ = ["Memory"]

T = TypeVar("T")


class Memory:
    """What several views of a thing need, computed at the first use and kept as long as the thing.

    Values should be small, and must not refer to the thing: a cycle would keep the whole trace in
    memory until Python looks for cycles.
    """

    __slots__ = ("_computing", "_lock", "_values")

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}
        self._lock = Lock()
        self._computing: dict[Hashable, RLock] = {}

    def __call__(self, key: Hashable, compute: Callable[[], T]) -> T:
        """What `compute` gave for `key` the first time.

        A thread that asks while another computes the same value waits for it. Each key has a lock
        of its own: values may need each other, and those of other ranks, in any order.
        """
        if key not in self._values:
            with self._lock:
                computing = self._computing.setdefault(key, RLock())
            with computing:
                if key not in self._values:
                    self._values[key] = compute()
        found: T = self._values[key]
        return found
