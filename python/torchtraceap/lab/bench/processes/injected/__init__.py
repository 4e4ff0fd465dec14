"""A folder for the `PYTHONPATH` of a program, whose code records the program as a whole."""

from __future__ import annotations

from pathlib import Path

__all__ = ["INJECTED_FOLDER", "WHOLE"]

INJECTED_FOLDER = Path(__file__).resolve().parent
WHOLE = "TORCHTRACEAP_WHOLE"
"""Name of the variable with the path to which `sitecustomize.py` in this folder writes its
recording."""
