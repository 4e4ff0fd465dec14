"""Results of tools: tables and results of a trace as small JSON objects.

The numbers are those of the tables, as quantities (`numbers`). Whatever names things in a trace
may hold anything, also words meant for the model that reads them: names are cleaned and cut, and
stand in results as data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.columns import TextCodes
from torchtraceap.core.formatting import plain_line
from torchtraceap.core.knowledge import load_knowledge
from torchtraceap.core.sums import percentile_rank
from torchtraceap.core.table import ColumnTable
from torchtraceap.diagnosis.diagnose import build_diagnosis
from torchtraceap.diagnosis.result import Diagnosis
from torchtraceap.errors import OptionError
from torchtraceap.explanation.numbers import (
    CALLER_CHOICE,
    Own,
    share_quantity,
    size_quantity,
    time_quantity,
    to_quantities,
)
from torchtraceap.simulation.edits.base import make_edit
from torchtraceap.simulation.simulate import simulate as simulated
from torchtraceap.tables.catalog import table_spec
from torchtraceap.tables.compare.diff import build_diff
from torchtraceap.tables.gpu.gpu_events import GpuEvents
from torchtraceap.tables.grouping import Groups
from torchtraceap.tables.summary import build_summary
from torchtraceap.tables.windows import build_features, window_features
from torchtraceap.trace.ranks import Ranks

if TYPE_CHECKING:
    from torchtraceap.core.results import Evidence, Finding
    from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "MOST_BYTES",
    "MOST_ROWS",
    "ToolData",
    "clean",
    "diagnosis",
    "diff",
    "fit_result",
    "kernels",
    "ops",
    "page",
    "row_list",
    "simulate",
    "step",
    "summary",
    "table_rows",
    "to_compact_json",
    "window",
]

Json = dict[str, Any]

MOST_BYTES = 8_000
"""Most bytes of a result as JSON."""
MOST_ROWS = 50
MOST_NOTES, MOST_NOTE = 3, 300
MOST_CODE = 1_200
MOST_KEPT = 32
"""Most tables that are kept."""
MOST_CELL = 120
"""Most characters of a text in a table."""
_IDLE = "idle_"
_OWN_COLUMNS = frozenset({"class", "edit", "family", "part", "significance", "status", "type"})
"""Columns whose texts are words of this package."""


class ToolData:
    """The trace that tools read, with each table and the diagnosis built once.

    Args:
        trace: The trace.
        baseline: One to compare it with, if there is one.
        diagnosis: The trace's diagnosis, if it is known already.
    """

    def __init__(
        self, trace: Ranks, baseline: Ranks | None = None, *, diagnosis: Diagnosis | None = None
    ) -> None:
        self.trace = trace
        self.baseline = baseline
        self._diagnosis = diagnosis
        self._lock = RLock()
        self._tables: dict[tuple[object, ...], ColumnTable] = {}

    @property
    def diagnosis(self) -> Diagnosis:
        """The trace's diagnosis, built at the first use."""
        if self._diagnosis is None:
            self._diagnosis = build_diagnosis(self.trace)
        return self._diagnosis

    def table(self, name: str, /, *, rank: int | None = None, **options: Any) -> ColumnTable:
        """Return a table of the trace by the name of its command, made once for equal options."""
        key = (name, rank, *sorted(options.items()))
        return self.kept(key, lambda: table_spec(name).make(self.trace, rank=rank, **options))

    def kept(self, key: tuple[object, ...], make: Callable[[], ColumnTable]) -> ColumnTable:
        """Return what was made for a key, or make it; `MOST_KEPT` are kept, the last used ones."""
        with self._lock:
            found = self._tables.pop(key, None)
            self._tables[key] = make() if found is None else found
            while len(self._tables) > MOST_KEPT:
                del self._tables[next(iter(self._tables))]
            return self._tables[key]


# ------------------------------------------------------------------------- texts and sizes


