"""Kernels of matrix products in cuBLAS and hipBLASLt.

Libraries don't document their choice of kernels, which changes with their version: families, tiles
and the number of launches are meant to be right, names only plausible.

Note [Long sums]: if the sum over k is long relative to the number of tiles, the library splits it,
and either a second kernel adds the parts, or they wait for each other on counters that a memset
clears. Sums are split for k of at least 300 and 13 times the number of 64 x 64 tiles, 40 times if
these fill the device; counters are used for more than 262,144 results, or a bias with k over 1,000.
These limits are fitted to the 396 products of fp32 and bf16 of nine traces of A100, V100 and H100
(87 % of them right); NVIDIA only. Kernels of Hopper and newer that add a bias don't split.

Note [Counter of tiles]: Hopper's kernels of more than two waves of 128 x 128 tiles run one block
per multiprocessor, which fetch tiles from a counter of 4 bytes that a memset clears.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from torchtraceap.core import DType
from torchtraceap.lab.prediction.capture.calls import TensorInfo
from torchtraceap.lab.prediction.lowering.kernels.launch import (
    Launch,
    Rule,
    Setting,
    bytes_of,
    ceil_div,
    memcpy,
    memset,
    required,
    rule,
    tensor_at,
)
from torchtraceap.lab.prediction.lowering.kernels.pointwise import copy_loop
from torchtraceap.lab.prediction.lowering.step import LaunchingOp

__all__ = ["RULES"]

RULES: dict[str, Rule] = {}
"""Rules by operator, without "aten::"."""
_TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 64))
_SMALL_TILE = 64
_SPLIT_FROM, _SPLIT_PER_TILE, _SPLIT_PER_TILE_IF_FULL = 300, 13, 40
_COUNTERS_FROM, _COUNTERS_WITH_BIAS = 1 << 18, 1_000
_WAVES_WITH_COUNTER = 2
_MOST_PARTS = 16
_FUSED, _FUSED_ON_AMD = (1, 11), (2, 7)
"""Versions of torch from which the bias is fused with a product."""
_MOST_ROWS_ONCE = 65_535 * 32
"""Limit on the rows of a product with bias, before torch 2.3."""
_PLACE_OF_OUT = 5
"""Place of an output tensor from the caller, which Inductor fills before."""


@dataclass(frozen=True, slots=True)
class _Product:
    """A batch of products of m x k by k x n."""

    batch: int
    m: int
    n: int
    k: int
    dtype: DType
    layout: str
    """Transposition of both factors in cuBLAS's column-major order: "tn", "nn" or "nt"."""
    align: int
    """Elements that can be read at once along the rows of all factors."""
    has_bias: bool = False

    def tiles(self, height: int, width: int) -> int:
        return ceil_div(self.m, height) * ceil_div(self.n, width)


def _product(op: LaunchingOp, first: int, *, has_bias: bool = False) -> _Product:
    a, b = required(op, first, dims=2), required(op, first + 1, dims=2)
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    batch = a.elements // (m * k) if m and k else 1
    layout = ("t" if _is_turned(b) else "n") + ("t" if _is_turned(a) else "n")
    # The largest power of 2, up to 8, that divides the leading dimensions.
    align = gcd(8, n, *(max(each.strides[-2:]) for each in (a, b))) or 8
    return _Product(batch, m, n, k, a.dtype, layout, align, has_bias)


def _is_turned(matrix: TensorInfo) -> bool:
    """Return whether a matrix is column-major."""
    return matrix.strides[-1] != 1 and matrix.strides[-2] == 1


# ------------------------------------------------------------------------------------- rules


