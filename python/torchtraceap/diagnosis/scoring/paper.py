"""`paper`: the network of the TorchTraceAP paper, on events of the GPU and what launched them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from torchtraceap.core.aliases import PathLike
from torchtraceap.core.results import PAPER_TYPES, Int64Array
from torchtraceap.diagnosis.scoring.base import WindowScores, common_bounds
from torchtraceap.diagnosis.scoring.paper_config import PaperConfig, Weights, read_paper_weights
from torchtraceap.diagnosis.scoring.paper_inputs import TraceTokens, join_traces
from torchtraceap.diagnosis.scoring.text_encoders import TextEncoder, text_encoder
from torchtraceap.errors import MissingFileError, SchemaError
from torchtraceap.ops.devices import find_device
from torchtraceap.tables.windows.tokens import build_tokens
from torchtraceap.tables.windows.windows import build_windows

if TYPE_CHECKING:
    from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = ["PaperScorer", "ScorerInputs", "load", "paper_tokens"]

WEIGHTS = Path(__file__).parent / "weights" / "paper.safetensors"
_EVENTS_AT_ONCE = 1 << 16
"""Ranks and traces are scored together up to this many events: 0.8 GB at full width."""


@dataclass(frozen=True)
class ScorerInputs:
    """What the network reads of one trace."""

    bounds_ns: Int64Array
    """int64 `[W + 1]`."""
    ranks: tuple[TraceTokens, ...]
    """Of each rank that has GPU events."""

    def __len__(self) -> int:
        """Rows of the window encoder: events, and one for each window."""
        return sum(len(rank.tokens) + rank.tokens.window_count for rank in self.ranks)


class PaperScorer:
    """Scores by the network. It knows no types: the paper has a language model tell them.

    Args:
        config: Of the network.
        weights: By name, as training wrote them.
        encoder: What turns names into vectors; by default the one that the network learned with.
        precision: Of the window encoder. "bfloat16" is twice as fast where the processor has it,
            and moves scores by less than 0.01.
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
        from torchtraceap._model import native

        self.config = config
        self.version = _digest(weights)
        self._encoder = text_encoder(config.text_encoder) if encoder is None else encoder
        if self._encoder.width != config.text_width:
            raise SchemaError(
                f"the network reads names as {config.text_width} numbers, and the text encoder "
                f"gives {self._encoder.width}"
            )
        sizes = native.PaperConfig(**config.network)
        self._net: Any = native.PaperNet(sizes, weights, precision, device)

    def score(self, trace: Ranks, count: int) -> WindowScores:
        """Scores of `count` windows; of several ranks the highest counts.

        A rank without GPU events has nothing to judge and gets 0. Of windows with more than
        `config.cap` events as many are read, spread evenly.
        """
        return self.score_inputs([self.inputs(trace, count)])[0]

    def inputs(self, trace: Ranks, count: int) -> ScorerInputs:
        """What the network reads of `count` windows; nothing of the trace is kept in memory."""
        bounds_ns = common_bounds(trace, count)
        ranks = [rank for rank in trace.ranks if len(rank.tree.gpu_rows)]
        read = [paper_tokens(rank, bounds_ns, self.config) for rank in ranks]
        alone = [TraceTokens(rank.tokens.detached(), rank.platform) for rank in read]
        return ScorerInputs(bounds_ns, tuple(alone))

    def score_inputs(self, traces: Sequence[ScorerInputs]) -> list[WindowScores]:
        """The scores of each trace, as `score` gives them."""
        found = iter(self.score_tokens([rank for trace in traces for rank in trace.ranks]))
        scored = []
        for trace in traces:
            count = len(trace.bounds_ns) - 1
            scores = np.max([np.zeros(count), *islice(found, len(trace.ranks))], axis=0)
            types = {name: np.zeros(count) for name in PAPER_TYPES}
            scored.append(WindowScores(tuple(trace.bounds_ns.tolist()), scores, types))
        return scored

    def score_tokens(self, traces: Sequence[TraceTokens]) -> list[npt.NDArray[np.float64]]:
        """float64 `[windows]` of each trace, several at once: their names are embedded once."""
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
    """The scorer with the weights of a file.

    Args:
        path: safetensors, as `train` writes them.
        options: Of `PaperScorer`.

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
    """GPU events of one rank in the windows of `bounds_ns`, int64 `[W + 1]`, of equal time."""
    within_ns = int(bounds_ns[0]), int(bounds_ns[-1])
    windows = build_windows(part, count=len(bounds_ns) - 1, within_ns=within_ns)
    tokens = build_tokens(
        part, windows=windows, cap=config.cap, gaps=False, host=False, continued=False
    )
    return TraceTokens(tokens, _platform(part))


def _platform(part: RankTrace) -> str | None:
    """The first device's name as `devices/` has it, else as recorded."""
    names = [device.name for device in part.table.devices if device.name]
    if not names:
        return None
    known = find_device(names[0])
    return names[0] if known is None else known.name


def _digest(weights: Weights) -> str:
    """Eight digits that other weights would not have."""
    import hashlib

    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(weights[name]).tobytes())
    return digest.hexdigest()[:8]