def to_compact_json(value: object) -> str:
    """Return JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def fit_result(result: Json) -> Json:
    """Return the result, its largest lists cut until it is small enough.

    Raises:
        OptionError: It is too large without them.
    """
    while _size(result) > MOST_BYTES:
        lists = [entry for entry in _lists_in(result) if entry["rows"]]
        if not lists:
            raise OptionError("the result is too large: ask for less")
        largest = max(lists, key=lambda entry: _size(entry["rows"]))
        cut = max(1, len(largest["rows"]) // 8)
        del largest["rows"][-cut:]
        largest["shown"] -= cut
        largest["left_out"] += cut
        if "next_offset" in largest:
            largest["next_offset"] = largest["offset"] + largest["shown"]
    return result


def _size(value: object) -> int:
    return len(to_compact_json(value).encode())


def row_list(rows: Iterable[Any], left_out: int = 0) -> Json:
    """Return a list that says how much of it there is; `fit_result` cuts such lists alone."""
    found = list(rows)
    kept = found[:MOST_ROWS]
    more = left_out + len(found) - len(kept)
    return {"rows": kept, "shown": len(kept), "left_out": more}


def page(rows: Sequence[Any], given: Json, show: Callable[[Any], Json] = lambda row: row) -> Json:
    """Return the rows from the offset on that the caller asked for, at most as many as asked.

    Args:
        rows: All rows.
        given: Arguments with `limit` and `offset`.
        show: Makes what is shown of a row.

    Returns:
        A list as `row_list` makes it; `left_out` counts the rows behind those shown, and a call
        with `next_offset` has them. It is None where nothing is left.
    """
    begin = given["offset"]
    kept = rows[begin : begin + given["limit"]]
    left = max(0, len(rows) - begin - len(kept))
    listed = row_list(map(show, kept), left)
    following = begin + listed["shown"] if listed["left_out"] else None
    return {**listed, "offset": begin, "next_offset": following}


def _lists_in(value: object) -> Iterable[Json]:
    if isinstance(value, dict):
        if "rows" in value:
            yield value
        for inner in value.values():
            yield from _lists_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _lists_in(inner)


def _rows(table: ColumnTable, columns: Sequence[str], given: Json) -> Json:
    """Return a page of a table, in some of its columns, as quantities."""
    chosen = table.select([name for name in columns if name in table])
    begin = given["offset"]
    records = chosen.take(slice(begin, begin + given["limit"])).records()
    return page(range(table.num_rows), given, lambda row: _row(records[row - begin]))


def _row(record: Mapping[str, Any]) -> Json:
    """Return a record as quantities, with names cleaned."""
    return {
        key: Own(value) if key in _OWN_COLUMNS and isinstance(value, str) else clean(value)
        for key, value in to_quantities(record).items()
    }


def clean(value: Any, depth: int = 3) -> Any:
    """Return a cell with texts cleaned, long lists cut, and what nests deeper as JSON."""
    if isinstance(value, Own) or value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return plain_line(value, MOST_CELL)
    if depth and isinstance(value, Mapping):
        pairs = list(value.items())[:MOST_ROWS]
        return {plain_line(str(key)): clean(inner, depth - 1) for key, inner in pairs}
    if depth and isinstance(value, (list, tuple)):
        return [clean(inner, depth - 1) for inner in value[:MOST_ROWS]]
    return plain_line(str(value), MOST_CELL)


def _notes(notes: Sequence[str]) -> list[str]:
    return [plain_line(note, MOST_NOTE) for note in notes[:MOST_NOTES]]


# ------------------------------------------------------------------------- the whole trace


def summary(box: ToolData, given: Json) -> Json:
    """Return the counts and the timeline, as `torchtraceap summary` has them."""
    found = build_summary(box.trace)
    times = found.timeline.to_dict()
    shares = {
        name.replace("_ns", "_share"): found.timeline.share(ns)
        for name, ns in times.items()
        if name != "span_ns"
    }
    step_time = None
    if found.step:
        step = found.step.to_dict()
        # `left_out` is what lists call rows that they do not show.
        not_counted = step.pop("left_out")
        step_time = to_quantities({**step, "not_counted": not_counted})
    return {
        "files": len(found.files),
        "ranks": len(found.ranks),
        "devices": row_list(
            _row({"name": device.name, "rank": device.rank, "streams": device.streams})
            | {"busy": time_quantity(device.timeline.busy_ns)}
            for device in found.devices
        ),
        "events": _row(
            {
                "total": found.events.total,
                "complete": found.events.complete,
                "gpu": found.events.gpu,
                "gpu_without_launch": found.events.gpu_orphan,
            }
        ),
        "timeline": {"times": to_quantities(times), "shares_of_span": to_quantities(shares)},
        "step_time": step_time,
        "steps": len(found.steps),
        "steps_inferred": found.steps_inferred,
        "diagnostics": row_list(
            {"notes": plain_line(entry.message, MOST_NOTE), "count": entry.count}
            for entry in found.diagnostics
        ),
    }


def diagnosis(box: ToolData, given: Json) -> Json:
    """Return the findings, or one of them with its events."""
    found = box.diagnosis
    if given["type"]:
        return _detail(found, given["type"], given)
    idle = sorted(found.idle_ns.items(), key=lambda cause: -cause[1])
    return {
        "profiled": time_quantity(found.profiled_ns),
        "gpu_busy": share_quantity(found.busy_share),
        "bound_by": Own(found.bound_by) if found.bound_by else None,
        "findings": page(found.findings, given, _finding),
        "idle": row_list(
            {"cause": Own(name), "time": time_quantity(ns)} for name, ns in idle if ns
        ),
        "plan": row_list(
            _row({"type": fix.type, "edit": fix.edit, "gain_ns": fix.gain_ns})
            | {"step_after": time_quantity(fix.total_ns_after)}
            for fix in found.plan
        ),
        "not_checked": [Own(name) for name in found.abstained],
        "absent": sum(v == "absent" for v in _verdicts(found).values()),
    }


def _verdicts(found: Diagnosis) -> dict[str, str]:
    return {**found.verdicts, **found.further_verdicts}


def _finding(finding: Finding) -> Json:
    makers = {"duration_ns": time_quantity, "bytes": size_quantity, "share": share_quantity}
    facts: Json = {}
    for name, fact in finding.facts.items():
        value = fact.value
        if isinstance(value, str):
            facts[Own(name)] = plain_line(value)
        else:
            facts[Own(name)] = makers[fact.kind](value) if fact.kind in makers else value
    shown: Json = {
        "type": Own(finding.type),
        "title": Own(finding.title),
        "cost": time_quantity(finding.cost_ns),
        "cost_of_profiled": share_quantity(finding.cost_share),
        "confidence": round(finding.confidence, 2),
        "advice": Own(finding.fix),
        "facts": facts,
    }
    if finding.saving:
        saving = finding.saving
        shown["saving"] = {
            "best": time_quantity(saving.best_ns),
            "low": time_quantity(saving.low_ns),
            "high": time_quantity(saving.high_ns),
            "of": Own("a step" if saving.per_step else "the profiled time"),
            "method": Own(saving.method),
            "edit": Own(saving.edit),
        }
    return shown


def _detail(found: Diagnosis, name: str, given: Json) -> Json:
    """Return one type: the finding with events and code, or why there is none."""
    entry = load_knowledge()[name]
    finding = found.finding(name)
    about = {"type": Own(name), "title": Own(entry.title), "signs": [Own(s) for s in entry.signs]}
    if finding is None:
        missing = found.abstained.get(name, ())
        verdict = _verdicts(found).get(name, "unknown")
        lacks = [plain_line(signal) for signal in missing]
        return {**about, "verdict": Own(verdict), "missing_signals": lacks}

    def show(event: Evidence) -> Json:
        # The start counts from that of the profiled time.
        start_ns = event.start_ns - found.trace.rank(event.rank).tree.profiled[0]
        return _row({**event.to_dict(), "start_ns": start_ns})

    events = page(finding.evidence, given, show)
    events["left_out"] += finding.evidence_count - len(finding.evidence)
    return {
        **about,
        "verdict": Own("present"),
        **_finding(finding),
        "code": Own(finding.code[:MOST_CODE]),
        "evidence": events,
    }


# ------------------------------------------------------------------------- tables


def ops(box: ToolData, given: Json) -> Json:
    """Return the table of `torchtraceap ops`."""
    table = box.table("ops", by=given["by"], rank=given["rank"])
    columns = (
        "rank", "name", "family", "input_dims", "count", "exclusive_gpu_ns", "busy_share",
        "subtree_gpu_ns", "launches", "self_host_ns", "duration_ns", "row",
    )  # fmt: skip
    return table_rows(table, columns, given)


def kernels(box: ToolData, given: Json) -> Json:
    """Return the table of `torchtraceap kernels`."""
    table = box.table("kernels", by=given["by"], rank=given["rank"])
    columns = (
        "rank", given["by"], "name", "class", "op", "count", "sum_ns", "busy_share", "mean_ns",
        "max_ns", "duration_ns", "overlap_share", "row",
    )  # fmt: skip
    return table_rows(table, columns, given)


def table_rows(table: ColumnTable, columns: Sequence[str], given: Json) -> Json:
    """Return a page of a table.

    Args:
        table: The table.
        columns: Those that are shown unless the caller names others; those that the table does not
            have are passed over.
        given: Arguments: `contains` (rows of which a text shown holds this, in any case), `sort`
            (COLUMN, largest first, or COLUMN:asc), `columns`, `limit`, `offset`.

    Raises:
        OptionError: The table has no such column.
    """
    shown = [_column(table, name) for name in given["columns"] or ()]
    shown = shown or list(dict.fromkeys(name for name in columns if name in table))
    kept = table
    if given["contains"]:
        wanted = given["contains"].casefold()
        holds = np.zeros(table.num_rows, dtype=bool)
        for name in shown:
            column = table.column(name)
            if isinstance(column, TextCodes):
                found = [*(wanted in known.casefold() for known in column.texts), False]
                holds |= np.asarray(found)[column.codes]
        kept = table.take(np.flatnonzero(holds))
    if given["sort"]:
        name, _, direction = given["sort"].partition(":")
        if direction not in ("", "asc", "desc"):
            raise OptionError(f"sort: {plain_line(direction)} is neither asc nor desc")
        kept = kept.sort(_column(table, name), descending=direction != "asc")
    return {
        "table": _rows(kept, shown, given),
        "columns": list(map(plain_line, table.columns)),
        "notes": _notes(table.notes),
    }


def _column(table: ColumnTable, name: str) -> str:
    if name not in table:
        known = ", ".join(map(plain_line, table.columns))
        raise OptionError(f"there is no column {plain_line(name)}; there are: {known}")
    return name


def diff(box: ToolData, given: Json) -> Json:
    """Return the table of `torchtraceap diff BASELINE PATH`."""
    if box.baseline is None:
        raise OptionError("there is no baseline to compare with")
    table = build_diff(box.baseline, box.trace, by=given["by"])
    columns = (
        "name", "part", "status", "delta_ns", "before_ns", "after_ns", "before_calls",
        "after_calls", "significance",
    )  # fmt: skip
    facts = {name: value for name, value in table.facts.items() if name.endswith("_ns")}
    return {
        **to_quantities(facts),
        "table": _rows(table, columns, given),
        "notes": _notes(table.notes),
    }


def simulate(box: ToolData, given: Json) -> Json:
    """Return the result of `torchtraceap simulate --edit ...`."""
    for name in given["edits"]:
        make_edit(name)  # says what is wrong with it before anything is replayed
    found = simulated(box.trace, list(given["edits"]))
    edits = []
    for outcome in found.edits:
        edit = Own(plain_line(outcome.edit))
        shown: Json = {"edit": edit, "note": plain_line(outcome.note, MOST_NOTE), "applies": False}
        if outcome.predicted_ns is not None:
            ends = {
                "predicted": outcome.predicted_ns,
                "low": outcome.low_ns,
                "high": outcome.high_ns,
            }
            shown["applies"] = True
            shown |= {name: time_quantity(ns) for name, ns in ends.items() if ns is not None}
            shown["saves"] = time_quantity(found.measured_ns - outcome.predicted_ns)
        edits.append(shown)
    return {
        "of": Own("a step" if found.run.per_step else "the whole trace"),
        "measured": time_quantity(found.measured_ns),
        "replayed_without_edits": time_quantity(found.replayed_ns),
        "noise": None if found.noise_ns is None else time_quantity(found.noise_ns),
        "supports_prediction": found.trust.supports_prediction,
        "edits": row_list(edits),
        "notes": _notes(found.notes),
    }


# ------------------------------------------------------------------------- parts of the time


def window(box: ToolData, given: Json) -> Json:
    """Return features and GPU events of a window of the grid, or of a range."""
    part = box.trace.rank(given["rank"])
    windows = build_features(part, count=given["count"])
    place, asked, bounds = _window_bounds(part, windows, given)
    alone = window_features(part, np.array(bounds, dtype=np.int64))
    values = dict(zip(alone.names, alone.values_matrix[0].tolist(), strict=True))
    start_ns = bounds[0] - part.tree.profiled[0]
    return {
        **asked,
        **({"start": time_quantity(start_ns)} if place is not None else {}),
        "length": time_quantity(bounds[1] - bounds[0]),
        "windows": given["count"],
        "features": _features(windows, values, comparable=place is not None),
        "gpu_events": _events_in(part, alone.windows, bounds, given),
    }


def _window_bounds(
    part: RankTrace, windows: ColumnTable, given: Json
) -> tuple[int | None, Json, tuple[int, int]]:
    """Return the number of the window, what the caller chose, and start and end, ns.

    Raises:
        OptionError: Neither a window nor a range, or one that lies outside.
    """
    number, begin, end = given["number"], given["start_ms"], given["end_ms"]
    if (number is None) == (begin is None) or (begin is None) != (end is None):
        raise OptionError("expected a window's number, or start_ms and end_ms of a range")
    if number is not None:
        if number >= windows.num_rows:
            raise OptionError(f"number: there are windows 0 to {windows.num_rows - 1}")
        bounds = int(windows["start_ns"][number]), int(windows["end_ns"][number])
        return number, {"number": number}, bounds
    start_ns, end_ns = part.tree.profiled
    first, last = start_ns + round(begin * 1e6), min(end_ns, start_ns + round(end * 1e6))
    if not first < last:
        length = (end_ns - start_ns) / 1e6
        raise OptionError(f"a range begins before it ends, within the {length:.3f} ms of the trace")
    return None, {CALLER_CHOICE: {"start_ms": begin, "end_ms": end}}, (first, last)


def _features(windows: ColumnTable, values: Mapping[str, float], *, comparable: bool) -> Json:
    """Return features, those first that are unusual among the trace's windows. Counts and bytes of
    a range, which has another length than the windows, are not compared."""
    rows: list[tuple[float, Json]] = []
    for name, value in values.items():
        if name == "window_length_log10_us" or not (value or windows[name].any()):
            continue
        unusual, row = -1.0, {"name": Own(name), "value": _feature(name, value)}
        if comparable or name.endswith(("_share", "_ratio", "_us")):
            every = windows[name]
            rank = share_quantity(percentile_rank(every, value))
            row |= {"median": _feature(name, float(np.median(every))), "percentile_rank": rank}
            unusual = abs(rank["share"] - 0.5)
        rows.append((unusual, row))
    rows.sort(key=lambda each: each[0], reverse=True)
    return row_list(row for _, row in rows)


def _feature(name: str, value: float) -> Any:
    """Return a feature in the unit that docs/scorers.md gives it, logarithms as the
    value itself."""
    if name.endswith("_log2"):
        return size_quantity(2.0**value - 1.0)
    if name.endswith("_us"):
        return time_quantity(1000.0 * value)
    if name.endswith(("_share", "_ratio")):
        return share_quantity(value)
    return round(value, 3)


def _events_in(
    part: RankTrace, alone: _core.WindowSet, bounds: tuple[int, int], given: Json
) -> Json:
    """Return GPU events that run in a range by canonical name, with their time within it, the
    longest first."""
    rows = np.concatenate([alone.rows, alone.overlapping])
    events = GpuEvents.of(part)
    events = events.where(np.isin(events.rows, rows))
    names = events.canonical
    groups = Groups(names.codes.astype(np.int64))
    late = np.maximum(bounds[0] - events.start_ns, 0)
    left = bounds[1] - np.maximum(events.start_ns, bounds[0])
    within = np.maximum(np.minimum(events.duration_ns - late, left), 0)
    times, longest = groups.sum(within), groups.maximum(within)
    order = np.argsort(-times, kind="stable")

    def show(group: int) -> Json:
        return {
            "name": plain_line(names.texts[names.codes[groups.first[group]]]),
            "count": int(groups.count[group]),
            "time": time_quantity(int(times[group])),
            "longest": time_quantity(int(longest[group])),
        }

    return page(order.tolist(), given, show)


def step(box: ToolData, given: Json) -> Json:
    """Return every step, or one with what is slow in it."""
    rank = box.trace.rank(given["rank"])
    table = box.table("steps", rank=rank.rank)
    numbers = step_numbers(table.to_list("name"))
    if given["number"] is not None:
        if given["number"] not in numbers:
            known = f"{numbers[0]} to {numbers[-1]}" if numbers else "none in this trace"
            raise OptionError(f"number: there is no such step; there are: {known}")
        return {"number": given["number"], **_one_step(table, numbers.index(given["number"]))}
    order = np.arange(table.num_rows)
    if given["sort"] == "duration_ns":
        order = np.argsort(-table["duration_ns"], kind="stable")
    columns = ("name", "duration_ns", "busy_ns", "idle_ns", "whole", "outlier")
    listed = _rows(table.take(order), columns, given)
    places = order[given["offset"] :][: listed["shown"]].tolist()
    rows = [
        {"number": numbers[place], **row} for place, row in zip(places, listed["rows"], strict=True)
    ]
    return {"steps": {**listed, "rows": rows}, "notes": _notes(table.notes)}


def step_numbers(names: Sequence[str | None]) -> list[int]:
    """Return the numbers in which the names end if these differ, such as 5 of "ProfilerStep#5";
    else places from 0."""
    ends = [re.search(r"(?<!\d)\d{1,9}\Z", name or "", re.ASCII) for name in names]
    numbers = [int(end[0]) for end in ends if end]
    return numbers if len(set(numbers)) == len(names) else list(range(len(names)))


def _one_step(table: ColumnTable, place: int) -> Json:
    (record,) = table.take(slice(place, place + 1)).records()
    causes = {n: ns for n, ns in record.items() if n.startswith(_IDLE) and n != "idle_ns" and ns}
    times = ("duration_ns", "busy_ns", "idle_ns", "compute_ns", "communication_ns", "memcpy_ns",
             "exposed_communication_ns", "exposed_memcpy_ns")  # fmt: skip
    median_ns = table.facts["jitter"].get("median_ns")
    return {
        "name": plain_line(record["name"] or ""),
        **to_quantities({name: record[name] for name in times}),
        **to_quantities({"median_step_ns": median_ns}),
        "whole": record["whole"],
        "outlier": record["outlier"],
        "idle_by_cause": row_list(
            {"cause": Own(name.removeprefix(_IDLE).removesuffix("_ns")), "time": time_quantity(ns)}
            for name, ns in sorted(causes.items(), key=lambda cause: -cause[1])
        ),
        "longer_than_usual": row_list(
            {"name": plain_line(more["name"]), "by": time_quantity(more["delta_ns"])}
            for more in record["differs"] or ()
        ),
        "notes": _notes(table.notes),
    }
