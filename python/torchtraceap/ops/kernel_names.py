"""Canonical names of kernels, and the operators that were fused into a generated kernel.

Names come from a file and may be arbitrary. Every function here is linear in the length of the name
and never raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from torchtraceap.core.records import dataclass

__all__ = ["TritonName", "canonical_name", "triton_name"]

_OPENING = {")": "(", "]": "[", "}": "{"}
_PUNCTUATION = re.compile(r"[<>()\[\]{},]|\s+|::")
_UNNAMED = re.compile(r"\(anonymous (?:namespace|class)\)|<unnamed>|\{anonymous\}|\(unnamed\)")
_UNNAMED_SCOPE = re.compile(r"_GLOBAL__N_|_INTERNAL_|__nv_static_")
_TRANSFER = re.compile(r"(?:hip)?mem(?:cpy|set)\b", re.IGNORECASE)
_TENSILE = re.compile(r"Cijk_\w*?_MT\d+x\d+x\d+")
_MANGLED_LITERALS = re.compile(r"(?:L[a-z]n?\d+E)*")
_MANGLED_PREFIX = re.compile(r"N[KVrRO]*|(?=\d)")
_SUBSTITUTION = re.compile(r"S[0-9A-Z]*_|S[a-z]")
_LENGTH = re.compile(r"\d{1,6}")

# Kernels that only run their template argument.
_WRAPPERS = re.compile(r"(?:.*::)?(?:cutlass\w*::(?:Kernel2?|device_kernel)|ck_tile::kentry)\Z")
_MOST_WRAPPERS = 4

# Kernels that a compiler numbers: those of Inductor, nvFuser, NNC and CuTe; those of XLA contain
# "fusion".
_GENERATED = re.compile(
    r"(?:triton|cpp_fused|fused|nvfuser|nvf|kernel_cutlass|wrapped|loop|input|tensorexpr|CudaCodeGen)"
    r"[_:]"
)
_HASH = re.compile(r"(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{8,}")
# Argument specialization in names of Triton 2: _0d1d2de3.
_SPECIALIZATION = re.compile(r"0[0-9]*[dc][0-9dce]*")


@lru_cache(maxsize=1 << 16)
def canonical_name(name: str) -> str:
    """Return the name without the parts that depend on types, shapes, devices and compilations.

    Return type, template arguments, parameters, lambdas, unnamed namespaces and `.kd` are removed,
    and so are numbers and hashes at the end of generated names
    (`triton_poi_fused_add_3` gives `triton_poi_fused_add`). Kernels that only wrap their first
    template argument (`cutlass::Kernel2<cutlass_80_tensorop_s1688gemm...>`) take its name.
    Tensile names end after their macro tile; names of copies keep their direction. The outer scopes
    of a mangled name are decoded. A name that would become empty is returned unchanged.

    The time is linear in the length, and brackets need not balance.
    """
    text = name.strip().removesuffix(".kd")
    if _TRANSFER.match(text):
        return text
    if tensile := _TENSILE.match(text):
        return tensile[0]
    if text.startswith("_Z"):
        return _demangle(text) or name
    return _strip_serial(_strip_signature(text)) or name


def _strip_serial(name: str) -> str:
    """Remove the argument specialization and, from generated names, the numbers at the end."""
    generated = bool(_GENERATED.match(name)) or "fusion" in name
    end = len(name)
    while (start := max(name.rfind("_", 0, end), name.rfind(".", 0, end))) >= 0:
        tail = name[start + 1 : end]
        serial = generated and (tail.isdecimal() or _HASH.fullmatch(tail))
        if not serial and not _SPECIALIZATION.fullmatch(tail):
            break
        end = start
    return name[:end].rstrip("_") if end < len(name) else name


def _strip_signature(text: str) -> str:
    """Reduce `std::enable_if<..>::type a::b<..>::c(..)::{lambda}` to `a::b::c`."""
    name, arguments = _split_template(_UNNAMED.sub("", text))
    for _ in range(_MOST_WRAPPERS):
        if not arguments or not _WRAPPERS.match(name):
            break
        inner, arguments = _split_template(arguments, is_argument=True)
        name = inner or name
    return name


def _split_template(text: str, *, is_argument: bool = False) -> tuple[str, str]:
    """Return the name outside of brackets, up to the parameters, and the first template arguments.

    Blanks outside of brackets separate the return type from the name. The name follows the last
    blank if there are brackets; otherwise only a leading `void` is removed. In a list of template
    arguments, the first that is not a number is taken.
    """
    kept: list[str] = []
    arguments = ""
    bracketed = is_argument
    for token, start, end in _outer_tokens(text):
        if token == "<":
            bracketed, arguments = True, arguments or text[start + 1 : end].removesuffix(">")
        elif token == "(":
            bracketed = True
            if kept and kept[-1] not in (" ", "::"):
                break
        elif token == "," and is_argument:
            if not "".join(kept).strip().isdecimal():
                break
            kept.clear()
        elif token not in "[{":
            kept.append(token)
    whole = "".join(kept).strip()
    name = whole.rpartition(" ")[2] if bracketed else whole.removeprefix("void ").lstrip()
    return _join_scopes(name.split("::")), arguments


def _join_scopes(scopes: list[str]) -> str:
    return "::".join(s for s in scopes if s and not _UNNAMED_SCOPE.match(s))


def _outer_tokens(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield words, `::`, blanks and whole bracketed parts at the top level: (token, start, end).

    The token of a bracketed part is its opening bracket. A `<` that is not closed before the
    enclosing bracket was a comparison; a closing bracket without an opening one is skipped.
    """
    open_at: list[tuple[str, int]] = []
    counts = dict.fromkeys("<([{", 0)
    done = 0
    for match in _PUNCTUATION.finditer(text):
        mark, start, end = match[0], match.start(), match.end()
        if not open_at and start > done:
            yield text[done:start], done, start
        if not open_at:
            done = end
        if mark in counts:
            open_at.append((mark, start))
            counts[mark] += 1
        elif mark == ">" or mark in _OPENING:
            opening = _OPENING.get(mark, "<")
            if not counts[opening] or (mark == ">" and open_at[-1][0] != "<"):
                continue
            while True:
                seen, began = open_at.pop()
                counts[seen] -= 1
                if seen == opening:
                    break
            if not open_at:
                yield seen, began, end
                done = end
        elif not open_at:
            yield (mark if mark in ("::", ",") else " "), start, end
    if open_at:
        yield open_at[0][0], open_at[0][1], len(text)
    elif done < len(text):
        yield text[done:], done, len(text)


