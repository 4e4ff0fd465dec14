"""What is being done, for whoever shows it to a person. Nobody listens by default."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

__all__ = ["stage", "watch_stages"]

Watcher = Callable[[str], AbstractContextManager[object]]

_watcher: Watcher | None = None


def watch_stages(watcher: Watcher | None) -> None:
    """Has every stage run within what `watcher` makes of its name; None: nobody watches. Ranks may
    be at the same stage at once, each on a thread of its own."""
    global _watcher
    _watcher = watcher


@contextmanager
def stage(name: str) -> Iterator[None]:
    """A part of the work that may take long, by a name such as "linking events"."""
    if _watcher is None:
        yield
        return
    with _watcher(name):
        yield
