"""From the files of one run to its rows: what a worker does. Rows are plain lists, so that a worker
needs neither pyarrow nor DuckDB.

A run that can't be read is no error here: it is a row of `failures`.
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap._version import __version__
from torchtraceap.core.columns import TextCodes
from torchtraceap.core.records import dataclass
from torchtraceap.core.rendering import render
from torchtraceap.core.table import ColumnTable
from torchtraceap.corpus.sources import open_files
from torchtraceap.diagnosis.diagnose import build_diagnosis
from torchtraceap.diagnosis.result import Diagnosis
from torchtraceap.errors import ParseError, SeveralRunsError, TraceError
from torchtraceap.tables.catalog import table_spec
from torchtraceap.trace.jobs import base_ns
from torchtraceap.trace.loader import load

__all__ = ["COLUMNS", "Failure", "Outcome", "Rows", "Task", "analyse", "number_of"]

COLUMNS: dict[str, dict[str, str]] = {
    "runs": {
        "run": "s", "path": "s", "files": "i", "bytes": "i", "day": "s", "recorded_ns": "i",
        "job": "s", "team": "s", "model": "s", "tags": "s", "device": "s", "gpus": "i",
        "ranks": "i", "world_size": "i", "versions": "s", "framework": "s", "role": "s",
        "profiled_ns": "i", "step_ns": "i", "steps": "i", "busy_share": "f", "bound_by": "s",
        "lead": "s", "headline": "s", "findings": "i", "comparable": "b", "recorded_share": "f",
        "unchecked": "s", "gpu_hours": "f", "product": "s",
    },
    "findings": {
        "run": "s", "type": "s", "place": "i", "title": "s", "fix": "s", "cost_ns": "i",
        "cost_share": "f", "unclaimed_cost_ns": "i", "saving_low_ns": "i", "saving_ns": "i",
        "saving_high_ns": "i", "saving_share": "f", "saving_method": "s", "edit": "s",
        "confidence": "f", "evidence": "s", "ranks": "i", "paper": "b",
    },
    "facts": {
        "run": "s", "subject": "s", "rank": "i", "name": "s", "kind": "s", "value": "f",
        "text": "s",
    },
    "failures": {
        "run": "s", "path": "s", "files": "i", "bytes": "i", "day": "s", "code": "s",
        "exit_code": "i", "message": "s", "first_byte": "i", "product": "s",
    },
}  # fmt: skip
"""Columns with a fixed type: "s" text, "i" int64, "f" float64, "b" truth. The others are those of
the tables in `MOST_ROWS`."""
MOST_ROWS = {"steps": 2000, "kernels": 500, "collectives": 2000, "roofline": 500}
"""The most rows of a run; the first ones, which are the largest where the table has an order."""
_HOST = re.compile(r"(?P<host>.+)_\d+\.\d+\.pt\.trace\.json")
"""The file names of `torch.profiler.tensorboard_trace_handler`."""

Rows = dict[str, dict[str, tuple[str, list[Any]]]]
"""The type of each column of each table, as in `COLUMNS`, with its values."""


@dataclass(frozen=True, slots=True)
class Task:
    """A run to analyse."""

    run: str
    """Its content, in hexadecimal digits."""
    key: str
    """Content, version and options: what the rows depend on."""
    paths: tuple[str, ...]
    bytes: int
    modified_ns: int
    tags: Mapping[str, str] = field(default_factory=dict)
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Host by path, where a tag says it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a run has no rows."""

    code: str
    """unreadable, too_large, timeout, memory, crashed, missing or defect."""
    message: str
    exit_code: int = 2
    first_byte: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a task."""

    task: Task
    rows: Rows
    failed: bool


def failed(task: Task, failure: Failure) -> Outcome:
    """Return the outcome of a run that has no rows but one of `failures`."""
    row = {
        "run": task.run,
        "path": task.paths[0],
        "files": len(task.paths),
        "bytes": task.bytes,
        "day": _day(task.modified_ns),
        "code": failure.code,
        "exit_code": failure.exit_code,
        "message": failure.message,
        "first_byte": failure.first_byte,
        "product": __version__,
    }
    return Outcome(task, {"failures": _typed("failures", [row])}, True)


def analyse(task: Task) -> Outcome:
    """Read and diagnose a run."""
    try:
        with ExitStack() as opened:
            local = opened.enter_context(open_files(task.paths))
            return Outcome(task, _rows_of_runs(task, local), False)
    except FileNotFoundError as error:
        failure = Failure("missing", str(error))
    except ParseError as error:
        text = str(error)
        place = re.search(r"byte (\d+)", text)
        failure = Failure("unreadable", text, first_byte=int(place[1]) if place else None)
    except MemoryError:
        failure = Failure("memory", "not enough memory", 137)
    except (TraceError, OSError) as error:
        failure = Failure("unreadable", str(error))
    except Exception as error:  # of one trace: the others go on
        where = traceback.extract_tb(error.__traceback__)[-1]
        place_text = f"{Path(where.filename).name}:{where.lineno}"
        failure = Failure("defect", f"{type(error).__name__} at {place_text}: {error}", 1)
    return failed(task, failure)


def _rows_of_runs(task: Task, local: Mapping[str, str]) -> Rows:
    """Return the rows of a task; where its files turn out to be several runs, those of each."""
    paths = list(local)
    try:
        return _rows(task, task.run, load([local[p] for p in paths], threads=1), local)
    except SeveralRunsError as error:
        given = {value: name for name, value in local.items()}
        rows: Rows = {}
        for number, run in enumerate(error.runs):
            part = {given[path]: path for path in run}
            trace = load(list(part.values()), threads=1)
            _append(rows, _rows(task, f"{task.run}.{number}", trace, part))
        return rows


def _append(rows: Rows, more: Rows) -> None:
    for table, columns in more.items():
        there = rows.setdefault(table, {})
        before = len(next(iter(there.values()))[1]) if there else 0
        count = len(next(iter(columns.values()))[1])
        for name in dict.fromkeys([*there, *columns]):
            kind, values = there.get(name, (columns.get(name, ("s", []))[0], [None] * before))
            there[name] = (kind, values + columns.get(name, (kind, [None] * count))[1])


def _day(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d")


_CALENDAR_NS = range(946_684_800 * 10**9, 4_102_444_800 * 10**9)


def _recorded_ns(task: Task, trace: Any) -> int:
    """Return when a run was recorded, in ns since 1970: as a tag `time` says, else its events if
    their clock is a calendar's, else its newest file."""
    if said := task.tags.get("time"):
        try:
            when = datetime.fromisoformat(said)
            return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1e9)
        except ValueError:
            pass
    table = trace.ranks[0].table
    begun = base_ns(table) + (int(table.ts_ns[0]) if len(table) else 0)
    return begun if begun in _CALENDAR_NS else task.modified_ns


