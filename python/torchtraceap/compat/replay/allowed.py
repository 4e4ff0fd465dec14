"""The operators that may be called because a trace names them.

A trace is not trusted, and calling an operator is doing what it says. So only operators are called
that calculate tensors from tensors: nothing that reads or writes files, prints, communicates, or
changes what later code meets. What is not known to be of this kind is refused with the reason
(docs/roofline.md).
"""

from __future__ import annotations

import re

from torchtraceap.compat.replay.call import MAX_AXES, MAX_ROUNDS, NotReplayableError, quote
from torchtraceap.compat.replay.schema import Argument, Operator

__all__ = ["check_name", "check_number", "check_operator", "check_text"]

# Namespaces of PyTorch's own arithmetic. Others communicate (c10d, symm_mem), load files
# (debugprims), change the profiler (profiler) or random numbers (rngprims), or are unknown.
_NAMESPACES = frozenset({"aten", "prims"})

_STATE = (
    "it changes a storage, a stream or what autograd records, which later code would meet, "
    "and calculates nothing"
)
_UNCHECKED = "its kernels trust the sizes that they are given"
_OPAQUE = "it reads memory in a library's own layout, which no trace describes"
_REFUSED_NAMES = {
    **dict.fromkeys(
        (
            "record_stream",
            "requires_grad",
            "resize",
            "resize_as",
            "retain_grad",
            "set",
            "set_data",
        ),
        _STATE,
    ),
    **dict.fromkeys(("fft_c2c", "fft_c2r", "fft_r2c"), _UNCHECKED),
    **dict.fromkeys(
        ("choose_qparams_optimized", "lstm_mps_backward", "miopen_rnn", "miopen_rnn_backward"),
        _OPAQUE,
    ),
}
_REFUSED_PREFIXES = {
    "fbgemm_": _OPAQUE,
    "mkldnn_adaptive_": _OPAQUE,
    "mkldnn_linear": _OPAQUE,
    "mkldnn_max_pool": _OPAQUE,
    "mkldnn_reorder_": _OPAQUE,
    "mkldnn_rnn_": _OPAQUE,
    "mps_": _OPAQUE,
    "quantized_": "only the sizes of quantized tensors are recorded",
    "resize_as_sparse": _STATE,
    "sparse_": "only the sizes of sparse tensors are recorded",
    "to_mkldnn": _OPAQUE,
    "to_sparse": "only the sizes of sparse tensors are recorded",
}

