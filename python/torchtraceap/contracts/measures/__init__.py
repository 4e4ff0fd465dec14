"""Counts and times of a trace by one vocabulary, for contracts and benchmarks.

`vocabulary.py` says what there is, `measurement.py` measures it; the facts come from the tree and
the analyses, one module here for each kind of question. Importing this package loads no NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtraceap.contracts.measures.measurement import Measurement, counts, measure
    from torchtraceap.contracts.measures.vocabulary import MEASURES, Measure

__all__ = ["MEASURES", "Measure", "Measurement", "counts", "measure"]

_MODULES = {
    "MEASURES": "vocabulary",
    "Measure": "vocabulary",
    "Measurement": "measurement",
    "counts": "measurement",
    "measure": "measurement",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
