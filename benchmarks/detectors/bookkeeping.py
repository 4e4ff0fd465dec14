"""The bookkeeping of traces: everything in them beside names and times of events.

Numbers, their gaps and their order, processes and threads, where the recording begins, bytes for
each event, orders of keys, residue of marks. None of it is evidence of lost time, so a model of
nothing else must not tell traces with a fault from those without (docs/evaluation.md). Durations,
names and counts of events are evidence and are left out.

Note [Leaks]: a fault and its twin may differ in nothing but what the fault does. So a model that
knows a trace's bookkeeping alone has to guess, across groups it was not trained on; and of each
pair by itself, no single feature may tell which one has the fault.

Note [Counts]: what is irregular is counted and not divided by all events: a fault adds events, and
would be known by a share that it makes smaller.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.datasets.labels import LABELS
from torchtraceap.datasets.reader import DataSet, is_dataset
from torchtraceap.errors import MissingFileError, OptionError, ParseError
from torchtraceap.lab.evaluation.learned_baselines import make_trees
from torchtraceap.lab.evaluation.metrics import (
    Interval,
    Scored,
    draws,
    interval,
    replicates,
    window_auc,
)

Event = Mapping[str, Any]
_RANGES, _CALLS = ("cpu_op", "user_annotation"), ("cuda_runtime", "cuda_driver")
_HOST = (*_RANGES, *_CALLS)
_NUMBERS = {
    "External id": _RANGES,
    "Ev Idx": _RANGES,
    "Record function id": _RANGES,
    "Sequence number": ("cpu_op",),
    "correlation": _CALLS,
}
"""Kinds of events that have numbers of their own, by the key of these."""
_KEYED = ("cpu_op", "user_annotation", "cuda_runtime", "kernel", "gpu_memcpy")
_RARE = 0.002
"""Part of the events of a category: keys that fewer have stand apart."""
_MARKS = ("__m", "marker", "inject", "fault", "plant", "decoy", "twin", "provisional")
_DIGITS = (10, 100, 1_000)
_FOLDS, _REPEATS = 5, 3


def bookkeeping_of(path: PathLike) -> dict[str, float]:
    """Features of a Kineto file, the same names for every file; NaN for what it does not have.

    Args:
        path: JSON, packed by gzip or not.

    Raises:
        ParseError: It holds no complete event, or is no JSON.
    """
    data = Path(path).read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    try:
        events: list[Event] = json.loads(text)["traceEvents"]
    except (ValueError, KeyError, TypeError) as error:
        raise ParseError(f"{path}: is no trace in JSON") from error
    whole = [e for e in events if e.get("ph") == "X" and "dur" in e and e.get("cat") != "Trace"]
    if not whole:
        raise ParseError(f"{path}: holds no complete event")
    return {
        **_bytes(data, text, events),
        **_numbers(whole),
        **_arrows(events),
        **_order(whole),
        **_places(whole),
        **_extent(events, whole),
        **_keys(whole),
        **_marks(whole),
    }


def _bytes(data: bytes, text: bytes, events: Sequence[Event]) -> dict[str, float]:
    return {
        "bytes: packed, for each event": len(data) / len(events),
        "bytes: for each event": len(text) / len(events),
        "bytes: packed to plain": len(data) / len(text),
        "bytes: ahead of the events": text.index(b"traceEvents"),
    }


def _mean(values: Array) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def _numbers(whole: Sequence[Event]) -> dict[str, float]:
    """Return features of each count, by the events that take a number of their own."""
    found: dict[str, float] = {}
    for key, kinds in _NUMBERS.items():
        kept = [e for e in whole if e.get("cat") in kinds and key in e.get("args", {})]
        found |= _count(key, [(e["args"][key], e["ts"], str(e["tid"])) for e in kept])
    return found


def _count(name: str, rows: Iterable[tuple[Any, Any, str]]) -> dict[str, float]:
    """Return features of numbers with times and threads: gaps, steps against time, begin and end.

    See Note [Counts].
    """
    kept = [(float(number), float(ts), tid) for number, ts, tid in rows if float(number) > 0]
    kept.sort(key=lambda row: (row[1], row[0]))  # at one time in the order of numbers
    ids = np.array([number for number, _, _ in kept])
    gaps = np.diff(np.unique(ids))
    gaps = gaps[gaps > 1]
    threads: defaultdict[str, list[float]] = defaultdict(list)
    for number, _, tid in kept:
        threads[tid].append(number)
    steps = np.concatenate([np.diff(of) for of in threads.values()] or [ids[:0]])
    return {
        f"{name}: gaps": _log(len(gaps)),
        f"{name}: mean gap": _mean(np.minimum(gaps, 1_000)),
        f"{name}: largest gap": _log(gaps.max(initial=0)),
        f"{name}: goes down": _log((steps < 0).sum()),
        f"{name}: comes again": _log(len(ids) - len(np.unique(ids))),
        f"{name}: first": _log(ids.min(initial=np.inf)),
        f"{name}: behind the last": _log(len(ids) - 1 - int(ids.argmax())) if len(ids) else np.nan,
        f"{name}: odd": _mean(ids % 2),
    }


def _log(value: float) -> float:
    return float(np.log10(1 + max(0.0, float(value)))) if np.isfinite(value) else float("nan")


def _arrows(events: Sequence[Event]) -> dict[str, float]:
    """Ids of arrows, and ends without the other end. Those of launches have gaps where calls
    launch nothing, which is evidence."""
    found: dict[str, float] = {}
    for kind in ("ac2g", "fwdbwd"):
        ends = [[e for e in events if e.get("cat") == kind and e.get("ph") == ph] for ph in "sf"]
        found |= _count(f"{kind} arrow", [(e["id"], e["ts"], str(e["tid"])) for e in ends[0]])
        ids = [np.array([float(e["id"]) for e in side]) for side in ends]
        for gap in ("gaps", "mean gap", "largest gap") if kind == "ac2g" else ():
            del found[f"{kind} arrow: {gap}"]
        found[f"{kind} arrow: loose"] = _log((~np.isin(ids[0], ids[1])).sum())
    return found


def _order(whole: Sequence[Event]) -> dict[str, float]:
    """Return the order of events in the file."""
    times = np.array([float(e["ts"]) for e in whole])
    return {
        "order: against time": _log((np.diff(times) < 0).sum()),
        "order: of the last in time": _log(len(times) - 1 - int(times.argmax())),
    }


def _places(whole: Sequence[Event]) -> dict[str, float]:
    """Values of processes, threads and streams; how many there are says what runs, not who."""
    host = [e for e in whole if e.get("cat") in _HOST]
    work = [e for e in whole if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    pids, tids = _values(host, "pid"), _values(host, "tid")
    streams = np.array([float(e["args"].get("stream", -1)) for e in work if "args" in e])
    return {
        "places: process": _log(pids.min(initial=np.inf)),
        "places: first thread": _log(tids.min(initial=np.inf)),
        "places: last thread": _log(tids.max(initial=0)),
        "places: odd process": _mean(pids % 2),
        "places: odd threads": _mean(np.unique(tids) % 2),
        "places: threads that are no numbers": 1 - len(tids) / max(1, len(host)),
        "places: first stream": _log(streams.min(initial=np.inf)),
        "places: last stream": _log(streams.max(initial=0)),
        "places: odd streams": _mean(np.unique(streams) % 2),
    }


def _values(events: Iterable[Event], key: str) -> Array:
    return np.array([float(e[key]) for e in events if isinstance(e.get(key), int)])


def _extent(events: Sequence[Event], whole: Sequence[Event]) -> dict[str, float]:
    """Return the cut of the recording, and digits of its clock."""
    begin, length = (np.array([float(e[key]) for e in whole]) for key in ("ts", "dur"))
    end = (begin + length).max()
    steps = [float(e["ts"]) for e in whole if str(e["name"]).startswith("ProfilerStep")]
    marks = np.array([float(e["ts"]) for e in events if e.get("ph") != "X" and "ts" in e])
    found = {
        "extent: clock": _log(begin.min()),
        "extent: clock's last digits": float(begin.min() % 1_000),
        "extent: marks ahead": _log((marks < begin.min()).sum()),
        "extent: marks behind": _log((marks > end).sum()),
        "extent: ahead of the steps": _log(min(steps) - begin.min()) if steps else np.nan,
    }
    for unit in _DIGITS:
        for name, values in (("begins", begin), ("lengths", length)):
            found[f"extent: {name} of {unit} ns"] = _mean(np.rint(values * 1_000) % unit == 0)
    return found


def _keys(whole: Sequence[Event]) -> dict[str, float]:
    """Orders of keys beyond the one that each set of keys has, and sets that few events have."""
    by_kind: defaultdict[str, list[tuple[str, ...]]] = defaultdict(list)
    for event in whole:
        by_kind[str(event.get("cat"))].append((*event, "|", *event.get("args", {})))
    found: dict[str, float] = {}
    for kind in _KEYED:
        lists = by_kind[kind]
        ordered, sets = Counter(lists), Counter(map(frozenset, lists))
        found[f"keys: {kind} orders"] = float(len(ordered) - len(sets))
        rare = [count for count in sets.values() if count < _RARE * len(lists)]
        found[f"keys: {kind} rare"] = float(len(rare))
    return found


def _marks(whole: Sequence[Event]) -> dict[str, float]:
    """Residue of marks around what was put in."""
    names = [str(e["name"]).lower() for e in whole]
    marked = [any(mark in name for mark in _MARKS) for name in set(names)]
    return {"marks: names": float(sum(marked)), "marks: empty names": _mean(np.array(names) == "")}


# ------------------------------------------------------------------------- checks


@dataclass(frozen=True)
class Books:
    """The bookkeeping of one trace (`bookkeeping_of`), with its label."""

    features: Mapping[str, float]
    label: bool
    group: str
    pair: str
    """Id that a trace and its twin share."""
    run: str
    """Id of the runs that the two belong to: ranks that were recorded together share it."""


def books_of(
    folder: PathLike, splits: Collection[str] = (), *, put_in: bool = False
) -> list[Books]:
    """Return the bookkeeping of the traces of a data set, or of a folder of `generate` or
    `collect`.

    Args:
        folder: Of the traces and their labels.
        splits: Of a data set; empty: all. Its traces are written as files again.
        put_in: Whether that counts as a fault which costs too little, or is a decoy: it was put in
            in the same way.

    Raises:
        MissingFileError: There are no labels.
        ParseError: A trace can't be read.
    """
    files = _exported(DataSet(folder), splits) if is_dataset(folder) else _generated(Path(folder))
    known = [(label, bookkeeping_of(path)) for label, path in files]
    faulty = {label["twin"]: label for label, _ in known if label["twin"] is not None}
    found = []
    for label, features in known:
        side = faulty.get(label["id"], label)
        is_bad = label["twin" if put_in else "type"] is not None
        group = label["source"]["base"]
        found.append(Books(features, is_bad, group, side["id"], side["run"]))
    return found


def _generated(folder: Path) -> Iterator[tuple[dict[str, Any], Path]]:
    place = folder / LABELS
    if not place.exists():
        raise MissingFileError(f"{place}: no such file")
    for line in place.read_text("utf-8").splitlines():
        label = json.loads(line)
        yield label, folder / f"{label['id']}.json.gz"


def _exported(dataset: DataSet, splits: Collection[str]) -> Iterator[tuple[dict[str, Any], Path]]:
    """Each as a file that is there until the next one is asked for."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json.gz"
        for label in dataset.labels():
            if not splits or label["split"] in splits:
                _core.write_trace(dataset.table(label["id"]), str(path))
                yield label, path