def number_of(text: Any) -> float | None:
    """Return the number that a tag says, if it says a sensible one."""
    try:
        value = float(text) if text is not None else None
    except ValueError:
        return None
    return value if value is not None and 0 <= value < 1e12 else None


def _rows(task: Task, run: str, trace: Any, local: Mapping[str, str]) -> Rows:
    diagnosis = build_diagnosis(trace, windows=50)
    paths = {where: path for path, where in local.items()}
    recorded_ns = _recorded_ns(task, trace)
    summary, step = diagnosis.summary, diagnosis.step
    hours = number_of(task.tags.get("gpu_hours"))
    first = {
        "run": run,
        "path": paths.get(trace.ranks[0].path, task.paths[0]),
        "files": len(local),
        "bytes": task.bytes,
        "day": _day(recorded_ns),
        "recorded_ns": recorded_ns,
        "job": task.tags.get("job", run),
        "team": task.tags.get("team"),
        "model": task.tags.get("model"),
        "tags": json.dumps(dict(task.tags), sort_keys=True),
        "device": ", ".join(summary.device_names) or None,
        "gpus": max(1, len(summary.devices)),
        "ranks": len(trace.ranks),
        "world_size": trace.ranks[0].world_size,
        "versions": json.dumps(dict(summary.versions), sort_keys=True),
        "framework": diagnosis.framework,
        "role": diagnosis.role,
        "profiled_ns": diagnosis.profiled_ns,
        "step_ns": step.measured_ns if step else None,
        "steps": step.steps if step else None,
        "busy_share": diagnosis.busy_share,
        "bound_by": diagnosis.bound_by,
        "lead": diagnosis.lead.type if diagnosis.lead else None,
        "headline": render(diagnosis, "headline"),
        "findings": len(diagnosis.findings),
        "comparable": summary.quality.comparable,
        "recorded_share": summary.quality.recorded_share,
        "unchecked": json.dumps({name: list(signals) for name, signals in
                                 diagnosis.abstained.items()}),
        "gpu_hours": diagnosis.profiled_ns / 3.6e12 if hours is None else hours,
        "product": __version__,
    }  # fmt: skip
    return {
        "runs": _typed("runs", [first]),
        "findings": _typed("findings", list(_findings(run, diagnosis))),
        "facts": _typed("facts", list(_facts(task, run, diagnosis, paths))),
        **{name: _plain(run, table_spec(name).make(trace), MOST_ROWS[name]) for name in MOST_ROWS},
    }


