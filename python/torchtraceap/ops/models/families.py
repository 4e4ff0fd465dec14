"""Classify operators into families of work, for tables by category.

The operator's name decides. If it says nothing (a custom operator, a launch without an operator),
the names of the kernels decide. Names in libraries change between releases, so the rules match
words inside a name rather than whole names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache

from torchtraceap import _core

__all__ = ["FAMILIES", "OpName", "family_of", "split_op_name"]

FAMILIES: tuple[str, ...] = (
    "gemm",
    "grouped_gemm",
    "convolution_forward",
    "convolution_backward",
    "attention_forward",
    "attention_backward",
    "normalization_forward",
    "normalization_backward",
    "softmax",
    "cross_entropy",
    "loss",
    "activation",
    "elementwise",
    "dropout",
    "reduction",
    "scan",
    "sort",
    "embedding",
    "pooling",
    "interpolation",
    "padding",
    "indexing",
    "concatenate",
    "copy",
    "memory_set",
    "view",
    "random",
    "optimizer",
    "foreach",
    "gradient_accumulation",
    "rnn",
    "fft",
    "linear_algebra",
    "sparse",
    "quantization",
    "rope",
    "moe",
    "ssm",
    "kv_cache",
    "detection",
    "triton",
    "communication",
    "synchronization",
    "graph",
    "data_loading",
    "other",
)
"""Every value that `family_of` returns."""

# Patterns that the profiler, the dispatcher and the autograd engine add around a name.
_ENGINE = re.compile(r"^autograd::engine::evaluate_function: *")
_CPP_NODE = re.compile(r"^torch::autograd::CppNode<(.*?)>?$", re.DOTALL)
_NODE = re.compile(r"(?<=[A-Za-z0-9])Backward\d*$")
_BACKWARD_WORD = re.compile(r"_(?:backward|bwd)(?=_|$|\d)|^(?:backward|bwd)(?=_|$)")
_FORWARD_WORD = re.compile(r"_(?:forward|fwd)(?=_|$)")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=\dd)(?=[A-Z])")
_TEMPLATE = re.compile(r"<.*", re.DOTALL)


class OpName:
    """An operator's name in parts: `aten::add_` is namespace `aten`, base `add`."""

    __slots__ = ("backward", "base", "namespace")

    def __init__(self, namespace: str, base: str, *, backward: bool) -> None:
        self.namespace = namespace
        """Namespace in lowercase; empty for a name without `::`."""
        self.base = base
        """Name in snake_case without the marks of in-place and backward operators."""
        self.backward = backward
        """True for an autograd node and for a name with `backward` or `bwd`."""


def split_op_name(name: str) -> OpName:
    """Split an operator's name into its parts; this never fails."""
    inner = _ENGINE.sub("", name)
    cpp_node = _CPP_NODE.match(inner)
    inner = cpp_node.group(1) if cpp_node else inner
    outer = _TEMPLATE.sub("", inner)
    namespace, _, last = outer.rpartition("::")
    without_node = _NODE.sub("", last)
    backward = cpp_node is not None or without_node != last
    snake = _CAMEL.sub("_", without_node).lower().strip("_")
    base = _FORWARD_WORD.sub("", _BACKWARD_WORD.sub("", snake)).strip("_")
    backward = backward or bool(_BACKWARD_WORD.search(snake))
    return OpName(namespace.lower(), base or snake, backward=backward)


def _word(*words: str) -> str:
    """Return a pattern for whole words between underscores."""
    return rf"(?:^|_)(?:{'|'.join(words)})(?:_|$)"


_NAMESPACES: tuple[tuple[str, str], ...] = (
    ("communication", r"^c10d|c10d_functional|^nccl|^rccl|^symm_mem|^torch::distributed"),
    (
        "attention",
        r"flash_attn|flash_attention|xformers_flash|fmha|flashattn|^customflash|vllm_fa\d",
    ),
    ("kv_cache", r"cache_ops"),
    ("moe", r"^_moe_c|^moe"),
    ("ssm", r"mamba|causal_conv1d|selective_scan"),
)

_PLAIN_NAMESPACES = frozenset(("", "aten", "torch::autograd"))
"""Namespaces that match no rule."""

