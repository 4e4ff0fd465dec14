"""Models of mixtures of experts: routing, sorting, and the matrix products of the experts.

The number of tokens of each expert depends on the data, so every model of experts is an upper
bound: for the bytes (at most one expert per routed token is read) and for the operations if an
expert may be on another device.
"""

from __future__ import annotations

from torchtraceap.core.records import dataclass
from torchtraceap.ops.models.arguments import OpCall, Tensor, UnknownWorkError, optional_bytes
from torchtraceap.ops.models.library_gemm import packing
from torchtraceap.ops.models.registry import Work, register, register_unknown_work

_NOTE = "which experts the tokens go to is not recorded: at most this"
_SORT_NOTE = "the lists of tokens are counted with what pads them"
_MISFIT = "tokens and weights of the experts do not fit together"


@dataclass(frozen=True, slots=True)
class _Experts:
    """Matrices of all experts, (experts, rows, depth); one stored element may hold several."""

    weight: Tensor
    depth: int
    """Number of elements in a row."""

    @property
    def rows(self) -> int:
        return self.weight.shape[1]

    def bytes_for(self, routed: int) -> float:
        """Return the bytes of the experts that this many pairs of token and expert can reach."""
        experts = self.weight.shape[0]
        return self.weight.bytes * min(routed, experts) / experts


def _experts(weight: Tensor, depth: int | None) -> _Experts:
    """Check that the rows of the matrices have this depth, if it is known.

    Pairs of int4 or fp4 share a byte; eight int4 share an int32.

    Raises:
        UnknownWorkError: The matrices do not fit.
    """
    if len(weight.shape) != 3 or not weight.elements:
        raise UnknownWorkError(_MISFIT)
    own = weight.shape[2]
    if depth is None:
        return _Experts(weight, own * packing(weight, in_bytes=False))
    in_one = depth // own
    possible = {"fp4": (2,), "uint8": (1, 2), "int8": (1, 2), "int32": (8,)}
    if depth != own * in_one or in_one not in possible.get(weight.dtype.label, (1,)):
        raise UnknownWorkError(_MISFIT)
    return _Experts(weight, depth)


def _bounded(
    flops: float, read: float, written: float, x: Tensor, weight: Tensor, *, halves: bool
) -> Work:
    """Return an upper bound of the work; `halves` marks weights of 4 bits.

    The type is that of the weights, as activations are quantized to it. Weights packed into int32
    words are widened to the type of the activations instead.
    """
    packed_words = weight.dtype.label == "int32"
    return Work(
        flops,
        read,
        written,
        dtype="fp4" if halves else (x if packed_words else weight).dtype.label,
        unit="matrix",
        upper_bound=True,
        notes=(_NOTE,),
    )


def _both_products(x: Tensor, up: Tensor, down: Tensor, chosen: int, out: Tensor) -> Work:
    """Count tokens x (rows of up x hidden + hidden x inner) for each of the `chosen` experts."""
    if len(x.shape) != 2 or chosen < 1 or len(down.shape) != 3 or down.shape[0] != up.shape[0]:
        raise UnknownWorkError(_MISFIT)
    tokens, hidden = x.shape[0], down.shape[1]
    if x.shape[1] * packing(x, in_bytes=x.shape[1] != hidden) != hidden:
        raise UnknownWorkError(_MISFIT)
    first = _experts(up, hidden)
    in_one = hidden // up.shape[2]
    second = _experts(down, down.shape[2] * in_one)
    if first.rows not in (second.depth, 2 * second.depth):
        raise UnknownWorkError(_MISFIT)
    routed = tokens * chosen
    flops = 2 * routed * hidden * (first.rows + second.depth)
    read = x.bytes + first.bytes_for(routed) + second.bytes_for(routed)
    halves = in_one == 2
    return _bounded(flops, read, out.elements * out.dtype.size, x, up, halves=halves)


@register(
    "vllm::outplace_fused_experts",
    "vllm::inplace_fused_experts",
    "sglang::outplace_fused_experts",
    "sglang::inplace_fused_experts",
    "vllm::rocm_aiter_fused_moe",
    "vllm::rocm_aiter_asm_moe_tkw1",
    "aiter::fused_moe_",
    composite=True,
)
def experts(call: OpCall) -> Work:
    """Arguments: (hidden_states, w1, w2, topk_weights, topk_ids, ...)"""
    x, up, down, ids = (call.tensor(i) for i in (0, 1, 2, 4))
    if len(ids.shape) != 2 or not x.shape or ids.shape[0] != x.shape[0]:
        raise UnknownWorkError(_MISFIT)
    return _both_products(x, up, down, ids.shape[1], x)


@register(
    "aiter::fmoe",
    "aiter::fmoe_int8_g1u0",
    "aiter::fmoe_int8_g1u0_a16",
    "aiter::fmoe_g1u1",
    "aiter::fmoe_g1u1_a16",
    "aiter::fmoe_g1u1_tkw1",
    "aiter::fmoe_fp8_blockscale_g1u1",
)
def experts_into(call: OpCall) -> Work:
    """Arguments: (out, input, gate, down, sorted_ids, sorted_weights, sorted_expert_ids, valid,
    topk, ...)"""
    out, x, up, down = (call.tensor(i) for i in range(4))
    return _both_products(x, up, down, call.integer(8), out)


