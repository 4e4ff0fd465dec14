"""What the network of the paper is given: tokens of several traces, and each distinct name once.

Training and scoring both come here, so that both mean the same; torch is not needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from torchtraceap.core.aliases import Array
from torchtraceap.diagnosis.scoring.paper_config import PaperConfig
from torchtraceap.tables.windows import Tokens

if TYPE_CHECKING:
    from torchtraceap.diagnosis.scoring.text_encoders import TextEncoder

__all__ = ["PaperInputs", "TraceTokens", "join_traces"]

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TraceTokens:
    """GPU events of one trace, and what it ran on."""

    tokens: Tokens
    """Of GPU events alone: `build_tokens(..., gaps=False, host=False, continued=False)`."""
    platform: str | None = None


@dataclass(frozen=True)
class PaperInputs:
    """n events in W windows of T traces, with N distinct names."""

    names: Floats
    """float32 `[N, text_width]`."""
    trace_offsets: Codes
    """int64 `[T + 1]`: into windows."""
    platform: Codes
    """int64 `[T]`."""
    offsets: Codes
    """int64 `[W + 1]`: into events."""
    name: Codes
    """int64 `[n]`: row of `names`; the same of the next."""
    cpu_name: Codes
    delay_code: Codes
    """int64 `[n]`: 0 to 256."""
    duration_code: Codes
    """int64 `[n]`: 0 to 255."""
    position: Floats
    """float32 `[n]`: 0 to 1000."""
    stream: Floats
    """float32 `[n]`: index among the streams of the trace."""

    def arrays(self) -> dict[str, npt.NDArray[np.float32] | npt.NDArray[np.int64]]:
        """By name, as `_model.native.PaperNet.score` takes them."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


def join_traces(
    traces: Sequence[TraceTokens], config: PaperConfig, encoder: TextEncoder
) -> PaperInputs:
    """One batch of several traces."""
    distinct: dict[str, int] = {}
    places = [
        np.array([distinct.setdefault(name, len(distinct)) for name in names], np.int64)
        for names in (trace.tokens.names for trace in traces)
    ]
    all_tokens = [trace.tokens for trace in traces]
    position = _joined([tokens.position for tokens in all_tokens], np.float32)
    if config.position == "literal":
        position = np.zeros_like(position)
    return PaperInputs(
        names=encoder.vectors(list(distinct)),
        trace_offsets=_offsets([np.full(1, tokens.window_count) for tokens in all_tokens]),
        platform=np.array([config.platform_code(trace.platform) for trace in traces], np.int64),
        offsets=_offsets([_lengths(tokens) for tokens in all_tokens]),
        name=_joined([at[t.name] for at, t in zip(places, all_tokens, strict=True)], np.int64),
        cpu_name=_joined(
            [at[t.cpu_name] for at, t in zip(places, all_tokens, strict=True)], np.int64
        ),
        delay_code=_joined([tokens.delay_code for tokens in all_tokens], np.int64),
        duration_code=_joined([tokens.duration_code for tokens in all_tokens], np.int64),
        position=position,
        stream=_joined([tokens.stream for tokens in all_tokens], np.float32),
    )


def _joined(parts: Sequence[Array], dtype: type) -> Array:
    return np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype)


def _lengths(tokens: Tokens) -> Codes:
    """Events of each window."""
    offsets = tokens.offsets.astype(np.int64)
    lengths: Codes = offsets[1:] - offsets[:-1]
    return lengths


def _offsets(lengths: Sequence[Codes]) -> Codes:
    ends: Codes = np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths]), dtype=np.int64)
    return ends
