"""Labelled traces as a data set, and what learns from it reads.

`plan.py` says which groups of traces there are and in which split; `building.py` makes them
(`generating.py`) and writes them as shards (`encoding.py`, `shards.py`, `arrow.py`), and
`describing.py` the card of what is there. `reading.py` reads them again; `samples.py` makes windows
with labels and features of them, and `batches.py` batches for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtraceap.datasets.batches import load, loader
    from torchtraceap.datasets.building import build
    from torchtraceap.datasets.reading import DataSet
    from torchtraceap.datasets.samples import Sample, load_samples

__all__ = ["DataSet", "Sample", "build", "load", "load_samples", "loader"]

_MODULES = {
    "DataSet": "reading",
    "Sample": "samples",
    "build": "building",
    "load": "batches",
    "load_samples": "samples",
    "loader": "batches",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
