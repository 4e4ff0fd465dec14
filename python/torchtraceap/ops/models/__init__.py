"""Models of operators: family, floating-point operations and bytes of a call.

Register a model for a custom operator as follows:

    import torchtraceap as ttap
    from torchtraceap.ops.models import Work, register

    register("mylib::op")(lambda call: Work(flops=2 * call.tensor(0).elements, ...))
"""

from torchtraceap.core.dtypes import DType
from torchtraceap.ops.models import (  # noqa: F401  (importing them registers their models)
    attention,
    convolution,
    copies,
    elementwise,
    gemm,
    indexing,
    normalization,
    optimizer,
    pooling,
    reduction,
    softmax,
)
from torchtraceap.ops.models.arguments import OpCall, Tensor, UnknownWorkError, lengths_of
from torchtraceap.ops.models.families import FAMILIES, family_of
from torchtraceap.ops.models.registry import Model, Work, model_of, register, work_of

__all__ = [
    "FAMILIES",
    "DType",
    "Model",
    "OpCall",
    "Tensor",
    "UnknownWorkError",
    "Work",
    "family_of",
    "lengths_of",
    "model_of",
    "register",
    "work_of",
]
