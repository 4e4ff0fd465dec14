"""`paper`: the network of the TorchTraceAP paper, on events of the GPU and their launches.

Its configuration, its inputs, which training and scoring share, and its scorer. Python's part of
torch is not imported, and the file of weights is safetensors with the configuration as metadata.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.results import PAPER_TYPES, Int64Array
from torchtraceap.core.stored import parse_json
from torchtraceap.diagnosis.scoring import WindowScores, common_bounds
from torchtraceap.diagnosis.scoring.text_encoders import ENCODERS, TextEncoder, text_encoder
from torchtraceap.errors import (
    MissingDependencyError,
    MissingFileError,
    OptionError,
    SchemaError,
)
from torchtraceap.ops.devices import find_device
from torchtraceap.tables.windows import Tokens, build_tokens, build_windows

if TYPE_CHECKING:
    from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = [
    "PAPER_CELLS",
    "UNKNOWN_PLATFORM",
    "PaperConfig",
    "PaperInputs",
    "PaperScorer",
    "ScorerInputs",
    "TraceTokens",
    "Weights",
    "join_traces",
    "load",
    "paper_tokens",
    "read_paper_weights",
]

Weights = dict[str, npt.NDArray[np.float32]]
Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int64]
UNKNOWN_PLATFORM = "unknown"
_FORMAT = "torchtraceap.paper/1"

WEIGHTS = Path(__file__).parent / "weights" / "paper.safetensors"
_EVENTS_AT_ONCE = 1 << 16
"""Ranks and traces are scored together up to this many events: 0.8 GB at full width."""


@dataclass(frozen=True)
class PaperConfig:
    """Sizes, parts and readings of the paper; docs/scorers.md relates each to the paper."""

    text_encoder: str = "hash"
    """One of `text_encoders.ENCODERS`."""
    text_width: int = 384
    """Width of its vectors."""
    width: int = 128
    """The paper's d; tokens and windows have 2d."""
    layers: int = 6
    heads: int = 8
    feed_forward: int = 1024
    platforms: tuple[str, ...] = (UNKNOWN_PLATFORM,)
    """Names of devices from `ops/devices`; any other is the first."""
    platform_tokens: int = 4
    adapter: bool = True
    """Else names pass a fixed projection (Table 5)."""
    transformer: bool = True
    """Else a window is the mean of its tokens."""
    relation: bool = True
    """Else windows don't see each other."""
    position: str = "clamped"
    """`literal`: Eq. 6 as printed, min(0, start - window), which is 0 for every event."""
    cap: int = 1024
    """Most events of a window."""

    def __post_init__(self) -> None:
        sizes = (self.text_width, self.width, self.layers, self.heads, self.feed_forward)
        if min(*sizes, self.platform_tokens, self.cap, len(self.platforms)) < 1:
            raise OptionError("sizes of the network must be positive")
        if self.width % (2 * self.heads) or self.width % 4:
            raise OptionError("width must be a multiple of twice the heads and of 4")
        if self.position not in ("clamped", "literal"):
            raise OptionError(f"position is clamped or literal, not {self.position!r}")
        if self.text_encoder not in ENCODERS:
            raise OptionError(f"text_encoder is one of {', '.join(ENCODERS)}")

    @property
    def network(self) -> dict[str, Any]:
        """The arguments of `_model.native.PaperConfig`."""
        names = "text_width width layers heads feed_forward platform_tokens adapter transformer"
        sizes = {name: getattr(self, name) for name in [*names.split(), "relation"]}
        return {**sizes, "platforms": len(self.platforms)}

    def platform_code(self, name: str | None) -> int:
        """Return the place of a device among the platforms; 0 for others."""
        return self.platforms.index(name) if name in self.platforms else 0

    def metadata(self) -> dict[str, str]:
        """Return the metadata for a safetensors file."""
        return {"format": _FORMAT, "config": json.dumps(dataclasses.asdict(self), sort_keys=True)}

    @classmethod
    def from_metadata(cls, metadata: dict[str, str] | None) -> PaperConfig:
        """Read the metadata of a safetensors file.

        Raises:
            SchemaError: The file is of something else, or of another version.
        """
        found = metadata or {}
        if found.get("format") != _FORMAT:
            raise SchemaError(f"weights: not of the format {_FORMAT}")
        try:
            fields = parse_json(found["config"], "weights: config")
            return cls(**{**fields, "platforms": tuple(fields["platforms"])})
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(f"weights: their configuration can't be read: {error}") from error


