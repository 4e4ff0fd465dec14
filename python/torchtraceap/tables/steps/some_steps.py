"""`ranks_in_steps`: some steps of a trace as a trace of its own.

Note [Work of steps]: launches are asynchronous, so while the host runs a step the GPU may still do
the work of the step before. The part holds what lies in the ranges of its steps on the host and the
GPU work that was launched there, however late it runs. Its time is that of their iterations (Note
[Iteration] in iterations.py), of which the first, as in any trace, begins with its range or where
the work of the step before ends; time in which only other steps' work runs is neither busy nor
idle. So the GPU is busy in it when it is in the whole trace, and idle of the same causes. What the
tree says of an event (phase, warm-up, launch) is as in the whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array, Steps
from torchtraceap.core.intervals import difference, union
from torchtraceap.core.results import Diagnostic
from torchtraceap.errors import OptionError
from torchtraceap.tables.serving.iterations import cut_rank, gpu_spans, served_iterations
from torchtraceap.tables.steps.iterations import is_served, iterations_of
from torchtraceap.trace.ranks import RankTrace

__all__ = ["ranks_in_steps"]

_RANGE = re.compile(r"(-?\d*):(-?\d*)")
_PLACE = re.compile(r"-?\d+")


def ranks_in_steps(
    ranks: Sequence[RankTrace], steps: Steps
) -> tuple[list[RankTrace], list[Diagnostic]]:
    """Return each rank with some of its steps alone, and a note that says which. See Note [Work of
    steps].

    Args:
        ranks: The ranks. Steps are counted in the first; the others have those of equal names.
        steps: Which, as `torchtraceap.load` takes them.

    Raises:
        OptionError: There is no such step, a rank lacks it, or none is chosen.
    """
    names = [step.name for step in ranks[0].tree.steps]
    places = _places(steps, names, ranks[0].path)
    chosen = [names[place] for place in places]
    cut = [_rank_in_steps(part, _places_in(part, names, places)) for part in ranks]
    which = chosen[0] if len(set(chosen)) == 1 else f"{chosen[0]} to {chosen[-1]}"
    holes = "" if places[-1] - places[0] < len(places) else ", with gaps"
    message = f"{len(places)} of {len(names)} steps were read ({which}{holes})"
    return cut, [Diagnostic("some_steps", len(places), None, message)]


# ---------------------------------------------------------------------------------- which steps


def _places(steps: Steps, names: Sequence[str], path: str) -> list[int]:
    """Return the places of the chosen steps, ascending."""
    if not names:
        raise OptionError(f"{path}: no step is marked or repeats, so that none can be chosen")
    try:
        found = sorted({place for one in _parts(steps, names) for place in _those(one, names)})
    except LookupError as error:
        known = f"0 ({names[0]})" + (f" to {len(names) - 1} ({names[-1]})" if names[1:] else "")
        raise OptionError(f"{path}: {error.args[0]}; there are: {known}") from None
    if not found:
        raise OptionError(f"{path}: {steps!r} chooses none of its {len(names)} steps")
    return found


def _parts(steps: Steps, names: Sequence[str]) -> Iterable[int | str | slice]:
    if isinstance(steps, (int, slice)) or (isinstance(steps, str) and steps in names):
        return [steps]
    if isinstance(steps, str):
        return [part.strip() for part in steps.split(",") if part.strip()]
    return steps


def _those(one: int | str | slice, names: Sequence[str]) -> Iterable[int]:
    """Return the places of one step or of a range of them.

    Raises:
        LookupError: There is no such step.
    """
    if isinstance(one, str) and one not in names:
        if found := _RANGE.fullmatch(one):
            one = slice(*(int(end) if end else None for end in found.groups()))
        elif _PLACE.fullmatch(one):
            one = int(one)
        else:
            raise LookupError(f"it has no step {one!r}")
    if isinstance(one, str):
        return [place for place, name in enumerate(names) if name == one]
    if isinstance(one, slice):
        for end, most in ((one.start, len(names) - 1), (one.stop, len(names))):
            if end is not None and not -len(names) <= end <= most:
                last = end if end < 0 or most < len(names) else end - 1
                raise LookupError(f"it has no step {last}")
        return range(*one.indices(len(names)))
    if not -len(names) <= one < len(names):
        raise LookupError(f"it has no step {one}")
    return [one % len(names)]


def _places_in(part: RankTrace, names: Sequence[str], places: Sequence[int]) -> Array:
    """Return the places of those steps in a rank, int64: its own of the same names, if it has
    others than the first rank."""
    own = [step.name for step in part.tree.steps]
    if own == names:
        return np.array(places, dtype=np.int64)
    wanted = [names[place] for place in places]
    lacking = next((name for name in wanted if name not in own), None)
    if lacking is not None:
        rank = f"rank {part.rank}" if part.rank is not None else part.path
        raise OptionError(f"{rank} has no step {lacking!r}, which the first rank has")
    return np.flatnonzero(np.isin(own, wanted))


# ---------------------------------------------------------------------------------- the part


def _rank_in_steps(part: RankTrace, places: Array) -> RankTrace:
    tree, iterations = part.tree, iterations_of(part)
    ranges = np.array([(step.start_ns, step.end_ns) for step in tree.steps], dtype=np.int64)
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)  # steps without a gap
    windows = np.array([(ranges[run[0], 0], ranges[run[-1], 1]) for run in runs])
    end_ns = iterations.end_ns[places]
    begin_ns = end_ns - iterations.length_ns[places]
    first = np.concatenate([[True], np.diff(places) > 1])  # of a run
    begin_ns[first] = np.clip(begin_ns[first], windows[:, 0], end_ns[first])
    lengths_ns = end_ns - begin_ns
    if places[0] == 0:  # no step before: what the whole says of its start holds
        begin_ns[0] = windows[0, 0]
    work = np.stack([begin_ns, end_ns], axis=1) - tree.launch_delay_correction_ns
    profiled = int(windows[0, 0]), int(max(windows[-1, 1], work[-1, 1]))
    spans, kept = gpu_spans(part), _launched_within(part, windows)
    other = difference(union([spans[~kept]]), union([spans[kept]]))
    judged = difference(union([work, spans[kept]]), other)
    inside = None
    if is_served(part):
        served = served_iterations(part)
        inside = _lies_in(windows, served.start_ns, served.end_ns)
    return cut_rank(
        part, windows, judged, profiled=profiled, lengths_ns=lengths_ns, iterations=inside
    )


def _launched_within(part: RankTrace, windows: Array) -> Array:
    """Return which of `tree.gpu_rows` have their launch, or where there is none their start, in
    one of the windows, bool."""
    table, tree = part.table, part.tree
    rows = tree.gpu_rows
    calls = tree.launch[rows]
    alone = calls == _core.NO_ROW
    at = np.where(alone, 0, calls)
    start_ns = table.ts_ns[at]
    start_ns[alone] = table.ts_ns[rows[alone]] + tree.launch_delay_correction_ns
    length_ns = table.dur_ns[at]
    length_ns[alone] = 1
    return _lies_in(windows, start_ns, start_ns + length_ns)


def _lies_in(windows: Array, start_ns: Array, end_ns: Array) -> Array:
    """Return which ranges lie in one of the windows, bool."""
    place = np.searchsorted(windows[:, 0], start_ns, side="right") - 1
    inside: Array = (place >= 0) & (end_ns <= windows[np.maximum(place, 0), 1])
    return inside
