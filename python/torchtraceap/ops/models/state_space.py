"""Models of the convolutions and scans of state space models (Mamba)."""

from __future__ import annotations

from torchtraceap.core.dtypes import FP32
from torchtraceap.ops.models.arguments import OpCall, UnknownWorkError, optional_bytes
from torchtraceap.ops.models.registry import Work, register


@register("DaoAILab::_causal_conv1d_fwd_cpp")
def causal_convolution(call: OpCall) -> Work:
    """Arguments: (x, weight, bias, seq_idx, initial_states, out, final_states, silu)

    x is (batch, channels, length), and each channel has its own kernel.
    """
    x, weight, out = call.tensor(0), call.tensor(1), call.tensor(5)
    if len(x.shape) != 3 or len(weight.shape) != 2 or weight.shape[0] != x.shape[1]:
        raise UnknownWorkError("channels and kernels do not fit together")
    if out.elements != x.elements:
        raise UnknownWorkError("its output does not fit its input")
    read = x.bytes + weight.bytes + optional_bytes(call, (2, 3, 4))
    operations = 2 * weight.shape[1] + call.boolean(7)
    return Work(operations * x.elements, read, out.bytes + optional_bytes(call, (6,)))


@register("MambaSplitConv1dScanCombinedFn", composite=True)
def mamba2(call: OpCall) -> Work:
    """Arguments: (zxbcdt, conv_weight, conv_bias, dt_bias, A, D, chunk_size, initial_states,
    seq_idx, dt_limit, return_final_states, activation, norm_weight, norm_eps, out_weight, out_bias,
    headdim, groups, ...)

    The matrix products are computed in chunks (arXiv:2405.21060, section 6). A chunk of Q positions
    takes C B^T and its causal product with x, the state of the chunk, and the contribution of
    earlier chunks.
    """
    x, kernel, heads_of = call.tensor(0), call.tensor(1), call.tensor(3)
    if call.optional_tensor(14) is not None:
        raise UnknownWorkError("the projection of its output is not modeled")
    if len(x.shape) != 3 or len(kernel.shape) != 2:
        raise UnknownWorkError("its input is not (batch, length, channels)")
    length, chunk = x.shape[1], call.integer(6)
    skip = call.tensor(5)  # (heads, depth), or (heads) with the depth as another argument
    depth = skip.shape[1] if len(skip.shape) == 2 else call.integer(16)
    heads, groups = heads_of.elements, call.integer(17, 1)
    inner = heads * depth
    state, rest = divmod(x.shape[2] - 2 * inner - heads, 2 * groups) if groups > 0 else (0, 1)
    if rest or state < 1 or chunk < 1 or kernel.shape[0] != inner + 2 * groups * state:
        raise UnknownWorkError("heads, groups and states do not fit its input")
    chunk = min(chunk, max(length, 1))
    pairs = (chunk + 1) / 2
    per_position = (
        kernel.elements + pairs * (groups * state + inner) + 2 * inner * state
    )  # multiplications
    positions = x.shape[0] * length
    return Work(
        flops=2 * positions * per_position,
        bytes_read=x.bytes + optional_bytes(call, (1, 2, 3, 4, 5, 7, 8, 12)),
        bytes_written=positions * inner * x.dtype.size,
        dtype=x.dtype.label,
        unit="matrix",
    )


@register("_C::selective_scan_fwd")
def selective_scan(call: OpCall) -> Work:
    """Arguments: (u, delta, A, B, C, D, z, delta_bias, softplus, ...): (channels, length) or with a
    batch.

    Each channel and state takes exp(delta A), the state times that plus delta u B, times C, summed.
    """
    u, delta, a = call.tensor(0), call.tensor(1), call.tensor(2)
    if len(a.shape) != 2 or len(u.shape) < 2 or u.shape[-2] != a.shape[0] or u.shape != delta.shape:
        raise UnknownWorkError("channels and states do not fit together")
    states = 7 * a.shape[1]
    gate = call.optional_tensor(6)
    return Work(
        flops=u.elements * (states + 1 + 2 * (gate is not None)),
        bytes_read=u.bytes + delta.bytes + optional_bytes(call, (2, 3, 4, 5, 6, 7)),
        bytes_written=u.bytes,
        dtype=FP32.label,
    )