PAPER_CELLS: dict[str, dict[str, bool]] = {
    "+".join(part for part, there in zip(("adapter", "transformer", "relation"), cell, strict=True)
             if there) or "none":
    dict(zip(("adapter", "transformer", "relation"), cell, strict=True))
    for cell in [(a, t, r) for a in (False, True) for t in (False, True) for r in (False, True)]
}  # fmt: skip
"""Parts of the network by the name of the cell in Table 5."""


def read_paper_weights(path: PathLike) -> tuple[PaperConfig, Weights]:
    """Read configuration and arrays of a file.

    Raises:
        MissingFileError: There is no such file.
        MissingDependencyError: safetensors is not installed.
        SchemaError: It holds something else. Shapes are checked by the network.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise MissingDependencyError(
            "weights of networks need safetensors: pip install safetensors"
        ) from error
    try:
        with safe_open(path, framework="np") as file:
            config = PaperConfig.from_metadata(file.metadata())
            names = list(file.keys())
            arrays = {name: np.asarray(file.get_tensor(name), np.float32) for name in names}
    except FileNotFoundError as error:
        raise MissingFileError(f"{path}: no such file of weights") from error
    except (SafetensorError, OSError) as error:
        raise SchemaError(f"{path}: not a file of weights: {error}") from error
    return config, arrays


# ------------------------------------------------------------------------------------- inputs


@dataclass(frozen=True)
class TraceTokens:
    """GPU events of one trace, and its device."""

    tokens: Tokens
    """Tokens of GPU events alone: `build_tokens(..., gaps=False, host=False, continued=False)`."""
    platform: str | None = None


@dataclass(frozen=True)
class PaperInputs:
    """n events in W windows of T traces, with N distinct names."""

    names: Floats
    """float32 `[N, text_width]`."""
    trace_offsets: Codes
    """int64 `[T + 1]`: offsets into windows."""
    platform: Codes
    """int64 `[T]`."""
    offsets: Codes
    """int64 `[W + 1]`: offsets into events."""
    name: Codes
    """int64 `[n]`: row of `names`, like the next."""
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
        """Return the arrays by name, for `_model.native.PaperNet.score`."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


def join_traces(
    traces: Sequence[TraceTokens], config: PaperConfig, encoder: TextEncoder
) -> PaperInputs:
    """Join several traces to one batch."""
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
        offsets=_offsets([np.diff(tokens.offsets.astype(np.int64)) for tokens in all_tokens]),
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


def _offsets(lengths: Sequence[Array]) -> Codes:
    ends: Codes = np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths]), dtype=np.int64)
    return ends


# ------------------------------------------------------------------------------------- scorer


@dataclass(frozen=True)
class ScorerInputs:
    """The inputs of the network from one trace."""

    bounds_ns: Int64Array
    """int64 `[W + 1]`."""
    ranks: tuple[TraceTokens, ...]
    """Tokens of each rank that has GPU events."""

    def __len__(self) -> int:
        """Rows of the window encoder: events, and one for each window."""
        return sum(len(rank.tokens) + rank.tokens.window_count for rank in self.ranks)