# ----------------------------------------------------------------- one of the two products


def _one_product(x: Tensor, weight: _Experts, routed: int, out: Tensor) -> Work:
    flops = 2 * routed * weight.rows * weight.depth
    read = x.bytes + weight.bytes_for(routed)
    halves = weight.depth == 2 * weight.weight.shape[2]
    return _bounded(flops, read, out.bytes, x, weight.weight, halves=halves)


def _up(x: Tensor, weight: Tensor, out: Tensor, chosen: int) -> Work:
    """Count (tokens, hidden) to (tokens, chosen, inner); the weight may have rows for a gate."""
    if len(x.shape) != 2 or chosen < 1:
        raise UnknownWorkError(_MISFIT)
    depth = x.shape[1] * packing(x, in_bytes=False)
    stage = _experts(weight, depth)
    routed = x.shape[0] * chosen
    if out.elements not in (routed * stage.rows, routed * stage.rows // 2):
        raise UnknownWorkError(_MISFIT)
    return _one_product(x, stage, routed, out)


def _down(x: Tensor, weight: Tensor, out: Tensor, chosen: int) -> Work:
    """Count (tokens, chosen, inner) to (tokens, hidden)."""
    if not x.shape or len(out.shape) != 2 or chosen < 1:
        raise UnknownWorkError(_MISFIT)
    depth = x.shape[-1] * packing(x, in_bytes=False)
    stage = _experts(weight, depth)
    routed = out.shape[0] * chosen
    if out.shape[1] != stage.rows or x.elements != routed * x.shape[-1]:
        raise UnknownWorkError(_MISFIT)
    return _one_product(x, stage, routed, out)


@register("aiter::ck_moe_stage1")
def up_stage(call: OpCall) -> Work:
    """Arguments: (hidden_states, w1, w2, sorted_ids, sorted_expert_ids, valid, out, topk, ...)"""
    return _up(call.tensor(0), call.tensor(1), call.tensor(6), call.integer(7))


@register("aiter::ck_moe_stage2")
def down_stage(call: OpCall) -> Work:
    """Arguments: (inner_states, w1, w2, sorted_ids, sorted_expert_ids, valid, out, topk, ...)"""
    return _down(call.tensor(0), call.tensor(2), call.tensor(6), call.integer(7))


@register("aiter::moe_cktile2stages_gemm1_ck")
def up_stage_tiled(call: OpCall) -> Work:
    """Arguments: (x, w, y, sorted_ids, sorted_expert_ids, max_token_ids, topk, ...)"""
    return _up(call.tensor(0), call.tensor(1), call.tensor(2), call.integer(6))


@register("aiter::moe_cktile2stages_gemm2_ck")
def down_stage_tiled(call: OpCall) -> Work:
    """Arguments: (x, w, y, sorted_ids, sorted_expert_ids, max_token_ids, topk, ...)"""
    return _down(call.tensor(0), call.tensor(1), call.tensor(2), call.integer(6))


@register("sglang_profiler::fused_moe_triton_kernels_invoke_fused_moe_kernel", composite=True)
def stage_of_triton(call: OpCall) -> Work:
    """Arguments: (a, b, bias, c, a_scale, b_scale, b_zeros, topk_weights, topk_ids, ...): c has a
    row for each pair of a token and an expert."""
    x, weight, out, ids = (call.tensor(i) for i in (0, 1, 3, 8))
    if not x.shape or not out.shape:
        raise UnknownWorkError(_MISFIT)
    stage = _experts(weight, x.shape[-1] * packing(x, in_bytes=False))
    if out.elements != ids.elements * stage.rows:
        raise UnknownWorkError(_MISFIT)
    return _one_product(x, stage, ids.elements, out)


@register("_moe_C::moe_wna16_gemm")
def stage_of_few_bits(call: OpCall) -> Work:
    """Arguments: (input, output, weight, scales, zeros, topk_weights, sorted_ids, expert_ids,
    padded, top_k, block_m, block_n, block_k, bit): bytes of the weights hold 8 / bit elements."""
    x, out, weight = (call.tensor(i) for i in range(3))
    bits = call.integer(13)
    if bits not in (4, 8) or len(x.shape) != 2 or len(weight.shape) != 3 or not weight.elements:
        raise UnknownWorkError(_MISFIT)
    if weight.shape[2] * weight.dtype.size * 8 // bits != x.shape[1]:
        raise UnknownWorkError(_MISFIT)
    routed = x.shape[0] * call.integer(9)
    if routed < 1 or out.elements != routed * weight.shape[1]:
        raise UnknownWorkError(_MISFIT)
    stage = _Experts(weight, x.shape[1])
    read = x.bytes + stage.bytes_for(routed) + optional_bytes(call, (3, 4))
    flops = 2 * routed * stage.rows * stage.depth
    return Work(flops, read, out.bytes, x.dtype.label, "matrix", True, (_NOTE,))


# -------------------------------------------------------------------------- routing and sorting

# Operations for each score: softmax 5; sigmoid, or softplus and root, and the bias.
_SOFTMAX, _SIGMOID, _BIASED = 5, 1, 2

# Positions of the scores, of other inputs and of outputs, and operations per score. Selecting the
# largest scores counts no operation.
_ROUTERS: dict[str, tuple[int, tuple[int, ...], tuple[int, ...], int]] = {
    "_moe_C::topk_softmax": (3, (), (0, 1, 2), _SOFTMAX),
    "aiter::topk_softmax": (3, (), (0, 1, 2), _SOFTMAX),
    "aiter::topk_softmax_asm": (3, (), (0, 1, 2), _SOFTMAX),
    "sgl_kernel::topk_softmax": (2, (), (0, 1), _SOFTMAX),
    "aiter::topk_sigmoid": (2, (), (0, 1), _SIGMOID),
    "aiter::topk_softplus": (2, (3,), (0, 1), _BIASED),
    "aiter::topk_gating_fwd": (2, (3,), (0, 1), _BIASED),
    "aiter::biased_grouped_topk_hip": (0, (1,), (2, 3), _BIASED),
    "aiter::moe_fused_gate": (0, (1,), (2, 3), _BIASED),
    "aiter::grouped_topk": (0, (), (1, 2), _SOFTMAX),
}


@register(*_ROUTERS)
def route(call: OpCall) -> Work:
    """Count the routing from scores (tokens, experts) to weights and ids (tokens, chosen)."""
    scores_at, read_at, written_at, flops = _ROUTERS[call.name]
    scores, chosen = call.tensor(scores_at), call.tensor(written_at[0])
    if not len(scores.shape) == len(chosen.shape) == 2 or scores.shape[0] != chosen.shape[0]:
        raise UnknownWorkError("scores and what is chosen do not fit together")
    if chosen.shape[1] > scores.shape[1]:
        raise UnknownWorkError("scores and what is chosen do not fit together")
    read = scores.bytes + optional_bytes(call, read_at)
    return Work(flops * scores.elements, read, optional_bytes(call, written_at))


# Positions of the lists that are read and written.
_SORTS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "_moe_C::moe_align_block_size": ((0,), (3, 4, 5)),
    "_moe_C::sgl_moe_align_block_size": ((0,), (3, 4, 5)),
    "sgl_kernel::moe_align_block_size": ((0,), (3, 4, 5)),
    "aiter::moe_align_block_size": ((0,), (3, 4, 5, 6)),
    "aiter::moe_sorting_fwd": ((0, 1), (2, 3, 4, 5, 6)),
    "aiter::moe_sorting_opus_fwd": ((0, 1), (2, 3, 4, 5, 6)),
    "aiter::mxfp4_moe_sort_hip": ((1, 2, 3), (0,)),
}


