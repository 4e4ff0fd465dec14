"""Models of operators: family, floating-point operations and bytes of a call.

Register a model for a custom operator as follows:

    import torchtraceap as ttap
    from torchtraceap.ops.models import Work, register

    register("mylib::op")(lambda call: Work(flops=2 * call.tensor(0).elements, ...))

The models of PyTorch's operators are imported when the work of a call is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtraceap.core import lazy_exports

if TYPE_CHECKING:
    from torchtraceap.core.dtypes import DType as DType
    from torchtraceap.ops.models.arguments import OpCall as OpCall
    from torchtraceap.ops.models.arguments import Tensor as Tensor
    from torchtraceap.ops.models.arguments import UnknownWorkError as UnknownWorkError
    from torchtraceap.ops.models.arguments import lengths_of as lengths_of
    from torchtraceap.ops.models.families import FAMILIES as FAMILIES
    from torchtraceap.ops.models.families import family_of as family_of
    from torchtraceap.ops.models.registry import Model as Model
    from torchtraceap.ops.models.registry import Work as Work
    from torchtraceap.ops.models.registry import model_of as model_of
    from torchtraceap.ops.models.registry import register as register
    from torchtraceap.ops.models.registry import work_of as work_of
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            ".arguments": ("OpCall", "Tensor", "UnknownWorkError", "lengths_of"),
            ".families": ("FAMILIES", "family_of"),
            ".registry": ("Model", "Work", "model_of", "register", "work_of"),
            "torchtraceap.core.dtypes": ("DType",),
        },
    )
