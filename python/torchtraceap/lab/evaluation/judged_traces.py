"""Labeled traces diagnosed one after the other, and a judge's names of their windows.

The names make documents of scores for `torchtraceap evaluate`, which alone computes metrics;
docs/evaluation.md says how each is read.

Note [Given a true window]: as in the paper's Table 4, the judge is told which windows lose time and
not why. Adjacent positive windows of one type are one segment, which is called as segments that are
found are (Note [Names] in segments.py). All other windows have the scorer's score and no name, so
that the row of such a document has the scorer's areas under curves, and its own accuracy of types.

Note [As found]: the segments that an explanation begins with. They overlap: what is found over most
of a trace says little of one window, so a window takes the name of the shortest segment over it. A
window scores 1 in a segment and 0 elsewhere: what is end to end about such a document is which
windows are told, and what they are called.

A line of the log is written before the labels are read, so that a look that failed is there too.
"""

from __future__ import annotations

import datetime
import json
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap._version import __version__
from torchtraceap.core import PathLike, progress_stage, write_text
from torchtraceap.datasets import (
    TYPES,
    Sample,
    costs_of,
    labeled_ranks,
    labeled_runs,
    window_costs,
    window_labels,
)
from torchtraceap.errors import OptionError, SchemaError, TraceError
from torchtraceap.explanation import (
    NONE,
    build_pack,
    find_segments,
    likely_name,
    likely_types,
    runs_of,
    segment_of,
)
from torchtraceap.lab.evaluation.methods import SCORES
from torchtraceap.trace import Trace

if TYPE_CHECKING:
    from torchtraceap.core import Array, PathLike
    from torchtraceap.diagnosis import Diagnosis
    from torchtraceap.explanation import Judge, Segment

__all__ = [
    "LOOKS",
    "TEST_SPLITS",
    "JudgeOf",
    "LabeledTrace",
    "WindowNames",
    "check_splits",
    "entry",
    "labeled_traces",
    "log_look",
    "name_windows",
    "scores_document",
    "true_segments",
    "window_names",
]


Json = dict[str, Any]
JudgeOf = Callable[["Diagnosis"], "Judge"]
"""The judge of a diagnosis."""


@dataclass(frozen=True)
class LabeledTrace:
    """A trace of one rank with what is known of its W windows."""

    id: str
    diagnosis: Diagnosis
    positive: Array
    """bool `[W]`: a tenth of the window is lost, or more."""
    ignore: Array
    """bool `[W]`: neither positive nor negative."""
    types: Array
    """int64 `[W]`: place in `TYPES` of what costs most in a positive window; -1 elsewhere, and
    where it is not known."""
    already: frozenset[str]
    """Types that were there before a fault was put in: labels say nothing of what they cost."""

    @staticmethod
    def of(label: dict[str, Any], diagnosis: Diagnosis) -> LabeledTrace:
        """Return the trace with a label as `generate` writes it."""
        bounds_ns = np.asarray(diagnosis.windows.bounds_ns, dtype=np.int64)
        cost = window_costs(costs_of(label), bounds_ns)
        positive, ignore = window_labels(cost)
        types = np.where(positive, cost.argmax(axis=1), -1).astype(np.int64)
        return LabeledTrace(
            id=label["id"],
            diagnosis=diagnosis,
            positive=positive,
            ignore=ignore,
            types=types,
            already=frozenset(label["already"]),
        )

    @property
    def type_names(self) -> list[str]:
        """The same as `types`; empty where there is none."""
        return [TYPES[code] if code >= 0 else "" for code in self.types.tolist()]


def labeled_traces(
    dataset: PathLike, splits: Sequence[str], windows: int, *, asked: str, why: str | None = None
) -> Iterator[LabeledTrace]:
    """The traces of some splits; each is let go before the next one is read.

    Each rank is a trace of its own, as its labels are, and as `evaluate` has scorers look at it.

    Args:
        dataset: A data set, or a folder that `generate` made.
        splits: Splits of it; tests' need `why`, and are a look that is written down.
        windows: The number of windows of a trace.
        asked: The judge that is evaluated, for the log of looks.
        why: The reason of a look at test labels.

    Raises:
        OptionError: A test split without a reason, or a split without traces.
        MissingFileError: There is no such folder, or a trace is missing.
        SchemaError: It is no data set, or its labels can't be read.
    """
    log_look(dataset, splits, [asked], why)
    runs = labeled_runs(dataset)
    there = {run.labels[0]["split"] for run in runs}
    for split in splits:
        if split not in there:
            raise OptionError(f"{dataset}: has no traces of the split {split!r}")
    for label, part in labeled_ranks(runs, lambda label: label["split"] in splits):
        yield LabeledTrace.of(label, Trace([part]).diagnose(windows=windows))


# ------------------------------------------------------------------------------ names


@dataclass(frozen=True)
class WindowNames:
    """Names of the windows of a trace."""

    inside: Array
    """bool `[W]`: in a segment."""
    names: tuple[str, ...]
    """`[W]`: a type, "none", or "" outside of all segments."""
    asked: int = 0
    """Segments that the judge was asked about."""
    failures: tuple[TraceError, ...] = ()
    """Errors of the segments that have no answer that holds, and so no name."""


def true_segments(labeled: LabeledTrace) -> Iterator[Segment]:
    """Yield segments of adjacent positive windows; see Note [Given a true window]."""
    diagnosis = labeled.diagnosis
    bounds_ns = diagnosis.windows.bounds_ns
    for code, first, last in runs_of(labeled.types.tolist()):
        if code >= 0:
            likely = likely_types(diagnosis.windows, first, last)
            name = likely_name(diagnosis, likely, bounds_ns[first], bounds_ns[last + 1])
            yield segment_of(diagnosis, first, last, name)