# Operators with a leading underscore trust their caller to have checked the arguments, and any
# version of torch may bring new ones: only these, by their name without the underscore of the
# in-place form.
_PRIVATE_NAMES = """
__and__ __iand__ __ilshift__ __ior__ __irshift__ __ixor__ __lshift__ __or__ __rshift__ __xor__
_adaptive_avg_pool2d _adaptive_avg_pool2d_backward
_adaptive_avg_pool3d _adaptive_avg_pool3d_backward
_addmm_activation _aminmax _amp_foreach_non_finite_check_and_unscale _amp_update_scale
_batch_norm_impl_index _batch_norm_with_update
_batch_norm_with_update_functional
_cast_Byte _cast_Char _cast_Double _cast_Float _cast_Half _cast_Int _cast_Long _cast_Short
_cdist_forward
_conj _conj_copy _conj_physical
_conv_depthwise2d _convolution _convolution_mode
_ctc_loss _cudnn_ctc_loss _cudnn_rnn
_efficient_attention_backward _efficient_attention_forward
_embedding_bag _embedding_bag_backward _embedding_bag_dense_backward
_embedding_bag_forward_only _embedding_bag_per_sample_weights_backward
_euclidean_dist _fft_c2c _fft_c2r _fft_r2c
_flash_attention_backward _flash_attention_forward
_foreach_abs _foreach_acos _foreach_add _foreach_addcdiv _foreach_addcmul _foreach_asin
_foreach_atan _foreach_ceil _foreach_clamp_max _foreach_clamp_min _foreach_clone _foreach_copy
_foreach_cos _foreach_cosh _foreach_div _foreach_erf _foreach_erfc _foreach_exp _foreach_expm1
_foreach_floor _foreach_frac _foreach_lerp _foreach_lgamma _foreach_log _foreach_log10
_foreach_log1p _foreach_log2 _foreach_max _foreach_maximum _foreach_minimum _foreach_mm
_foreach_mul _foreach_neg _foreach_norm _foreach_pow _foreach_powsum _foreach_reciprocal
_foreach_round _foreach_rsqrt _foreach_sigmoid _foreach_sign _foreach_sin _foreach_sinh
_foreach_sqrt _foreach_sub _foreach_tan _foreach_tanh _foreach_trunc _foreach_zero
_fused_adagrad _fused_adam _fused_adamw _fused_dropout _fused_rms_norm
_fused_rms_norm_backward _fused_sdp_choice _fused_sgd
_grouped_mm _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors
_int_mm _is_all_true _is_any_true
_jagged_to_padded_dense_forward _padded_dense_to_jagged_forward
_linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd
_local_scalar_dense _log_softmax _log_softmax_backward_data
_masked_scale
_native_batch_norm_legit _native_batch_norm_legit_functional
_native_batch_norm_legit_no_training _native_multi_head_attention
_pack_padded_sequence _pad_circular _pad_enum _pin_memory
_prelu_kernel _prelu_kernel_backward
_reshape_alias
_safe_softmax
_scaled_dot_product_attention_math
_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
_scaled_dot_product_flash_attention_for_cpu
_scaled_dot_product_flash_attention_for_cpu_backward
_scaled_grouped_mm _scaled_grouped_mm_v2 _scaled_mm _scaled_mm_v2
_shape_as_tensor
_slow_conv2d_forward
_softmax _softmax_backward_data _standard_gamma _standard_gamma_grad
_thnn_fused_gru_cell _thnn_fused_gru_cell_backward
_thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward _thnn_fused_lstm_cell_backward_impl
_to_copy _transformer_encoder_layer_fwd _trilinear
_unique _unique2 _unsafe_view
_upsample_nearest_exact1d _upsample_nearest_exact1d_backward
_upsample_nearest_exact2d _upsample_nearest_exact2d_backward
_upsample_nearest_exact3d _upsample_nearest_exact3d_backward
_weight_int4pack_mm _weight_int8pack_mm
"""
_PRIVATE = frozenset(_PRIVATE_NAMES.split())

_REDUCTIONS = ("add", "amax", "amin", "max", "mean", "min", "multiply", "prod", "sum")
# Texts that are allowed, by the name of the argument. All else is refused: it could be a path.
_CHOICES: dict[str, frozenset[str]] = {
    name: frozenset(choices)
    for name, choices in {
        "UPLO": ("L", "U", "l", "u"),
        "approximate": ("none", "tanh"),
        "driver": ("gels", "gelsd", "gelss", "gelsy", "gesvd", "gesvda", "gesvdj"),
        "indexing": ("ij", "xy"),
        "interpolation": ("higher", "linear", "lower", "midpoint", "nearest"),
        "mode": ("circular", "complete", "constant", "r", "reduced", "reflect", "replicate"),
        "norm": ("backward", "forward", "ortho"),
        "ord": ("fro", "nuc"),
        "p": ("fro", "nuc"),
        "pad_mode": ("circular", "constant", "reflect", "replicate"),
        "padding": ("same", "valid"),
        "padding_side": ("left", "right"),
        "reduce": _REDUCTIONS,
        "rounding_mode": ("floor", "trunc"),
        "side": ("left", "right"),
    }.items()
}
_SUBSCRIPTS = r"[A-Za-z ]*(?:\.\.\.[A-Za-z ]*)?"
_GRAMMARS = {"equation": re.compile(rf"{_SUBSCRIPTS}(?:,{_SUBSCRIPTS})*(?:->{_SUBSCRIPTS})?")}
_MAX_TEXT = 1024

