"""How results show themselves, without knowing what draws them.

What draws (`torchtraceap.report`) stands above the results. It says here what it can draw, when a
result first asks for a way to be drawn by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["add_renderer", "find_renderers", "render"]

_RENDERERS: dict[tuple[type, str], Callable[[Any], str]] = {}
_FINDERS: list[Callable[[], None]] = []


def find_renderers(finder: Callable[[], None]) -> None:
    """`finder` adds renderers; it is called once, before something is drawn."""
    _FINDERS.append(finder)


def add_renderer(kind: type, way: str, renderer: Callable[[Any], str]) -> None:
    """Results of `kind`, and of classes derived from it, are drawn by `renderer` in one way."""
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
        if (kind, way) in _RENDERERS:
            return _RENDERERS[kind, way](result)
    raise LookupError(f"nothing draws {type(result).__name__} as {way}")