# The first pattern that matches decides. `attention`, `convolution` and `normalization` stand for
# their forward and backward families.
_BASES: tuple[tuple[str, str], ...] = (
    ("data_loading", r"data_?loader"),
    (
        "optimizer",
        r"^optimizer\.|^fused_(?:adam|adamw|sgd|adagrad|lamb)$|multi_tensor_(?:adam|sgd|lamb)|"
        r"amp_(?:foreach|update)|optimizer_step",
    ),
    ("gradient_accumulation", r"accumulate_grad|copy_bucket_to_grad|copy_grad_to_bucket"),
    (
        "moe",
        r"(?:^|_)moe(?:_|$)|fused_experts|expert_(?:parallel|forward)|topk_(?:softmax|sigmoid|"
        r"softplus|gating)|grouped_topk|^mo_?e_?(?:dispatch|combine)|moe_(?:align|sum)|token_(?:un)?permut|permute_and_pad|deep_?ep|"
        r"ck_moe|fmoe",
    ),
    (
        "communication",
        r"^record_param_comms|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|"
        r"all2_?all|^allto_all|allgather|allreduce|(?:^|_)broadcast_coalesced|barrier$|send_recv|"
        r"^nccl|^rccl",
    ),
    ("kv_cache", r"reshape_and_cache|store_cache|kv_cache|concat_and_cache|paged_kv|page_indices"),
    (
        "attention",
        r"scaled_dot_product|(?:^|_)attn(?:_|$)|attention|flash_attn|fmha|mha(?:_|$)|"
        r"^(?:paged|unified|flex|sdpa|mla)_|memory_efficient|^pa_(?:decode|sparse)|tilelang_sparse",
    ),
    ("rope", r"rope|ro_pe|rotary"),
    ("ssm", r"mamba|selective_scan|causal_conv1d|ssd_|state_space|(?:^|_)mhc"),
    (
        "grouped_gemm",
        r"group(?:ed)?_?(?:gemm|mm)|gmm(?:_|$)|grouped_(?:linear|matmul)|"
        r"general_grouped|m_grouped|scaled_grouped",
    ),
    ("loss", r"binary_cross_entropy|(?:cosine|hinge)_embedding_loss|^poisson_nll"),
    ("sparse", r"sparse(?!_(?:data|features))|coalesce|csr_|coo_|^smm$|sspaddmm"),
    ("rnn", r"(?:^|_)(?:rnn|lstm|gru)(?:_|$)|cudnn_rnn|miopen_rnn"),
    (
        "embedding",
        r"embedding|lookup_function|embs?_(?:lookup|codegen)|embeddingbag|split_lookup|"
        r"permute_pooled_embs|bounds_check_indices",
    ),
    # These families take precedence over the quantization of their result.
    ("normalization", r"rms_?norm|rms_mxfp4|ln_modulate"),
    ("activation", r"(?:silu|gelu|relu|gelu_tanh)_and_mul|mul_and_silu|si_?lu_?mul"),
    ("random", r"^(?:mixed|random)_sample"),
    ("gemm", r"gemm_(?:a\d|with_dynamic_quant)|(?:^|_)a8w8_|flatmm|^llmm|^wv_split"),
    (
        "quantization",
        r"(?<!un)quant(?!ile)|weight_to_int4pack|to_fp8|fp8_to|tofp8|hfp8|cast_to_fp[48]|qparams|mxfp|nvfp|"
        r"per_token_cast",
    ),
    (
        "normalization",
        r"(?:batch|layer|group|instance|rms)_?norm|l2_norm|t5_norm|ln_(?:fwd|bwd)|"
        r"weight_norm|^renorm|^native_norm",
    ),
    ("cross_entropy", r"cross_entropy|nll_loss|cross_entropy_loss"),
    ("loss", r"(?:^|_)loss(?:_nd|2d)?(?:_|$)|kl_div|huber"),
    ("softmax", r"softmax"),
    (
        "convolution",
        r"(?:^|_)conv(?:olution)?(?:_?(?:transpose|depthwise|tbc|dilated))*(?:_?[123]d)?"
        r"(?:_|$)|convbias|^im2col$|^col2im$",
    ),
    ("interpolation", r"upsample|interpolate|grid_sampl|affine_grid|roi_align|deform"),
    ("pooling", r"pool[123]?d?(?:_|$)|roi_pool|unpool"),
    ("dropout", r"dropout"),
    ("foreach", r"^foreach_"),
    ("fft", r"(?:^|_)i?r?h?fft|^stft$|^istft$|fft_c2|fft_r2"),
    (
        "linear_algebra",
        r"^linalg_(?!matmul|vector_norm|norm|vecdot|multi_dot|_?powsum|check|cross|diagonal)|"
        r"cholesky|^svd$|^qr$|^inverse$|^p?inverse|^slogdet|^logdet|^det$|^geqrf|^or[gm]qr|lu_solve|"
        r"lu_unpack|lu_with_info|triangular_solve|matrix_(?:exp|power)|^symeig",
    ),
    (
        "gemm",
        _word(
            "mm",
            "bmm",
            "addmm",
            "baddbmm",
            "addbmm",
            "matmul",
            "gemm",
            "mv",
            "addmv",
            "linear",
            "einsum",
            "dot",
            "vdot",
            "addr",
            "ger",
            "outer",
            "inner",
            "tensordot",
            "bilinear",
            "hgemm",
            "sgemm",
            "qkvproj",
            "mmdrelu",
            "gemv",
            "trilinear",
            "addmm_activation",
            "gemms",
        )
        + r"|gemm|matmul|scaled_mm|weight_int[48]pack_mm|linalg_(?:matmul|vecdot|multi_dot)|"
        r"cublas|hipblas|rocblas|^multi_head_linear|^int_mm|layernorm_linear|^chain_",
    ),
    (
        "scan",
        r"^(?:log)?cum(?:sum|prod|max|min|sumexp)|logcumsumexp|cumulative|complete_cumsum|"
        r"cum(?:max|min)_helper|segment_reduce",
    ),
    (
        "sort",
        r"^(?:sort|argsort|msort|topk|kthvalue|median|nanmedian|mode|searchsorted|bucketize|"
        r"unique\d?|unique_dim|unique_consecutive|isin|quantile|nanquantile|histc|histogram(?:dd)?|"
        r"bincount)(?:_|$)",
    ),
    (
        "padding",
        r"(?:^|_)pad(?:_|$)|constant_pad|reflection_pad|replication_pad|to_padded|"
        r"padded_tensor|padded_dense|to_dense_representation",
    ),
    (
        "indexing",
        r"^(?:unsafe_)?index(?:_|$)|^index_|gather|scatter|^take|masked_(?:select|scatter)|"
        r"^nonzero|^argwhere|^put$|^(?:un)?masked_index|repeat_interleave|^one_hot|slice_scatter|"
        r"select_scatter|diagonal_scatter|permute_(?:1d|2d|sparse)|^shuffle_rows"
        r"|lengths_range|offsets_range|value_selecting|tri[lu]_indices|^flip|^roll|^rot90",
    ),
    (
        "random",
        r"^(?:normal|uniform|random|bernoulli|exponential|geometric|cauchy|log_normal|"
        r"multinomial|poisson|binomial|rand|randn|randint|randperm|rand_like|randn_like|randint_like|"
        r"standard_gamma|sample_dirichlet|philox|sobol)(?:_|$)",
    ),
    ("memory_set", r"^(?:cuda|hip)_?memset|_window$"),
    (
        "synchronization",
        r"synchronize|^local_scalar_dense$|^item$|wait_?event|wait_tensor|"
        r"event_?record|^op_(?:wait|record|evt_sync)$|assert_async|is_nonzero",
    ),
    ("graph", r"graph_?launch"),
    (
        "copy",
        r"^cast_\w+$|^(?:permute|transpose|expand|view|slice|select|as_strided|diagonal|t|alias)_copy$|"
        r"memcpy|^asynchronous_copy|resize$|convert_element_type",
    ),
    (
        "activation",
        r"^gelu_(?:new|fast|quick)$|swiglu|geglu|reglu|act_and_mul|bias_gelu|bias_swiglu",
    ),
    ("reduction", r"^linalg_(?:(?:vector_)?norm|_?powsum)$"),
    ("view", r"^atleast_[123]d$|^squeeze_"),
    ("detection", r"(?:^|_)nms$|(?:^|_)iou(?:_|$)"),
)

