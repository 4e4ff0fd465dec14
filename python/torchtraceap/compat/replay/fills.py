"""Values and element types of rebuilt tensors: indices in range, ascending offsets,
probabilities."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from torchtraceap.core.dtypes import DTYPES, parse_dtype

__all__ = [
    "DTYPE_NUMBERS",
    "ELEMENT_BYTES",
    "LAYOUT_NUMBERS",
    "MEMORY_FORMAT_NUMBERS",
    "dtype_in_kernel_name",
    "dtype_of_cpp_name",
    "fill_for",
]

# torch.tensor fills these; quantized ones need scales that no trace records.
_FILLED = tuple(d for d in DTYPES if not d.is_quantized and d.label != "fp4")
ELEMENT_BYTES = {d.name: d.size for d in _FILLED}
DTYPE_NUMBERS = {d.number: d.name for d in _FILLED if d.number is not None}
LAYOUT_NUMBERS = {0: "strided", 1: "sparse_coo", 2: "sparse_csr", 7: "jagged"}
MEMORY_FORMAT_NUMBERS = {
    0: "contiguous_format",
    1: "preserve_format",
    2: "channels_last",
    3: "channels_last_3d",
}

# In this order: kernels of half types name float as well, the type that they compute in.
_KERNEL_TYPES = (
    (r"BFloat16|bfloat16|\bbf16", "bfloat16"),
    (r"\bHalf\b|__half\b|\bhalf\b|\bfp16", "float16"),
    (r"\bdouble\b", "float64"),
    (r"\bfloat\b", "float32"),
    (r"\blong\b", "int64"),
    (r"OpaqueType<8", "int64"),
    (r"OpaqueType<4", "float32"),
    (r"OpaqueType<2", "bfloat16"),
    (r"OpaqueType<1", "uint8"),
)

Fill = tuple[str, tuple[int | float, ...]]
"""A function of `inputs.py` and its first arguments."""
Known = Mapping[str, Any]
"""Other arguments by name: shapes of tensors (tuples), values of all else."""
Rule = Callable[[Known, tuple[int, ...]], Fill | None]
Rules = dict[str, Rule]
"""Rules by the name of an argument."""


def dtype_of_cpp_name(text: str) -> str | None:
    """The name in torch of a C++ type as traces write it; None if no tensor of it can be filled."""
    dtype = parse_dtype(text)
    return dtype.name if dtype in _FILLED else None


def dtype_in_kernel_name(name: str) -> str | None:
    """The element type that a kernel's template arguments name, if any."""
    return next((dtype for regex, dtype in _KERNEL_TYPES if re.search(regex, name)), None)


# ------------------------------------------------------------------------------ values


def _below(high: Any) -> Fill | None:
    return ("integers", (0, high)) if isinstance(high, int) and high > 0 else None


def _size_of(name: str) -> Rule:
    """Return a rule for indices along the first axis of another tensor."""
    return lambda known, shape: _below(_extent(known.get(name), 0))


def _size_along(name: str) -> Rule:
    """Return a rule for indices along the axis `dim` of another tensor."""

    def rule(known: Known, shape: tuple[int, ...]) -> Fill | None:
        sizes, axis = _sizes(known.get(name)), known.get("dim")
        return _below(1 if sizes == () else _extent(sizes, axis))

    return rule


def _elements_of(name: str, axes: int = 64) -> Rule:
    """Return a rule for indices of the elements of the last axes of another tensor."""

    def rule(known: Known, shape: tuple[int, ...]) -> Fill | None:
        sizes = _sizes(known.get(name))
        return None if sizes is None else _below(math.prod(sizes[-axes:]))

    return rule


def _value_of(name: str) -> Rule:
    return lambda known, shape: _below(known.get(name))


def _classes(known: Known, shape: tuple[int, ...]) -> Fill | None:
    """Targets of a loss: the classes are axis 1 of a batch, else axis 0."""
    sizes = _sizes(known.get("self"))
    return _below(sizes[min(1, len(sizes) - 1)]) if sizes else None


def _offsets_into(name: str, axis: int) -> Rule:
    """Return a rule for offsets from 0 to the size of an axis of another tensor."""

    def rule(known: Known, shape: tuple[int, ...]) -> Fill | None:
        total = _extent(known.get(name), axis)
        return None if total is None else ("ascending", (0, total))

    return rule