def told_by_bookkeeping(books: Sequence[Books], seed: int = 0) -> dict[str, Interval]:
    """AUC of trace labels, out of fold by groups, by models that know bookkeeping alone.

    Args:
        books: Of traces of two groups at least.
        seed: Of folds and models.

    Returns:
        By model ("logistic regression", "boosted trees"), with a 95 % interval over groups.

    Raises:
        OptionError: There are fewer groups, or one label alone.
    """
    x, _ = _matrix(books)
    label = np.array([each.label for each in books])
    groups = np.unique([each.group for each in books], return_inverse=True)[1]
    if groups.max(initial=0) < 1 or label.all() or not label.any():
        raise OptionError("two groups, and traces with a fault and without, are needed")
    found = {}
    for name in ("logistic regression", "boosted trees"):
        scores = _out_of_fold(name, x, label, groups, seed)
        every = np.ones(len(label), dtype=bool)
        scored = Scored(scores, label, every, np.arange(len(label)), groups)
        weights = draws(int(groups.max()) + 1)
        found[name] = interval(window_auc(scored), replicates(scored, "auc", weights))
    return found


def _matrix(books: Sequence[Books]) -> tuple[Array, list[str]]:
    names = sorted({name for each in books for name in each.features})
    rows = [[each.features.get(name, np.nan) for name in names] for each in books]
    x = np.array(rows, dtype=np.float64)
    return x, names


