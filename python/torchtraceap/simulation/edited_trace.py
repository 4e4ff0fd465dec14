"""`edited_trace`: a replay with edits back as a trace.

Note [Written times]: every event of the ranks gets the times of one schedule (`schedules.py`):
without an edit its own, with edits one whose step takes the predicted time, or a form that is asked
for. Summed up like any other trace, the written one has that step time. Host events stay on their
rank's clock; with an edit GPU events are put on it as well, where the two clocks disagree.

Note [Removed and new events]: the written trace lacks events that edits remove (`Change.remove`)
and events of which nothing is left: their time is 0 and was not. Events inside such a host range go
with it, instants too, and so do flow arrows from or to such an event. GPU work whose launch is gone
belongs to the call that launches it now: an event that the edits bring in (`Change.insert`), else
the last launch before that is left in the step.

Note [Marked steps]: unmarked steps are inferred from the repetition on the main thread, which an
edit may remove. So with an edit they are marked, as the profiler would have marked them, but for
the last, whose end is not known; not where a range of the thread reaches over their ends.

Note [Side streams]: an edit may let work overlap that one stream can't hold at once, such as a
collective that moves out of the way of computation. Of two pieces that did not overlap before,
the collective, else the later one, is written on a stream of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from torchtraceap import _core
from torchtraceap._core import EventKind, GpuClass
from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.formatting import format_ns, format_share
from torchtraceap.core.sums import distinct
from torchtraceap.core.writing import check_target, replacing, write_paths
from torchtraceap.errors import OptionError
from torchtraceap.simulation.edits.base import Change, EditedGraph
from torchtraceap.simulation.edits.view import RankView, ranges_of, views
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.simulation.schedules import MEASURED, Blend, RunningWork, Schedule, Schedules
from torchtraceap.tables.grouping import rows_by_key
from torchtraceap.tables.steps.iterations import step_time
from torchtraceap.trace.files import looks_like_trace_name
from torchtraceap.trace.ranks import Ranks, RankTrace, parse_recorded

__all__ = [
    "EditedTrace",
    "Form",
    "check_trace_target",
    "edited_ranks",
    "edited_trace",
    "event_text",
]

_ENDINGS = (".json", ".json.gz")
_NS_PER_US = 1_000
_CLOSE = 1e-4
"""Share of a step: so near to the prediction no other schedule is tried."""
_MOST_SCHEDULES = 4
_FAR_NS = 1 << 62
_WORTH_SAYING = 0.005
"""Share of a step by which it misses the prediction before the note says so."""


Form: TypeAlias = Literal["best", "cautious"]
"""Form of edits: as far as they may go, or as far as they are certain."""
_IN_WORDS = {"best": "at best", "cautious": "at least"}
_LIKELY = "as is likely"


class EditedTrace(Ranks):
    """The ranks of a run as they would have been recorded with edits; see Note [Written times].

    `torchtraceap.Trace(edited.ranks)` has every view of it.
    """

    def __init__(
        self, ranks: Iterable[RankTrace], *, form: Form | None, step_ns: float, note: str
    ) -> None:
        super().__init__(ranks)
        self.form: Form | None = form
        """The requested form of the edits; None: the prediction, or no edit."""
        self.step_ns = step_ns
        """An iteration of the written trace, ns: the mean of its steps."""
        self.note = note
        """A description of the written trace and its prediction, for a person."""

    def write_trace(self, path: PathLike) -> list[Path]:
        """Write a file of one rank, or a folder with a file for each of several.

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
    graph: EditedGraph | None,
    *,
    form: Form | None = None,
    predicted_ns: float = 0.0,
) -> EditedTrace:
    """Turn a run with edits back into a trace.

    Args:
        run: The whole trace as a graph.
        graph: The edits as one; None: the measured times.
        form: One of their two forms; None: between these, so that a step takes `predicted_ns`.
        predicted_ns: The predicted time of a step.
    """
    if graph is None:
        return _as_measured(run, "No edit")
    likely = [(change, _LIKELY) for change in graph.likely]
    forms = [(graph.best, _IN_WORDS["best"]), *likely, (graph.least, _IN_WORDS["cautious"])]
    written = forms if form is None else [each for each in forms if each[1] == _IN_WORDS[form]]
    if all(_changes_nothing(run, change, run.replay(change.delta())) for change, _ in written):
        return _as_measured(run, "The edits change nothing")
    schedules = Schedules(run)
    if form is not None:
        chosen = schedules.steady_schedule(*written[0])
        blend = Blend(chosen, chosen, chosen, 0.0)
        ranks, step_ns = _ranks_in_schedule(run, schedules, chosen)
    else:
        blend, ranks, step_ns = _trace_at_prediction(run, schedules, forms, predicted_ns)
    note = _note(blend, step_ns, None if form else predicted_ns)
    if any(part.tree.launch_delay_correction_ns for part in run.ranks):
        note += " GPU events are on the clock of the host."
    return EditedTrace(ranks, form=form, step_ns=step_ns, note=note)