_WHOLE_NAMES: dict[str, str] = {
    "elementwise": """
        abs absolute acos acosh add addcdiv addcmul and angle arccos arccosh arcsin arcsinh arctan
        arctan2 arctanh asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not
        bitwise_or bitwise_right_shift bitwise_xor ceil channel_shuffle clamp clamp_max clamp_min
        clip complex conj_physical convert copysign cos cosh cross deg2rad diff digamma div divide
        eq erf erfc erfinv euclidean_dist exp exp2 expm1 fix float_power floor floor_divide fmax
        fmin fmod frac frexp gcd ge greater greater_equal gt heaviside hypot i0 iand igamma
        igammac ilshift ior irshift isclose isfinite isinf isnan isneginf isposinf isreal ixor
        kron lcm ldexp le lerp less less_equal lgamma linalg_cross log log10 log1p log2 logaddexp
        logaddexp2 logical_and logical_not logical_or logical_xor logit lshift lt masked_fill
        masked_scale maximum minimum mul mul_out multiply mvlgamma nan_to_num ne neg negative
        nextafter not_equal or pixel_shuffle pixel_unshuffle polar polygamma positive pow rad2deg
        reciprocal remainder round rshift rsqrt rsub sgn sign signbit sin sinc sinh sqrt square
        sub subtract tan true_divide trunc where xlogy xor
    """,
    "view": """
        adjoint alias as_strided broadcast_in_dim broadcast_tensors broadcast_to chunk conj data
        detach diagonal empty empty_like empty_permuted empty_strided expand expand_as flatten
        imag is_pinned lift_fresh linalg_diagonal mh moveaxis movedim mt narrow new_empty
        new_empty_strided numel permute ravel real record_stream reinterpret_tensor requires_grad
        reshape reshape_alias resize_as resolve_conj resolve_neg result_type select set size slice
        split split_with_sizes squeeze stride sum_to swapaxes swapdims t transpose unbind
        unflatten unfold unsafe_view unsqueeze view view_as view_as_complex view_as_real
        view_nested_from_buffer
    """,
    "copy": """
        bfloat16 clone contiguous copy copy_d2h copy_from copy_h2d cuda double float half
        lift_fresh_copy pin_memory reshape_copy to to_copy to_cpu to_dtype type_as
    """,
    "memory_set": """
        arange eye fill fill_diagonal full full_like linspace logspace new_full new_ones new_zeros
        ones ones_like range scalar_tensor tril triu zero zero_grad zeros zeros_like
    """,
    "concatenate": """
        block_diag cartesian_prod cat chunk_cat column_stack combinations concat concatenate
        dstack hstack meshgrid repeat row_stack split_copy split_with_sizes_copy stack tile
        unbind_copy unsafe_split vstack
    """,
    "reduction": """
        all allclose amax amin aminmax any argmax argmin cdist convex_sum corrcoef
        cosine_similarity count_nonzero cov dist equal frobenius_norm grad_sum_to_size hash_tensor
        is_all_true is_any_true logsumexp max mean min nanmean nansum norm norm_except_dim
        nuclear_norm pairwise_distance pdist prod special_logsumexp std std_mean sum sum_to_size
        trace var var_mean
    """,
    "activation": """
        add_relu celu elu gelu glu hardshrink hardsigmoid hardswish hardtanh
        infinitely_differentiable_gelu leaky_relu log_sigmoid mish prelu prelu_kernel relu relu6
        rrelu rrelu_with_noise selu sigmoid silu softplus softshrink special_expit tanh threshold
    """,
    "gemm": "addbmm addmm addmv baddbmm bmm dot einsum linear matmul mm mv outer",
    "convolution": """
        conv1d conv2d conv3d convolution cudnn_convolution cudnn_convolution_input
        cudnn_convolution_weight miopen_convolution
    """,
    "normalization": """
        _groupnorm_run batch_norm batch_norm_impl_index cudnn_batch_norm group_norm layer_norm
        miopen_batch_norm native_batch_norm native_group_norm native_layer_norm rms_norm
    """,
    "softmax": "log_softmax log_softmax_data softmax softmax_data",
    "cross_entropy": "cross_entropy_loss nll_loss nll_loss_nd",
    "pooling": "adaptive_avg_pool2d avg_pool2d max_pool2d max_pool2d_with_indices",
    "dropout": "dropout native_dropout",
    "embedding": "embedding embedding_bag embedding_dense",
    "attention": """
        efficient_attention flash_attention scaled_dot_product_attention
        scaled_dot_product_efficient_attention scaled_dot_product_flash_attention
    """,
    "gradient_accumulation": "accumulate_grad",
    "indexing": "gather index index_select scatter scatter_add",
    "random": "bernoulli normal random uniform",
}
_FAMILY_OF_NAME = {name: family for family, names in _WHOLE_NAMES.items() for name in names.split()}
"""Families of common names, looked up before the rules.

Most calls have such a name, and compiling all rules takes longer than matching a whole trace. The
rules agree with this table where both apply.
"""

