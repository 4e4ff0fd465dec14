"""Labeled traces as a data set, and what learns from it reads.

`DataSet` (reader.py, decoding.py) reads the shards of a folder (arrow.py, writer.py);
`load_samples` (samples.py) makes windows with labels and features of them, and `load` and `loader`
(batches.py) make batches for torch. `build` belongs to the lab and is found by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchtraceap.core import lazy_exports

if TYPE_CHECKING:
    from torchtraceap.datasets.arrow import FORMAT as FORMAT
    from torchtraceap.datasets.arrow import TABLES as TABLES
    from torchtraceap.datasets.arrow import file_of as file_of
    from torchtraceap.datasets.arrow import import_pyarrow as import_pyarrow
    from torchtraceap.datasets.arrow import schemas as schemas
    from torchtraceap.datasets.batches import load as load
    from torchtraceap.datasets.batches import loader as loader
    from torchtraceap.datasets.labels import CPU_SPLIT as CPU_SPLIT
    from torchtraceap.datasets.labels import GRIDS as GRIDS
    from torchtraceap.datasets.labels import LABELS as LABELS
    from torchtraceap.datasets.labels import POSITIVE as POSITIVE
    from torchtraceap.datasets.labels import SEEN_TASKS as SEEN_TASKS
    from torchtraceap.datasets.labels import TASKS as TASKS
    from torchtraceap.datasets.labels import TYPES as TYPES
    from torchtraceap.datasets.labels import costs_of as costs_of
    from torchtraceap.datasets.labels import window_costs as window_costs
    from torchtraceap.datasets.labels import window_labels as window_labels
    from torchtraceap.datasets.reader import ABOUT as ABOUT
    from torchtraceap.datasets.reader import DataSet as DataSet
    from torchtraceap.datasets.reader import Run as Run
    from torchtraceap.datasets.reader import is_dataset as is_dataset
    from torchtraceap.datasets.reader import labeled_ranks as labeled_ranks
    from torchtraceap.datasets.reader import labeled_runs as labeled_runs
    from torchtraceap.datasets.samples import Sample as Sample
    from torchtraceap.datasets.samples import load_samples as load_samples
    from torchtraceap.datasets.summary import statistics as statistics
    from torchtraceap.datasets.writer import is_written as is_written
    from torchtraceap.datasets.writer import write_shard as write_shard

    build: Callable[..., Any]
    """The function of the lab that builds data sets."""
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            ".arrow": ("FORMAT", "TABLES", "file_of", "import_pyarrow", "schemas"),
            ".batches": ("load", "loader"),
            ".labels": (
                "CPU_SPLIT",
                "GRIDS",
                "LABELS",
                "POSITIVE",
                "SEEN_TASKS",
                "TASKS",
                "TYPES",
                "costs_of",
                "window_costs",
                "window_labels",
            ),
            ".reader": ("ABOUT", "DataSet", "Run", "is_dataset", "labeled_ranks", "labeled_runs"),
            ".samples": ("Sample", "load_samples"),
            ".summary": ("statistics",),
            ".writer": ("is_written", "write_shard"),
            "torchtraceap.lab.building.build": ("build",),
        },
    )
