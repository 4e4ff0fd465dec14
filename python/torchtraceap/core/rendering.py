"""Renderers of results: functions that are registered by name, so that results import none.

What draws (`torchtraceap.report`) stands above the results. It says here what it can draw, when a
result first asks for a way to be drawn by name.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

__all__ = [
    "Renderable",
    "add_renderer",
    "add_renderer_finder",
    "find_renderer",
    "lazy_renderer",
    "render",
    "renderable",
]

_RENDERERS: dict[tuple[str, str], Callable[[Any], Any]] = {}
_FINDERS: list[Callable[[], None]] = []
_Kind = TypeVar("_Kind", bound=type)


class Renderable:
    """A result that shows itself: `print` gives text, a notebook HTML."""

    __slots__ = ()

    def __str__(self) -> str:
        return render(self, "text")

    def _repr_html_(self) -> str:
        return render(self, "html")


def renderable(kind: _Kind) -> _Kind:
    """Make a class show itself as `Renderable` does, for classes that cannot be derived from that:
    named tuples and classes of the core."""
    for name in ("__str__", "_repr_html_"):
        setattr(kind, name, getattr(Renderable, name))
    return kind


def add_renderer_finder(finder: Callable[[], None]) -> None:
    """Register a function that adds renderers; it is called once, before something is drawn."""
    _FINDERS.append(finder)


def add_renderer(kind: str, way: str, renderer: Callable[[Any], Any]) -> None:
    """Draw results of a class, and of classes derived from it, by `renderer` in one way.

    Args:
        kind: The class with its module, such as "torchtraceap.core.results.Summary": nothing has
            to be imported to say it. "builtins.object" is for all that have nothing of their own.
        way: See `render`; "tables" gives the tables that a person reads, for the other ways.
        renderer: Takes the result and returns its text, or a list of tables for "tables".
    """
    _RENDERERS[kind, way] = renderer


def render(result: object, way: str) -> str:
    """Return a result drawn in one way: "text", "headline", "html" (for Jupyter) or "page" (on its
    own).

    Raises:
        LookupError: Nothing draws such results in this way.
    """
    renderer = find_renderer(type(result), way)
    if renderer is None:
        raise LookupError(f"nothing draws {type(result).__name__} as {way}")
    text: str = renderer(result)
    return text


def find_renderer(kind: type, way: str) -> Callable[[Any], Any] | None:
    """Return the renderer of a class, or of the nearest class above it that has one; None without
    one."""
    for finder in tuple(_FINDERS):
        finder()
    _FINDERS.clear()
    for each in kind.__mro__:
        renderer = _RENDERERS.get((f"{each.__module__}.{each.__qualname__}", way))
        if renderer is not None:
            return renderer
    return None


def lazy_renderer(module: str, function: str) -> Callable[[Any], Any]:
    """Return a renderer whose module is imported when something is drawn."""

    def draw(result: Any) -> Any:
        return getattr(import_module(module), function)(result)

    return draw
