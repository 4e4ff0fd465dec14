"""From the operators of a capture to what a GPU would do for them."""

from torchtraceap.prediction.lifting.durations import op_call, op_times
from torchtraceap.prediction.lifting.kernels import kernels_of
from torchtraceap.prediction.lifting.launching import LaunchingOp, Libraries
from torchtraceap.prediction.lifting.operators import launching_ops
from torchtraceap.prediction.lifting.work import OpTime

__all__ = [
    "LaunchingOp",
    "Libraries",
    "OpTime",
    "kernels_of",
    "launching_ops",
    "op_call",
    "op_times",
]
