"""Operators, kernels and devices: models of their work, durations, and a database of GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtraceap.core import lazy_exports

if TYPE_CHECKING:
    from torchtraceap.ops.devices import Device as Device
    from torchtraceap.ops.devices import device_named as device_named
    from torchtraceap.ops.devices import find_device as find_device
    from torchtraceap.ops.durations import Calibration as Calibration
    from torchtraceap.ops.durations import EmbeddingTable as EmbeddingTable
    from torchtraceap.ops.durations import Estimate as Estimate
    from torchtraceap.ops.durations import ReuseHistogram as ReuseHistogram
    from torchtraceap.ops.durations import UnknownDurationError as UnknownDurationError
    from torchtraceap.ops.durations import collective_kind as collective_kind
    from torchtraceap.ops.durations import collective_ns as collective_ns
    from torchtraceap.ops.durations import dtype_label as dtype_label
    from torchtraceap.ops.durations import elementwise_ns as elementwise_ns
    from torchtraceap.ops.durations import gemm_ns as gemm_ns
    from torchtraceap.ops.durations import op_ns as op_ns
    from torchtraceap.ops.durations.calibration import KindTimes as KindTimes
    from torchtraceap.ops.durations.calibration import fit_calibration as fit_calibration
    from torchtraceap.ops.durations.collectives import bus_factor as bus_factor
    from torchtraceap.ops.durations.collectives import estimate_collective as estimate_collective
    from torchtraceap.ops.durations.collectives import estimate_collectives as estimate_collectives
    from torchtraceap.ops.durations.collectives import load_measurements as load_measurements
    from torchtraceap.ops.durations.copies import estimate_copy as estimate_copy
    from torchtraceap.ops.durations.embedding import START_NS as START_NS
    from torchtraceap.ops.durations.embedding import (
        estimate_embedding_bags as estimate_embedding_bags,
    )
    from torchtraceap.ops.durations.estimate import element_bytes as element_bytes
    from torchtraceap.ops.durations.estimate import peak_rate as peak_rate
    from torchtraceap.ops.durations.estimate import resolve_device as resolve_device
    from torchtraceap.ops.durations.inputs import collective_kernel as collective_kernel
    from torchtraceap.ops.durations.scaling import ratio_of as ratio_of
    from torchtraceap.ops.kernel_names import canonical_name as canonical_name
    from torchtraceap.ops.models import OpCall as OpCall
    from torchtraceap.ops.models import Tensor as Tensor
    from torchtraceap.ops.models.families import FAMILIES as FAMILIES
    from torchtraceap.ops.models.families import family_of as family_of
    from torchtraceap.ops.models.registry import work_of_call as work_of_call
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            ".devices": ("Device", "device_named", "find_device"),
            ".durations": (
                "Calibration",
                "EmbeddingTable",
                "Estimate",
                "ReuseHistogram",
                "UnknownDurationError",
                "collective_kind",
                "collective_ns",
                "dtype_label",
                "elementwise_ns",
                "gemm_ns",
                "op_ns",
            ),
            ".durations.calibration": ("KindTimes", "fit_calibration"),
            ".durations.collectives": (
                "bus_factor",
                "estimate_collective",
                "estimate_collectives",
                "load_measurements",
            ),
            ".durations.copies": ("estimate_copy",),
            ".durations.embedding": ("START_NS", "estimate_embedding_bags"),
            ".durations.estimate": ("element_bytes", "peak_rate", "resolve_device"),
            ".durations.inputs": ("collective_kernel",),
            ".durations.scaling": ("ratio_of",),
            ".kernel_names": ("canonical_name",),
            ".models": ("OpCall", "Tensor"),
            ".models.families": ("FAMILIES", "family_of"),
            ".models.registry": ("work_of_call",),
        },
    )