def _demangle(text: str) -> str:
    """Decode the scopes at the front of an Itanium mangled name, up to its template arguments."""
    name, end = _mangled_scopes(text, 2)
    if _WRAPPERS.match(name) and text[end : end + 1] == "I":
        literals = _MANGLED_LITERALS.match(text, end + 1)
        inner, _ = _mangled_scopes(text, literals.end() if literals else end + 1)
        return inner or name
    return name


def _mangled_scopes(text: str, start: int) -> tuple[str, int]:
    prefix = _MANGLED_PREFIX.match(text, start)
    if prefix is None:
        return "", start
    place, scopes = prefix.end(), []
    while True:
        if substitution := _SUBSTITUTION.match(text, place):
            place = substitution.end()
        elif length := _LENGTH.match(text, place):
            place = length.end() + int(length[0])
            scopes.append(text[length.end() : place])
        else:
            break
        if prefix[0] == "" and scopes:
            break
    return _join_scopes(scopes), place


# ---------------------------------------------------------------------------------------- Triton

_KINDS = {
    "poi": "pointwise",
    "red": "reduction",
    "per": "persistent reduction",
    "mix": "mixed-order reduction",
    "for": "foreach",
    "spl": "split scan",
    "tem": "template",
    "unk": "unknown",
}
_TEMPLATES = (
    "flex_attention_backward",
    "flex_attention",
    "flex_decoding",
    "convolution2d",
    "convolution3d",
    "convolution",
    "scaled_grouped_mm",
    "grouped_mm",
    "scaled_mm",
    "plus_mm",
    "baddbmm",
    "addmm",
    "bmm",
    "mm",
)

