"""`product_of_kernel`: what a matrix product computes, by the name and the grid of its kernel.

Note [Names]: kernels that are compiled for one shape have it among their template arguments:
DeepGEMM's the width of the result and the length of the sums, those of DeepSeek-V3's small products
all or all but the rows. Other names tell the tile of the result that a block computes. Blocks times
tile then bound rows and columns, and nothing tells the length of the sums.

Note [Tiles]: in the libraries' terms the result is `[columns, rows]` and the first size of a tile
counts columns.

- cuBLAS: x counts tiles of columns, y of rows; z counts batches, or parts of the sum.
- CUTLASS 2: x counts tiles of rows times the number s of neighbors of a swizzled column of tiles,
  y the rest of the tiles of columns. s is 8, 4 or 2 for at least 6, 3 or 2 of these, else 1
  (`GemmIdentityThreadblockSwizzle::get_log_tile`).
- Tensile: blocks are tiles times parts of the sum. ROCm's profiler counts threads.
- nvjet, sm90_xmma and CUTLASS 3 start no more blocks than the device holds at once, each for
  several tiles. With so few that this can't be the reason, there are no more tiles than blocks:
  with w rounds of tiles a balanced schedule starts more than (w - 1) / w of what the device holds,
  and blocks of large clusters fill half of it or more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import prod

from torchtraceap.core.records import dataclass
from torchtraceap.ops.models.registry import Work

__all__ = ["KernelLaunch", "NamedProduct", "counts_threads", "product_of_kernel"]

_DEEP_GEMM = re.compile(r"deep_gemm::(\w*fp8_gemm\w*)<([^<>]*)")
_INTEGER = re.compile(r"\s*(\d{1,9})u?\s*")
_NORMAL = re.compile(r"GemmType\)\s*0\b|GemmType::Normal")
_FUSED_A = re.compile(r"\bfused_a_gemm_kernel<([^<>]*)>")
_ROUTER = re.compile(r"\brouter_gemm_kernel_(?:float|bf16)_output<([^<>]*)>")
_SIZE = r"(\d{1,4})x(\d{1,4})"
_CUBLAS = re.compile(rf"(?:maxwell|volta|turing|ampere)_\w*?gemm\w*?_{_SIZE}_")
_CUTLASS_2 = re.compile(
    r"(?:void )?(?:cutlass\w*::Kernel2?<)?cutlass_\d+_(?:wmma_)?(?:tensorop|simt)_\w*?gemm_"
    rf"(?:[a-z]\w*?_)?{_SIZE}(?:_\d+x\d+)?_[nt]{{2}}_align"
)
_SHAPE = r"cute::tuple<cute::C<(\d{1,4})>, ?cute::C<(\d{1,4})>, ?cute::C<\d{1,4}> ?>"
_CUTLASS_3 = re.compile(rf"MainloopSm(?:90|1\d\d)\w*<[^<]*{_SHAPE}.*?{_SHAPE}")
_MOST_CHARACTERS, _MOST_OF_WORDS = 2048, 256
"""Names are not read further than this, templates and words."""
_NVJET = re.compile(rf"nvjet_\w+?_{_SIZE}_\d+x\d+_(\d{{1,2}})x(\d{{1,2}})_")
_XMMA = re.compile(
    rf"sm(?:90|1\d\d)_xmma_gemm_\w*?_tilesize{_SIZE}x\d+_(?:warpgroup|cga)size(\d+)x(\d+)x\d+_"
)
_TENSILE = re.compile(rf"Cijk_\w*?_MT{_SIZE}x\d+")
_STREAM_K = re.compile(r"_SK[1-9]")
_SWIZZLES = ((8, 6, 1 << 40), (4, 3, 5), (2, 2, 2), (1, 1, 1))
"""Neighbors of a swizzled column of tiles, and for how many tiles of columns, from and to."""
_SMALL_CLUSTER = 2
_SCALED = 128
"""Numbers along the sum that share a scale, of the left operand; of the right one, a square."""
_SCALE_BYTES = 4
_RESULT_BYTES = 2

Range = tuple[int, int]
"""The least and the most, both included."""


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """How a kernel is started."""

    name: str
    grid: tuple[int, ...] = ()
    """Blocks in x, y and z, or threads where `counts_threads`; empty where it is not recorded."""
    block: tuple[int, ...] = ()
    """Threads in x, y and z."""
    multiprocessors: int | None = None
    """Those of the device."""
    counts_threads: bool = False

    @property
    def blocks(self) -> int | None:
        """How many blocks run; None where that is not known."""
        size = prod(self.grid) if self.grid else 0
        if not self.counts_threads:
            return size or None
        threads = prod(self.block) if self.block else 0
        return size // threads if size and threads and size % threads == 0 else None


@dataclass(frozen=True, slots=True)
class NamedProduct:
    """A product of `[rows, k]` and `[n, k]`, as far as it is known."""

    rows: Range
    n: Range
    k: int | None
    dtype: str = "fp8"
    result_bytes: int = _RESULT_BYTES

    @property
    def is_exact(self) -> bool:
        """Nothing about its shape is open."""
        return self.k is not None and self.rows[0] == self.rows[1] and self.n[0] == self.n[1]

    @property
    def work(self) -> Work | None:
        """The work, with the scales of operands in fp8; the most that it can be where the shape is
        not exact, and None where the length of the sums is not known."""
        if self.k is None:
            return None
        rows, n, k = self.rows[1], self.n[1], self.k
        read: int = (rows * k + n * k) * (1 if self.dtype == "fp8" else 2)
        if self.dtype == "fp8":
            read += (rows + -(-n // _SCALED)) * -(-k // _SCALED) * _SCALE_BYTES
        return Work(
            2.0 * rows * n * k,
            read,
            rows * n * self.result_bytes,
            dtype=self.dtype,
            unit="matrix",
            upper_bound=not self.is_exact,
            notes=(f"by the kernel's name and the batch: {self}",),
        )

    def __str__(self) -> str:
        sides = (
            f"{name} {_range_text(side)}" for name, side in (("rows", self.rows), ("n", self.n))
        )
        return ", ".join(sides) + ("" if self.k is None else f", k {self.k}")


def _range_text(side: Range) -> str:
    low, high = side
    return str(low) if low == high else f"{low} to {high}" if low > 1 else f"at most {high}"


def product_of_kernel(
    launch: KernelLaunch, rows: int | None = None, *, is_most: bool = False
) -> NamedProduct | None:
    """Return the product of a kernel; None where its name tells nothing, or where it multiplies
    groups of rows (experts), of which a batch does not tell the sizes. See Note [Names].

    Args:
        launch: The kernel.
        rows: Rows of the batch; None where they are not known.
        is_most: The product may have fewer rows, as the last one of a prompt has.
    """
    if rows is not None and rows <= 0:
        rows = None
    named = _of_deep_gemm(launch.name) or _of_small_product(launch)
    if named:
        known = named.rows
        if known[1] == 0:
            if rows is None:
                return None
            known = (1 if is_most else rows, rows)
        return NamedProduct(known, named.n, named.k, named.dtype, named.result_bytes)
    tilings = list(_tilings(launch))
    if not tilings:
        return None
    fitting = [found for each in tilings if (found := each.ranges(rows, is_most))]
    # A batch that fits no tiling is not that of this product.
    fitting = fitting or [found for each in tilings if (found := each.ranges(None, True))]
    if not fitting:
        return None
    sides = zip(*fitting, strict=True)
    spans = [(min(each[0] for each in side), max(each[1] for each in side)) for side in sides]
    return NamedProduct(spans[0], spans[1], None)


def _integers(arguments: str) -> list[int]:
    return [int(size[1]) for size in map(_INTEGER.fullmatch, arguments.split(",")) if size]


def _of_deep_gemm(name: str) -> NamedProduct | None:
    match = _DEEP_GEMM.search(name)
    if match is None or not _NORMAL.search(match[2]):
        return None
    sizes = _integers(match[2])
    # Older kernels begin with n and k, newer ones (`..._impl`) with m, which is 0, then these.
    sizes = sizes[1:] if match[1].endswith("_impl") else sizes
    if len(sizes) < 2 or min(sizes[:2]) == 0:
        return None
    return NamedProduct((0, 0), (sizes[0], sizes[0]), sizes[1])


def _of_small_product(launch: KernelLaunch) -> NamedProduct | None:
    """Return the product of TensorRT-LLM's kernels for DeepSeek-V3, which vLLM and SGLang have."""
    if match := _FUSED_A.search(launch.name):
        sizes = _integers(match[1])  # batch, columns, k, tile
        if len(sizes) >= 4 and min(sizes[1:3]) > 0:
            return NamedProduct((0, 0), (sizes[1], sizes[1]), sizes[2], "bf16")
    if match := _ROUTER.search(launch.name):
        sizes = _integers(match[1])
        of_float = "_float_" in match[0]
        # Block, elements of a load, rows, [experts,] k; one block for each expert.
        experts = sizes[3] if len(sizes) == 5 else (launch.grid or (0,))[0]
        if len(sizes) in (4, 5) and min(sizes[2], experts, sizes[-1]) > 0:
            rows, k = sizes[2], sizes[-1]
            result = 4 if of_float else _RESULT_BYTES
            return NamedProduct((rows, rows), (experts, experts), k, "bf16", result)
    return None


