"""FLOPs and bytes as TraceLens counts them, including its quirks.

Use these where numbers must equal those of TraceLens. `models/` holds the accurate models, and
docs/compatibility.md explains the differences. Text of a trace is parsed here and never evaluated,
whereas TraceLens calls `eval` on it.

Source: the formulas of TraceLens at 171dd747, PerfModel/perf_model.py, as its reference tables
show them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from torchtraceap.core.records import dataclass
from torchtraceap.ops.models.tracelens import (
    attention,
    convolution,
    elementwise,
    fused,
    matmul,
    norm,
    serving,
)
from torchtraceap.ops.models.tracelens.work import FAILURES, Call, Model, UnmodeledError, Work

__all__ = ["MODELS", "Entry", "compat_work", "find_model", "run_model", "transpose_of"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A model and the sheet and categories under which TraceLens lists its operators."""

    model: Model
    sheet: str
    """Name of the sheet, without `_fwd` and `_bwd`."""
    category: str
    backward_category: str | None = None
    """Category of the backward pass if its work is derived from the forward operator."""


_WORK_FROM_FORWARD = ("SDPA", "CONV", "GroupedGEMM", "SSM", "Normalization")


def _build_registry() -> dict[str, Entry]:
    """Return the models by operator, in the order of the sheets."""
    entries: dict[str, Entry] = {}

    def add(models: Iterable[tuple[str, Model]], sheet: str, forward: str, backward: str) -> None:
        derived = backward if sheet in _WORK_FROM_FORWARD else None
        for name, model in models:
            is_backward = name.lower().endswith(("_backward", "backward", "_bwd"))
            category = backward if is_backward else forward
            entries[name] = Entry(model, sheet, category, derived)

    add(matmul.MODELS.items(), "GEMM", "GEMM", "GEMM")
    add(attention.MODELS.items(), "SDPA", "SDPA_fwd", "SDPA_bwd")
    add(convolution.MODELS.items(), "CONV", "CONV_fwd", "CONV_bwd")
    add(fused.GROUPED.items(), "GroupedGEMM", "GroupedGEMM_fwd", "GroupedGEMM_bwd")
    add(fused.MOE.items(), "MoE_comm", "MoE_comm_fwd", "MoE_comm_bwd")
    add(fused.SSM.items(), "SSM", "SSM_fwd", "SSM_bwd")
    add(fused.ROPE.items(), "RoPE", "RoPE_fwd", "RoPE_bwd")
    add(serving.FUSED_EXPERTS.items(), "MoE_fused", "MoE_fused", "MoE_fused")
    add(serving.EXPERTS_APART.items(), "MoE_unfused", "MoE_unfused", "MoE_unfused")
    add(serving.ATTENTION.items(), "InferenceAttention", *["InferenceAttention"] * 2)
    add(serving.QUANT.items(), "GroupQuant", "GroupQuant", "GroupQuant")
    add(serving.ROPE.items(), "RoPE", "RoPE_fwd", "RoPE_bwd")
    add(serving.GATED.items(), "UnaryElementwise", "elementwise", "elementwise")
    add(serving.RMS_NORM.items(), "RMSNorm", "RMSNorm", "RMSNorm")
    add(serving.COLLECTIVES.items(), "CustomCollective", *["CustomCollective"] * 2)
    add(serving.HYPER.items(), "mHC", "mHC", "mHC")
    add(serving.ROUTING.items(), "MoE_aux", "MoE_aux", "MoE_aux")
    add(fused.CROSS_ENTROPY.items(), "CrossEntropy", "CrossEntropy_fwd", "CrossEntropy_bwd")
    add(elementwise.UNARY.items(), "UnaryElementwise", "elementwise", "elementwise")
    add(elementwise.BINARY.items(), "BinaryElementwise", "elementwise", "elementwise")
    add(norm.MODELS.items(), "Normalization", "NORM_fwd", "NORM_bwd")
    add(elementwise.REDUCE.items(), "Reduce", "reduce", "reduce")
    return entries


MODELS = _build_registry()


def find_model(name: str) -> Model | None:
    """Find the model of an operator or of a Triton kernel of Inductor."""
    if name in MODELS:
        return MODELS[name].model
    return elementwise.triton_model if name.startswith(elementwise.TRITON) else None


_MOST_WORK = 1e30
"""Most FLOPs or bytes of a call; garbage among sizes gives more, up to infinity and NaN."""


def run_model(
    name: str,
    texts: tuple[str | None, str | None, str | None, str | None],
    transpose: tuple[bool | None, bool | None] | None = None,
    batch: str | None = None,
) -> Work | None:
    """Compute the work of a call; None if the model cannot read its arguments.

    Args:
        name: Name of the operator.
        texts: JSON texts of Input Dims, Input type, Input Strides and Concrete Inputs.
        transpose: Transposed operands of a product; see `transpose_of`.
        batch: Name of the range around the call in which an engine says what it works on.

    Raises:
        UnmodeledError: The operator has no model.
        ModelAbsentError: The model needs arguments that the trace lacks.
    """
    model = find_model(name)
    if model is None:
        raise UnmodeledError(name)
    try:
        dims, strides = _parse_sizes(texts[0]), _parse_sizes(texts[2])
        types, concrete = _parse_json(texts[1]), _parse_json(texts[3])
        work = model(Call(name, dims, types, strides, concrete, transpose, batch))
        sensible = work.flops <= _MOST_WORK and (work.bytes or 0) <= _MOST_WORK
        return work if sensible else None
    except FAILURES:
        return None


def compat_work(
    name: str,
    dims: str | None,
    types: str | None,
    strides: str | None,
    concrete: str | None,
) -> tuple[float, float | None] | None:
    """Return FLOPs and bytes of a call as TraceLens counts them; None without model or arguments.

    Args:
        name: Name of the operator.
        dims: `Input Dims` as the trace's JSON text; None if absent, like the other three.
        types: `Input type`.
        strides: `Input Strides`.
        concrete: `Concrete Inputs`.
    """
    try:
        work = run_model(name, (dims, types, strides, concrete))
    except UnmodeledError:
        return None
    return None if work is None else (work.flops, work.bytes)


@lru_cache(maxsize=1 << 14)
def _parse_sizes(text: str | None) -> Any:
    """Parse nested lists of numbers and reject strings, which a product would repeat.

    Raises:
        TypeError: A size is not a number.
    """
    parsed = _parse_json(text)
    open_lists = [parsed]
    while open_lists:
        item = open_lists.pop()
        if isinstance(item, (str, dict)):
            raise TypeError(f"a size is {type(item).__name__}, not a number")
        if isinstance(item, list):
            open_lists += item
    return parsed


@lru_cache(maxsize=1 << 14)
def _parse_json(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None


_TENSILE = re.compile(r"C[a-z]{3}_A[a-z]{3}_B[a-z]{3}")


def transpose_of(kernel: str) -> tuple[bool | None, bool | None] | None:
    """Return which operands a matrix kernel reads transposed, from a Tensile or nvjet name."""
    if _TENSILE.search(kernel):
        first = False if "_Ailk_" in kernel else True if "_Alik_" in kernel else None
        second = False if "_Bljk_" in kernel else True if "_Bjlk_" in kernel else None
        return first, second
    letters = kernel.rsplit("_", 1)[-1]
    if kernel.startswith("nvjet") and len(letters) >= 2:
        return letters[0] == "T", letters[1] == "T"
    return None