_KERNELS: tuple[tuple[str, str], ...] = (
    ("copy", r"^memcpy|memory_copy|rocclr_copybuffer|^copybuffer"),
    ("memory_set", r"^memset|rocclr_fillbuffer|fillfunctor"),
    ("kv_cache", r"reshape_and_cache|kv_cache|page_indices"),
    ("attention", r"fmha|flash_?(?:fwd|bwd|attn|attention)|flash::|attention|attn_|_attn|"
     r"sdpa|efficient_attention|fwd_kernel_aligned|pagedattn|paged_att|(?:^|_)mha(?:_|$)|"
     r"batch_?(?:decode|prefill)|(?:^|[_:])mla_(?:decode|fwd|prefill|sparse)"),
    ("triton", r"^triton_"),
    ("rope", r"rope|rotary"),
    ("ssm", r"selective_scan|mamba|causal_conv1d|chunk_scan|ssd_"),
    ("moe", r"moe|expert|topk_gating|topkgating|routing_|matmul_ogs|finalize_matmul|bitmatrix"),
    ("embedding", r"split_embedding|embedding|bounds_check_indices|permute_pooled"),
    ("optimizer", r"fusedadam|fused_adam|fusedoptimizer|fused_sgd|fusedsgd|adamwmath|adam_math|"
     r"multi_?tensor_?adam|lamb(?!da)"),
    ("foreach", r"multi_tensor_apply|foreach"),
    ("sparse", r"spmm|cusparse|sparse"),
    ("convolution", r"fprop|dgrad|wgrad|implicit_?(?:con|gemm)|convolve|winograd|cudnn.*conv|"
     r"scudnn|conv(?:olution)?[_<123d]|grouped_conv|igemm_(?:fwd|bwd|wrw)|miopen.*conv|"
     r"conv_depthwise|conv_?(?:fwd|bwd)|subtensorop|im2col|col2im|batched_gemm_xdlops_bwd_weight|"
     r"computeb?offsets|computewgrad|cudnn::cnn|dgrad_engine|wgrad_alg"),
    ("normalization", r"(?:batch|layer|group|instance|rms)_?norm|rowwisemoments|"
     r"fusedparams|internalgradients|bn_(?:fw|bw)|gammabeta|layernorm|norm_(?:fwd|bwd)_kernel"),
    ("cross_entropy", r"nll_?(?:loss|criterion)|cross_?entropy"),
    ("softmax", r"softmax"),
    ("pooling", r"pool(?:ing)?[_<123d]|maxpool|avgpool|max_pool|avg_pool"),
    ("interpolation", r"upsample|interpolat|grid_?sampl"),
    ("rnn", r"lstm|gru_|rnn_|_rnn"),
    ("grouped_gemm", r"group(?:ed)?_?gemm"),
    ("quantization", r"quantiz|_quant|quant_|fp8_cast|float8_cast|cast_fp8"),
    ("gemm", r"gemm|nvjet|^cijk_|matmul|gemv|xmma|cutlass.*(?:tensorop|simt)|_mm_|^bmm|^mm_|"
     r"cublas|splitk_?reduce|dot_kernel|_mmk|streamk|xxt_kernel|ba_plus_caa|hmma|^s\d+_.*_tn"),
    ("fft", r"fft"),
    ("linear_algebra", r"cusolver|magma|getrf|potrf|geqrf|trsm|syevd|gesvd"),
    ("sort", r"radixsort|sort|topk|bitonic|unique|histogram|merge_?path|device_?select"),
    ("scan", r"scan"),
    ("dropout", r"dropout"),
    ("random", r"distribution_|philox|curand|rand_|normal_kernel|uniform_kernel|random"),
    ("indexing", r"index|gather|scatter|masked_select|nonzero|compact|permute_2d|permute_1d|"
     r"lengths_range|offsets_range|krn_partial|compute_grad_weight|sum_and_scatter"),
    ("concatenate", r"catarray|cat_?batched|concat"),
    ("activation", r"gelu|silu|relu|sigmoid|tanh|swiglu|act_and_mul|threshold_kernel"),
    ("copy", r"copy|transpose|permute|nchwtonhwc|nhwctonchw|cast_kernel|contiguous"),
    ("reduction", r"reduce|reduction|_sum_kernel|argmax|argmin"),
    ("elementwise", r"elementwise|pointwise|addcmul|addcdiv|binary_?functor|unary_?functor|"
     r"tensoriterator|nan_to_num|arange"),
    ("memory_set", r"fill|zero_|set_kernel"),
    ("detection", r"nms_|roi_"),
    ("triton", r"^_?\w+_kernel_\d+d\w*d\w*$"),
)  # fmt: skip