# ------------------------------------------------------------------------------------- tiles


@dataclass(frozen=True, slots=True)
class _Tiling:
    """Tiles of a result: either exactly so many of rows and of columns, or at most so many."""

    tile: tuple[int, int]
    """Rows and columns of one."""
    rows: int = 0
    columns: Range = (0, 0)
    most: int = 0

    def ranges(self, rows: int | None, is_most: bool) -> tuple[Range, Range] | None:
        """Return the ranges of rows and columns; None where the rows do not fit."""
        high, width = self.tile
        if not self.most:
            least, most = (self.rows - 1) * high + 1, self.rows * high
            n = ((self.columns[0] - 1) * width + 1, self.columns[1] * width)
        else:
            needed = -(-rows // high) if rows is not None and not is_most else 1
            if needed > self.most:
                return None
            least, most = 1, self.most * high
            n = (1, self.most // needed * width)
        if rows is None:
            return (least, most), n
        if rows < least or (rows > most and not is_most):
            return None
        return ((least, min(most, rows)) if is_most else (rows, rows)), n


def _tilings(launch: KernelLaunch) -> Iterator[_Tiling]:
    """Give what the grid can mean. See Note [Tiles]."""
    name, blocks = launch.name[:_MOST_CHARACTERS], launch.blocks
    short = name[:_MOST_OF_WORDS]
    if blocks is None or len(launch.grid) < 2:
        return
    if match := _CUTLASS_2.match(short):
        width, high = int(match[1]), int(match[2])
        x, y = launch.grid[:2]
        for swizzle, least, most in _SWIZZLES:
            columns = (max(least, (y - 1) * swizzle + 1), min(most, y * swizzle))
            if x % swizzle == 0 and columns[0] <= columns[1]:
                yield _Tiling((high, width), x // swizzle, columns)
    elif match := _CUBLAS.match(short):
        x, y = launch.grid[:2]
        yield _Tiling((int(match[2]), int(match[1])), y, (x, x))
    elif match := _TENSILE.match(short):
        if launch.counts_threads and not _STREAM_K.search(name):
            yield _Tiling((int(match[2]), int(match[1])), most=blocks)
    elif match := _NVJET.match(short) or _XMMA.match(short):
        if _has_room(launch, blocks, int(match[3]) * int(match[4])):
            yield _Tiling((int(match[2]), int(match[1])), most=blocks)
    elif match := _CUTLASS_3.search(name):
        cluster, sides = int(match[1]) * int(match[2]), (int(match[3]), int(match[4]))
        # Engines exchange the operands where there are few rows.
        for tile in (sides, sides[::-1]) if _has_room(launch, blocks, cluster) else ():
            yield _Tiling(tile, most=blocks)


def _has_room(launch: KernelLaunch, blocks: int, cluster: int) -> bool:
    """Return whether the device could hold more blocks than were started."""
    share = 2 if cluster <= _SMALL_CLUSTER else 4
    return launch.multiprocessors is not None and share * blocks <= launch.multiprocessors


def counts_threads(launches: Sequence[KernelLaunch]) -> bool:
    """Return whether grids of Tensile's kernels count threads, as ROCm's profiler has it: all of at
    least three different ones are multiples of their blocks."""
    grids = {(launch.grid, launch.block) for launch in launches if _TENSILE.match(launch.name)}
    whole = [prod(grid) % prod(block) == 0 for grid, block in grids if grid and prod(block) > 0]
    return len(whole) >= 3 and all(whole)
