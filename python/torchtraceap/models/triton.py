"""Kernels that a compiler generated: what their arguments hold, without knowing the code."""

from __future__ import annotations

from torchtraceap.models.arguments import OpCall, UnknownWorkError
from torchtraceap.models.registry import Work, register

_NOTE = (
    "every argument is counted once, as if the kernel used all of it; which of them it writes is "
    "not recorded"
)


@register("triton_*")
def generated(call: OpCall) -> Work:
    """Pointwise and reduction kernels of Inductor read or write each of their tensors."""
    tensors = [t for i in range(len(call)) if (t := call.optional_tensor(i)) is not None]
    if not tensors:
        raise UnknownWorkError("its arguments are not in the trace")
    return Work(
        None,
        sum(tensor.bytes for tensor in tensors),
        0,
        upper_bound=True,
        notes=(_NOTE,),
    )
