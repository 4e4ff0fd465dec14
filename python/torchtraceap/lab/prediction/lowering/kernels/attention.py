"""Scaled dot-product attention: flash and memory-efficient kernels, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchtraceap.core import DType
from torchtraceap.lab.prediction.lowering.kernels.launch import (
    Launch,
    Rule,
    Setting,
    UnknownArgumentError,
    bool_at,
    bytes_of,
    ceil_div,
    number_at,
    required,
    rule,
)
from torchtraceap.lab.prediction.lowering.step import LaunchingOp

__all__ = ["RULES"]

RULES: dict[str, Rule] = {}
"""Rules by operator, without "aten::"."""
_WIDTHS = (32, 64, 96, 128, 192, 256)
_FULL_ENOUGH, _NEAR_BEST = 0.8, 0.85
_MOST_SPLITS = 128


@dataclass(frozen=True, slots=True)
class _Heads:
    """Sizes of attention on [batch, length, heads, width]."""

    batch: int
    length: int
    heads: int
    width: int
    keys: int
    dtype: DType
    causal: bool
    dropout: float

    @property
    def padded(self) -> int:
        """Head width that the kernel is compiled for."""
        return next((width for width in _WIDTHS if width >= self.width), _WIDTHS[-1])


def _heads(op: LaunchingOp, first: int, dropout: int, causal: int) -> _Heads:
    query, key = required(op, first), required(op, first + 1)
    if len(query.shape) != 4 or len(key.shape) != 4:
        raise UnknownArgumentError
    batch, length, heads, width = query.shape
    chance = number_at(op, dropout, 0.0)
    return _Heads(
        batch, length, heads, width, key.shape[1], query.dtype, bool_at(op, causal), chance
    )


@rule(RULES, "_flash_attention_forward")
def _flash(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch flash attention.

    If its blocks leave the device half empty, keys are split among more blocks and a second kernel
    combines the results (`num_splits_heuristic`).
    """
    heads = _heads(op, 0, 7, 8)
    if setting.is_amd:
        blocks = setting.processors * 2
        return [Launch("attn_fwd", blocks, 256, None, 128)]
    splits = _splits(heads, setting) if not heads.dropout else 1
    rows, columns, warps = _flash_tile(heads, setting)
    if splits > 1:
        columns = 256 if heads.padded <= 64 else 128 if heads.padded <= 128 else 64
        rows, warps = 64, 4
    t = "cutlass::bfloat16_t" if heads.dtype.name == "bfloat16" else "cutlass::half_t"
    sizes = f"{heads.padded}, {rows}, {columns}, {warps}"
    inner = f"pytorch_flash::Flash_kernel_traits<{sizes}, {t}>"
    traits = f"pytorch_flash::Flash_fwd_kernel_traits<{sizes}, false, false, {t}, {inner} >"
    flags = (
        heads.dropout > 0,
        heads.causal,
        False,
        False,
        heads.length % rows == 0 and heads.keys % columns == 0,
        heads.width == heads.padded,
        False,
    )
    kind = "flash_fwd_splitkv_kernel" if splits > 1 else "flash_fwd_kernel"
    words = ", ".join("true" if each else "false" for each in flags)
    name = f"void pytorch_flash::{kind}<{traits}, {words}>(pytorch_flash::Flash_fwd_params)"
    tiles, threads = ceil_div(heads.length, rows), 32 * warps
    shared = 2 * heads.padded * (rows + 2 * columns)
    if splits == 1:
        grid = (tiles, heads.batch, heads.heads)
        return [Launch(name, grid, threads, None, 255, shared)]
    grid = (tiles, splits, heads.batch * heads.heads)
    results = heads.batch * heads.heads * heads.length
    last = (
        f"void pytorch_flash::flash_fwd_splitkv_combine_kernel<{traits}, 4, "
        f"{(splits - 1).bit_length()}, true>(pytorch_flash::Flash_fwd_params)"
    )
    return [
        Launch(name, grid, threads, None, 255, shared),
        Launch(last, ceil_div(results, 4), threads, 4.0 * splits * results * heads.width, 40, 512),
    ]


def _flash_tile(heads: _Heads, setting: Setting) -> tuple[int, int, int]:
    """Return rows and columns of a block and its warps (`flash_fwd_launch_template.h`)."""
    drops = heads.dropout > 0
    wide_chip = setting.device.architecture not in ("8.6", "8.9")
    if heads.padded <= 32:
        return 128, 128, 4
    if heads.padded <= 64:
        return 128, 64 if drops else 128, 4
    if heads.padded <= 96:
        return (128, 64, 4) if wide_chip or not heads.causal else (64, 64, 4)
    if heads.padded <= 128:
        return (128, 32 if drops else 64, 4) if wide_chip else (128, 32, 4)
    return (128, 64, 8) if wide_chip or heads.padded < 256 else (64, 64, 4)


def _splits(heads: _Heads, setting: Setting) -> int:
    """Return into how many parts the keys are split (`num_splits_heuristic`)."""
    columns = 256 if heads.width <= 64 else 128 if heads.width <= 128 else 64
    parts = ceil_div(heads.keys, columns)
    blocks = heads.batch * heads.heads * ceil_div(heads.length, 64)
    room = 2 * setting.processors
    if blocks >= _FULL_ENOUGH * room:
        return 1
    most = min(_MOST_SPLITS, room, parts)
    allowed = [n for n in range(1, most + 1)
               if n == 1 or ceil_div(parts, n) != ceil_div(parts, n - 1)]  # fmt: skip
    full = {n: (blocks * n / room) / ceil_div(blocks * n, room) for n in allowed}
    best = max(full.values())
    return next(n for n in allowed if full[n] >= _NEAR_BEST * best)


