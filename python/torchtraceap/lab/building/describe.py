"""`describe`: the data card, its figures and the Croissant metadata of a data set.

All of it is made from the tables, so it says what is in them. The card's head names the files of
each table and split, by which Hugging Face `datasets` loads them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torchtraceap.core.writing import write_text
from torchtraceap.datasets.arrow import TABLES, file_of, schemas
from torchtraceap.datasets.reader import DataSet
from torchtraceap.datasets.statistics import statistics
from torchtraceap.lab.building.card import card_text
from torchtraceap.lab.building.figures import bars, grid

__all__ = ["describe"]


def describe(folder: Path) -> dict[str, Any]:
    """Writes the description of a data set; returns its statistics.

    Raises:
        OutputError: It can't be written.
        SchemaError: A table can't be read.
    """
    dataset = DataSet(folder)
    found = statistics(dataset)
    (folder / "figures").mkdir(exist_ok=True)
    for name, text in _figures(found).items():
        write_text(folder / "figures" / f"{name}.svg", text)
    write_text(folder / "README.md", card_text(found, dataset.about, _splits(dataset)))
    write_text(folder / "croissant.json", json.dumps(_croissant(dataset), indent=1) + "\n")
    return found


def _splits(dataset: DataSet) -> list[str]:
    """In the order in which they are used."""
    known = {shard.partition("-")[0] for shard in dataset.shards}
    order = ("train", "validation", "seen", "unseen", "real")
    return [*(split for split in order if split in known), *sorted(known - set(order))]


def _figures(found: Mapping[str, Any]) -> dict[str, str]:
    """SVG by name."""
    tasks = list(found["tasks"])
    types = found["types"]
    windows = found["gpu_events_per_window"]
    return {
        "windows": grid(
            "Positive windows of 100 by type and task",
            {name: of["positive_windows"] for name, of in types.items()},
            tasks,
        ),
        "traces": grid(
            "Traces with a fault by type and task",
            {name: of["traces"] for name, of in types.items()},
            tasks,
        ),
        "events": bars(
            "GPU events in a window",
            {f"{n} windows, {key}": of[key] for n, of in windows.items() for key in _SPREAD},
        ),
        "devices": bars("Traces by device", found["devices"]),
        "slowdown": bars("Length with a fault, over that without", found["pair_slowdown"] or {}),
        "lengths": bars("Length of traces", found["length_ms"] or {}, "ms"),
        "kernels": bars(
            "GPU events of a trace, median by task",
            {task: of["p50"] for task, of in found["kernels"].items()},
        ),
    }


_SPREAD = ("mean", "median", "p95")

# ------------------------------------------------------------------------------ Croissant

_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "column": "cr:column",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "includes": "cr:includes",
    "recordSet": "cr:recordSet",
    "repeated": "cr:repeated",
    "source": "cr:source",
}


def _croissant(dataset: DataSet) -> dict[str, Any]:
    """Version 1.0 of the format: files, and a record set for each table."""
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": "torchtraceap",
        "description": "Traces of PyTorch on GPUs with faults whose place and cost are known.",
        "license": "https://creativecommons.org/licenses/by/4.0/",
        "version": "1.0.0",
        "distribution": [*_files(dataset), *_file_sets()],
        "recordSet": [_record_set(table) for table in TABLES],
    }


def _files(dataset: DataSet) -> Iterator[dict[str, Any]]:
    for table in TABLES:
        for shard in dataset.shards:
            path = file_of(dataset.path, table, shard)
            name = f"{table}/{shard}.parquet"
            yield {
                "@type": "cr:FileObject",
                "@id": name,
                "name": name,
                "contentUrl": name,
                "contentSize": f"{path.stat().st_size} B",
                "encodingFormat": "application/x-parquet",
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }


def _file_sets() -> Iterator[dict[str, Any]]:
    for table in TABLES:
        yield {
            "@type": "cr:FileSet",
            "@id": f"{table}-files",
            "name": f"{table}-files",
            "encodingFormat": "application/x-parquet",
            "includes": f"{table}/*.parquet",
        }


def _record_set(table: str) -> dict[str, Any]:
    return {
        "@type": "cr:RecordSet",
        "@id": table,
        "name": table,
        "field": [_field(table, field) for field in schemas()[table]],
    }


def _field(table: str, field: Any) -> dict[str, Any]:
    source = {"fileSet": {"@id": f"{table}-files"}, "extract": {"column": field.name}}
    found = {"@type": "cr:Field", "@id": f"{table}/{field.name}", "name": field.name}
    kind = str(field.type)
    more = {"repeated": True} if kind.startswith("list") else {}
    return {**found, "dataType": _data_type(kind), **more, "source": source}


def _data_type(kind: str) -> str:
    kind = kind.removeprefix("list<element: ").removeprefix("list<item: ")
    if kind.startswith("int"):
        return "sc:Integer"
    if kind.startswith(("float", "double")):
        return "sc:Float"
    return "sc:Boolean" if kind.startswith("bool") else "sc:Text"
