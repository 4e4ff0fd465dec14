"""Where in a program something happens: the line that a person can look at."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

__all__ = ["frame_of_program", "is_of_program", "is_of_torch", "place_of", "place_of_error"]

_OWN = __name__.partition(".")[0]
_CAPTURE = __name__.rpartition(".")[0]
_BESIDES = ("importlib", "contextlib", "functools", "threading", "runpy")
"""Modules of Python that stand between a program and what it calls."""


def frame_of_program() -> FrameType | None:
    """The innermost call that is neither of torch nor of this package."""
    return _innermost(_outwards(sys._getframe(1)))


def place_of(frame: FrameType | None) -> str:
    """`model.py:12 (forward)`; empty where no frame is given."""
    return "" if frame is None else _place(frame, frame.f_lineno)


def place_of_error(error: BaseException) -> str:
    """The innermost line of the program that an error went through; empty if it is in none."""
    places = []
    trace = error.__traceback__
    while trace is not None:
        if _is_of_program(trace.tb_frame):
            places.append(_place(trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    return places[-1] if places else ""


def is_of_torch(frame: FrameType) -> bool:
    """Whether it runs torch's own code."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "torch"


def is_of_program(frame: FrameType) -> bool:
    """Whether it runs neither torch's code nor that of the capture."""
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] != "torch" and not name.startswith(_CAPTURE)


def _innermost(frames: Iterator[FrameType]) -> FrameType | None:
    return next(filter(_is_of_program, frames), None)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_of_program(frame: FrameType) -> bool:
    top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return top not in ("torch", _OWN, *_BESIDES) and not frame.f_code.co_filename.startswith("<")


def _place(frame: FrameType, line: int) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{line} ({frame.f_code.co_name})"
