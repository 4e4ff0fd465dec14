"""The tables: one module each, with a function `build_<table>` that gives a `ColumnTable`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtraceap.core import lazy_exports

if TYPE_CHECKING:
    from torchtraceap.tables.compare.causes import Cause as Cause
    from torchtraceap.tables.compare.causes import attribute as attribute
    from torchtraceap.tables.compare.noise import FEWEST_STEPS as FEWEST_STEPS
    from torchtraceap.tables.detection import present_findings as present_findings
    from torchtraceap.tables.gpu.recorded_device import Multiprocessor as Multiprocessor
    from torchtraceap.tables.gpu.recorded_device import recorded_device as recorded_device
    from torchtraceap.tables.gpu.recorded_device import resident_blocks as resident_blocks
    from torchtraceap.tables.grouping import Groups as Groups
    from torchtraceap.tables.quality import quality_of_both as quality_of_both
    from torchtraceap.tables.steps.iterations import counted_spans as counted_spans
    from torchtraceap.tables.steps.iterations import iterations_of as iterations_of
    from torchtraceap.tables.steps.iterations import step_time as step_time
    from torchtraceap.tables.steps.pieces import NORMAL_MAD as NORMAL_MAD
    from torchtraceap.tables.windows import FeatureTable as FeatureTable
    from torchtraceap.tables.windows import build_windows as build_windows
    from torchtraceap.tables.windows import feature_names as feature_names
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            ".compare.causes": ("Cause", "attribute"),
            ".compare.noise": ("FEWEST_STEPS",),
            ".detection": ("present_findings",),
            ".gpu.recorded_device": ("Multiprocessor", "recorded_device", "resident_blocks"),
            ".grouping": ("Groups",),
            ".quality": ("quality_of_both",),
            ".steps.iterations": ("counted_spans", "iterations_of", "step_time"),
            ".steps.pieces": ("NORMAL_MAD",),
            ".windows": ("FeatureTable", "build_windows", "feature_names"),
        },
    )
