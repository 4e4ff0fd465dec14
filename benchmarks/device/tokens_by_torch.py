"""The token matrix of the paper's network by torch's own operators on a GPU, timed.

`cuda_parity` times our kernels for the same at the same sizes. Where torch is as fast, the kernels
are not worth their code.

Usage: python benchmarks/device/tokens_by_torch.py
Exit code: 0, or 4 where torch is absent or has no GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

RUNS = 20
WIDTH, NAMES, CODES, TOKENS = 256, 1000, 257, (1, 127, 8_000, 200_000)


def device_us(run: Callable[[], object]) -> float:
    """Mean over runs after one that is not counted."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    run()
    begin.record()
    for _ in range(RUNS):
        run()
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(end) / RUNS


def by_torch(count: int, device: str = "cuda") -> tuple[Callable[[], object], ...]:
    """Return the work of `gather_tokens` and `add_places` on `count` random tokens."""
    import torch

    rows = (NAMES, NAMES, CODES, CODES)
    tables = [torch.rand(height, WIDTH, device=device) for height in rows]
    columns = [torch.randint(height, (count,), device=device) for height in rows]
    x = torch.rand(count, WIDTH, device=device)
    frequencies = torch.rand(WIDTH // 4, device=device)
    coordinates = torch.rand(2, count, 1, device=device)

    def gather_tokens() -> torch.Tensor:
        parts = [table[column] for table, column in zip(tables, columns, strict=True)]
        return parts[0].add_(parts[1]).add_(parts[2]).add_(parts[3])

    def add_places() -> torch.Tensor:
        angles = [coordinate * frequencies for coordinate in coordinates]
        return x.add_(torch.cat([part for of in angles for part in (of.sin(), of.cos())], 1))

    return gather_tokens, add_places


def main() -> int:
    try:
        import torch
    except ImportError:
        print("skipped: there is no torch")
        return 4
    if not torch.cuda.is_available():
        print("skipped: torch finds no GPU")
        return 4
    for count in TOKENS:
        times = [f"{run.__name__} {device_us(run):9.1f} us" for run in by_torch(count)]
        print(f"{count} tokens by torch: {', '.join(times)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
