"""Model of compiler-generated Triton kernels, from the sizes of their arguments alone."""

from __future__ import annotations

import re

from torchtraceap.ops.models.arguments import OpCall, UnknownWorkError
from torchtraceap.ops.models.registry import Work, register

# Names of generated kernels list the operators that were fused.
_PICKS = re.compile(r"embedding(?!_dense_backward)|index|gather|scatter|nll_loss|bucketize")
_PARTS = re.compile(r"slice|select|split|narrow|unbind|chunk|roll|unfold")

_WHOLE_NOTE = "every argument is counted once; those that are read and written should count twice"
_PART_NOTE = "every argument is counted whole; the kernel uses slices of some"


@register("triton_*")
def generated(call: OpCall) -> Work:
    """Count each tensor of an Inductor kernel once, as pointwise and reduction kernels do.

    Kernels that select elements by an index use an unknown part of an argument and have no numbers.
    Kernels with slices use at most the whole argument. Operations are not counted because the code
    is not in the trace.
    """
    if _PICKS.search(call.name):
        raise UnknownWorkError("it picks elements: how much of its arguments it uses is unknown")
    tensors = [t for i in range(len(call)) if (t := call.optional_tensor(i)) is not None]
    if not tensors:
        raise UnknownWorkError("its arguments are not in the trace")
    in_parts = _PARTS.search(call.name) is not None
    return Work(
        None,
        sum(tensor.bytes for tensor in tensors),
        0,
        upper_bound=in_parts,
        notes=(_PART_NOTE if in_parts else _WHOLE_NOTE,),
    )
