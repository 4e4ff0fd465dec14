"""Lowers the operators of a capture to GPU work and host times."""

from torchtraceap.lab.prediction.lowering.durations import op_call, op_times
from torchtraceap.lab.prediction.lowering.kernels import kernels_of
from torchtraceap.lab.prediction.lowering.operators import launching_ops
from torchtraceap.lab.prediction.lowering.step import LaunchingOp, Libraries, OpTime

__all__ = [
    "LaunchingOp",
    "Libraries",
    "OpTime",
    "kernels_of",
    "launching_ops",
    "op_call",
    "op_times",
]