@rule(RULES, "mm bmm _scaled_mm")
def _mm(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    return _launches(_product(op, 0), setting)


@rule(RULES, "addmm _addmm_activation")
def _addmm(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch a product with a fused bias if cublasLt supports it, else after a copy of the bias.

    It needs one value per column, more than one column, and a sum of more than one term.
    """
    bias, product = required(op, 0), _product(op, 1, has_bias=True)
    fused = len(bias.shape) == 1 and product.n > 1 and product.k > 1
    if not setting.torch_from(2, 3):
        fused = fused and max(product.m, product.n) < _MOST_ROWS_ONCE
    if fused and setting.torch_from(*(_FUSED_ON_AMD if setting.is_amd else _FUSED)):
        return _launches(product, setting)
    return [_copied(bias, product, setting), *_launches(product, setting)]


def _copied(bias: TensorInfo, product: _Product, setting: Setting) -> Launch:
    shape = (product.batch, product.m, product.n)
    strides = (product.m * product.n, product.n, 1)
    made = TensorInfo(shape, bias.dtype, strides, -1)
    if bias.elements == made.elements and bias.is_contiguous:
        return memcpy(int(bytes_of(bias)))
    return copy_loop(made, bias, setting)


@rule(RULES, "baddbmm baddbmm_")
def _baddbmm(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Copy the added tensor to the result first, unless in place."""
    added, product = required(op, 0), _product(op, 1)
    if op.name.endswith("_") or tensor_at(op, _PLACE_OF_OUT) is not None:
        return _launches(product, setting)
    return [_copied(added, product, setting), *_launches(product, setting)]


@rule(RULES, "mv addmv addmv_")
def _mv(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch a matrix-vector product."""
    matrix = tensor_at(op, 0) or tensor_at(op, 1)
    t = _library_type(matrix.dtype) if matrix is not None else "float"
    rows = matrix.shape[0] if matrix is not None and matrix.shape else 1
    return [Launch(_gemv_name(t), ceil_div(rows, 4), 128, registers=57)]


@rule(RULES, "dot vdot")
def _dot(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    vector = tensor_at(op, 0)
    t = _library_type(vector.dtype) if vector is not None else "float"
    return _dots(t, 1, vector.elements if vector is not None else 1)


def _dots(t: str, count: int, length: int) -> list[Launch]:
    blocks = min(64, ceil_div(length, 512))
    given, summed = f"cublasGemvTensorStridedBatched<{t} const>", "cublasGemvTensorStridedBatched<"
    dot = (
        f"void dot_kernel<float, 128, 0, cublasDotParams<{given}, {summed}float> > >"
        f"(cublasDotParams<{given}, {summed}float> >)"
    )
    last = (
        f"void reduce_1Block_kernel<float, 128, 7, {summed}float>, {summed}{t}> >"
        f"(float const*, float, {summed}float>, int, float const*, float, {summed}{t}>)"
    )
    return [
        Launch(dot, (blocks, 1, count), 128, None, 29, 512),
        Launch(last, (1, 1, count), 128, 4.0 * blocks * count, 32, 512),
    ]


# ------------------------------------------------------------------------------------- kernels


def _launches(product: _Product, setting: Setting) -> list[Launch]:
    if setting.is_amd:
        return [_tensile(product, setting)]
    if product.m == 1 and product.n == 1 and product.batch == 1:
        return _dots(_library_type(product.dtype), 1, product.k)
    if product.n == 1 or product.m == 1:
        rows, name = product.m * product.n, _gemv_name(_library_type(product.dtype))
        return [Launch(name, (ceil_div(rows, 4), 1, product.batch), (32, 4, 1), None, 57, 528)]
    height, width = _tile(product, setting)
    tiles, parts = product.tiles(height, width), _parts(product, setting)
    size = product.batch * product.m * product.n
    name, threads, registers, shared = _kernel_name(product, height, width, setting)
    waves = product.tiles(128, 128) / setting.processors
    counted = (
        setting.generation >= 9
        and product.batch <= 1
        and product.dtype.size <= 2
        and product.align >= 8
        and waves > _WAVES_WITH_COUNTER
        and parts == 1
    )  # see Note [Counter of tiles]
    blocks = min(tiles, setting.processors) if counted else tiles
    grid = (blocks, 1, product.batch if parts == 1 else parts)
    main = Launch(name, grid, threads, None, registers, shared)
    if counted:
        return [memset(4), main]
    if parts == 1:
        return [main]
    with_bias = product.has_bias and product.k > _COUNTERS_WITH_BIAS
    if setting.generation == 8 and (size > _COUNTERS_FROM or with_bias):
        return [memset(4 * tiles), main]
    return [main, _splitk_reduce(product, parts, setting)]


def _gemv_name(t: str) -> str:
    parts = ", ".join(
        f"cublasGemvTensorStridedBatched<{each}>" for each in (f"{t} const", f"{t} const", t)
    )
    kernel = (
        f"internal::gemvx::kernel<int, int, {t}, {t}, {t}, float, false, true, true, false, 7, "
        f"false, cublasGemvParamsEx<int, {parts}, float> >"
    )
    return f"std::enable_if<!(false), void>::type {kernel}(cublasGemvParamsEx<int, {parts}, float>)"


def _tile(product: _Product, setting: Setting) -> tuple[int, int]:
    """Return the largest tile that gives every multiprocessor a block."""
    for height, width in _TILES:
        if product.tiles(height, width) * product.batch >= setting.processors:
            return height, width
    return _TILES[-1]


def _parts(product: _Product, setting: Setting) -> int:
    """Return the number of parts of the sum; see Note [Long sums]."""
    tiles = product.tiles(_SMALL_TILE, _SMALL_TILE) * product.batch
    is_full = tiles >= setting.processors
    per_tile = _SPLIT_PER_TILE_IF_FULL if is_full else _SPLIT_PER_TILE
    if setting.generation >= 9 and product.has_bias:
        return 1
    if product.k < max(_SPLIT_FROM, per_tile * tiles):
        return 1
    return max(2, min(_MOST_PARTS, setting.processors // tiles))


def _splitk_reduce(product: _Product, parts: int, setting: Setting) -> Launch:
    """Return the kernel that adds the parts of a split sum."""
    t, bias = _library_type(product.dtype), "true" if product.has_bias else "false"
    library = "cublasLt::" if setting.torch_from(2, 0) else ""
    kernel = (
        f"{library}splitKreduce_kernel<32, 16, int, float, {t}, float, {t}, true, {bias}, false>"
    )
    name = f"void {kernel}({library}cublasSplitKParams<float>, float const*, {t} const*, {t}*)"
    grid = (ceil_div(product.n, 32), ceil_div(product.m, 16), 1)
    moved = product.m * product.n * (4.0 * parts + product.dtype.size)
    return Launch(name, grid, (32, 16, 1), moved, 32)


def _kernel_name(
    product: _Product, height: int, width: int, setting: Setting
) -> tuple[str, int, int, int]:
    """Return name, threads, registers and bytes of shared memory."""
    half = {"float16": "f16", "bfloat16": "bf16"}.get(product.dtype.name)
    eight = product.dtype.size == 1
    aligned = product.align >= 8
    if setting.generation >= 9 and (half or eight) and aligned:
        return _hopper(product, height, width, setting)
    if half and aligned and setting.generation == 8:
        name = (
            f"ampere_{'bf16' if half == 'bf16' else 'fp16'}_s16816gemm_"
            f"{'bf16' if half == 'bf16' else 'fp16'}_{height}x{width}_ldg8_f2f_stages_32x5_"
            f"{product.layout}"
        )
        return name, 128 if height * width < 1 << 15 else 256, 230, 81920
    if half and setting.generation >= 8:
        kind = f"tensorop_{half}_s{'16816' if product.align > 1 else '1688'}gemm_{half}"
        first = 80 if product.align > 1 else 75
        name = f"cutlass_{first}_{kind}_{height}x{width}_32x4_{product.layout}_align{product.align}"
        return f"void cutlass::Kernel2<{name}>({name}::Params)", 128, 252, 32768
    if half:
        chip = "turing" if setting.device.architecture == "7.5" else "volta"
        name = f"{chip}_{'fp' if half == 'f16' else ''}{half[-2:]}_s884gemm_{half}_{height}x{width}"
        return f"{name}_ldg8_f2f_{product.layout}", 256, 120, 32768
    chip = {7: "volta", 8: "ampere", 9: "sm80", 10: "sm80"}.get(setting.generation, "maxwell")
    if setting.generation == 7 and setting.device.architecture == "7.5":
        chip = "turing"
    letter = "d" if product.dtype.name == "float64" else "s"
    if chip == "sm80":
        shape = f"tilesize{height}x{width}x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4"
        t = "f64f64_f64f64_f64" if letter == "d" else "f32f32_f32f32_f32"
        name = f"sm80_xmma_gemm_{t}_{product.layout}_n_{shape}_execute_kernel__5x_cublas"
        return name, 128, 128, 32768
    return f"{chip}_{letter}gemm_{min(height, 128)}x{width}_{product.layout}", 256, 128, 33792


def _hopper(
    product: _Product, height: int, width: int, setting: Setting
) -> tuple[str, int, int, int]:
    if setting.torch_from(2, 7):
        layout = product.layout.upper() + "N"
        kind = "qst" if product.dtype.size == 1 else "tst"
        pair = "2cta_" if setting.generation >= 10 else ""
        bias = "bias_" if product.has_bias else ""
        rest = f"64x4_1x2_{pair}h_bz_{'' if pair else 'coopA_'}{bias}{layout}"
        return f"nvjet_{kind}_{height}x{width}_{rest}", 384, 168, 213248
    t = "bf16bf16_bf16f32_f32" if product.dtype.name == "bfloat16" else "f16f16_f16f32_f32"
    name = (
        f"sm90_xmma_gemm_{t}_{product.layout}_n_tilesize{min(height, 128)}x{width}x64_"
        "warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
    )
    return name, 384, 168, 231424


def _tensile(product: _Product, setting: Setting) -> Launch:
    """Return Tensile's kernel, whose letters name the layout of each factor."""
    first, second = product.layout[0], product.layout[1]
    letters = f"Cijk_A{'lik' if first == 't' else 'ilk'}_B{'ljk' if second == 'n' else 'jlk'}"
    t = {"bfloat16": "BBS_BH", "float16": "HHS_BH", "float32": "S_B"}.get(product.dtype.name, "S_B")
    height, width = _tile(product, setting)
    chip = {"9.0": "90a", "9.4": "942", "9.5": "950"}.get(setting.device.architecture, "942")
    tile = f"MT{height}x{width}x64_MI16x16x1_SN_LDSB1_AFC1_ISA{chip}"
    name = f"{letters}_{t}_Bias_HA_S_SAV_UserArgs_{tile}"
    grid = product.tiles(height, width) * product.batch * 256
    return Launch(name, grid, 256, None, 128, 65536)


def _library_type(dtype: DType) -> str:
    names = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float64": "double"}
    return names.get(dtype.name, "float")