def _bag_starts(known: Known, shape: tuple[int, ...]) -> Fill | None:
    """Return the starts of bags; with `include_last_offset` the end stands behind them."""
    total = _extent(known.get("indices"), None)
    if total is None:
        return None
    bags = max(shape[0] if shape else 1, 1)
    last = total if known.get("include_last_offset") else total * (bags - 1) // bags
    return "ascending", (0, last)


def _segment_lengths(known: Known, shape: tuple[int, ...]) -> Fill | None:
    total = _extent(known.get("data"), 0)
    return None if total is None else ("shares", (total,))


def _repeats(known: Known, shape: tuple[int, ...]) -> Fill | None:
    total = known.get("output_size")
    return ("shares", (total,)) if isinstance(total, int) else ("filled", (1,))


def _group_ends(known: Known, shape: tuple[int, ...]) -> Fill | None:
    """Ends of the groups of a grouped GEMM, along the axis that the groups share."""
    a, b = _sizes(known.get("mat_a", known.get("self"))), _sizes(known.get("mat_b"))
    if not a or not b:
        return None
    total = b[-1] if len(a) == 3 else a[-1] if len(b) == 2 else a[0]
    groups = max(shape[0] if shape else 1, 1)
    return "ascending", (total // groups, total)


def _padded_lengths(known: Known, shape: tuple[int, ...]) -> Fill | None:
    steps = _extent(known.get("input"), 1 if known.get("batch_first") else 0)
    return None if steps is None else ("filled", (steps,))


def _always(function: str, *arguments: int | float) -> Rule:
    return lambda known, shape: (function, arguments)


def _extent(sizes: Any, axis: int | None) -> int | None:
    """Size of an axis, or the number of elements without one."""
    shape = _sizes(sizes)
    if shape is None:
        return None
    if axis is None:
        return math.prod(shape)
    return shape[axis] if -len(shape) <= axis < len(shape) else None


def _sizes(sizes: Any) -> tuple[int, ...] | None:
    whole = isinstance(sizes, tuple | list) and all(isinstance(size, int) for size in sizes)
    return tuple(sizes) if whole else None


_ONE, _ZERO, _UNIFORM = _always("filled", 1), _always("filled", 0), _always("uniform")
_ALONG_SELF: Rules = {"index": _size_along("self")}
_BAG: Rules = {"indices": _size_of("weight"), "offsets": _bag_starts}
_VARLEN: Rules = {
    "cum_seq_q": _offsets_into("query", -3),
    "cum_seq_k": _offsets_into("key", -3),
    "cu_seqlens_q": _offsets_into("query", -3),
    "cu_seqlens_k": _offsets_into("key", -3),
}
_GROUPED: Rules = {"offs": _group_ends}
_BATCH_NORM: Rules = dict.fromkeys(("running_var", "save_var", "save_invstd", "var"), _UNIFORM)
_ADAM: Rules = {
    "exp_avg_sqs": _UNIFORM,
    "max_exp_avg_sqs": _UNIFORM,
    "state_steps": _ONE,
    "grad_scale": _ONE,
    "found_inf": _ZERO,
}

_RULES: dict[str, Rules] = {
    "embedding": {"indices": _size_of("weight")},
    "embedding_renorm": {"indices": _size_of("self")},
    "embedding_dense_backward": {"indices": _value_of("num_weights")},
    "embedding_sparse_backward": {"indices": _value_of("num_weights")},
    "embedding_backward": {"indices": _value_of("num_weights")},
    "embedding_bag": _BAG,
    "_embedding_bag": _BAG,
    "_embedding_bag_forward_only": _BAG,
    "_embedding_bag_dense_backward": {
        "indices": _value_of("num_weights"),
        "offset2bag": _size_of("grad"),
        "bag_size": _ONE,
    },
    "index_select": _ALONG_SELF,
    "index_add": _ALONG_SELF,
    "index_copy": _ALONG_SELF,
    "index_fill": _ALONG_SELF,
    "index_reduce": _ALONG_SELF,
    "gather": _ALONG_SELF,
    "gather_backward": _ALONG_SELF,
    "scatter": _ALONG_SELF,
    "scatter_add": _ALONG_SELF,
    "scatter_reduce": _ALONG_SELF,
    "index_select_backward": {"index": _size_along("self_sizes")},
    "take": {"index": _elements_of("self")},
    "put": {"index": _elements_of("self")},
    "take_along_dim": {"indices": _size_along("self")},
    "one_hot": {"self": _value_of("num_classes")},
    "max_unpool2d": {"indices": _elements_of("output_size", 2)},
    "max_unpool3d": {"indices": _elements_of("output_size", 3)},
    "repeat_interleave": {"repeats": _repeats},
    "searchsorted": {"sorted_sequence": _always("ascending", -2, 2)},
    "bucketize": {"boundaries": _always("ascending", -2, 2)},
    "bincount": {"self": _always("integers", 0, 256)},
    "_pack_padded_sequence": {"lengths": _padded_lengths},
    "segment_reduce": {"lengths": _segment_lengths},
    "_jagged_to_padded_dense_forward": {"offsets": _offsets_into("values", 0)},
    "bernoulli": {"self": _UNIFORM, "p": _UNIFORM},
    "multinomial": {"self": _UNIFORM},
    "poisson": {"self": _UNIFORM},
    "binary_cross_entropy": {"self": _UNIFORM, "target": _UNIFORM},
    "binary_cross_entropy_backward": {"self": _UNIFORM, "target": _UNIFORM},
    "binary_cross_entropy_with_logits": {"target": _UNIFORM},
    "cholesky": {"self": _always("identity")},
    "linalg_cholesky": {"self": _always("identity")},
    "linalg_cholesky_ex": {"self": _always("identity")},
    "cholesky_solve": {"input2": _always("identity")},
    "cholesky_inverse": {"self": _always("identity")},
    "_flash_attention_forward": _VARLEN,
    "_flash_attention_backward": _VARLEN,
    "_efficient_attention_forward": _VARLEN,
    "_efficient_attention_backward": _VARLEN,
    "_scaled_dot_product_flash_attention_backward": _VARLEN,
    "_grouped_mm": _GROUPED,
    "_scaled_grouped_mm": _GROUPED,
    "_amp_foreach_non_finite_check_and_unscale": {"found_inf": _ZERO, "inv_scale": _ONE},
    "_amp_update_scale": {"found_inf": _ZERO, "growth_tracker": _ZERO},
    "_fused_adam": _ADAM,
    "_fused_adamw": _ADAM,
    "_fused_adagrad": _ADAM | {"state_sums": _UNIFORM},
    "_fused_sgd": _ADAM,
    **{
        name + suffix: {"target": _classes}
        for name in ("nll_loss", "nll_loss2d", "multi_margin_loss", "multilabel_margin_loss")
        for suffix in ("", "_forward", "_backward", "_nd")
    },
    "cross_entropy_loss": {"target": _classes},
    **{
        f"{name}_backward": {"indices": _elements_of("self", axes)}
        for axes, names in (
            (2, ("max_pool2d_with_indices", "adaptive_max_pool2d", "fractional_max_pool2d")),
            (3, ("max_pool3d_with_indices", "adaptive_max_pool3d", "fractional_max_pool3d")),
        )
        for name in names
    },
    **dict.fromkeys(
        (
            "batch_norm",
            "native_batch_norm",
            "native_batch_norm_backward",
            "_batch_norm_impl_index",
            "_native_batch_norm_legit",
            "cudnn_batch_norm",
            "cudnn_batch_norm_backward",
            "miopen_batch_norm",
            "miopen_batch_norm_backward",
            "_batch_norm_with_update",
            "batch_norm_backward",
        ),
        _BATCH_NORM,
    ),
}
_FLOAT_ONLY = frozenset({"uniform", "identity"})


def fill_for(
    base_name: str, argument: str, shape: tuple[int, ...], dtype: str, known: Known
) -> Fill | None:
    """The function of `inputs.py` that gives a tensor valid values; None for no special role.

    Args:
        base_name: Name of the operator, without namespace and trailing underscore.
        argument: Its name in the schema.
        shape: Shape of the tensor.
        dtype: Its name in torch.
        known: The other arguments.
    """
    rule = _RULES.get(base_name, {}).get(argument)
    fill = rule(known, shape) if rule else None
    if fill is None:
        return None
    is_float = dtype.startswith(("float", "bfloat", "complex"))
    fits = is_float if fill[0] in _FLOAT_ONLY else fill[0] != "integers" or not is_float
    return fill if fits else None
