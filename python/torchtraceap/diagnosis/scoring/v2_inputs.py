"""What the network `v2` is given: numbers and codes of tokens, vectors of names.

Training and scoring both come here, so that both mean the same; torch is not needed.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.core.order import distinct, median
from torchtraceap.tables.windows import Tokens

__all__ = [
    "NAME_WIDTH",
    "TOKEN_CODES",
    "TOKEN_NUMBERS",
    "TokenInputs",
    "TokenView",
    "squash",
    "token_inputs",
]

NAME_WIDTH = 128
TOKEN_CODES = (64, 16, 4)
"""Values of the codes: class, flags, role of the stream. There is room for further classes."""
_LOGARITHMS = ("bytes", "grid_blocks", "queue_depth", "stream_gap_ns", "launch_dur_ns")
TOKEN_NUMBERS = 5 + 2 * len(_LOGARITHMS)
_LEVELS = 255.0  # the highest code of quantised times
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


@dataclass(frozen=True)
class TokenView:
    """How a network sees tokens. What is absolute, and names, say which network a trace is of and
    on which GPU it ran; without them a network has to judge by what a trace holds."""

    names: bool = True
    """With vectors of names; otherwise classes alone."""
    relative: bool = False
    """Times and sizes as differences from the median of the class in the trace."""

    @property
    def name_width(self) -> int:
        """Columns of `TokenInputs.names`: without names one, of zeros."""
        return NAME_WIDTH if self.names else 1


@dataclass(frozen=True)
class TokenInputs:
    """The tokens of one trace, by window and start."""

    window: Array
    """int64 `[N]`."""
    codes: Array
    """int64 `[N, 3]`: see `TOKEN_CODES`."""
    numbers: Array
    """float32 `[N, TOKEN_NUMBERS]`: each about 0 to 1."""
    name: Array
    """int64 `[N]`: row of `names`, of the event's name."""
    cpu_name: Array
    """int64 `[N]`: the same of the operator that launched it."""
    names: Array
    """float32 `[U, TokenView.name_width]`."""


def squash(values: Array, zscores: Array) -> Array:
    """Window features as the network takes them: sign(x) log(1 + |x|), and z-scores over 10.

    Args:
        values: float `[..., F]`, of `build_features`.
        zscores: float `[..., F]`.

    Returns:
        float32 `[..., 2 F]`.
    """
    parts = [np.sign(values) * np.log1p(np.abs(values)), zscores / 10.0]
    return np.concatenate(parts, axis=-1).astype(np.float32)


def token_inputs(tokens: Tokens, bounds_ns: Array, view: TokenView | None = None) -> TokenInputs:
    """What the network takes of the tokens of `build_tokens`.

    Args:
        tokens: Of the trace.
        bounds_ns: int64 `[W + 1]`, of its windows.
        view: How; None: the defaults.
    """
    view = view or TokenView()
    offsets = tokens.offsets.astype(np.int64)
    window = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    length_ns = np.maximum(np.diff(bounds_ns), 1)[window]
    columns = [
        tokens.duration_code / _LEVELS,
        np.minimum(tokens.dur_ns / length_ns, 4.0),
        tokens.position / 1000.0,
        np.minimum(tokens.delay_code, 255) / _LEVELS,
        tokens.delay_code > 255,
    ]
    for name in _LOGARITHMS:
        column = getattr(tokens, name).astype(np.float64)
        columns += [np.log2(np.maximum(column, 0) + 1) / 32.0, column < 0]
    codes = [
        np.minimum(tokens.class_code, TOKEN_CODES[0] - 1),
        tokens.flags % TOKEN_CODES[1],
        np.minimum(tokens.stream_role, TOKEN_CODES[2] - 1),
    ]
    numbers = np.stack(columns, axis=1).astype(np.float32)
    if view.relative:
        _subtract_medians(numbers, tokens.class_code)
    unnamed = np.zeros(len(window), dtype=np.int64)
    return TokenInputs(
        window=window,
        codes=np.stack(codes, axis=1).astype(np.int64),
        numbers=numbers,
        name=tokens.name.astype(np.int64) if view.names else unnamed,
        cpu_name=tokens.cpu_name.astype(np.int64) if view.names else unnamed,
        names=name_vectors(tokens.names) if view.names else np.zeros((1, 1), dtype=np.float32),
    )


def _subtract_medians(numbers: Array, class_code: Array) -> None:
    """Of what is logarithmic and differs between machines, in place."""
    columns = np.array([0, 3, *range(5, TOKEN_NUMBERS, 2)])
    for code in distinct(class_code):
        rows = np.flatnonzero(class_code == code)
        middle = [median(numbers[rows, column]) for column in columns]
        numbers[np.ix_(rows, columns)] -= np.array(middle, dtype=np.float32)


def name_vectors(names: Sequence[str]) -> Array:
    """float32 `[U, NAME_WIDTH]`: hashed words of names, each vector of length 1."""
    if not len(names):
        return np.zeros((1, NAME_WIDTH), dtype=np.float32)
    return np.stack([_vector(name) for name in names])


@lru_cache(maxsize=1 << 16)
def _vector(name: str) -> Array:
    """Words, and pairs of neighbours, each added at a place and with a sign that its CRC gives:
    a name that was never seen is near those that share its words."""
    words = [word.lower() for word in _WORD.findall(name[:1000])]
    found = np.zeros(NAME_WIDTH, dtype=np.float32)
    for part in (*words, *(f"{a} {b}" for a, b in pairwise(words))):
        crc = zlib.crc32(part.encode("utf-8", "surrogatepass"))
        found[crc % NAME_WIDTH] += 1.0 if crc & 1 << 20 else -1.0
    norm = float(np.linalg.norm(found))
    return found / norm if norm > 0 else found