def _out_of_fold(name: str, x: Array, label: Array, groups: Array, seed: int) -> Array:
    """Mean log odds over some ways to cut the groups into folds."""
    from sklearn.model_selection import StratifiedGroupKFold

    scores = np.zeros(len(label))
    folds = min(_FOLDS, int(groups.max()) + 1)
    for turn in range(_REPEATS):
        cuts = StratifiedGroupKFold(folds, shuffle=True, random_state=seed + turn)
        for train, test in cuts.split(x, label, groups):
            if len(set(label[train])) < 2:
                continue
            model = _model(name, seed + turn).fit(_filled(x, train, train), label[train])
            chance = model.predict_proba(_filled(x, test, train))[:, 1]
            scores[test] += np.log(chance + 1e-4) - np.log(1 - chance + 1e-4)
    return scores / _REPEATS


def _model(name: str, seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if name == "boosted trees":
        return make_trees(seed)
    return make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=2_000))


def _filled(x: Array, rows: Array, train: Array) -> Array:
    """Fill missing values with the median of the training rows, or 0 without one."""
    known = np.isfinite(x[train])
    middle = np.array([np.median(x[train][k, i]) if k.any() else 0 for i, k in enumerate(known.T)])
    found: Array = np.where(np.isfinite(x[rows]), x[rows], middle)
    return found


