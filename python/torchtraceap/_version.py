"""The version, the same as in pyproject.toml and CMakeLists.txt."""

from __future__ import annotations

__version__ = "0.1.0"