# Operators whose name has several words, which are needed to split a fused name.
_MANY_WORDS = frozenset(
    [
        "_adaptive_avg_pool2d",
        "_adaptive_avg_pool2d_backward",
        "_assert_async",
        "_assert_scalar",
        "_cdist_forward",
        "_conj",
        "_cudnn_rnn",
        "_efficient_attention_backward",
        "_efficient_attention_forward",
        "_embedding_bag",
        "_euclidean_dist",
        "_flash_attention_backward",
        "_flash_attention_forward",
        "_flash_attn_backward",
        "_flash_attn_forward",
        "_fused_rms_norm",
        "_fused_rms_norm_backward",
        "_grouped_mm",
        "_int_mm",
        "_local_scalar_dense",
        "_log_softmax",
        "_log_softmax_backward_data",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_functional",
        "_native_batch_norm_legit_no_training",
        "_prelu_kernel",
        "_prelu_kernel_backward",
        "_reshape_alias",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_cudnn_attention_backward",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_efficient_attention_backward",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_backward",
        "_scaled_grouped_mm",
        "_scaled_mm",
        "_softmax",
        "_softmax_backward_data",
        "_to_copy",
        "_trilinear",
        "_unsafe_index",
        "_unsafe_index_put",
        "_unsafe_masked_index",
        "_unsafe_view",
        "_weight_norm_interface",
        "_weight_norm_interface_backward",
        "adaptive_avg_pool2d",
        "adaptive_max_pool2d",
        "alias_copy",
        "all_gather_into_tensor",
        "all_gather_into_tensor_out",
        "all_reduce",
        "all_to_all_single",
        "as_strided",
        "as_strided_scatter",
        "auto_functionalized",
        "auto_functionalized_v2",
        "avg_pool2d",
        "avg_pool2d_backward",
        "avg_pool3d",
        "avg_pool3d_backward",
        "batch_norm_backward",
        "batch_norm_elemt",
        "batch_norm_stats",
        "binary_cross_entropy",
        "binary_cross_entropy_backward",
        "binary_cross_entropy_with_logits",
        "bitwise_and",
        "bitwise_left_shift",
        "bitwise_not",
        "bitwise_or",
        "bitwise_right_shift",
        "bitwise_xor",
        "broadcast_in_dim",
        "broadcast_to",
        "channel_shuffle",
        "clamp_max",
        "clamp_min",
        "constant_pad_nd",
        "convert_element_type",
        "convolution_backward",
        "copy_to",
        "cross_entropy_loss",
        "cudnn_batch_norm",
        "cudnn_batch_norm_backward",
        "div_tensor",
        "dropout_backward",
        "elu_backward",
        "embedding_backward",
        "embedding_bag",
        "embedding_dense_backward",
        "empty_like",
        "empty_strided",
        "expand_as",
        "fill_",
        "flash_attn_backward",
        "flex_attention",
        "flex_attention_backward",
        "floor_divide",
        "full_like",
        "fused_dropout",
        "gather_backward",
        "gelu_backward",
        "glu_backward",
        "grid_sampler_2d",
        "group_norm_backward",
        "hardsigmoid_backward",
        "hardswish_backward",
        "hardtanh_backward",
        "huber_loss",
        "index_add",
        "index_copy",
        "index_fill",
        "index_put",
        "index_select",
        "inductor_force_stride_order",
        "inductor_lookup_seed",
        "inductor_random",
        "inductor_randint",
        "inductor_seed",
        "inductor_seeds",
        "is_finite",
        "is_inf",
        "is_nan",
        "l1_loss",
        "layer_norm",
        "leaky_relu",
        "leaky_relu_backward",
        "lift_fresh",
        "lift_fresh_copy",
        "linalg_vector_norm",
        "linear_backward",
        "log_sigmoid",
        "log_sigmoid_backward",
        "log_sigmoid_forward",
        "logical_and",
        "logical_not",
        "logical_or",
        "logical_xor",
        "masked_fill",
        "masked_fill_backward",
        "masked_scatter",
        "masked_select",
        "masked_softmax",
        "max_pool2d",
        "max_pool2d_with_indices",
        "max_pool2d_with_indices_backward",
        "max_pool3d_with_indices",
        "mish_backward",
        "mse_loss",
        "mse_loss_backward",
        "native_batch_norm",
        "native_batch_norm_backward",
        "native_dropout",
        "native_dropout_backward",
        "native_group_norm",
        "native_group_norm_backward",
        "native_layer_norm",
        "native_layer_norm_backward",
        "new_empty",
        "new_empty_strided",
        "new_full",
        "new_ones",
        "new_zeros",
        "nll_loss",
        "nll_loss2d_backward",
        "nll_loss2d_forward",
        "nll_loss_backward",
        "nll_loss_forward",
        "not_equal",
        "ones_like",
        "permute_copy",
        "pixel_shuffle",
        "pixel_unshuffle",
        "prims_convert_element_type",
        "rand_like",
        "randint_like",
        "randn_like",
        "reduce_scatter_tensor",
        "reflection_pad1d",
        "reflection_pad2d",
        "reflection_pad2d_backward",
        "repeat_interleave",
        "replication_pad2d",
        "rms_norm",
        "rrelu_with_noise",
        "scalar_tensor",
        "scaled_dot_product_attention",
        "scatter_add",
        "scatter_reduce",
        "searchsorted_",
        "select_backward",
        "select_scatter",
        "sigmoid_backward",
        "silu_backward",
        "slice_backward",
        "slice_scatter",
        "smooth_l1_loss",
        "smooth_l1_loss_backward",
        "soft_margin_loss",
        "softmax_backward",
        "softplus_backward",
        "split_with_sizes",
        "split_with_sizes_copy",
        "squeeze_copy",
        "std_mean",
        "sym_size",
        "tanh_backward",
        "threshold_backward",
        "tril_indices",
        "triton_kernel_wrapper_functional",
        "triton_kernel_wrapper_mutation",
        "triu_indices",
        "true_divide",
        "upsample_bicubic2d",
        "upsample_bilinear2d",
        "upsample_bilinear2d_backward",
        "upsample_nearest2d",
        "upsample_nearest2d_backward",
        "value_selecting_reduction_backward",
        "var_mean",
        "view_as",
        "view_as_complex",
        "view_as_real",
        "wait_tensor",
        "zeros_like",
    ]
)
_LONGEST = max(name.count("_") + 1 for name in _MANY_WORDS) + 1
_SINGLE_WORDS = frozenset(
    [
        "abs",
        "add",
        "addcdiv",
        "addcmul",
        "addmm",
        "alias",
        "amax",
        "amin",
        "angle",
        "any",
        "all",
        "arange",
        "argmax",
        "argmin",
        "asin",
        "atan",
        "atan2",
        "baddbmm",
        "bernoulli",
        "bmm",
        "bucketize",
        "cat",
        "cdist",
        "ceil",
        "chunk",
        "clamp",
        "clone",
        "constant",
        "convolution",
        "copy",
        "cos",
        "cosh",
        "cummax",
        "cummin",
        "cumprod",
        "cumsum",
        "detach",
        "diagonal",
        "div",
        "dot",
        "dropout",
        "einsum",
        "elu",
        "embedding",
        "eq",
        "erf",
        "exp",
        "exp2",
        "expand",
        "expm1",
        "eye",
        "fill",
        "flip",
        "floor",
        "fmax",
        "fmin",
        "fmod",
        "full",
        "gather",
        "ge",
        "gelu",
        "getitem",
        "glu",
        "gt",
        "hardsigmoid",
        "hardswish",
        "hardtanh",
        "index",
        "isfinite",
        "isinf",
        "isnan",
        "item",
        "lerp",
        "le",
        "linear",
        "linspace",
        "log",
        "log10",
        "log1p",
        "log2",
        "logit",
        "logsumexp",
        "lt",
        "masked",
        "matmul",
        "max",
        "maximum",
        "mean",
        "median",
        "min",
        "minimum",
        "mish",
        "mm",
        "mul",
        "multinomial",
        "mv",
        "narrow",
        "ne",
        "neg",
        "norm",
        "normal",
        "nonzero",
        "ones",
        "permute",
        "polar",
        "pow",
        "prod",
        "rand",
        "randint",
        "randn",
        "randperm",
        "reciprocal",
        "relu",
        "remainder",
        "repeat",
        "reshape",
        "roll",
        "rot90",
        "round",
        "rsqrt",
        "rsub",
        "scatter",
        "select",
        "sigmoid",
        "sign",
        "silu",
        "sin",
        "sinh",
        "slice",
        "softmax",
        "softplus",
        "sort",
        "split",
        "sqrt",
        "square",
        "squeeze",
        "stack",
        "std",
        "sub",
        "sum",
        "t",
        "tan",
        "tanh",
        "tile",
        "topk",
        "trace",
        "transpose",
        "tril",
        "triu",
        "trunc",
        "unbind",
        "unfold",
        "uniform",
        "unsqueeze",
        "var",
        "view",
        "where",
        "xlogy",
        "zeros",
    ]
)


