"""`add` puts labeled traces of one's own into a data set; `export` writes one as a file.

Labels are JSON: what `generate` writes of a trace, or the intervals alone, in nanoseconds of the
trace's clock:

    {"intervals": [{"start_ns": 1500, "end_ns": 9500, "type": "high_memcpy"}]}

Any other key of a generated label may stand beside them (docs/labeled_data.md). No intervals: the
trace is without a fault.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core import (
    PathLike,
    naming,
    parse_value,
    read_stored,
    replacing,
    union,
    write_text,
)
from torchtraceap.datasets import (
    ABOUT,
    CPU_SPLIT,
    FORMAT,
    TYPES,
    DataSet,
    Run,
    is_dataset,
    labeled_runs,
    write_shard,
)
from torchtraceap.errors import OptionError, SchemaError
from torchtraceap.lab.building.describe import describe
from torchtraceap.lab.generation.pairs import NO_FAULT
from torchtraceap.tables import recorded_device
from torchtraceap.trace import RankTrace, load

__all__ = ["add", "add_labelled", "export"]

_WORD = re.compile(r"\w+")
_NO_NAME = re.compile(r"[^\w.]+")


def add(dataset: PathLike, trace: PathLike, labels: PathLike, *, split: str | None = None) -> str:
    """Add a trace, as a shard of its own.

    Args:
        dataset: A data set, or a new or empty folder for one.
        trace: A file of one rank.
        labels: A file of JSON, as described above.
        split: The split that it is in; None: what the labels say, else none.

    Returns:
        Its id: the id in the labels, else the name of the file.

    Raises:
        MissingFileError: A file is not there.
        OptionError: The id is taken, its base is in another split, the trace has several ranks,
            it was collected on a CPU and is to be in a split of others, or a folder with something
            else in it.
        ParseError: The trace can't be read.
        SchemaError: The labels can't be read, or do not fit the trace.
    """
    known = _open_or_begin(Path(dataset))
    _check_split(split)
    ranks = load(trace).ranks
    if len(ranks) != 1:
        raise OptionError(f"{trace}: a file of a single rank is needed, not of {len(ranks)}")
    given, costs = _read_labels(Path(labels))
    label = _complete_label(given, costs, ranks[0], Path(trace), _split_of(given, split))
    _check_new(known, label)
    shard = f"{label['split'] or 'own'}-{label['id']}"
    write_shard(known.path, shard, [(label, ranks[0])])
    describe(known.path)
    return str(label["id"])


def add_labelled(dataset: PathLike, folder: PathLike, *, split: str | None = None) -> int:
    """Add the traces of a folder that `generate` or `collect` made, a shard for each base.

    Args:
        dataset: A data set, or a new or empty folder for one.
        folder: A folder of traces and their labels.
        split: The split that all of them are in; None: what the labels say.

    Returns:
        The number of added traces.

    Raises:
        MissingFileError: There is no such folder, or a trace is missing.
        OptionError: An id is taken, a base is in another split, or traces of a CPU are to be in a
            split of others.
        SchemaError: The labels can't be read.
    """
    target = _open_or_begin(Path(dataset))
    _check_split(split)
    by_base: dict[str, list[Run]] = {}
    for run in labeled_runs(folder):
        by_base.setdefault(run.labels[0]["source"]["base"], []).append(run)
    count = 0
    for base, runs in sorted(by_base.items()):
        known = DataSet(target.path)
        traces = []
        for run in runs:
            for label, part in zip(run.labels, run.load().ranks, strict=True):
                own = {
                    # Ids of ranks are paths in a folder of traces.
                    key: label[key] and label[key].replace("/", "-")
                    for key in ("id", "run", "twin")
                }
                label = {**label, **own, "split": _split_of(label, split)}
                _check_new(known, label)
                traces.append((label, part))
        number = hashlib.blake2b(base.encode(), digest_size=4).hexdigest()
        write_shard(target.path, f"{traces[0][0]['split'] or 'own'}-{number}", traces)
        count += len(traces)
    describe(target.path)
    return count


def export(dataset: PathLike, trace: str, out: PathLike) -> Path:
    """Write a trace of a data set as a profiler would have, JSON or with the suffix .gz gzip.

    Raises:
        OptionError: There is no trace of that id.
        OutputError: It can't be written.
        SchemaError: The data set can't be read.
    """
    table = DataSet(dataset).table(trace)
    with replacing(out) as staged:
        _core.write_trace(table, staged)
    return Path(out)


def _open_or_begin(folder: Path) -> DataSet:
    """Return the data set, which is begun where there is none."""
    if not is_dataset(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise OptionError(f"{folder}: a data set, or a new or empty folder, is needed")
        with naming(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / ABOUT, json.dumps({"format": FORMAT}, indent=1) + "\n")
    return DataSet(folder)


def _check_split(split: str | None) -> None:
    if split is not None and not _WORD.fullmatch(split):
        raise OptionError(f"a split is called by letters and digits, not {split!r}")


def _split_of(label: Mapping[str, Any], asked: str | None) -> str | None:
    """Return the split of a trace; traces that were collected on a CPU are no data of GPUs."""
    said: str | None = label.get("split")
    if said == CPU_SPLIT and asked not in (None, CPU_SPLIT):
        raise OptionError(
            f"{label.get('id')}: was collected on a CPU, so it is in the split {CPU_SPLIT!r} and "
            f"not in {asked!r}"
        )
    return asked or said


def _read_labels(path: Path) -> tuple[dict[str, Any], dict[str, list[list[int]]]]:
    """Return the labels of a file, and their intervals by type."""
    given: Any = parse_value(read_stored(path), str(path))
    label = {"intervals": given} if isinstance(given, list) else given
    if not isinstance(label, dict) or not isinstance(label.get("intervals"), list):
        raise SchemaError(f"{path}: an object with a list of `intervals` is needed")
    costs: dict[str, list[list[int]]] = {}
    for number, interval in enumerate(label["intervals"]):
        if isinstance(interval, dict):
            cells: list[Any] = [interval.get(key) for key in ("start_ns", "end_ns", "type")]
        else:
            cells = [*interval, label.get("type")] if isinstance(interval, list) else []
        where = f"{path}: interval {number}"
        if len(cells) != 3 or not all(type(cell) is int for cell in cells[:2]):
            raise SchemaError(f"{where} lacks its start and end in whole nanoseconds")
        start_ns, end_ns, name = cells
        if name not in TYPES:
            raise SchemaError(f"{where} has the type {name!r}, none of {', '.join(TYPES)}")
        if end_ns <= start_ns:
            raise SchemaError(f"{where} ends at {end_ns}, before it begins at {start_ns}")
        costs.setdefault(name, []).append([start_ns, end_ns])
    return label, costs


def _complete_label(
    given: Mapping[str, Any],
    costs: Mapping[str, list[list[int]]],
    part: RankTrace,
    path: Path,
    split: str | None,
) -> dict[str, Any]:
    """Return the label with all that it may leave out."""
    _check_split(split)
    name = _NO_NAME.sub("_", str(given.get("id") or path.name.split(".")[0])) or "trace"
    lengths = {type_: _length_ns(intervals) for type_, intervals in costs.items()}
    cost_ns = _length_ns([each for intervals in costs.values() for each in intervals])
    kind = max(lengths, key=lambda type_: lengths[type_], default=None)
    begin_ns, end_ns = part.tree.profiled
    for type_, intervals in costs.items():  # labels of another clock are a common mistake
        for start, end in intervals:
            if end <= begin_ns or start >= end_ns:
                raise SchemaError(
                    f"{path}: the trace lasts from {begin_ns} to {end_ns} ns, and the interval "
                    f"[{start}, {end}] of {type_} is outside"
                )
    device = next(filter(None, map(recorded_device, part.table.devices)), None)
    rest: dict[str, Any] = {
        **NO_FAULT, "task": None, "device": device.name if device else None, "strategy": None,
        "world_size": part.world_size or 1, "rank": part.rank or 0, "profiler": None,
        "form": "recorded" if costs else "none", "looks_like": kind, "cost_ns": cost_ns,
        "severity": cost_ns / max(1, part.profiled_ns - cost_ns), "already": [], "seed": None,
        "licence": None, "source": {"kind": "recorded", "base": name},
    }  # fmt: skip
    own = {"costs": costs, "id": name, "run": name, "type": kind, "split": split}
    return {**rest, **given, **own}


def _length_ns(intervals: Sequence[Sequence[int]]) -> int:
    disjoint = union([np.array(intervals, dtype=np.int64).reshape(-1, 2)])
    return int((disjoint[:, 1] - disjoint[:, 0]).sum())


def _check_new(known: DataSet, label: Mapping[str, Any]) -> None:
    """Raise an error if the id is there already, or in another split the base."""
    if label["id"] in known.entries:
        raise OptionError(f"{known.path}: has a trace {label['id']!r} already")
    source = label["source"]
    if not isinstance(source, dict) or not {"kind", "base"} <= source.keys():
        raise SchemaError('a `source` is an object such as {"kind": "recorded", "base": NAME}')
    for entry in known.entries.values():
        row = entry.row
        if row["base"] == source["base"] and row["split"] != label["split"]:
            raise OptionError(
                f"{known.path}: traces of the base {source['base']!r} are in the split "
                f"{row['split']}, so this one can't be in {label['split']}"
            )
