"""`Twin`: an eager run of the same model, whose operators stand for the kernels of its graphs.

Note [Twin]: where a model runs without graphs (eagerly, or as the prefill that no graph holds),
every kernel has its operator and module. An eager pass through the model is held against one with
graphs layer by layer: kernels of one name are the same, and so are those of one kind (a product of
another tile, attention of another library), in their order. Two models differ in the number of
layers, or in what these consist of: such a twin is refused.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array
from torchtraceap.core.formatting import pluralize
from torchtraceap.core.records import dataclass
from torchtraceap.tables.gpu.gpu_events import GpuEvents
from torchtraceap.tables.serving.capture import Alignment, Replays
from torchtraceap.tables.serving.iterations import served_iterations
from torchtraceap.tables.serving.nodes import graph_nodes
from torchtraceap.tables.serving.roles import kinds_of, layers_and_roles
from torchtraceap.trace.ranks import RankTrace
from torchtraceap.trace.recordings import read_recording

__all__ = ["Twin"]

_LEAST_ALIGNED = 0.9
"""Share of the kernels of a pass with graphs that have to align."""
_LEAST_USED = 0.75
"""Share of the kernels of the eager pass that have to: it may prepare more."""
_MOST_PASSES = 64
"""Different eager passes that are read, and as many that they are held against."""
_FEWEST_KERNELS = 8
"""Kernels of a pass through a model."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """One pass through a model; arrays have one entry per kernel, by launch."""

    events: Array
    """int64: index in `tree.gpu_rows`."""
    names: tuple[str, ...]
    """Canonical names."""
    kinds: tuple[str, ...]
    layer: Array
    """int64: counted from 0; -1 outside of layers."""
    phase: str | None

    @property
    def layers(self) -> int:
        return int(self.layer.max(initial=-1)) + 1

    @property
    def parts(self) -> dict[tuple[int, bool], Array]:
        """The kernels of each layer, and of what stands outside behind so many of them."""
        inside = self.layer >= 0
        behind = np.maximum.accumulate(self.layer) if len(self.layer) else self.layer
        number = np.where(inside, self.layer, behind)
        keys = sorted(set(zip(number.tolist(), inside.tolist(), strict=True)))
        return {key: np.flatnonzero((number == key[0]) & (inside == key[1])) for key in keys}


class Twin:
    """An eager run in a trace.

    Args:
        path: The trace.

    Raises:
        ParseError: It is no trace.
    """

    def __init__(self, path: Path) -> None:
        table = read_recording(str(path))
        self.part = RankTrace(table, table.rank)
        self._path = path
        passes: dict[tuple[str, ...], _Pass] = {}
        for each in _passes(self.part, None, ~graph_nodes(self.part).replayed):
            if len(passes) < _MOST_PASSES and len(each.names) >= _FEWEST_KERNELS:
                passes.setdefault(each.names, each)
        self._passes = list(passes.values())

    def align(self, part: RankTrace, layer: Array) -> Replays:
        """Align the passes of a rank with graphs.

        Args:
            part: The rank.
            layer: int64 `[gpu rows]`: the layer of each event, -1 outside.
        """
        nodes = graph_nodes(part)
        events = [np.zeros(0, dtype=np.int64)]
        rows = list(events)
        name = self._path.name
        refused: dict[str, None] = {}
        if not self._passes:
            refused[f"{name} is no twin: no iteration launches its kernels itself."] = None
        found: dict[tuple[str, ...], tuple[_Pass, Alignment]] = {}
        for each in _passes(part, layer, np.ones(len(layer), dtype=bool)):
            replayed = nodes.replayed[each.events]
            if not replayed.any() or not self._passes:
                continue
            if each.names not in found:
                if len(found) == _MOST_PASSES:
                    continue
                found[each.names] = self._best(each)
            eager, alignment = found[each.names]
            if alignment.fault:
                refused.setdefault(f"{name} is no twin: {alignment.fault}.")
                continue
            own = np.flatnonzero(replayed & (alignment.partner >= 0))
            events.append(each.events[own])
            chosen = eager.events[alignment.partner[own]]
            rows.append(self.part.tree.gpu_rows[chosen].astype(np.int64))
        both = np.concatenate(events)
        return Replays(
            events=both,
            part=np.zeros(len(both), dtype=np.int64),
            rows=np.concatenate(rows),
            parts=(self.part,),
            refused=tuple(refused),
        )

    def _best(self, graphed: _Pass) -> tuple[_Pass, Alignment]:
        """Return the eager pass that fits best: one that is not refused, of the same phase, with
        most equal names."""

        def rank(pair: tuple[_Pass, Alignment]) -> tuple[bool, bool, int]:
            eager, alignment = pair
            return not alignment.fault, eager.phase == graphed.phase, alignment.equal

        return max(((eager, _align(graphed, eager)) for eager in self._passes), key=rank)


def _passes(part: RankTrace, layer: Array | None, wanted: Array) -> list[_Pass]:
    """Return what each iteration of a rank launches.

    Args:
        part: The rank.
        layer: int64 `[gpu rows]`: the layer of each event; found by default.
        wanted: bool `[gpu rows]`: the events that count.
    """
    events, iterations = GpuEvents.of(part), served_iterations(part)
    codes, texts, kinds = events.canonical.codes, events.canonical.texts, kinds_of(events)
    passes = []
    for places, phase in zip(iterations.launched(part), iterations.phase, strict=True):
        own = places[wanted[places]]
        names = codes[own].astype(np.int64)
        found = layers_and_roles(names, kinds[own])[0] if layer is None else layer[own]
        counted = np.unique(found[found >= 0], return_inverse=True)[1]
        found = found.copy()
        found[found >= 0] = counted
        names_of = tuple(texts[code] for code in names.tolist())
        passes.append(_Pass(own, names_of, tuple(kinds[own].tolist()), found, phase))
    return passes


def _align(graphed: _Pass, eager: _Pass) -> Alignment:
    """Align two passes. See Note [Twin]."""
    partner = np.full(len(graphed.names), -1, dtype=np.int64)
    if graphed.layers != eager.layers and graphed.layers and eager.layers:
        has, other = pluralize(eager.layers, "layer"), pluralize(graphed.layers, "layer")
        return Alignment(partner, 0, f"it has {has}, the model in the graphs has {other}")
    if graphed.layers and eager.layers:
        of_eager = eager.parts
        pairs = [(own, of_eager[key]) for key, own in graphed.parts.items() if key in of_eager]
    else:
        pairs = [(np.arange(len(graphed.names)), np.arange(len(eager.names)))]
    codes: dict[str, int] = {}
    for own, others in pairs:
        found = _core.align_sequences(_keys(graphed, own, codes), _keys(eager, others, codes))
        aligned = np.flatnonzero(found != _core.NO_ROW)
        partner[own[aligned]] = others[found[aligned].astype(np.int64)]
    aligned = np.flatnonzero(partner >= 0)
    pairs_of_names = zip(aligned.tolist(), partner[aligned].tolist(), strict=True)
    equal = sum(graphed.names[one] == eager.names[other] for one, other in pairs_of_names)
    enough = len(aligned) >= _LEAST_ALIGNED * len(graphed.names)
    if enough and len(aligned) >= _LEAST_USED * len(eager.names):
        return Alignment(partner, equal, "")
    fault = (
        f"{len(aligned)} of {len(graphed.names)} kernels align with {len(eager.names)} of an eager "
        "pass"
    )
    if len(aligned) < len(graphed.names):
        fault += f"; the first that does not is {graphed.names[int(np.argmax(partner < 0))]}"
    return Alignment(partner, equal, fault)


def _keys(one: _Pass, places: Array, codes: dict[str, int]) -> Array:
    """Return uint64 `[n, 3]`: what `align_sequences` takes. What a name does not tell aligns with
    the same name only."""

    def code(text: str) -> int:
        return codes.setdefault(text, len(codes) + 1)

    rows = []
    for place in places.tolist():
        name, kind = one.names[place], one.kinds[place]
        alike = code(name if kind == "other" else f"a kind: {kind}")
        rows.append((code(name), alike, alike))
    return np.array(rows, dtype=np.uint64).reshape(-1, 3)
