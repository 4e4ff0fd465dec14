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
    custom_collectives,
    elementwise,
    embedding,
    fused_norm,
    gated,
    gemm,
    hyper_connections,
    indexing,
    kv_cache,
    library_gemm,
    moe,
    normalization,
    optimizer,
    paged_attention,
    pooling,
    quantization,
    reduction,
    rotary,
    sampling,
    softmax,
    state_space,
    triton,
)
from torchtraceap.models.arguments import OpCall, Tensor, UnknownWorkError
from torchtraceap.models.families import FAMILIES, family_of
from torchtraceap.models.paged_attention import BATCH
from torchtraceap.models.registry import Model, Work, model_of, register, work_of

__all__ = [
    "BATCH",
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