def name_windows(
    diagnosis: Diagnosis, segments: Iterable[Segment], judge_of: JudgeOf
) -> WindowNames:
    """Return the names that a judge gives to windows of a trace.

    Args:
        diagnosis: The diagnosis of the trace.
        segments: Segments of it, in the order in which they are told.
        judge_of: The judge of a diagnosis.
    """
    judge = judge_of(diagnosis)
    verdicts, failures = [], []
    for segment in segments:
        pack = build_pack(diagnosis, segment, tables=judge.reads_tables)
        try:
            name = judge.judge(segment, pack, settled=False).primary
        except TraceError as error:
            failures.append(error)
            name = NONE
        verdicts.append((segment, name))
    found = window_names(diagnosis.windows.count, verdicts)
    return replace(found, asked=len(verdicts), failures=tuple(failures))


def window_names(count: int, verdicts: Iterable[tuple[Segment, str]]) -> WindowNames:
    """Return the name of each window: that of the shortest of its segments that have one; of
    equally long ones, the first. See Note [As found]."""
    inside = np.zeros(count, dtype=np.bool_)
    names = [""] * count
    runs = [(run, name) for segment, name in verdicts for run in (segment, *segment.further)]
    for segment, name in sorted(runs, key=lambda each: each[0].last - each[0].first):
        inside[segment.first : segment.last + 1] = True
        for window in range(segment.first, segment.last + 1):
            if names[window] in ("", NONE):
                names[window] = name
    return WindowNames(inside, tuple(names))


def scores_document(
    traces: Iterable[LabeledTrace], judge_of: JudgeOf, name: str, *, found: bool = False
) -> Json:
    """Return a document of `torchtraceap score --json` with the names that a judge gives.

    Args:
        traces: Labeled ones.
        judge_of: The judge of a diagnosis.
        name: The name of the judge, and of the row in tables.
        found: Judge segments as they are found, instead of true ones.

    Returns:
        With a further entry "judged" that counts what was asked and had no answer.

    Raises:
        TraceError: That of the last answer, where none holds: a judge that can't be asked has no
            row in a table.
    """
    entries, asked = [], 0
    scorers: dict[str, None] = {}
    failures: list[TraceError] = []
    with progress_stage("judging segments of labeled traces"):
        for labeled in traces:
            segments = find_segments(labeled.diagnosis) if found else true_segments(labeled)
            said = name_windows(labeled.diagnosis, segments, judge_of)
            asked += said.asked
            failures += said.failures
            scores = said.inside if found else labeled.diagnosis.windows.scores
            entries.append(entry(labeled, scores, said.names))
            scorers[labeled.diagnosis.scorer] = None
    if failures and len(failures) == asked:
        raise failures[-1]
    return {
        "schema": SCORES,
        "scorer": f"{', '.join(scorers)}; {name}",
        "name": f"{name}, as found" if found else name,
        "labels": "window",
        "judged": {
            "segments": asked,
            "failed": len(failures),
            "failure": str(failures[-1]) if failures else None,
        },
        "traces": entries,
    }


def entry(labeled: LabeledTrace, scores: Array, names: Sequence[str] = ()) -> Json:
    """Return the entry of a trace in a document of scores: a window has a share of 1 of the type
    that it is called, and of no other one."""
    kinds = sorted(set(names) - {"", NONE})
    return {
        "path": labeled.id,
        "bounds_ns": list(labeled.diagnosis.windows.bounds_ns),
        "scores": np.asarray(scores, dtype=np.float64).tolist(),
        "types": {kind: [float(name == kind) for name in names] for kind in kinds},
    }


TEST_SPLITS = ("seen", "unseen", "real")
LOOKS = Path("docs/benchmark_looks.jsonl")
"""The log, from the root of the repository; elsewhere it lies beside the data set."""
_OF_RECORDED = ("real_graph", "event_space")
"""Sources of traces that recorded ones went into."""


def check_splits(samples: Sequence[Sample]) -> None:
    """Check that no group, run or twin is in two splits, and that traces with parts of real ones
    are for tests alone.

    Raises:
        SchemaError: One is; the message names it.
    """
    where: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for sample in samples:
        split = sample.split or "none"
        where["group", sample.group].add(split)
        where["run", sample.run].add(split)
        where["trace", sample.id].add(split)
        if sample.twin is not None:
            where["trace", sample.twin].add(split)
        if sample.source in _OF_RECORDED and split in ("train", "validation"):
            raise SchemaError(f"{sample.id}: is made from a real trace and in the split {split!r}")
    for (what, name), splits in where.items():
        if len(splits) > 1:
            raise SchemaError(
                f"the {what} {name!r} is in several splits: {', '.join(sorted(splits))}"
            )


def log_look(
    dataset: PathLike, splits: Sequence[str], methods: Sequence[str], why: str | None
) -> Path | None:
    """Append a line where a test split is among the splits; nothing happens otherwise.

    Returns:
        The log, or None.

    Raises:
        OptionError: A test split without a reason.
        OutputError: It can't be written.
    """
    looked_at = [split for split in splits if split in TEST_SPLITS]
    if not looked_at:
        return None
    if not (why or "").strip():
        raise OptionError(
            f"the split {looked_at[0]!r} is for tests: say by --why what the look is for; it is "
            "written down"
        )
    commit = None  # of the folder that is worked in, where it is a repository
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
        commit = done.stdout.strip()
    place = LOOKS if LOOKS.exists() else Path(dataset) / "looks.jsonl"
    line = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "commit": commit,
        "dataset": str(dataset),
        "splits": looked_at,
        "methods": list(methods),
        "why": why,
    }
    before = place.read_text("utf-8") if place.exists() else ""
    write_text(place, before + json.dumps(line) + "\n")
    return place
