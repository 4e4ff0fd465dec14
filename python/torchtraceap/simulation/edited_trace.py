"""`edited_trace`: a replay with edits back as a trace.

Note [Written times]: every event of the ranks gets the times of one replay, with what the measured
run took beyond its dependencies: without an edit those are its own times. Where an edit has two
forms one of them is written. Host events stay on their rank's clock; with an edit GPU events are
put on it as well, where the two clocks disagree.

Note [What is gone, what is new]: left out are events that the edits take out
(`Change.remove`) and events of which nothing is left: their time is 0 and was not. What lies inside
such a host range goes with it, instants too, and so do flow arrows from or to such an event. GPU
work whose launch is gone belongs to the call that launches it now: an event that the edits bring in
(`Change.insert`), else the last launch before that is left in the step.

Note [Marked steps]: steps that nothing marks are told by what the main thread repeats, which an
edit may take out. So with an edit they are marked, as the profiler would have marked them, but for
the last, whose end is not known; not where a range of the thread reaches over their ends.

Note [Side streams]: an edit may let work overlap that one stream can't hold at once, such as a
collective that moves out of the way of computation. Of two pieces that did not overlap before,
the collective, else the later one, is written on a stream of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from torchtraceap import _core
from torchtraceap._core import EventKind, GpuClass
from torchtraceap.aliases import Array, PathLike
from torchtraceap.errors import OptionError
from torchtraceap.files import looks_like_trace_name
from torchtraceap.ranks import Ranks, RankTrace
from torchtraceap.simulation.edits.base import Change, EditedGraph, NewEvent, joined
from torchtraceap.simulation.edits.view import RankView, ranges_of, views
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.units import format_ns
from torchtraceap.writing import check_target, replacing, write_paths

__all__ = ["EditedTrace", "Form", "check_trace_target", "edited_ranks", "edited_trace"]

_ENDINGS = (".json", ".json.gz")
_NS_PER_US = 1_000


Form: TypeAlias = Literal["best", "cautious"]
"""Of an edit: as far as it may go, or as far as it is certain."""
_FORMS: tuple[Form, ...] = ("best", "cautious")
_IN_WORDS = {"best": "at best", "cautious": "at least"}


class EditedTrace(Ranks):
    """The ranks of a run as they would have been recorded with edits; see Note [Written times].

    `torchtraceap.Trace(edited.ranks)` has every view of it.
    """

    def __init__(
        self, ranks: Iterable[RankTrace], *, form: Form | None, step_ns: float, note: str
    ) -> None:
        super().__init__(ranks)
        self.form: Form | None = form
        """Which form of the edits this is; None: there are none."""
        self.step_ns = step_ns
        """An iteration in the replay that was written, ns: the mean of its steps."""
        self.note = note
        """For a person: what was written, and what it predicts."""

    def write_trace(self, path: PathLike) -> list[Path]:
        """Writes a file of one rank, or a folder with a file for each of several.

        Args:
            path: Ends in `.json` or `.json.gz`; of several ranks a folder, which is made if there
                is none.

        Returns:
            The files.

        Raises:
            OptionError: Another ending; a file that was read; or a folder that holds other traces,
                which would count as further ranks.
            OutputError: It can't be written.
        """
        check_trace_target(path, self)
        inputs = [rank.path for rank in self.ranks]
        if len(self.ranks) == 1:
            with replacing(path, inputs=inputs) as staged:
                _core.write_trace(self.ranks[0].table, staged)
            return [Path(path)]
        writers = (partial(_core.write_trace, rank.table) for rank in self.ranks)
        return write_paths(path, zip(_file_names(self), writers, strict=True), inputs=inputs)


def edited_trace(
    run: SimulatedRun,
    graphs: Sequence[EditedGraph],
    *,
    form: Form | None = None,
    near_ns: float = 0.0,
) -> EditedTrace:
    """A run with edits, all at once, back as a trace.

    Args:
        run: The whole trace as a graph.
        graphs: The edits; none gives the measured times.
        form: Which of their two forms; None: the one whose step is nearer to `near_ns`.
        near_ns: What is predicted for a step.
    """
    if not graphs:
        change, delta = Change(), None
        note = "No edit: all times are those that were measured."
        return EditedTrace(
            edited_ranks(run, change, run.replay(delta)),
            form=None,
            step_ns=run.recorded_ns(delta),
            note=note,
        )
    changes = {known: _joined_form(run, graphs, known) for known in _FORMS}
    steps_ns = {known: run.recorded_ns(change.delta()) for known, change in changes.items()}
    nearer = min(_FORMS, key=lambda known: abs(steps_ns[known] - near_ns))
    written = nearer if form is None else form
    change = changes[written]
    note = (
        f"Written as the edits turn out {_IN_WORDS[written]}, with what the measured run took "
        f"beyond its dependencies: {format_ns(round(steps_ns[written]))} per step."
    )
    shifts = [part.tree.launch_delay_correction_ns for part in run.ranks]
    if any(shifts) and len(change):
        note += " GPU events are on the clock of the host."
    return EditedTrace(
        edited_ranks(run, change, run.replay(change.delta())),
        form=written,
        step_ns=steps_ns[written],
        note=note,
    )


def _joined_form(run: SimulatedRun, graphs: Sequence[EditedGraph], form: Form) -> Change:
    if form == "best":
        return joined(run, [graph.best for graph in graphs])
    return joined(
        run, [graph.best if graph.cautious is None else graph.cautious for graph in graphs]
    )


def check_trace_target(path: PathLike, trace: Ranks) -> None:
    """Says before the work begins what would keep a trace of these ranks from being written.

    Raises:
        OptionError: As `EditedTrace.write_trace`.
        OutputError: The same.
    """
    target = Path(path)
    inputs = [rank.path for rank in trace.ranks]
    is_file_name = target.name.lower().endswith(_ENDINGS)
    if len(trace.ranks) == 1:
        if not is_file_name:
            raise OptionError(f"{target}: the name must end in .json or .json.gz")
        check_target(target, inputs)
        return
    if is_file_name:
        raise OptionError(f"{target}: {len(trace.ranks)} ranks are written as a folder of files")
    names = _file_names(trace)
    if target.is_dir():
        traces = (entry.name for entry in target.iterdir() if looks_like_trace_name(entry))
        others = sorted(set(traces).difference(names))
        if others:
            raise OptionError(
                f"{target}: {others[0]} in it would count as one more rank; a new or empty folder "
                "is needed"
            )
        for name in names:
            check_target(target / name, inputs)


def _file_names(trace: Ranks) -> list[str]:
    numbers = [part.rank for part in trace.ranks]
    if len(set(numbers)) < len(numbers) or None in numbers:
        numbers = list(range(len(numbers)))
    return [f"rank{number}.json.gz" for number in numbers]


# ------------------------------------------------------------------------- times


def edited_ranks(run: SimulatedRun, change: Change, replayed_ns: Array) -> list[RankTrace]:
    """The ranks of the run's trace in a replay.

    Args:
        run: The whole trace as a graph.
        change: What the edits do; nothing where it is empty.
        replayed_ns: int64 `[points]`: the replay with it.
    """
    edited = list(run.trace.ranks)
    for view, place in zip(views(run), run.places, strict=True):
        edited[place] = _EditedRank(run, view, change, replayed_ns).rank()
    return edited


class _EditedRank:
    """One rank with the times of a replay."""

    def __init__(
        self, run: SimulatedRun, view: RankView, change: Change, replayed_ns: Array
    ) -> None:
        self._run, self._view, self._replayed_ns = run, view, replayed_ns
        self._table, self._tree = view.table, view.tree
        self._is_edited = bool(len(change)) or bool(change.inserted)
        self._removed = change.removed(view.index)
        self._inserted = [event for event in change.inserted if event.rank == view.index]
        # See Note [Written times].
        self._gpu_shift_ns = self._tree.launch_delay_correction_ns if self._is_edited else 0
        self._ts_ns, self._dur_ns = _core.row_times(
            run.graph, view.index, self._table, replayed_ns, gpu_shift_ns=self._gpu_shift_ns
        )
        self._correlation = self._table.correlation
        self._more: list[str] = []

    def rank(self) -> RankTrace:
        kept = np.ones(len(self._table), dtype=bool)
        if self._is_edited:
            kept = self._kept()
            self._insert(kept)
            self._relaunch(kept)
            self._separate(kept)
            kept = self._without_loose_flows(kept)
            self._mark_steps(kept)
        table = _core.edit_table(
            self._table,
            ts_ns=self._ts_ns,
            dur_ns=self._dur_ns,
            kept=kept,
            correlation=self._correlation,
            more_events=self._more,
        )
        return RankTrace(table, self._view.part.rank)

    # ------------------------------------------------------------------------- what is gone

    def _kept(self) -> Array:
        """bool `[rows]`. See Note [What is gone, what is new]."""
        gone = np.zeros(len(self._table), dtype=bool)
        gone[self._removed] = True
        gone |= self._table.complete & (self._table.dur_ns > 0) & (self._dur_ns == 0)
        inside = self._subtrees(np.flatnonzero(gone))
        gone[inside] |= (self._dur_ns[inside] == 0) | np.isin(
            inside, self._subtrees(self._removed), assume_unique=True
        )
        gone[self._instants_in(gone)] = True
        return ~gone

    def _subtrees(self, rows: Array) -> Array:
        """Host rows inside these, themselves included, each once."""
        place = self._tree.host_position[rows].astype(np.int64)
        place = place[place != _core.NO_ROW]
        ends = self._tree.subtree_end[place].astype(np.int64)
        inside, _ = ranges_of(place, ends - place)
        return np.unique(self._tree.host_rows[inside].astype(np.int64))

    def _instants_in(self, gone: Array) -> Array:
        """Instants that lie within host rows that are gone."""
        table = self._table
        roots = np.flatnonzero(gone & (self._tree.host_position != _core.NO_ROW))
        instants = np.flatnonzero(table.kind == EventKind.INSTANT)
        found = []
        for track in np.unique(table.track[roots]).tolist():
            mine = roots[table.track[roots] == track]
            mine = self._view.outermost(mine[self._view.has_points[mine]])
            here = instants[table.track[instants] == track]
            begins, ends = table.ts_ns[mine], table.ts_ns[mine] + table.dur_ns[mine]
            place = np.searchsorted(begins, table.ts_ns[here], side="left") - 1
            found.append(here[(place >= 0) & (table.ts_ns[here] < ends[np.maximum(place, 0)])])
        return np.concatenate([np.zeros(0, dtype=np.int64), *found])

    def _without_loose_flows(self, kept: Array) -> Array:
        """Arrows of rows in whose place a new event stands go to that."""
        replaced = np.array([event.like for event in self._inserted], dtype=np.int64)
        known = kept.copy()
        known[replaced] = True
        found = _core.without_loose_flows(self._table, known).copy()
        found[replaced] = kept[replaced]
        return found

    # ------------------------------------------------------------------------- what is new

    def _insert(self, kept: Array) -> None:
        """Events that the edits bring in, with ids of their own where they launch GPU work."""
        for event in self._inserted:
            fields = self._fields_of(event.like)
            fields["name"] = event.name
            args = {**fields.get("args", {}), **event.args}
            if len(event.launches):
                args["correlation"] = self._new_correlation()
                self._set_correlation(event.launches, args["correlation"])
            if args:
                fields["args"] = args
            begin_ns, end_ns = self._times_of(event)
            self._more.append(_event_text(fields, begin_ns, max(0, end_ns - begin_ns)))

    def _fields_of(self, row: int) -> dict[str, Any]:
        """What an event says, without its times."""
        fields: dict[str, Any] = json.loads(self._table.event_json(row))
        fields.pop("ts", None)
        fields.pop("dur", None)
        fields["ph"] = "X"
        return fields

    def _times_of(self, event: NewEvent) -> tuple[int, int]:
        """On the clock of the row that it looks like, ns."""
        like = event.like
        ahead_ns = int(self._run.graph.time_ns[self._view.begin_of[like]] - self._table.ts_ns[like])
        if self._tree.gpu_class[like] != GpuClass.NONE:
            ahead_ns -= self._gpu_shift_ns
        begin_ns, end_ns = self._replayed_ns[[event.begin, event.end]].tolist()
        return begin_ns - ahead_ns, end_ns - ahead_ns

    def _new_correlation(self) -> int:
        known = self._correlation[self._correlation != _core.NO_ID]
        return int(known.max(initial=0)) + 1

    def _set_correlation(self, rows: Array | tuple[int, ...], correlation: int | Array) -> None:
        if not self._correlation.flags.writeable:
            self._correlation = self._correlation.copy()
        self._correlation[np.asarray(rows, dtype=np.int64)] = correlation

    def _relaunch(self, kept: Array) -> None:
        """GPU work whose launch is gone gets another. See Note [What is gone, what is new]."""
        table, tree = self._table, self._tree
        rows = self._view.gpu_rows[kept[self._view.gpu_rows]]
        calls = self._view.launch_of(rows)
        lost = (calls >= 0) & (table.correlation[rows] != _core.NO_ID)
        lost[lost] = ~kept[calls[lost]]
        lost &= self._correlation[rows] == table.correlation[rows]  # no new event launches it
        replaced = [event.like for event in self._inserted if not len(event.launches)]
        lost &= ~np.isin(calls, replaced)  # a new event has the correlation of its call
        rows, calls = rows[lost], calls[lost]
        left = np.unique(self._view.launch_of(self._view.gpu_rows))
        left = left[left >= 0]
        left = left[kept[left] & (table.correlation[left] != _core.NO_ID)]
        times = self._run.graph.time_ns
        left = left[np.argsort(times[self._view.begin_of[left]], kind="stable")]
        begins = times[self._view.begin_of[left]]
        place = np.searchsorted(begins, times[self._view.begin_of[calls]]) - 1
        known = place >= 0
        known[known] = tree.step[left[place[known]]] == tree.step[calls[known]]
        self._set_correlation(rows[known], table.correlation[left[place[known]]])

    def _mark_steps(self, kept: Array) -> None:
        """Steps that nothing marks are marked. See Note [Marked steps]."""
        steps = self._run.steps_by_rank[self._view.index]
        if not self._tree.steps_inferred or len(steps) < 2:
            return
        track = self._tree.main_track
        rows = self._tree.host_rows[self._table.track[self._tree.host_rows] == track]
        rows = rows[kept[rows]].astype(np.int64)
        begins, ends = self._ts_ns[rows], self._ts_ns[rows] + self._dur_ns[rows]
        marks = []
        for number, step in enumerate(steps[:-1]):
            bounds = self._replayed_ns[[step.begin, step.end]]
            start_ns, end_ns = (bounds - self._run.offsets_ns[self._view.index]).tolist()
            starts_before = (begins < start_ns) & (ends > start_ns) & (ends < end_ns)
            ends_behind = (begins > start_ns) & (begins < end_ns) & (ends > end_ns)
            if (starts_before | ends_behind).any() or start_ns >= end_ns:
                return
            marks.append((f"ProfilerStep#{number}", start_ns, end_ns - start_ns))
        like = json.loads(self._table.event_json(int(rows[0]))) if len(rows) else {}
        place = {key: like[key] for key in ("pid", "tid") if key in like}
        for name, start_ns, dur_ns in marks:
            fields = {"ph": "X", "cat": "user_annotation", "name": name, **place}
            self._more.append(_event_text(fields, start_ns, dur_ns))

    # ------------------------------------------------------------------------- side streams

    def _separate(self, kept: Array) -> None:
        """Work that one stream can't hold at once. See Note [Side streams]."""
        streams = self._tree.stream_of
        rows = self._view.gpu_rows[kept[self._view.gpu_rows]]
        free = int(max(self._table.stream.max(initial=0), _largest_tid(self._table))) + 1
        for stream in np.unique(streams[rows]).tolist():
            moved = self._that_overlap(rows[streams[rows] == stream])
            lanes: list[int] = []
            for row in moved.tolist():
                begin_ns = int(self._ts_ns[row])
                lane = next((i for i, end in enumerate(lanes) if end <= begin_ns), len(lanes))
                if lane == len(lanes):
                    lanes.append(0)
                    self._more.append(self._name_of(row, free + lane))
                lanes[lane] = begin_ns + int(self._dur_ns[row])
                self._more.append(self._on_stream(row, free + lane))
            kept[moved] = False
            free += len(lanes)

    def _that_overlap(self, rows: Array) -> Array:
        """Of the events of a stream those that have to go, by their begin."""
        begin, end = self._ts_ns, self._ts_ns + self._dur_ns
        old_begin, old_end = self._table.ts_ns, self._table.ts_ns + self._table.dur_ns
        is_communication = self._tree.gpu_class == GpuClass.COMMUNICATION
        moved = [np.zeros(0, dtype=np.int64)]
        while len(rows):
            rows = rows[np.lexsort([rows, begin[rows]])]
            latest = np.maximum.accumulate(end[rows])
            # The event that ends last of all before, for each but the first.
            is_latest = np.append(True, latest[1:] > latest[:-1])
            holder = rows[np.maximum.accumulate(np.where(is_latest, np.arange(len(rows)), 0))][:-1]
            later = rows[1:]
            overlaps = begin[later] < end[holder]
            overlaps &= (old_begin[later] >= old_end[holder]) | (
                old_begin[holder] >= old_end[later]
            )
            if not overlaps.any():
                break
            later, holder = later[overlaps], holder[overlaps]
            goes = np.where(is_communication[holder] & ~is_communication[later], holder, later)
            moved.append(np.unique(goes))
            rows = np.setdiff1d(rows, goes)
        found = np.concatenate(moved)
        return found[np.argsort(begin[found], kind="stable")]

    def _on_stream(self, row: int, stream: int) -> str:
        fields = self._fields_of(row)
        fields["tid"] = stream
        args = {**fields.get("args", {}), "stream": stream}
        if self._correlation[row] != _core.NO_ID:
            args["correlation"] = int(self._correlation[row])
        fields["args"] = args
        return _event_text(fields, int(self._ts_ns[row]), int(self._dur_ns[row]))

    def _name_of(self, row: int, stream: int) -> str:
        fields = self._fields_of(row)
        name = f"stream {stream} (beside stream {fields['tid']})"
        metadata = {"ph": "M", "name": "thread_name", "pid": fields["pid"], "tid": stream}
        return json.dumps({**metadata, "args": {"name": name}})


def _largest_tid(table: _core.EventTable) -> int:
    return max((track.tid_number or 0 for track in table.tracks), default=0)


def _event_text(fields: dict[str, Any], ts_ns: int, dur_ns: int) -> str:
    """JSON, with times in microseconds to the nanosecond."""
    times = f'"ts": {_in_us(ts_ns)}, "dur": {_in_us(dur_ns)}'
    return f"{{{times}, {json.dumps(fields)[1:]}"


def _in_us(ns: int) -> str:
    whole, rest = divmod(abs(ns), _NS_PER_US)
    return f"{'-' if ns < 0 else ''}{whole}.{rest:03d}"
