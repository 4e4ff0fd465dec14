"""Types that many modules name."""

from __future__ import annotations

import os
from typing import Any

import numpy.typing as npt

__all__ = ["Array", "PathLike"]

Array = npt.NDArray[Any]
"""A NumPy array; the docstring beside it says of which type and shape where it matters."""

PathLike = str | os.PathLike[str]
"""Path of a file or a folder."""
