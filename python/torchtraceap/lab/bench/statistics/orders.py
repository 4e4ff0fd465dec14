"""The order of the two runs in each pair.

Note [Order of a pair]: of every two pairs one runs A first and the other B first, and a coin says
which: ABBA or BAAB. A steady drift of the machine then cancels within two pairs, and the coin keeps
a rhythm of the machine from falling together with the sides. The signed ranks treat the pairs as
independent and symmetric, and that is a condition on the noise: a drift that bends within four runs
makes the two pairs of a block alike. At its worst, a machine with nothing but a first-order
autoregressive drift of coefficient 1/2, their correlation is 1/8. What the machine at hand does is
measured by `bench calibrate`.
"""

from __future__ import annotations

import numpy as np

from torchtraceap.core.aliases import Array

__all__ = ["abba", "log_ratios"]


def abba(pairs: int, generator: np.random.Generator, rows: int | None = None) -> Array:
    """Draw the pairs in which A runs first, bool `[pairs]` or `[rows, pairs]`."""
    blocks = generator.integers(0, 2, size=(rows or 1, (pairs + 1) // 2)).astype(bool)
    found = np.stack([blocks, ~blocks], axis=-1).reshape(rows or 1, -1)[:, :pairs]
    return found if rows is not None else found[0]


def log_ratios(logs: Array, a_first: Array) -> Array:
    """Return the log ratios B / A of runs in order of time.

    Args:
        logs: float64 `[..., 2 * pairs]`: log of what each run took.
        a_first: `[..., pairs]` of `abba`.
    """
    rise = logs[..., 1::2] - logs[..., 0::2]
    return np.where(a_first, rise, -rise)
