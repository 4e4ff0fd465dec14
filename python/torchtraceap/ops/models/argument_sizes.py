"""Sizes of arguments and checks that they fit together.

The order of arguments differs between libraries and between releases. A model names the position of
each argument and checks that the arguments fit together, so that an operator with another order has
no numbers rather than wrong ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torchtraceap.ops.models.arguments import OpCall, Tensor, UnknownWorkError

__all__ = ["check_packed_output", "check_width", "group_scales", "mxfp4_bytes", "optional_bytes"]

MX_GROUP = 32
"""Number of elements that share a one-byte scale in the MX formats of the Open Compute Project."""
_BYTES_LIKE = ("uint8", "int8", "fp4")


def optional_bytes(call: OpCall, positions: Sequence[int]) -> int:
    """Return the bytes of the tensors at these positions; 0 for those that were not passed."""
    found = (call.optional_tensor(position) for position in positions)
    return sum(tensor.bytes for tensor in found if tensor is not None)


def check_width(x: Tensor, weight: Tensor) -> None:
    """Check that a weight holds one value for each element of a row.

    Raises:
        UnknownWorkError: It does not.
    """
    if not x.shape or weight.elements != x.shape[-1]:
        raise UnknownWorkError("its weight does not fit the rows of its input")


def group_scales(x: Tensor, group: int) -> int:
    """Return the number of scales of a tensor, one for each `group` elements of a row.

    Raises:
        UnknownWorkError: The tensor has no rows, or the group has no elements.
    """
    if not x.shape or group < 1:
        raise UnknownWorkError("the groups that share a scale are not known")
    return prod(x.shape[:-1]) * -(-x.shape[-1] // group)


def check_packed_output(x: Tensor, out: Tensor) -> None:
    """Check that `out` holds the elements of `x`, one or two in a byte.

    Raises:
        UnknownWorkError: It does not.
    """
    holds = 2 * out.elements if out.dtype.label in _BYTES_LIKE else out.elements
    if x.elements not in (out.elements, holds):
        raise UnknownWorkError("its output does not fit its input")


def mxfp4_bytes(x: Tensor) -> float:
    """Return the bytes of a tensor in mxfp4: 4 bits per element and a byte per `MX_GROUP`."""
    return x.elements / 2 + group_scales(x, MX_GROUP)
