"""Operators nested in others that launch nothing: allocations and views.

A capture sees what autograd or the dispatcher hands to a device; a profiler also sees these. They
are those of most calls in eleven public traces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["NESTED_OPS", "WRAPPER_OPS", "NestedOps", "nested_arguments"]


@dataclass(frozen=True, slots=True)
class NestedOps:
    """Operators nested before the launches of an operator, or in all of it, and after them.

    A name with slashes is of operators inside each other, the outermost first."""

    ahead: tuple[str, ...]
    behind: tuple[str, ...] = ()


_VIEW = NestedOps(("aten::as_strided",))
_EMPTY = "aten::empty"
NESTED_OPS = {
    **{
        f"aten::{name}": _VIEW
        for name in (
            "expand", "permute", "select", "slice", "squeeze", "transpose", "unfold", "unsqueeze",
        )
    },
    "aten::t": NestedOps(("aten::transpose/aten::as_strided",)),
    "aten::detach": NestedOps(("detach",)),
    "aten::empty_like": NestedOps((_EMPTY,)),
    "aten::native_layer_norm": NestedOps((_EMPTY,) * 3, ("aten::view",) * 2),
    "aten::cudnn_batch_norm": NestedOps(
        ("aten::empty_like/aten::empty", "aten::view", *(_EMPTY,) * 4)
    ),
    "aten::cudnn_batch_norm_backward": NestedOps((*(_EMPTY,) * 3, "aten::view", _EMPTY)),
    "aten::convolution_backward": NestedOps((_EMPTY,)),
    "aten::_efficient_attention_forward": NestedOps((_EMPTY,) * 4),
    "aten::_flash_attention_forward": NestedOps(("aten::empty_like/aten::empty", *(_EMPTY,) * 3)),
}  # fmt: skip
WRAPPER_OPS = {"aten::convolution": "aten::_convolution"}
"""Operator between a call and those that launch for it."""


def nested_arguments(name: str, around: dict[str, Any]) -> dict[str, Any]:
    """Return the `record_shapes` arguments of a nested operator, given those of the outer one."""
    keys = ("Input Dims", "Input type", "Input Strides")
    dims, types, strides = (_first(around.get(key, ())) for key in keys)
    if name == _EMPTY:
        return {
            "Concrete Inputs": ["[]", "6", "0", "", "False", ""],
            "Input type": ["ScalarList", "Scalar", "Scalar", "", "Scalar", ""],
            "Input Strides": [[]] * 6,
            "Input Dims": [[]] * 6,
        }
    further = {"aten::as_strided": 3, "aten::transpose": 2, "aten::view": 1}.get(name, 0)
    kind = "ScalarList" if name in ("aten::as_strided", "aten::view") else "Scalar"
    return {
        "Concrete Inputs": [""] * (1 + further),
        "Input type": [types or "", *[kind] * further],
        "Input Strides": [strides, *[[]] * further],
        "Input Dims": [dims, *[[]] * further],
    }


def _first(values: Any) -> Any:
    return next((each for each in values if each), [])