@register(*_SORTS)
def sort_by_expert(call: OpCall) -> Work:
    """Count sorting ids (and weights or scales) by expert; `moe_sorting` also clears the result."""
    read, written = _SORTS[call.name]
    call.tensor(0), call.tensor(written[0])
    return Work(
        0,
        optional_bytes(call, read),
        optional_bytes(call, written),
        upper_bound=True,
        notes=(_SORT_NOTE,),
    )


@register("_moe_C::moe_sum", "aiter::moe_sum")
def sum_of_experts(call: OpCall) -> Work:
    """Arguments: (input, output): (tokens, chosen, hidden) to (tokens, hidden)"""
    x, out = call.tensor(0), call.tensor(1)
    if len(x.shape) != 3 or x.shape[0] * x.shape[2] != out.elements:
        raise UnknownWorkError("its output does not fit its input")
    return Work(max(x.shape[1] - 1, 0) * out.elements, x.bytes, out.bytes)


@register("sgl_kernel::shuffle_rows")
def shuffle_rows(call: OpCall) -> Work:
    """Arguments: (input, source_of_row, output): a row of the output is one of the input."""
    x, rows, out = (call.tensor(i) for i in range(3))
    return Work(0, out.elements * x.dtype.size + rows.bytes, out.bytes)


@register("sglang_profiler::fused_moe_triton_kernels_fused_append_shared_experts", composite=True)
def append_shared(call: OpCall) -> Work:
    """Arguments: (topk_ids, topk_weights, shared, ...): both are copied with columns for shared
    experts."""
    ids, weights = call.tensor(0), call.tensor(1)
    if len(ids.shape) != 2 or ids.shape != weights.shape:
        raise UnknownWorkError("ids and weights do not fit together")
    wider = ids.shape[0] * (ids.shape[1] + max(call.integer(2), 0))
    written = wider * (ids.dtype.size + weights.dtype.size)
    return Work(0, ids.bytes + weights.bytes, written)


register_unknown_work(
    "the weights of the experts are not among its arguments",
    "vllm::moe_forward",
    "vllm::moe_forward_shared",
)
