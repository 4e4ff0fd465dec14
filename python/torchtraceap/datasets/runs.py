"""The runs of a folder of labeled traces, and how to read each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from torchtraceap import _core
from torchtraceap.core.aliases import PathLike
from torchtraceap.datasets.reader import DataSet, is_dataset
from torchtraceap.datasets.types import LABELS
from torchtraceap.errors import MissingFileError, SchemaError
from torchtraceap.trace.ranks import RankTrace
from torchtraceap.trace.trace import Trace

__all__ = ["Run", "labeled_runs"]

Label = dict[str, Any]
"""A label as `generate` writes it (docs/generation.md)."""
_NEEDED = ("id", "task", "source", "device", "rank", "run", "twin", "type", "form", "intervals",
           "already", "split")  # fmt: skip


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


def labeled_runs(dataset: PathLike) -> list[Run]:
    """The runs of a data set, or of a folder that `generate` made.

    Raises:
        MissingFileError: There is no such folder, or one of the traces is not there.
        SchemaError: It has no labels, or they can't be read.
    """
    folder = Path(dataset)
    if not folder.is_dir():
        raise MissingFileError(f"{folder}: no such folder")
    if is_dataset(folder):
        return list(_dataset_runs(DataSet(folder)))
    if (folder / LABELS).exists():
        return list(_generated_runs(folder))
    raise SchemaError(f"{folder}: holds neither a data set nor generated traces")


def _dataset_runs(dataset: DataSet) -> Iterator[Run]:
    for name, of_run in _group_by_run(dataset.labels()):
        rows = [dataset.entry(label["id"]).row for label in of_run]
        size = sum(row["gpu_event_count"] + row["host_event_count"] for row in rows)
        ids = [label["id"] for label in of_run]
        yield Run(name, of_run, size, partial(_decode, dataset, ids))


def _decode(dataset: DataSet, ids: list[str]) -> Trace:
    return Trace([dataset.rank(trace) for trace in ids])


def _group_by_run(labels: Iterable[Label]) -> Iterator[tuple[str, tuple[Label, ...]]]:
    """Labels of each run, by rank."""
    ordered = sorted(labels, key=lambda label: (label["run"], label["rank"] or 0))
    for name, group in groupby(ordered, key=lambda label: str(label["run"])):
        yield name, tuple(group)


def _generated_runs(folder: Path) -> Iterator[Run]:
    for name, of_run in _group_by_run(_generated_labels(folder / LABELS)):
        paths = [folder / f"{label['id']}.json.gz" for label in of_run]
        for path in paths:
            if not path.exists():
                raise MissingFileError(f"{path}: no such file, though {LABELS} has its label")
        size = sum(path.stat().st_size for path in paths)
        ranks = [label["rank"] for label in of_run]
        yield Run(name, of_run, size, partial(_read, paths, ranks))


def _read(paths: list[Path], ranks: list[int]) -> Trace:
    pairs = zip(paths, ranks, strict=True)
    return Trace([RankTrace(_core.read_trace(path, threads=1), rank) for path, rank in pairs])


def _generated_labels(path: Path) -> Iterator[Label]:
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            label = json.loads(line)
            missing = [key for key in _NEEDED if key not in label]
        except (ValueError, TypeError) as error:
            raise SchemaError(f"{path}, line {number}: no label ({error})") from None
        if missing:
            raise SchemaError(f"{path}, line {number}: lacks {', '.join(missing)}")
        yield label
