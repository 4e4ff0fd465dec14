"""What an operator computes: its family, floating-point operations and bytes.

A user's own operator gets a model in a line:

    import torchtraceap as ttap
    from torchtraceap.models import Work, register

    register("mylib::op")(lambda call: Work(flops=2 * call.tensor(0).elements, ...))
"""

from torchtraceap.dtypes import DType
from torchtraceap.models import (  # noqa: F401  (importing them registers their models)
    attention,
    convolution,
    copies,
    elementwise,
    embedding,
    gemm,
    indexing,
    normalization,
    optimizer,
    pooling,
    reduction,
    softmax,
    triton,
)
from torchtraceap.models.arguments import OpCall, Tensor, UnknownWorkError
from torchtraceap.models.families import FAMILIES, family_of
from torchtraceap.models.registry import Model, Work, model_of, register, work_of

__all__ = [
    "FAMILIES",
    "DType",
    "Model",
    "OpCall",
    "Tensor",
    "UnknownWorkError",
    "Work",
    "family_of",
    "model_of",
    "register",
    "work_of",
]