def _as_measured(run: SimulatedRun, why: str) -> EditedTrace:
    return EditedTrace(
        edited_ranks(run, Change(), run.replay()),
        form=None,
        step_ns=float(run.mean_ns(run.measured_ns)),
        note=f"{why}: all times are those that were measured.",
    )


def _changes_nothing(run: SimulatedRun, change: Change, times_ns: Array) -> bool:
    """Return whether all events stay, at their times."""
    if change.inserted or any(len(change.removed(rank)) for rank in range(len(run.ranks))):
        return False
    return not change.delta().carries and np.array_equal(times_ns, run.graph.time_ns)


def _trace_at_prediction(
    run: SimulatedRun,
    schedules: Schedules,
    forms: Sequence[tuple[Change, str]],
    predicted_ns: float,
) -> tuple[Blend, list[RankTrace], float]:
    """Find the schedule with which a trace, read again, has the predicted step.

    A reader may take other steps for the warm-up, or other work for held up, than the run does.

    Returns:
        The schedule, its ranks, and their step, ns.
    """
    # Neighboring forms, those first that lie between likely ones. See Note [Between forms].
    steady = [schedules.steady_schedule(*each) for each in forms]
    recorded = [schedules.recorded_schedule(*each) for each in forms]
    ways: list[tuple[Schedule, Schedule]] = []
    for each in (steady, recorded):
        ways += sorted(pairwise(each), key=lambda pair: sum(_LIKELY not in s.words for s in pair))
    slowest = max(steady, key=schedules.step_ns)
    ways.append((slowest, schedules.measured_schedule(slowest.change)))
    tried: list[tuple[float, int, tuple[Blend, list[RankTrace], float]]] = []
    wanted_ns = predicted_ns
    for _ in range(_MOST_SCHEDULES):
        blend = schedules.find_blend(wanted_ns, ways)
        ranks, read_ns = _ranks_in_schedule(run, schedules, blend.schedule)
        tried.append((abs(read_ns - predicted_ns), len(tried), (blend, ranks, read_ns)))
        if tried[-1][0] <= max(1.0, _CLOSE * predicted_ns):
            break
        wanted_ns += predicted_ns - read_ns
    return min(tried)[2]


def _ranks_in_schedule(
    run: SimulatedRun, schedules: Schedules, schedule: Schedule
) -> tuple[list[RankTrace], float]:
    """Return the ranks in a schedule, and the time of a step of them, ns."""
    ranks = edited_ranks(run, schedule.change, schedule.times_ns, schedule.running)
    read = step_time([ranks[place] for place in run.places]) if run.per_step else None
    return ranks, schedules.step_ns(schedule) if read is None else float(read.measured_ns)