_HALVES = ("attention", "convolution", "normalization")
_BACKWARD_KERNEL = re.compile(r"bwd|backward|dgrad|wrw|_bprop|(?<!wino)grad|bn_bw")


_LAUNCH = re.compile(r"^(?:cuda|hip|cu)[A-Z]\w*")


# Longest prefix of a name that is matched; generated names may be kilobytes long.
_OP_NAME_LIMIT, _KERNEL_NAME_LIMIT = 256, 2048


@cache
def _search(pattern: str) -> Callable[[str], re.Match[str] | None]:
    """Compile a pattern on first use, because few traces need all of them."""
    return re.compile(pattern).search


def _first_match(rules: Sequence[tuple[str, str]], text: str) -> str | None:
    return next((family for family, pattern in rules if _search(pattern)(text)), None)


def _with_direction(family: str, *, backward: bool) -> str:
    if family not in _HALVES:
        return family
    return f"{family}_backward" if backward else f"{family}_forward"


@lru_cache(maxsize=65_536)
def _family_of_op(name: str) -> str | None:
    if name.startswith("triton_"):
        return "triton"
    parts = split_op_name(name[:_OP_NAME_LIMIT])
    family = None
    if parts.namespace not in _PLAIN_NAMESPACES:
        family = _first_match(_NAMESPACES, parts.namespace)
    if family is None:
        family = _FAMILY_OF_NAME.get(parts.base) or _first_match(_BASES, parts.base)
    if family is None and parts.base.startswith("special_"):
        family = "elementwise"
    if family == "convolution" and parts.base.startswith(("cudnn_affine", "cudnn_grid")):
        family = "interpolation"
    return None if family is None else _with_direction(family, backward=parts.backward)