def _findings(run: str, diagnosis: Diagnosis) -> Iterator[dict[str, Any]]:
    step, ranks = diagnosis.step, max(1, len(diagnosis.trace.ranks))
    for place, finding in enumerate(diagnosis.findings, 1):
        saving = finding.saving
        whole_ns = diagnosis.profiled_ns / ranks
        if saving and saving.per_step and step:
            whole_ns = step.measured_ns
        yield {
            "run": run,
            "type": finding.type,
            "place": place,
            "title": finding.title,
            "fix": finding.fix,
            "cost_ns": finding.cost_ns,
            "cost_share": finding.cost_share,
            "unclaimed_cost_ns": finding.unclaimed_cost_ns,
            "saving_low_ns": saving.low_ns if saving else None,
            "saving_ns": saving.believed_ns if saving else None,
            "saving_high_ns": saving.high_ns if saving else None,
            "saving_share": min(1.0, saving.believed_ns / whole_ns)
            if saving and whole_ns
            else None,
            "saving_method": saving.method if saving else None,
            "edit": saving.edit or None if saving else None,
            "confidence": finding.confidence,
            "evidence": finding.evidence[0].name if finding.evidence else None,
            "ranks": len(finding.ranks),
            "paper": finding.paper,
        }


def _facts(
    task: Task, run: str, diagnosis: Diagnosis, paths: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    def row(subject: str, name: str, kind: str, value: Any, rank: Any = None) -> dict[str, Any]:
        number = float(value) if isinstance(value, (int, float)) else None
        text = str(value) if number is None else None
        return {"run": run, "subject": subject, "rank": rank, "name": name, "kind": kind,
                "value": number, "text": text}  # fmt: skip

    for name, ns in diagnosis.time_ns.items():
        yield row("time", name, "duration_ns", ns)
    for name, ns in diagnosis.idle_ns.items():
        yield row("idle", name, "duration_ns", ns)
    for finding in diagnosis.findings:
        for name, fact in finding.facts.items():
            yield row(finding.type, name, fact.kind, fact.value)
    for each in diagnosis.trace.ranks:
        path = paths.get(each.path, "")
        host = task.hosts.get(path) or _host_in_name(path)
        if host:
            yield row("rank", "host", "text", host, each.rank)
    if len(diagnosis.trace.ranks) > 1:
        ranks = table_spec("ranks").make(diagnosis.trace)
        for record in ranks.records():
            if record["lateness_ns"] is not None:
                late = record["lateness_ns"]
                yield row("rank", "lateness_ns", "duration_ns", late, record["rank"])
            verdict = record["verdict"]
            if verdict:
                yield row("rank", "verdict", "text", verdict, record["rank"])


def _host_in_name(path: str) -> str | None:
    found = _HOST.match(Path(path).name)
    return found["host"] if found else None


def _typed(table: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, list[Any]]]:
    return {name: (kind, [row[name] for row in rows]) for name, kind in COLUMNS[table].items()}


_KINDS = {"i": "i", "u": "i", "f": "f", "b": "b"}


def _plain(run: str, table: ColumnTable, most: int) -> dict[str, tuple[str, list[Any]]]:
    kept = table.take(slice(0, most))
    columns: dict[str, tuple[str, list[Any]]] = {"run": ("s", [run] * len(kept))}
    for name in kept:
        column = kept.column(name)
        if isinstance(column, TextCodes):
            texts: list[Any] = [*column.texts, None]
            columns[name] = ("s", [texts[code] for code in np.asarray(column.codes).tolist()])
        else:
            columns[name] = (_KINDS.get(column.dtype.kind, "s"), kept.to_list(name))
    return columns
