"""Blocks that fit on a multiprocessor: the profiler's own occupancy, of every kernel of CUDA.

Kineto's estimate is min(blocks that fit, blocks per multiprocessor) x threads of a block over the
threads of a multiprocessor, in whole per cent; 0 where it does not know, as for kernels with more
than 48 KiB of shared memory.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import torchtraceap as ttap

from .conftest import corpus_files


@pytest.mark.parametrize("corpus_file", corpus_files(), indirect=True)
def test_blocks_that_fit_give_the_occupancy_of_the_profiler(corpus_file: Path) -> None:
    trace = ttap.load(corpus_file)
    grids, kernels = trace.grids(by="event"), trace.kernels(by="event")
    kernels = kernels.take(np.searchsorted(kernels["row"], grids["row"]))
    said, launched = kernels["occupancy_share"], kernels["blocks_per_sm"]
    fit = grids["resident_blocks"].filled(0)
    compared = (fit > 0) & (said > 0)
    if not compared.any():
        return  # no device or no occupancy in this trace
    devices = json.loads(dict(trace.rank().table.metadata)["deviceProperties"])
    (most,) = {device["maxThreadsPerMultiprocessor"] for device in devices}
    ours = np.minimum(fit, launched) * grids["block_threads"].filled(0) / most
    assert np.abs(ours - said)[compared].max() <= 0.0051
