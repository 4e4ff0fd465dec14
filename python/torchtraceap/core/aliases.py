"""Types that many modules name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

__all__ = ["Array", "PathLike", "Steps"]

Array = npt.NDArray[Any]
"""A NumPy array; the docstring beside it says of which type and shape where it matters."""

PathLike = str | os.PathLike[str]
"""Path of a file or a folder."""

Steps = int | str | slice | Sequence[int | str | slice]
"""Steps of a trace by place (0 is the first, -1 the last), by name, or as a slice of places. A
string may have several with commas between, such as "0,3:6"."""
