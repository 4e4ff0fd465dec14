"""Source locations in the user's program."""

from __future__ import annotations

import sys
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType

__all__ = [
    "error_location",
    "format_location",
    "is_program_frame",
    "is_torch_frame",
    "program_frame",
]

_OWN = __name__.partition(".")[0]
_CAPTURE = __name__.rpartition(".")[0]
_PYTHON_MODULES = ("importlib", "contextlib", "functools", "threading", "runpy")
"""Modules of Python between a program and what it calls."""


def program_frame() -> FrameType | None:
    """Return the innermost frame that is neither torch's nor this package's."""
    return next((f for f, _ in walk_stack(sys._getframe(1)) if _is_user_frame(f)), None)


def format_location(frame: FrameType | None) -> str:
    """Format a frame as `model.py:12 (forward)`; empty without one."""
    return "" if frame is None else _format_line(frame, frame.f_lineno)


def error_location(error: BaseException) -> str:
    """Return the innermost line of the program that an error passed through; empty if there is
    none."""
    places = [place for place in walk_tb(error.__traceback__) if _is_user_frame(place[0])]
    return _format_line(*places[-1]) if places else ""


def is_torch_frame(frame: FrameType) -> bool:
    """Return whether a frame runs torch's own code."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "torch"


def is_program_frame(frame: FrameType) -> bool:
    """Return whether a frame runs neither torch's code nor the capture's."""
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] != "torch" and not name.startswith(_CAPTURE)


def _is_user_frame(frame: FrameType) -> bool:
    top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return top not in ("torch", _OWN, *_PYTHON_MODULES) and not frame.f_code.co_filename.startswith(
        "<"
    )


def _format_line(frame: FrameType, line: int) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{line} ({frame.f_code.co_name})"
