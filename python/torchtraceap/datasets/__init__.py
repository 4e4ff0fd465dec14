"""Labeled traces as a data set, and what learns from it reads.

`DataSet` (reader.py, decoding.py) reads the shards of a folder (arrow.py, writer.py);
`load_samples` (samples.py) makes windows with labels and features of them, and `load` and `loader`
(batches.py) make batches for torch. `build` belongs to the lab and is found by name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtraceap.datasets.batches import load, loader
    from torchtraceap.datasets.reader import DataSet
    from torchtraceap.datasets.samples import Sample, load_samples

__all__ = ["DataSet", "Sample", "build", "load", "load_samples", "loader"]

_MODULES = {
    "DataSet": "torchtraceap.datasets.reader",
    "Sample": "torchtraceap.datasets.samples",
    "build": "torchtraceap.lab.building.build",
    "load": "torchtraceap.datasets.batches",
    "load_samples": "torchtraceap.datasets.samples",
    "loader": "torchtraceap.datasets.batches",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)