@lru_cache(maxsize=65_536)
def _family_of_kernel(name: str) -> str | None:
    name = name[:_KERNEL_NAME_LIMIT]
    if _core.is_communication_name(name):
        return "communication"
    lowered = name.lower()
    family = _first_match(_KERNELS, lowered)
    if family is None:
        return None
    return _with_direction(family, backward=bool(_BACKWARD_KERNEL.search(lowered)))


def family_of(op_name: str, kernel_names: Sequence[str] = ()) -> str:
    """Return the family of an operator, one of `FAMILIES`.

    Args:
        op_name: Name of an operator (`aten::mm`), an autograd node (`MmBackward0`, with or without
            the engine's prefix) or a launch call; may be empty.
        kernel_names: Names of kernels and copies that it launched, in order; they decide if the
            operator's name says nothing.

    Returns:
        The family; "other" if neither name says anything.
    """
    is_launch = _LAUNCH.match(op_name) is not None
    if not is_launch or not kernel_names:
        family = _family_of_op(op_name)
        if family is not None:
            return family
    elif (
        "graph" in op_name.lower() and _first_match(_BASES, split_op_name(op_name).base) == "graph"
    ):
        return "graph"
    for name in kernel_names:
        family = _family_of_kernel(name)
        if family is not None:
            return family
    return "other"
