"""What is put into a program so that it is recorded as a whole: a folder for its `PYTHONPATH`."""

from __future__ import annotations

from pathlib import Path

__all__ = ["INJECTED_FOLDER", "WHOLE"]

INJECTED_FOLDER = Path(__file__).resolve().parent
WHOLE = "TORCHTRACEAP_WHOLE"
"""Where `sitecustomize.py` in this folder writes what it records, as the profiler writes it."""
