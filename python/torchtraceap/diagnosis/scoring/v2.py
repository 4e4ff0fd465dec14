"""`v2`: the network of docs/scorers.md, in LibTorch, and its inputs.

Python's part of torch is not imported. Training and scoring use the same functions for inputs.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.results import Int64Array
from torchtraceap.core.sums import distinct, median
from torchtraceap.diagnosis.scoring import WindowScores, common_bounds
from torchtraceap.diagnosis.scoring.structural import (
    judged_windows,
    probability,
    window_scores,
)
from torchtraceap.diagnosis.scoring.weight_files import Weights, read_weights, shipped
from torchtraceap.errors import OptionError, SchemaError
from torchtraceap.tables.detection import excluded_types
from torchtraceap.tables.windows import Tokens, build_tokens, window_features

if TYPE_CHECKING:
    from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = [
    "NAME_WIDTH",
    "TOKEN_CODES",
    "TOKEN_NUMBERS",
    "Attribution",
    "TokenColumns",
    "TokenInputs",
    "TokenView",
    "V2Scorer",
    "load",
    "name_vectors",
    "squash",
    "token_inputs",
]

_FloatArray = npt.NDArray[np.float64]
NAME_WIDTH = 128
TOKEN_CODES = (64, 16, 4)
"""Number of values of the codes: class, flags, role of the stream, with room for more classes."""
_LOGARITHMS = ("bytes", "grid_blocks", "queue_depth", "stream_gap_ns", "launch_dur_ns")
TOKEN_NUMBERS = 5 + 2 * len(_LOGARITHMS)
_LEVELS = 255.0  # the highest code of quantized times
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


# ------------------------------------------------------------------------------------- inputs


@dataclass(frozen=True)
class TokenView:
    """The form of tokens for a network. Absolute values and names identify the network and the GPU
    of a trace; without them a network has to judge by the events."""

    names: bool = True
    """Include vectors of names; otherwise classes alone."""
    relative: bool = False
    """Times and sizes as differences from the median of the class in the trace."""

    @property
    def name_width(self) -> int:
        """Number of columns of `TokenInputs.names`: without names one, of zeros."""
        return NAME_WIDTH if self.names else 1


ArrayT = TypeVar("ArrayT")  # NumPy's arrays, or torch's tensors in training


@dataclass(frozen=True)
class TokenColumns(Generic[ArrayT]):
    """The tokens of a trace, or of a batch of traces, by window and start."""

    window: ArrayT
    """int64 `[N]`; in a batch, trace * windows + window."""
    codes: ArrayT
    """int64 `[N, 3]`: see `TOKEN_CODES`."""
    numbers: ArrayT
    """float32 `[N, TOKEN_NUMBERS]`: each about 0 to 1."""
    name: ArrayT
    """int64 `[N]`: row in `names` of the event's name."""
    cpu_name: ArrayT
    """int64 `[N]`: row in `names` of the operator that launched it."""
    names: ArrayT
    """float32 `[U, TokenView.name_width]`: a vector for each distinct name."""


TokenInputs: TypeAlias = TokenColumns[Array]


def squash(values: Array, zscores: Array) -> Array:
    """Scale window features for the network: sign(x) log(1 + |x|), and z-scores over 10.

    Args:
        values: float `[..., F]`, from `build_features`.
        zscores: float `[..., F]`.

    Returns:
        float32 `[..., 2 F]`.
    """
    parts = [np.sign(values) * np.log1p(np.abs(values)), zscores / 10.0]
    return np.concatenate(parts, axis=-1).astype(np.float32)


def token_inputs(tokens: Tokens, bounds_ns: Array, view: TokenView | None = None) -> TokenInputs:
    """Turn the tokens of `build_tokens` into inputs of the network.

    Args:
        tokens: Tokens of the trace.
        bounds_ns: int64 `[W + 1]`, bounds of its windows.
        view: Their form; None: the defaults.
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
        # Differences of columns that are logarithmic and depend on the machine.
        places = np.array([0, 3, *range(5, TOKEN_NUMBERS, 2)])
        for code in distinct(tokens.class_code):
            rows = np.flatnonzero(tokens.class_code == code)
            middle = [median(numbers[rows, place]) for place in places]
            numbers[np.ix_(rows, places)] -= np.array(middle, dtype=np.float32)
    unnamed = np.zeros(len(window), dtype=np.int64)
    return TokenInputs(
        window=window,
        codes=np.stack(codes, axis=1).astype(np.int64),
        numbers=numbers,
        name=tokens.name.astype(np.int64) if view.names else unnamed,
        cpu_name=tokens.cpu_name.astype(np.int64) if view.names else unnamed,
        names=name_vectors(tokens.names) if view.names else np.zeros((1, 1), dtype=np.float32),
    )


def name_vectors(names: Sequence[str]) -> Array:
    """Return hashed words of names as vectors of length 1, float32 `[U, NAME_WIDTH]`."""
    if not len(names):
        return np.zeros((1, NAME_WIDTH), dtype=np.float32)
    return np.stack([_name_vector(name) for name in names])


@lru_cache(maxsize=1 << 16)
def _name_vector(name: str) -> Array:
    """Add words, and pairs of neighbors, each at a place and with a sign by its CRC: an unknown
    name is near those that share its words."""
    words = [word.lower() for word in _WORD.findall(name[:1000])]
    found = np.zeros(NAME_WIDTH, dtype=np.float32)
    for part in (*words, *(f"{a} {b}" for a, b in pairwise(words))):
        crc = zlib.crc32(part.encode("utf-8", "surrogatepass"))
        found[crc % NAME_WIDTH] += 1.0 if crc & 1 << 20 else -1.0
    norm = float(np.linalg.norm(found))
    return found / norm if norm > 0 else found


# ------------------------------------------------------------------------------------- scorer


@dataclass(frozen=True)
class Attribution:
    """The exact contribution of each event to the logit of its window: that logit is `rest` plus
    log(1 + the sum of exp(`logit`) over its events)."""

    tokens: Tokens
    """The n events; `row` is that of the trace's table, `start_ns` and `dur_ns` are its times."""
    window: Array
    """int64 `[n]`: window of each event."""
    logit: _FloatArray
    """float64 `[n]`: logit of each event, not calibrated."""
    part: _FloatArray
    """float64 `[n]`: share of the contribution of its window's events, in logits. The parts of a
    window sum to `of_windows` less `rest`."""
    rest: _FloatArray
    """float64 `[W]`: logit of features without events."""
    of_windows: _FloatArray
    """float64 `[W]`: logits before the calibration to scores."""

    def greatest(self, window: int) -> int | None:
        """Return the event that adds most to a window; None in one without events."""
        own = np.flatnonzero(self.window == window)
        return int(own[self.part[own].argmax()]) if len(own) else None


