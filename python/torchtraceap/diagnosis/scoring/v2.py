"""`v2`: the network of docs/training.md, in LibTorch. Python's part of torch is not imported."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from torchtraceap.core.results import Int64Array
from torchtraceap.diagnosis.scoring.base import WindowScores, common_bounds
from torchtraceap.diagnosis.scoring.structural import (
    WindowFigures,
    judged_windows,
    probability,
    window_scores,
)
from torchtraceap.diagnosis.scoring.v2_inputs import TokenInputs, TokenView, squash, token_inputs
from torchtraceap.diagnosis.scoring.weight_files import Weights, read_weights, shipped
from torchtraceap.errors import OptionError, SchemaError
from torchtraceap.tables.windows.tokens import build_tokens
from torchtraceap.tables.windows.windows import window_features

if TYPE_CHECKING:
    from torchtraceap.core.aliases import Array, PathLike
    from torchtraceap.tables.windows.tokens import Tokens
    from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = ["Attribution", "V2Scorer", "load"]

_FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Attribution:
    """What each event adds to the logit of its window, exactly: the logit of a window is `rest`
    plus log(1 + the sum of exp(`logit`) over its events)."""

    tokens: Tokens
    """The n events; `row` is that of the trace's table, `start_ns` and `dur_ns` say when."""
    window: Array
    """int64 `[n]`: of each event."""
    logit: _FloatArray
    """float64 `[n]`: of each event, not calibrated."""
    part: _FloatArray
    """float64 `[n]`: of what its window's events add, in logits. The parts of a window sum to
    `of_windows` less `rest`."""
    rest: _FloatArray
    """float64 `[W]`: what features say without events."""
    of_windows: _FloatArray
    """float64 `[W]`: the logits that are calibrated to scores."""

    def greatest(self, window: int) -> int | None:
        """The event that adds most to a window; None in one without events."""
        own = np.flatnonzero(self.window == window)
        return int(own[self.part[own].argmax()]) if len(own) else None


class V2Scorer:
    """A network of one file of weights.

    Args:
        weights: Of the file.
        device: One of `scoring.DEVICES`.

    Raises:
        SchemaError: The weights are damaged, or not of this scorer.
        MissingDependencyError: torch is absent, or the build is without networks.
        OptionError: This build or this machine does not have the device.
    """

    name = "v2"

    def __init__(self, weights: Weights, device: str = "cpu") -> None:
        from torchtraceap._model import native

        if weights.says("scorer", str) != self.name:
            raise SchemaError(f"{weights.path}: these are the weights of another scorer")
        self.version = weights.says("version", str)
        self.types = weights.texts("types")
        self.features = weights.texts("features")
        self.cap = weights.says("cap", int)
        slope, intercept = weights.finite("calibration", 2).tolist()
        self._slope, self._intercept = slope, intercept
        shape = weights.says("shape", dict)
        self.has_events = bool(shape.get("token_codes"))
        """Windows are scored by their events too, and `attribution` says how."""
        parameters = {
            name: array for name, array in weights.arrays.items() if array.dtype == np.float32
        }
        try:
            self.view = TokenView(**weights.about.get("view", {}))
            self._net = native.V2Net(native.V2Shape(**shape), parameters, device)
        except TypeError as error:
            raise SchemaError(f"{weights.path}: its shape is of another version") from error

    def logits(self, features: Array, tokens: TokenInputs | None = None) -> dict[str, Array]:
        """What the network says of one trace.

        Args:
            features: float32 `[W, 2 F]`, of `squash`.
            tokens: Of its windows; ignored by a network without tokens.

        Returns:
            `any` `[W]`, `types` `[W, T]` and `tokens` `[N]`, logits; `severity` `[W]`, the part of
            a window that is lost; `trace` `[1]`, a logit. float32.
        """
        given: dict[str, Any] = {}
        if self.has_events and tokens is not None:
            given = {
                key: getattr(tokens, key)
                for key in ("window", "codes", "numbers", "name", "cpu_name", "names")
            }
        found: dict[str, Array] = self._net.score(features, **given)
        return found

    def of_rank(self, rank: RankTrace, bounds_ns: Int64Array) -> dict[str, Array]:
        """`logits` of windows of one rank.

        Raises:
            SchemaError: The weights are of other features than this version computes.
        """
        features, tokens = self._inputs(rank, bounds_ns)
        given = None if tokens is None else token_inputs(tokens, bounds_ns, self.view)
        return self.logits(features, given)

    def attribution(self, rank: RankTrace, bounds_ns: Int64Array) -> Attribution:
        """What each event of one rank adds to the logit of its window.

        Args:
            rank: Of a trace.
            bounds_ns: int64 `[W + 1]`: of windows of equal time, as `WindowScores` has them.

        Raises:
            OptionError: The network has no events: it was trained with `tokens = 0`.
            SchemaError: The weights are of other features than this version computes.
        """
        features, tokens = self._inputs(rank, bounds_ns)
        if tokens is None:
            raise OptionError("v2: these weights are of a network without events (`tokens = 0`)")
        given = token_inputs(tokens, bounds_ns, self.view)
        said = self.logits(features, given)
        logit, of_windows = (said[name].astype(np.float64) for name in ("tokens", "any"))
        weight = np.exp(logit)
        total = np.bincount(given.window, weight, minlength=len(of_windows))
        added = np.log1p(total)
        # In proportion to exp(logit), as the gradient has it.
        part = weight / np.maximum(total, np.finfo(np.float64).tiny)[given.window]
        return Attribution(
            tokens=tokens,
            window=given.window,
            logit=logit,
            part=part * added[given.window],
            rest=of_windows - added,
            of_windows=of_windows,
        )

    def _inputs(self, rank: RankTrace, bounds_ns: Int64Array) -> tuple[Array, Tokens | None]:
        """Features of windows; and their events, of a network that has them."""
        found = window_features(rank, bounds_ns)
        if tuple(found.names) != self.features:
            raise SchemaError("v2: the weights are of other features than this version computes")
        tokens = None
        if self.has_events:
            tokens = build_tokens(rank, windows=found.windows, cap=self.cap)
        return squash(found.values_matrix, found.zscores), tokens

    def score(self, trace: Ranks, count: int) -> WindowScores:
        """The worst rank counts in each window; windows with nothing to judge get 0."""
        bounds_ns = common_bounds(trace, count)
        figures, scores = [], []
        for rank in trace.ranks:
            found = _figures(self.of_rank(rank, bounds_ns))
            likely = probability(self._slope * found.logit + self._intercept)
            figures.append(found)
            scores.append(likely * judged_windows(rank, bounds_ns))
        return window_scores(bounds_ns, scores, [of.types for of in figures], self.types)


def _figures(said: dict[str, Array]) -> WindowFigures:
    """Each type is judged by itself; given that there is a fault, they share what is likely."""
    types = probability(said["types"].astype(np.float64))
    logit: _FloatArray = said["any"].astype(np.float64)
    return WindowFigures(
        logit=logit,
        strangeness=np.zeros_like(logit),
        types=types / np.maximum(types.sum(axis=1, keepdims=True), 1e-12),
    )


@cache
def load(path: PathLike | None = None, *, device: str = "cpu") -> V2Scorer:
    """The scorer with the weights of a file; None: those that are shipped.

    Args:
        path: Of the file.
        device: One of `scoring.DEVICES`.

    Raises:
        OptionError: This build or this machine does not have the device.
        MissingDependencyError: torch, this build's networks or safetensors are absent.
        SchemaError: The file holds something else.
    """
    return V2Scorer(read_weights(shipped(V2Scorer.name) if path is None else path), device)
