"""Progress of long work: code names its stages, and a listener may show them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

__all__ = ["progress_stage", "set_progress_listener"]

Listener = Callable[[str], AbstractContextManager[object]]

_listener: Listener | None = None


def set_progress_listener(listener: Listener | None) -> None:
    """Run every stage inside the context manager that `listener` returns for its name.

    Args:
        listener: It takes the name of a stage, and may be called on several threads at once, one
            for each rank; None removes the listener.
    """
    global _listener
    _listener = listener


@contextmanager
def progress_stage(name: str) -> Iterator[None]:
    """Mark a part of the work that may take long, by a name such as "linking events"."""
    if _listener is None:
        yield
        return
    with _listener(name):
        yield