@dataclass(frozen=True, slots=True)
class TritonName:
    """Information that Inductor encodes in the name of a Triton kernel."""

    kind: str
    """Kind such as pointwise, reduction, persistent reduction, template or foreach; or ""."""
    source_ops: tuple[str, ...]
    """Fused ATen operators without `aten::`, at most the ten that fit into the name.

    The name joins words and operators with `_` alike, so custom operators may be split wrongly.
    """


@lru_cache(maxsize=1 << 16)
def triton_name(name: str) -> TritonName | None:
    """Return kind and source operators of an Inductor kernel (`triton_poi_fused_add_relu_3`).

    Return None for other names, including kernels written by hand in Triton.
    """
    if not name.startswith("triton_"):
        return None
    words = canonical_name(name).removeprefix("triton").removeprefix("_")
    kind, rest = _KINDS.get(words[:3], ""), words
    if kind and words[3:4] in ("_", ""):
        rest = words[4:]
    else:
        kind = ""
    for template in _TEMPLATES if not rest.startswith("fused") else ():
        if rest == template or rest.startswith(template + "_"):
            return TritonName("template", (template,))
    if not rest.startswith("fused"):
        return TritonName(kind, ()) if kind or not rest else None
    return TritonName(kind, _source_ops(rest.removeprefix("fused").removeprefix("_")))


def _source_ops(text: str) -> tuple[str, ...]:
    """Split `__to_copy_add_native_layer_norm` into the longest known names from left to right.

    Words that belong to no known name stay together: `my_custom_op` is one operator.
    """
    words = text.split("_") if text else []
    found: list[str] = []
    unknown: list[str] = []
    place = 0
    while place < len(words):
        for size in range(min(_LONGEST, len(words) - place), 0, -1):
            candidate = "_".join(words[place : place + size])
            if candidate in _MANY_WORDS or candidate in _SINGLE_WORDS:
                break
        else:
            unknown.append(words[place])
            place += 1
            continue
        _flush(unknown, found)
        found.append(candidate)
        place += size
    _flush(unknown, found)
    return tuple(dict.fromkeys(found))


def _flush(unknown: list[str], found: list[str]) -> None:
    """Append a pending unknown name; a lone `backward` belongs to the operator before it."""
    joined = "_".join(unknown).rstrip("_")
    if joined == "backward" and found:
        found[-1] += "_backward"
    elif joined:
        found.append(joined)
    unknown.clear()
