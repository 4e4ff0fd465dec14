"""A cache of values that belong to one object and are computed once on any thread."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock, RLock
from typing import Any, TypeVar

__all__ = ["MemoCache"]

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
