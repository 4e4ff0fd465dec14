"""Read a data set from its folder, a trace at a time, and the runs of labeled traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

from torchtraceap import _core
from torchtraceap.core.aliases import PathLike
from torchtraceap.core.stored import check_fields, hash_file, read_json, read_json_lines
from torchtraceap.datasets.arrow import (
    FORMAT,
    file_of,
    import_pyarrow,
    open_table,
    read_group,
    read_rows,
)
from torchtraceap.datasets.decoding import decode_label, decode_trace
from torchtraceap.datasets.labels import LABELS
from torchtraceap.errors import MissingFileError, OptionError, SchemaError
from torchtraceap.trace.ranks import RankTrace
from torchtraceap.trace.trace import Trace

__all__ = ["ABOUT", "DataSet", "Run", "is_dataset", "labeled_ranks", "labeled_runs"]

Label = dict[str, Any]
"""A label as `generate` writes it (docs/labeled_data.md)."""

ABOUT = "dataset.json"
"""The file that makes a folder a data set."""
_LABEL: dict[str, type | tuple[type, ...]] = {
    "id": str, "task": (str, type(None)), "source": dict, "device": (str, type(None)),
    "rank": (int, type(None)), "run": (str, int), "twin": (str, type(None)),
    "type": (str, type(None)), "form": (str, type(None)), "intervals": list, "already": list,
    "split": (str, type(None)),
}  # fmt: skip
_SOURCE: dict[str, type | tuple[type, ...]] = {"kind": str, "base": str}
_ROW: dict[str, type | tuple[type, ...]] = {
    "id": str, "run": str, "source": str, "base": str, "costs": list, "already": list,
    "step_ns": list, "tracks": list, "origin_ns": int, "gpu_event_count": int,
    "host_event_count": int, "metadata": str,
}  # fmt: skip
_LISTED: dict[str, dict[str, type | tuple[type, ...]]] = {
    "costs": {"type": str, "start_ns": int, "end_ns": int},
    "tracks": {"pid": str, "tid": str},
    "already": {},
    "step_ns": {},
}
"""Fields of what columns of `traces` list; none where they list plain values."""


@dataclass(frozen=True)
class Run:
    """Ranks that were recorded together, often one."""

    name: str
    labels: tuple[Label, ...]
    """Labels of the ranks that are there, by rank."""
    size: int
    """Size of the traces: bytes of files, or events of a data set."""
    load: Callable[[], Trace]
    """Reads all of them."""
    content: Callable[[], list[str]]
    """Makes hashes of the files that they are read from."""


@dataclass(frozen=True)
class Entry:
    """A trace of a data set."""

    shard: str
    place: int
    """The row group of it in the files of its shard."""
    row: dict[str, Any]
    """Its row of the table `traces`."""


def is_dataset(folder: PathLike) -> bool:
    """Return True if a data set was begun in the folder."""
    return (Path(folder) / ABOUT).is_file()


class DataSet:
    """Traces and their labels; docs/labeled_data.md has the columns of the tables.

    Args:
        folder: The folder of the data set.

    Raises:
        MissingFileError: There is no such folder.
        MissingDependencyError: pyarrow is not installed.
        SchemaError: It is no data set, or one of another version.
    """

    def __init__(self, folder: PathLike) -> None:
        self.path = Path(folder)
        import_pyarrow()
        if not self.path.is_dir():
            raise MissingFileError(f"{self.path}: no such folder")
        if not is_dataset(self.path):
            raise SchemaError(f"{self.path}: is no data set, there is no {ABOUT} in it")
        place = self.path / ABOUT
        self.about = read_json(place)
        check_fields(self.about, {"format": int}, str(place))
        version = self.about["format"]
        if version != FORMAT:
            raise SchemaError(f"{self.path}: is a data set of version {version}, not {FORMAT}")
        self._names = lru_cache(maxsize=4)(self._names_of)
        self._hash_of = cache(hash_file)

    @property
    def shards(self) -> list[str]:
        """Names of the files of each table, in order."""
        return sorted(path.stem for path in (self.path / "traces").glob("*.parquet"))

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """The traces by id, in order."""
        found: dict[str, Entry] = {}
        for shard in self.shards:
            path = file_of(self.path, "traces", shard)
            for place, row in enumerate(read_rows(path, "traces").to_pylist()):
                _check_row(row, f"{path}, row {place}")
                if row["id"] in found:
                    raise SchemaError(f"{self.path}: two traces have the id {row['id']}")
                found[row["id"]] = Entry(shard, place, row)
        return dict(sorted(found.items()))

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def labels(self) -> list[dict[str, Any]]:
        """Return the labels of each trace as in `labels.jsonl` (docs/labeled_data.md)."""
        return [decode_label(entry.row) for entry in self.entries.values()]

    def entry(self, trace: str) -> Entry:
        """A trace by its id.

        Raises:
            OptionError: The data set has no trace of that id.
        """
        try:
            return self.entries[trace]
        except KeyError:
            some = ", ".join(list(self.entries)[:4])
            raise OptionError(
                f"{self.path}: has no trace {trace!r}; there are {len(self)}: {some}, ..."
            ) from None

    def table(self, trace: str) -> _core.EventTable:
        """The event table of a trace, with all that its file had.

        Raises:
            OptionError: The data set has no trace of that id.
            SchemaError: A file of it can't be read.
        """
        entry = self.entry(trace)
        gpu, host = (self._group(table, entry) for table in ("gpu_events", "host_events"))
        return decode_trace(entry.row, gpu, host, self._names(entry.shard), f"{self.path}:{trace}")

    def rank(self, trace: str) -> RankTrace:
        """Return a trace for analysis."""
        return RankTrace(self.table(trace), self.entry(trace).row["rank"])

    def windows(self, trace: str) -> Any:
        """Return a trace's rows of `windows` as an Arrow table."""
        return self._group("windows", self.entry(trace))

    def content(self, shard: str) -> list[str]:
        """Return hashes of the files of a shard that events are read from."""
        tables = ("traces", "names", "gpu_events", "host_events")
        return [self._hash_of(file_of(self.path, table, shard)) for table in tables]

    def _group(self, table: str, entry: Entry) -> Any:
        path = file_of(self.path, table, entry.shard)
        with open_table(path, table) as file:
            if entry.place >= file.num_row_groups:
                raise SchemaError(f"{path}: has {file.num_row_groups} traces, not as in `traces`")
            return read_group(path, partial(file.read_row_group, entry.place))

    _hash_of: Callable[[Path], str]
    _names: Callable[[str], dict[int, str]]

    def _names_of(self, shard: str) -> dict[int, str]:
        rows = read_rows(file_of(self.path, "names", shard), "names", ("hash", "name"))
        return dict(zip(*(rows.column(name).to_pylist() for name in ("hash", "name")), strict=True))