class PaperScorer:
    """Scores by the network. It knows no types: in the paper a language model finds them.

    Args:
        config: Configuration of the network.
        weights: Arrays by name, as written by training.
        encoder: The encoder of names; by default the one of training.
        precision: Precision of the window encoder. "bfloat16" is twice as fast where the processor
            has it, and moves scores by less than 0.01.
        device: One of `scoring.DEVICES`.

    Raises:
        OptionError: This build or this machine does not have the device.
        MissingDependencyError: The build is without networks, or torch is absent.
        SchemaError: The weights don't fit the configuration.
    """

    name = "paper"
    rows_at_once = _EVENTS_AT_ONCE

    def __init__(
        self,
        config: PaperConfig,
        weights: Weights,
        *,
        encoder: TextEncoder | None = None,
        precision: str = "float32",
        device: str = "cpu",
    ) -> None:
        import hashlib

        from torchtraceap._model import native

        self.config = config
        # Eight digits that other weights would not have.
        digest = hashlib.sha256()
        for name in sorted(weights):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(weights[name]).tobytes())
        self.version = digest.hexdigest()[:8]
        self._encoder = text_encoder(config.text_encoder) if encoder is None else encoder
        if self._encoder.width != config.text_width:
            raise SchemaError(
                f"the network reads names as {config.text_width} numbers, and the text encoder "
                f"gives {self._encoder.width}"
            )
        sizes = native.PaperConfig(**config.network)
        self._net: Any = native.PaperNet(sizes, weights, precision, device)

    def score(self, trace: Ranks, count: int) -> WindowScores:
        """Score `count` windows; of several ranks the highest counts.

        A rank without GPU events has nothing to judge and gets 0. Of windows with more than
        `config.cap` events as many are read, spread evenly.
        """
        return self.score_inputs([self.inputs(trace, count)])[0]

    def inputs(self, trace: Ranks, count: int) -> ScorerInputs:
        """Read the inputs of `count` windows; nothing of the trace is kept in memory."""
        bounds_ns = common_bounds(trace, count)
        ranks = [rank for rank in trace.ranks if len(rank.tree.gpu_rows)]
        read = [paper_tokens(rank, bounds_ns, self.config) for rank in ranks]
        alone = [TraceTokens(rank.tokens.detached(), rank.platform) for rank in read]
        return ScorerInputs(bounds_ns, tuple(alone))

    def score_inputs(self, traces: Sequence[ScorerInputs]) -> list[WindowScores]:
        """Score each trace like `score`."""
        found = iter(self.score_tokens([rank for trace in traces for rank in trace.ranks]))
        scored = []
        for trace in traces:
            count = len(trace.bounds_ns) - 1
            scores = np.max([np.zeros(count), *islice(found, len(trace.ranks))], axis=0)
            types = {name: np.zeros(count) for name in PAPER_TYPES}
            scored.append(WindowScores(tuple(trace.bounds_ns.tolist()), scores, types))
        return scored

    def score_tokens(self, traces: Sequence[TraceTokens]) -> list[npt.NDArray[np.float64]]:
        """Score several traces at once, so that their names are embedded once; float64 `[windows]`
        for each."""
        found: list[npt.NDArray[np.float64]] = []
        start = 0
        while start < len(traces):
            end, events = start + 1, len(traces[start].tokens)
            while end < len(traces) and events + len(traces[end].tokens) <= _EVENTS_AT_ONCE:
                events += len(traces[end].tokens)
                end += 1
            inputs = join_traces(traces[start:end], self.config, self._encoder)
            scores = self._net.score(**inputs.arrays()).astype(np.float64)
            if not np.isfinite(scores).all():
                raise SchemaError("the network's scores are not finite: its weights are damaged")
            found += np.split(scores, inputs.trace_offsets[1:-1])
            start = end
        return found


def load(path: PathLike = WEIGHTS, **options: Any) -> PaperScorer:
    """Load the scorer with the weights of a file.

    Args:
        path: safetensors, as written by `train`.
        options: Further arguments of `PaperScorer`.

    Raises:
        MissingFileError: There are no such weights.
        MissingDependencyError: torch, this build's networks or safetensors are absent.
        SchemaError: The file holds something else.
    """
    if not Path(path).is_file():
        raise MissingFileError(f"{path}: no weights; torchtraceap train paper makes them")
    config, weights = read_paper_weights(path)
    return PaperScorer(config, weights, **options)


def paper_tokens(part: RankTrace, bounds_ns: Int64Array, config: PaperConfig) -> TraceTokens:
    """Return the GPU events of one rank in windows of equal time, bounds int64 `[W + 1]`."""
    within_ns = int(bounds_ns[0]), int(bounds_ns[-1])
    windows = build_windows(part, count=len(bounds_ns) - 1, within_ns=within_ns)
    tokens = build_tokens(
        part, windows=windows, cap=config.cap, gaps=False, host=False, continued=False
    )
    # The first device's name as in `ops/devices`, else as recorded.
    platform = next((device.name for device in part.table.devices if device.name), None)
    known = find_device(platform) if platform else None
    return TraceTokens(tokens, known.name if known else platform)
