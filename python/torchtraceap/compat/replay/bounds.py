"""How large a replayed call may be. Larger ones are refused before they are made."""

from __future__ import annotations

__all__ = [
    "MAX_AXES",
    "MAX_BYTES",
    "MAX_NUMBERS",
    "MAX_PIECES",
    "MAX_ROUNDS",
    "MAX_STEPS",
    "MAX_TENSORS",
    "TOO_LARGE",
]

MAX_AXES = 64
"""Of a tensor, as in PyTorch."""
MAX_BYTES = 1 << 39
"""Of all inputs together, and of what a step of a call makes: more than any GPU has."""
MAX_TENSORS = 1024
"""In a list; the profiler records 30."""
MAX_NUMBERS = 1 << 16
"""In a list."""
MAX_PIECES = 1 << 16
"""Results of one step, as of `unbind`."""
MAX_ROUNDS = 1 << 16
"""For numbers that count rounds, not sizes of what comes out."""
MAX_STEPS = 1 << 16
"""Operators below a replayed one."""

TOO_LARGE = f"more than {MAX_BYTES >> 30} GiB"