# Numbers that count rounds of a loop, not sizes of what comes out: name and kind.
_ROUNDS = {
    ("decimals", "int"): MAX_ROUNDS,
    ("n", "number"): MAX_ROUNDS,
    ("p", "int"): MAX_ROUNDS,
    ("r", "int"): MAX_AXES,
}
# Make tensors from numbers: worth nothing in a replay, but part of what a step does.
_MAKERS = frozenset(
    """
    arange bartlett_window blackman_window empty empty_permuted empty_strided eye full
    hamming_window hann_window kaiser_window linspace logspace ones rand randint randn randperm
    range scalar_tensor tril_indices triu_indices zeros
    """.split()  # noqa: SIM905
)


def check_name(name: str) -> None:
    """Check that a name is that of an operator that may be called at all.

    Raises:
        NotReplayableError: With the reason.
    """
    namespace, separator, rest = name.partition("::")
    if name.startswith(("autograd::engine", "torch::autograd")) or "Backward" in rest + namespace:
        raise NotReplayableError(
            "an autograd node is no operator; those that it calls can be replayed one by one"
        )
    if not separator or not namespace.isidentifier() or not rest.isidentifier():
        raise NotReplayableError(
            f"{quote(name)} is no registered operator: annotations, Python functions and "
            "compiled kernels have no schema"
        )
    if namespace not in _NAMESPACES:
        raise NotReplayableError(
            f"only operators of {', '.join(sorted(_NAMESPACES))} are called again: those of "
            f"{quote(namespace)} may communicate, use files or change what later code meets"
        )


def check_operator(operator: Operator, *, without_values: bool = False) -> None:
    """Check that an operator only calculates tensors from tensors, as far as its schema tells.

    Args:
        operator: The one to be called.
        without_values: On tensors that have none, so that no kernel runs: what makes tensors from
            numbers is allowed as well, and what trusts the sizes that it is given.

    Raises:
        NotReplayableError: With the reason.
    """
    for argument in operator.arguments:
        if argument.kind == "str" and not (argument.name in _CHOICES or argument.name in _GRAMMARS):
            raise NotReplayableError(
                f"'{argument.name}' is a text without a known set of choices: it could be a name "
                "or a path"
            )
        needed = argument.kind == "generator" and not argument.optional
        if needed or argument.kind == "other":
            raise NotReplayableError(
                f"'{argument.name}' is of type {ascii(argument.type_name)[:80]}, which a trace "
                "cannot hold"
            )
    takes_tensors = any(a.takes_tensors and not a.is_output for a in operator.arguments)
    if not takes_tensors and not (without_values and operator.base_name in _MAKERS):
        raise NotReplayableError(
            f"{operator.qualified} makes a tensor of numbers alone: it has no tensor as input"
        )
    base = operator.base_name
    reason = _REFUSED_NAMES.get(base) or next(
        (why for prefix, why in _REFUSED_PREFIXES.items() if base.startswith(prefix)), None
    )
    if reason is None and base.startswith("_") and base not in _PRIVATE:
        reason = "it is internal to PyTorch and not among those known only to calculate"
    if reason is not None and not (without_values and reason is _UNCHECKED):
        raise NotReplayableError(f"{operator.qualified} is not called again: {reason}")


def check_text(argument: Argument, text: str) -> None:
    """Check that a recorded text is one of those that the argument can be.

    Raises:
        NotReplayableError: With the choices.
    """
    shown = quote(text)
    grammar = _GRAMMARS.get(argument.name)
    if grammar is not None:
        if len(text) > _MAX_TEXT or not grammar.fullmatch(text):
            raise NotReplayableError(f"'{argument.name}' is {shown}, no list of subscripts")
        return
    choices = _CHOICES[argument.name]
    if text not in choices:
        known = ", ".join(sorted(choices))
        raise NotReplayableError(f"'{argument.name}' is {shown}, not one of {known}")


def check_number(argument: Argument, number: float) -> None:
    """Check that a number that counts rounds lets the call come to an end.

    Raises:
        NotReplayableError: It does not.
    """
    most = _ROUNDS.get((argument.name, argument.kind))
    if most is not None and abs(number) > most:
        raise NotReplayableError(
            f"'{argument.name}' is {number:g}, more rounds than the {most} that are made"
        )