# ------------------------------------------------------------------------------ runs


def labeled_runs(dataset: PathLike) -> list[Run]:
    """The runs of a data set, or of a folder that `generate` made.

    Raises:
        MissingFileError: There is no such folder, or one of the traces is not there.
        SchemaError: It has no labels, or they can't be read.
    """
    folder = Path(dataset)
    if not folder.is_dir():
        raise MissingFileError(f"{folder}: no such folder")
    source: DataSet | Path = folder
    if is_dataset(folder):
        stored = DataSet(folder)
        source, labels = stored, stored.labels()
    elif (folder / LABELS).exists():
        labels = _generated_labels(folder / LABELS)
    else:
        raise SchemaError(f"{folder}: holds neither a data set nor generated traces")
    labels.sort(key=lambda label: (label["run"], label["rank"] or 0))
    return [
        _run(source, name, tuple(group))
        for name, group in groupby(labels, key=lambda label: str(label["run"]))
    ]


def labeled_ranks(
    runs: Iterable[Run], is_wanted: Callable[[Label], bool]
) -> Iterator[tuple[Label, RankTrace]]:
    """Yield the ranks of runs whose labels are wanted, with these; a run that has none is not read.

    Raises:
        SchemaError: A trace can't be read.
    """
    for run in runs:
        if any(map(is_wanted, run.labels)):
            for label, part in zip(run.labels, run.load().ranks, strict=True):
                if is_wanted(label):
                    yield label, part


def _run(source: DataSet | Path, name: str, labels: tuple[Label, ...]) -> Run:
    if isinstance(source, DataSet):
        rows = [source.entry(label["id"]).row for label in labels]
        size = sum(row["gpu_event_count"] + row["host_event_count"] for row in rows)
        ids = [label["id"] for label in labels]
        shards = sorted({source.entry(trace).shard for trace in ids})
        return Run(
            name,
            labels,
            size,
            lambda: Trace([source.rank(trace) for trace in ids]),
            lambda: [digest for shard in shards for digest in source.content(shard)],
        )
    paths = [source / f"{label['id']}.json.gz" for label in labels]
    for path in paths:
        if not path.exists():
            raise MissingFileError(f"{path}: no such file, though {LABELS} has its label")
    size = sum(path.stat().st_size for path in paths)
    ranks = [label["rank"] for label in labels]
    return Run(
        name,
        labels,
        size,
        partial(_read_files, paths, ranks),
        lambda: [hash_file(path) for path in paths],
    )


def _read_files(paths: list[Path], ranks: list[int]) -> Trace:
    pairs = zip(paths, ranks, strict=True)
    return Trace([RankTrace(_core.read_trace(path, threads=1), rank) for path, rank in pairs])


def _generated_labels(path: Path) -> list[Label]:
    labels = []
    for place, label in read_json_lines(path):
        check_fields(label, _LABEL, place)
        check_fields(label["source"], _SOURCE, f"{place}: source")
        _check_intervals(label["intervals"], f"{place}: intervals")
        check_fields({"costs": {}, **label}, {"costs": dict}, place)
        for name, costs in label.get("costs", {}).items():
            _check_intervals(costs, f"{place}: costs: {name}")
        inner = Path(label["id"])
        if inner.is_absolute() or ".." in inner.parts:
            raise SchemaError(f"{place}: id: {label['id']!r} leads out of the folder")
        labels.append(label)
    return labels


def _check_intervals(found: Any, place: str) -> None:
    """Check pairs of times in whole nanoseconds."""
    if not isinstance(found, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(type(ns) is int for ns in pair)
        for pair in found
    ):
        raise SchemaError(f"{place}: pairs of whole nanoseconds are needed")


def _check_row(row: dict[str, Any], place: str) -> None:
    """Check that nothing that every trace has is null, in a row of `traces`."""
    check_fields(row, _ROW, place)
    for name, fields in _LISTED.items():
        for number, each in enumerate(row[name]):
            where = f"{place}: {name} {number}"
            if fields:
                check_fields(each or {}, fields, where)
            elif each is None:
                raise SchemaError(f"{where}: is null")