@rule(RULES, "_flash_attention_backward")
def _flash_backward(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch the dot products of gradient and output, the gradients, and the cast of the
    query's."""
    heads, query = _heads(op, 1, 10, 11), required(op, 1)
    if setting.is_amd:
        return _rocm_backward(heads, bytes_of(query))
    rows, columns = (
        (128, 128) if heads.padded <= 64 else (64, 128) if heads.padded <= 128 else (64, 64)
    )
    t = "cutlass::bfloat16_t" if heads.dtype.name == "bfloat16" else "cutlass::half_t"
    traits = (
        f"pytorch_flash::Flash_bwd_kernel_traits<{heads.padded}, {rows}, {columns}, 8, 4, 4, 4, "
        f"false, false, {t}, pytorch_flash::Flash_kernel_traits<{heads.padded}, {rows}, {columns}"
        f", 8, {t}> >"
    )
    causal, drops = ("true" if each else "false" for each in (heads.causal, heads.dropout > 0))
    given = "(pytorch_flash::Flash_bwd_params)"
    around = (ceil_div(heads.length, rows), heads.batch, heads.heads)
    small = bytes_of(query)
    prefix = "void pytorch_flash::flash_bwd_"
    loop = f"{prefix}dq_dk_dv_loop_seqk_parallel_kernel<{traits}, {drops}, {causal}, false, false"
    return [
        Launch(f"{prefix}dot_do_o_kernel<true, {traits} >{given}", around, 256,
               2 * small, 64),
        Launch(f"{loop}, false, true, false>{given}",
               (ceil_div(heads.keys, columns), heads.batch, heads.heads), 256, None, 255,
               147456),
        Launch(f"{prefix}convert_dq_kernel<{traits} >{given}", around, 256, 3 * small, 64),
    ]  # fmt: skip


def _rocm_backward(heads: _Heads, small: float) -> list[Launch]:
    grid = (ceil_div(heads.keys, 64), heads.heads, heads.batch)
    return [
        Launch("bwd_preprocess", grid, 256, 2 * small),
        Launch("bwd_kernel_dk_dv", grid, 256),
        Launch("bwd_kernel_dq", grid, 256),
    ]


_LIBRARY_TYPES = {
    "bfloat16": ("bf16", "cutlass::bfloat16_t"),
    "float16": ("f16", "cutlass::half_t"),
}


def _chip(setting: Setting) -> str:
    if setting.generation >= 8:
        return "80"
    return "75" if setting.device.architecture == "7.5" else f"{setting.generation or 5}0"


@rule(RULES, "_efficient_attention_forward")
def _efficient(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch blocks of 64 queries, or of 32 if a wide head accumulates in memory."""
    heads = _heads(op, 0, 8, 9)
    if setting.is_amd:
        return [Launch("attn_fwd", 2 * setting.processors, 256, None, 128)]
    short, t = _LIBRARY_TYPES.get(heads.dtype.name, ("f32", "float"))
    rows, columns, place = 64, 64 if heads.width <= 64 else 128, "rf"
    if heads.width > 128:
        rows, columns, place = 32, 128, "gmem"
    chip = _chip(setting)
    aligned = heads.width % 8 == 0 or (heads.dtype.size == 4 and heads.width % 4 == 0)
    kind = (
        f"fmha_cutlassF_{short}_{'' if aligned else 'not'}aligned_{rows}x{columns}_{place}_sm{chip}"
    )
    traits = f"{t}, cutlass::arch::Sm{chip}, {'true' if aligned else 'false'}, {rows}, {columns}"
    kept = columns if place == "rf" else 65536
    name = f"{kind}(PyTorchMemEffAttention::AttentionKernel<{traits}, {kept}, true, true>::Params)"
    grid = (ceil_div(heads.length, rows), heads.heads, heads.batch)
    return [Launch(name, grid, (32, 4 if columns == 64 else 8, 1), None, 168, 52224)]


@rule(RULES, "_efficient_attention_backward")
def _efficient_backward(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    heads, query = _heads(op, 1, 11, 14), required(op, 1)
    if setting.is_amd:
        return _rocm_backward(heads, bytes_of(query))
    short, t = _LIBRARY_TYPES.get(heads.dtype.name, ("f32", "float"))
    width = 64 if heads.width <= 64 else 128 if heads.width <= 128 else 65536
    chip = _chip(setting)
    drops = "_dropout" if heads.dropout else ""
    name = (
        f"fmha_cutlassB_{short}_aligned_64x64_k{width}{drops}_sm{chip}("
        f"PyTorchMemEffAttention::AttentionBackwardKernel<cutlass::arch::Sm{chip}, {t}, true, "
        f"{'true' if drops else 'false'}, false, 64, 64, {width}, false>::Params)"
    )
    grid = (ceil_div(heads.keys, 64), heads.heads, heads.batch)
    return [Launch(name, grid, 128, None, 255, 53504)]