def _note(found: Blend, step_ns: float, predicted_ns: float | None) -> str:
    """Describe the schedule for a person."""
    takes = f"{format_ns(round(step_ns))} per step"
    beyond = "with what the measured run took beyond its dependencies"
    if found.one is found.other and found.one.words == MEASURED:
        note = f"Written at the measured times, as no saving is predicted: {takes}."
    elif found.one is found.other:
        note = f"Written {found.one.words}, {beyond}: {takes}."
    else:
        note = (
            f"Written between two replays {beyond}, {format_share(found.share)} of the way from "
            f"that {found.one.words} to that {found.other.words}: {takes}, as predicted."
        )
    if predicted_ns and abs(step_ns - predicted_ns) > _WORTH_SAYING * predicted_ns:
        note = note.removesuffix(", as predicted.").removesuffix(".")
        note += f"; no way between replays has the predicted {format_ns(round(predicted_ns))}."
    return note


def check_trace_target(path: PathLike, trace: Ranks) -> None:
    """Raise before the work begins if a trace of these ranks can't be written.

    Raises:
        OptionError: See `EditedTrace.write_trace`.
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


def edited_ranks(
    run: SimulatedRun, change: Change, replayed_ns: Array, running: RunningWork | None = None
) -> list[RankTrace]:
    """Return the ranks of the run's trace in a replay.

    Args:
        run: The whole trace as a graph.
        change: The edits; may be empty.
        replayed_ns: int64 `[points]`: the replay with them.
        running: Work of earlier steps that still runs when the first begins.
    """
    edited = list(run.trace.ranks)
    for view, place in zip(views(run), run.places, strict=True):
        rank = _EditedRank(run, view, change, replayed_ns)
        edited[place] = rank.rank(running.rank_work(view.index) if running else None)
    return edited


class _EditedRank:
    """One rank with the times of a replay."""

    def __init__(
        self, run: SimulatedRun, view: RankView, change: Change, replayed_ns: Array
    ) -> None:
        self._run, self._view, self._replayed_ns = run, view, replayed_ns
        self._table, self._tree = view.table, view.tree
        self._is_edited = not _changes_nothing(run, change, replayed_ns)
        self._removed = change.removed(view.index)
        self._inserted = [event for event in change.inserted if event.rank == view.index]
        # See Note [Written times].
        self._gpu_shift_ns = self._tree.launch_delay_correction_ns if self._is_edited else 0
        self._ts_ns, self._dur_ns = _core.row_times(
            run.graph, view.index, self._table, replayed_ns, gpu_shift_ns=self._gpu_shift_ns
        )
        self._correlation = self._table.correlation
        self._more: list[str] = []
        self._stream_of = self._table.stream.copy()
        """int64 `[rows]`: stream on which each GPU event is written."""

    def rank(self, running: tuple[Array, Array] | None = None) -> RankTrace:
        """Make the rank.

        Args:
            running: Rows of earlier steps that still run, and begins and ends `[2, rows]`.
        """
        kept = np.ones(len(self._table), dtype=bool)
        if self._is_edited:
            kept = ~self._removed_mask()
            self._add_new_events()
            self._relaunch(kept)
            gone = ~kept
            self._move_to_side_streams(kept)
            if running is not None and len(running[0]):
                self._add_earlier_work(*running, gone)
            # Arrows of rows in whose place a new event stands go to that.
            replaced = np.array([event.like for event in self._inserted], dtype=np.int64)
            known = kept.copy()
            known[replaced] = True
            known = _core.without_loose_flows(self._table, known).copy()
            known[replaced] = kept[replaced]
            kept = known
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

    # ------------------------------------------------------------------------- removed events

    def _removed_mask(self) -> Array:
        """Return a mask of removed rows, bool `[rows]`. See Note [Removed and new events]."""
        table = self._table
        gone = np.zeros(len(table), dtype=bool)
        gone[self._removed] = True
        gone |= table.complete & (table.dur_ns > 0) & (self._dur_ns == 0)
        inside = self._subtrees(np.flatnonzero(gone))
        gone[inside] |= (self._dur_ns[inside] == 0) | np.isin(
            inside, self._subtrees(self._removed), assume_unique=True
        )
        # Instants that lie within host rows that are gone.
        roots = np.flatnonzero(gone & (self._tree.host_position != _core.NO_ROW))
        instants = np.flatnonzero(table.kind == EventKind.INSTANT)
        for track in distinct(table.track[roots]).tolist():
            mine = roots[table.track[roots] == track]
            mine = self._view.outermost(mine[self._view.has_points[mine]])
            here = instants[table.track[instants] == track]
            begins, ends = table.ts_ns[mine], table.ts_ns[mine] + table.dur_ns[mine]
            place = np.searchsorted(begins, table.ts_ns[here], side="left") - 1
            held = place >= 0
            held[held] = table.ts_ns[here[held]] < ends[place[held]]
            gone[here[held]] = True
        return gone

    def _subtrees(self, rows: Array) -> Array:
        """Return the host rows inside these, themselves included, each once."""
        place = self._tree.host_position[rows].astype(np.int64)
        place = place[place != _core.NO_ROW]
        ends = self._tree.subtree_end[place].astype(np.int64)
        inside, _ = ranges_of(place, ends - place)
        return distinct(self._tree.host_rows[inside].astype(np.int64))

    # ------------------------------------------------------------------------- new events

    def _add_new_events(self) -> None:
        """Add the events that the edits bring in, with ids of their own if they launch GPU work."""
        for event in self._inserted:
            fields = self._fields_of(event.like)
            fields["name"] = event.name
            args = {**fields.get("args", {}), **event.args}
            if len(event.launches):
                args["correlation"] = self._new_correlation()
                self._set_correlation(event.launches, args["correlation"])
            if args:
                fields["args"] = args
            # The clock of the row that it looks like.
            graph_ns = int(self._run.graph.time_ns[self._view.begin_of[event.like]])
            ahead_ns = graph_ns - int(self._table.ts_ns[event.like])
            if self._tree.gpu_class[event.like] != GpuClass.NONE:
                ahead_ns -= self._gpu_shift_ns
            times_ns = self._replayed_ns[[event.begin, event.end]] - ahead_ns
            begin_ns, end_ns = times_ns.tolist()
            self._more.append(event_text(fields, begin_ns, max(0, end_ns - begin_ns)))

    def _fields_of(self, row: int) -> dict[str, Any]:
        """Return the fields of an event, without its times."""
        fields = parse_recorded(self._table.event_json(row), f"row {row}")
        fields.pop("ts", None)
        fields.pop("dur", None)
        fields["ph"] = "X"
        return fields

    def _new_correlation(self) -> int:
        known = self._correlation[self._correlation != _core.NO_ID]
        return int(known.max(initial=0)) + 1

    def _set_correlation(self, rows: Array | tuple[int, ...], correlation: int | Array) -> None:
        if not self._correlation.flags.writeable:
            self._correlation = self._correlation.copy()
        self._correlation[np.asarray(rows, dtype=np.int64)] = correlation

    def _relaunch(self, kept: Array) -> None:
        """Give GPU work whose launch is gone another. See Note [Removed and new events]."""
        table, tree = self._table, self._tree
        rows = self._view.gpu_rows[kept[self._view.gpu_rows]]
        calls = self._view.launch_of(rows)
        lost = (calls >= 0) & (table.correlation[rows] != _core.NO_ID)
        lost[lost] = ~kept[calls[lost]]
        lost &= self._correlation[rows] == table.correlation[rows]  # no new event launches it
        replaced = [event.like for event in self._inserted if not len(event.launches)]
        lost &= ~np.isin(calls, replaced)  # a new event has the correlation of its call
        rows, calls = rows[lost], calls[lost]
        left = distinct(self._view.launch_of(self._view.gpu_rows))
        left = left[left >= 0]
        left = left[kept[left] & (table.correlation[left] != _core.NO_ID)]
        times = self._run.graph.time_ns
        left = left[np.argsort(times[self._view.begin_of[left]], kind="stable")]
        begins = times[self._view.begin_of[left]]
        place = np.searchsorted(begins, times[self._view.begin_of[calls]]) - 1
        known = place >= 0
        known[known] = tree.step[left[place[known]]] == tree.step[calls[known]]
        self._set_correlation(rows[known], table.correlation[left[place[known]]])
        # A call that launches nothing any more has no id: with one it would look for a lost record.
        likes = np.array([event.like for event in self._inserted], dtype=np.int64)
        ids = np.concatenate((
            self._correlation[self._view.gpu_rows[kept[self._view.gpu_rows]]],
            table.correlation[likes],
        ))  # fmt: skip
        self._set_correlation(left[~np.isin(table.correlation[left], ids)], _core.NO_ID)

    def _mark_steps(self, kept: Array) -> None:
        """Mark unmarked steps. See Note [Marked steps]."""
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
        like = self._fields_of(int(rows[0])) if len(rows) else {}
        place: dict[str, Any] = {key: like[key] for key in ("pid", "tid") if key in like}
        for name, start_ns, dur_ns in marks:
            fields = {"ph": "X", "cat": "user_annotation", "name": name, **place}
            self._more.append(event_text(fields, start_ns, dur_ns))

    # ------------------------------------------------------------------------- side streams

    def _move_to_side_streams(self, kept: Array) -> None:
        """Move work that one stream can't hold at once. See Note [Side streams]."""
        streams = self._tree.stream_of
        rows = self._view.gpu_rows[kept[self._view.gpu_rows]]
        largest_tid = max((track.tid_number or 0 for track in self._table.tracks), default=0)
        free = int(max(self._table.stream.max(initial=0), largest_tid)) + 1
        for _, places in sorted(rows_by_key(streams[rows]), key=itemgetter(0)):
            moved = self._overlapping_events(rows[places])
            lanes: list[int] = []
            for row in moved.tolist():
                begin_ns = int(self._ts_ns[row])
                lane = next((i for i, end in enumerate(lanes) if end <= begin_ns), len(lanes))
                if lane == len(lanes):
                    lanes.append(0)
                    fields = self._fields_of(row)
                    name = f"stream {free + lane} (next to stream {fields['tid']})"
                    metadata = {"ph": "M", "name": "thread_name", "pid": fields["pid"]}
                    args = {"tid": free + lane, "args": {"name": name}}
                    self._more.append(json.dumps(metadata | args))
                lanes[lane] = begin_ns + int(self._dur_ns[row])
                self._stream_of[row] = free + lane
                self._more.append(self._on_stream(row, begin_ns, int(self._dur_ns[row])))
            kept[moved] = False
            free += len(lanes)

    def _overlapping_events(self, rows: Array) -> Array:
        """Return the events of a stream that have to move, by their begin."""
        begin, old_begin = self._ts_ns, self._table.ts_ns
        gpu_class, old_dur = self._tree.gpu_class, self._table.dur_ns
        moved = [np.zeros(0, dtype=np.int64)]
        while len(rows):
            rows = rows[np.lexsort([rows, begin[rows]])]
            ends = begin[rows] + self._dur_ns[rows]
            latest = np.maximum.accumulate(ends)
            # The event that ends last of all before, for each but the first.
            is_latest = np.append(True, latest[1:] > latest[:-1])
            place = np.maximum.accumulate(np.where(is_latest, np.arange(len(rows)), 0))[:-1]
            holder, later = rows[place], rows[1:]
            overlaps = begin[later] < ends[place]
            overlaps &= (old_begin[later] >= old_begin[holder] + old_dur[holder]) | (
                old_begin[holder] >= old_begin[later] + old_dur[later]
            )
            if not overlaps.any():
                break
            later, holder = later[overlaps], holder[overlaps]
            first_goes = gpu_class[holder] == GpuClass.COMMUNICATION
            first_goes &= gpu_class[later] != GpuClass.COMMUNICATION
            goes = np.where(first_goes, holder, later)
            moved.append(distinct(goes))
            rows = np.setdiff1d(rows, goes)
        found = np.concatenate(moved)
        return found[np.argsort(begin[found], kind="stable")]

    def _on_stream(
        self, row: int, begin_ns: int, dur_ns: int, correlation: int | None = None
    ) -> str:
        """Write a GPU event on its new stream, with `correlation` as one that nothing launches."""
        fields = self._fields_of(row)
        args = dict(fields.get("args", {}))
        if self._stream_of[row] != self._table.stream[row]:
            fields["tid"] = args["stream"] = int(self._stream_of[row])
        if correlation is not None:
            args = {key: value for key, value in args.items() if key.lower() != "external id"}
            args["correlation"] = correlation
        elif self._correlation[row] != _core.NO_ID:
            args["correlation"] = int(self._correlation[row])
        fields["args"] = args
        return event_text(fields, begin_ns, dur_ns)

    # ------------------------------------------------------------------------- earlier steps

    def _add_earlier_work(self, rows: Array, times_ns: Array, gone: Array) -> None:
        """Add work of earlier steps that still runs, one event after the other on each stream,
        between the events before the steps and those in them. See Note [Written steps]."""
        left = ~gone[rows]
        rows, times_ns = rows[left], times_ns[:, left]
        like = self._view.begin_of[rows]
        ahead_ns = self._run.graph.time_ns[like] - self._table.ts_ns[rows] - self._gpu_shift_ns
        begins, ends = times_ns - ahead_ns
        correlation = self._new_correlation()
        for track in np.unique(self._written_on(rows), axis=1).T:
            mine = np.flatnonzero((self._written_on(rows) == track[:, None]).all(axis=0))
            mine = mine[np.argsort(begins[mine], kind="stable")]
            # The time between work launched before the first step and work launched in the steps.
            others = self._view.gpu_rows[~gone[self._view.gpu_rows]]
            others = others[(self._written_on(others) == track[:, None]).all(axis=0)]
            inside = self._run.step_of_point[self._view.begin_of[others]] != _core.NO_ROW
            before = others[np.cumsum(inside) == 0]
            free_ns = int((self._ts_ns + self._dur_ns)[before].max(initial=-_FAR_NS))
            taken_ns = int(self._ts_ns[others[inside]].min(initial=_FAR_NS))
            for row, begin_ns, end_ns in zip(
                rows[mine].tolist(), begins[mine].tolist(), ends[mine].tolist(), strict=True
            ):
                begin_ns, end_ns = max(begin_ns, free_ns), min(end_ns, taken_ns)
                if begin_ns < end_ns:
                    text = self._on_stream(row, begin_ns, end_ns - begin_ns, correlation)
                    self._more.append(text)
                    free_ns, correlation = end_ns, correlation + 1

    def _written_on(self, rows: Array) -> Array:
        """Return track and stream, int64 `[2, rows]`; a new stream has the track of another."""
        return np.stack([self._table.track[rows].astype(np.int64), self._stream_of[rows]])


def event_text(fields: Mapping[str, Any], ts_ns: int, dur_ns: int | None) -> str:
    """Write an event as JSON, with times in microseconds to the nanosecond.

    Args:
        fields: All fields; the places of `ts` and `dur` are kept, they stand first without one.
        ts_ns: Its start.
        dur_ns: Its duration; None for an arrow.
    """
    times = {"ts": _in_us(ts_ns)}
    if dur_ns is not None:
        times["dur"] = _in_us(dur_ns)
    placed = {**times, **fields} if "ts" not in fields else {**fields, **times}
    members = (
        f"{json.dumps(key)}: {times[key] if key in times else json.dumps(value)}"
        for key, value in placed.items()
        if key in times or key != "dur"
    )
    return f"{{{', '.join(members)}}}"


def _in_us(ns: int) -> str:
    whole, rest = divmod(abs(ns), _NS_PER_US)
    return f"{'-' if ns < 0 else ''}{whole}.{rest:03d}"
