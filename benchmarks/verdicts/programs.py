#!/usr/bin/env python3
"""Two programs whose work is planted: steps of so many equal units, 2 and 3 % more on request.

Usage: programs.py torch|numpy UNITS [--count]
With --count the units of one step are counted as they happen, and the number is printed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

STEPS, WARMUP = 105, 5
SIDE = {"torch": 96, "numpy": 96}


def torch_step(units: int) -> Callable[[], None]:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    left, right = (torch.rand(SIDE["torch"], SIDE["torch"]) for _ in range(2))
    out = torch.empty_like(left)

    def step() -> None:
        for _ in range(units):
            torch.mm(left, right, out=out)

    return step


def numpy_step(units: int) -> Callable[[], None]:
    import numpy as np

    values = np.random.default_rng(0).random((SIDE["numpy"], SIDE["numpy"]), np.float32)
    out = np.empty_like(values)

    def step() -> None:
        for _ in range(units):
            np.matmul(values, values, out=out)

    return step


def count_torch(units: int) -> int:
    """Matrix products that the dispatcher sees in a step."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, function, types, arguments=(), options=None):  # type: ignore
            self.seen += function.__name__.startswith("mm")
            return function(*arguments, **(options or {}))

    step = torch_step(units)
    with Counting() as counting:
        step()
    return counting.seen


def count_numpy(units: int) -> int:
    """Calls of `matmul` in a step."""
    import numpy as np

    seen = 0
    real = np.matmul

    def counting(*arguments, **options):  # type: ignore
        nonlocal seen
        seen += 1
        return real(*arguments, **options)

    step = numpy_step(units)
    np.matmul = counting
    step()
    return seen


def main() -> None:
    which, units = sys.argv[1], int(sys.argv[2])
    if "--count" in sys.argv:
        print({"torch": count_torch, "numpy": count_numpy}[which](units))
        return
    from torchtraceap.lab.bench.measured import measured

    step = {"torch": torch_step, "numpy": numpy_step}[which](units)
    for _ in measured(range(STEPS), warmup=WARMUP):
        step()


if __name__ == "__main__":
    main()