class V2Scorer:
    """A network of one file of weights.

    Args:
        weights: Content of the file.
        device: One of `scoring.DEVICES`.

    Raises:
        SchemaError: The weights are damaged, or not of this scorer.
        MissingDependencyError: torch is absent, or the build is without networks.
        OptionError: This build or this machine does not have the device.
    """

    name = "v2"

    def __init__(self, weights: Weights, device: str = "cpu") -> None:
        from torchtraceap._model import native

        if weights.entry("scorer", str) != self.name:
            raise SchemaError(f"{weights.path}: these are the weights of another scorer")
        self.version = weights.entry("version", str)
        self.types = weights.texts("types")
        self.features = weights.texts("features")
        self.cap = weights.entry("cap", int)
        slope, intercept = weights.finite("calibration", 2).tolist()
        self._slope, self._intercept = slope, intercept
        shape = weights.entry("shape", dict)
        self.has_events = bool(shape.get("token_codes"))
        """Windows are scored by their events too, which `attribution` breaks down."""
        parameters = {
            name: array for name, array in weights.arrays.items() if array.dtype == np.float32
        }
        try:
            self.view = TokenView(**weights.about.get("view", {}))
            self._net = native.V2Net(native.V2Shape(**shape), parameters, device)
        except TypeError as error:
            raise SchemaError(f"{weights.path}: its shape is of another version") from error

    def logits(self, features: Array, tokens: TokenInputs | None = None) -> dict[str, Array]:
        """Evaluate the network on one trace.

        Args:
            features: float32 `[W, 2 F]`, from `squash`.
            tokens: Tokens of its windows; ignored by a network without tokens.

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

    def evaluate_rank(self, rank: RankTrace, bounds_ns: Int64Array) -> dict[str, Array]:
        """Return `logits` of windows of one rank.

        Raises:
            SchemaError: The weights are of other features than this version computes.
        """
        features, tokens = self._inputs(rank, bounds_ns)
        given = None if tokens is None else token_inputs(tokens, bounds_ns, self.view)
        return self.logits(features, given)

    def attribution(self, rank: RankTrace, bounds_ns: Int64Array) -> Attribution:
        """Return the contribution of each event of one rank to the logit of its window.

        Args:
            rank: A rank of a trace.
            bounds_ns: int64 `[W + 1]`: bounds of windows of equal time, as in `WindowScores`.

        Raises:
            OptionError: The network has no events: it was trained with `tokens = 0`.
            SchemaError: The weights are of other features than this version computes.
        """
        features, tokens = self._inputs(rank, bounds_ns)
        if tokens is None:
            raise OptionError("v2: these weights are of a network without events (`tokens = 0`)")
        given = token_inputs(tokens, bounds_ns, self.view)
        outputs = self.logits(features, given)
        logit, of_windows = (outputs[name].astype(np.float64) for name in ("tokens", "any"))
        weight = np.exp(logit)
        total = np.bincount(given.window, weight, minlength=len(of_windows))
        added = np.log1p(total)
        # In proportion to exp(logit), like the gradient.
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
        """Return features of windows, and their events if the network has any."""
        found = window_features(rank, bounds_ns)
        if tuple(found.names) != self.features:
            raise SchemaError("v2: the weights are of other features than this version computes")
        tokens = None
        if self.has_events:
            tokens = build_tokens(rank, windows=found.windows, cap=self.cap)
        return squash(found.values_matrix, found.zscores), tokens

    def score(self, trace: Ranks, count: int) -> WindowScores:
        """Score windows by the worst rank in each; windows with nothing to judge get 0."""
        bounds_ns = common_bounds(trace, count)
        scores, shares = [], []
        for rank in trace.ranks:
            outputs = self.evaluate_rank(rank, bounds_ns)
            logit = outputs["any"].astype(np.float64)
            likely = probability(self._slope * logit + self._intercept)
            scores.append(likely * judged_windows(rank, bounds_ns))
            # Each type is judged by itself; given a fault, they share its probability.
            types = probability(outputs["types"].astype(np.float64))
            shares.append(types / np.maximum(types.sum(axis=1, keepdims=True), 1e-12))
        return window_scores(bounds_ns, scores, shares, self.types, excluded_types(trace))


@cache
def load(path: PathLike | None = None, *, device: str = "cpu") -> V2Scorer:
    """Load the scorer with the weights of a file; None: those that are shipped.

    Args:
        path: Path of the file.
        device: One of `scoring.DEVICES`.

    Raises:
        OptionError: This build or this machine does not have the device.
        MissingDependencyError: torch, this build's networks or safetensors are absent.
        SchemaError: The file holds something else.
    """
    return V2Scorer(read_weights(shipped(V2Scorer.name) if path is None else path), device)
