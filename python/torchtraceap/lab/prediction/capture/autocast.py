"""Autocast as on a GPU, where other operators run in lower precision than on a CPU.

`torch.autocast("cuda")` does nothing if torch finds no GPU. A capture replaces it by the CPU's
autocast, whose operators of lower precision are nearly the same; operators that only a GPU runs in
float32 are added (torch/csrc/autocast_mode.h, the lists AT_FORALL_FP32 and
AT_FORALL_FP32_SET_OPT_DTYPE of torch 2.13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.amp.autocast_mode import autocast
from torch.library import Library
from torch.utils._pytree import tree_map

__all__ = ["autocast_as_on_a_gpu"]

# Operators that run in float32, by name and overload.
_IN_FLOAT32 = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan softplus layer_norm
native_layer_norm group_norm cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss
nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss margin_ranking_loss
multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
binary_cross_entropy_with_logits dist pdist renorm logsumexp rms_norm
pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar upsample_nearest1d upsample_nearest2d
upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d
""".split()  # noqa: SIM905
# Operators that compute in float32 unless the program passes a dtype.
_SET_FLOAT32 = """
softmax.int log_softmax.int cumprod cumsum prod prod.dim_int sum sum.dim_IntList
""".split()  # noqa: SIM905
_LOW = (torch.float16, torch.bfloat16)


@contextmanager
def autocast_as_on_a_gpu() -> Iterator[None]:
    """Make `torch.autocast("cuda")` work as on a GPU within the context."""
    before = autocast.__init__
    library = Library("aten", "IMPL")

    def begin(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or asked["get_autocast_dtype"]("cuda")
        before(self, device_type, dtype, *args, **kwargs)

    def asks(function: Callable[[str], Any]) -> Callable[..., Any]:
        return lambda device="cuda": function("cpu" if device == "cuda" else device)

    asked = {name: getattr(torch, name) for name in ("is_autocast_enabled", "get_autocast_dtype")}
    try:
        for name, function in asked.items():
            setattr(torch, name, asks(function))
        for name in (*_IN_FLOAT32, *_SET_FLOAT32):
            _register(library, name)
        autocast.__init__ = begin
        yield
    finally:
        autocast.__init__ = before
        for name, function in asked.items():
            setattr(torch, name, function)
        library._destroy()


def _register(library: Library, name: str) -> None:
    """Register an operator that computes in float32 unless a CPU does the same."""
    packet, _, overload = name.partition(".")
    function = getattr(getattr(torch.ops.aten, packet), overload or "default")
    key = torch._C.DispatchKey.AutocastCPU
    if torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), "AutocastCPU"):
        return

    def run(*args: Any, **kwargs: Any) -> Any:
        if name in _SET_FLOAT32:
            names = [argument.name for argument in function._schema.arguments]
            args, kwargs = (), {**dict(zip(names, args, strict=False)), **kwargs}
            if kwargs.get("dtype") is None and kwargs["self"].dtype in _LOW:
                kwargs["dtype"] = torch.float32
        else:
            args, kwargs = tree_map(_widened, args), tree_map(_widened, kwargs)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            return function(*args, **kwargs)

    library.impl(function, run, key.name)


def _widened(value: Any) -> Any:
    is_low = isinstance(value, torch.Tensor) and value.dtype in _LOW
    return value.float() if is_low else value
