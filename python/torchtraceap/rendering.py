"""How results show themselves, without knowing what draws them.

What draws (`torchtraceap.report`) stands above the results. It says here what it can draw, when a
result first asks for a way to be drawn by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["Shown", "add_renderer", "find_renderers", "render", "shown"]

_RENDERERS: dict[tuple[str, str], Callable[[Any], str]] = {}
_FINDERS: list[Callable[[], None]] = []
_Kind = TypeVar("_Kind", bound=type)


class Shown:
    """A result that shows itself: `print` gives text, a notebook HTML."""

    __slots__ = ()

    def __str__(self) -> str:
        return render(self, "text")

    def _repr_html_(self) -> str:
        return render(self, "html")


def shown(kind: _Kind) -> _Kind:
    """Makes a class show itself as `Shown` does, where it cannot be derived from that: named tuples
    and classes of the core."""
    for name in ("__str__", "_repr_html_"):
        setattr(kind, name, getattr(Shown, name))
    return kind


def find_renderers(finder: Callable[[], None]) -> None:
    """`finder` adds renderers; it is called once, before something is drawn."""
    _FINDERS.append(finder)


def add_renderer(kind: str, way: str, renderer: Callable[[Any], str]) -> None:
    """Results of a class, and of classes derived from it, are drawn by `renderer` in one way.

    Args:
        kind: The class with its module, such as "torchtraceap.results.Summary": nothing has to be
            imported to say it. "builtins.object" is for all that have nothing of their own.
        way: See `render`.
        renderer: Takes the result.
    """
    _RENDERERS[kind, way] = renderer


def render(result: object, way: str) -> str:
    """A result drawn in one way: "text", "headline", "html" (for Jupyter) or "page" (on its own).

    Raises:
        LookupError: Nothing draws such results in this way.
    """
    for finder in tuple(_FINDERS):
        finder()
    _FINDERS.clear()
    for kind in type(result).__mro__:
        renderer = _RENDERERS.get((f"{kind.__module__}.{kind.__qualname__}", way))
        if renderer is not None:
            return renderer(result)
    raise LookupError(f"nothing draws {type(result).__name__} as {way}")