@dataclass(frozen=True)
class Sided:
    """A feature that is larger on one side of most pairs."""

    name: str
    higher: int
    """Pairs in which the faulty trace has more of it, and less."""
    lower: int
    p: float
    """The p-value of the sign test, times the number of features (Bonferroni)."""


def sided_features(books: Sequence[Books], level: float = 0.01) -> list[Sided]:
    """Features that tell the faulty trace of a pair from its twin, by a sign test over pairs.

    Args:
        books: Traces; a pair has one with a fault and one without, others are left out.
        level: Of the test, for all features together.

    Returns:
        Those below the level, the most telling first. Ranks of one run count as one pair, by their
        majority.
    """
    x, names = _matrix(books)
    bad, good, run = _pairs(books)
    found = []
    for column, name in enumerate(names):
        apart = np.sign(x[bad, column] - x[good, column])
        signs = np.bincount(run, weights=np.nan_to_num(apart))
        higher, lower = int((signs > 0).sum()), int((signs < 0).sum())
        p = min(1.0, _sign_test(higher, lower) * len(names))
        if p < level:
            found.append(Sided(name, higher, lower, p))
    return sorted(found, key=lambda each: each.p)


def _pairs(books: Sequence[Books]) -> tuple[Array, Array, Array]:
    """Rows of the faulty traces, of their twins, and codes of the runs that these belong to."""
    found: defaultdict[str, dict[bool, int]] = defaultdict(dict)
    for place, each in enumerate(books):
        found[each.pair][each.label] = place
    sides = [(each[True], each[False]) for each in found.values() if len(each) == 2]
    bad, good = (np.array(side, dtype=np.int64) for side in zip(*sides, strict=True))
    return bad, good, np.unique([books[i].run for i in bad], return_inverse=True)[1]


def _sign_test(higher: int, lower: int) -> float:
    count = higher + lower
    if not count:
        return 1.0
    tail = sum(comb(count, k) for k in range(min(higher, lower) + 1))
    return min(1.0, 2 * tail / (1 << count))
