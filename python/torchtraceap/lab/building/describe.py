"""`describe`: the data card, its figures and the Croissant metadata of a data set.

All of it is made from the tables, so it says what is in them. The card's head names the files of
each table and split, by which Hugging Face `datasets` loads them. Figures are SVG with a white
ground and no scripts, so that every viewer shows the same.
"""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from torchtraceap.core import write_text
from torchtraceap.datasets import CPU_SPLIT, TABLES, DataSet, file_of, schemas, statistics
from torchtraceap.lab.building.plan import NETWORKS_FOR_TESTS
from torchtraceap.lab.generation.faults import GRAPH_FAULTS

__all__ = ["bars", "describe"]

_SPREAD = ("mean", "median", "p95")
_SPLITS = ("train", "validation", "seen", "unseen", "real")
_SOURCES = {
    "lifted": "a run that was predicted for a small network, with a fault put into its graph",
    "lifted_event_space": "such a run, with the events of a fault put between its events",
    "real_graph": "a recorded trace, with a fault put into its graph, which was replayed",
    "event_space": "a recorded trace, with the events of a fault put between its events",
    "recorded": "a trace as it was recorded",
    "collected": "a real run with a fault put into its steps, or its twin without",
}
_CROISSANT_TERMS = (
    "citeAs", "column", "equivalentProperty", "extract", "field", "fileObject", "fileProperty",
    "fileSet", "format", "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField",
    "path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate", "separator",
    "source", "subField", "transform",
)  # fmt: skip
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in _CROISSANT_TERMS},
}
"""The context that Croissant 1.0 prescribes."""
_FONT = 'font-family="sans-serif" font-size="12"'
_ROW, _WIDTH, _LEFT, _TOP = 20, 720, 230, 34
_BLUE = "#2b6cb0"


def describe(folder: Path) -> dict[str, Any]:
    """Write the description of a data set and return its statistics.

    Raises:
        OutputError: It can't be written.
        SchemaError: A table can't be read.
    """
    dataset = DataSet(folder)
    found = statistics(dataset)
    (folder / "figures").mkdir(exist_ok=True)
    for name, text in _figures(found).items():
        write_text(folder / "figures" / f"{name}.svg", text)
    known = {shard.partition("-")[0] for shard in dataset.shards}
    splits = [*(each for each in _SPLITS if each in known), *sorted(known - set(_SPLITS))]
    head = ["---", "license: cc-by-4.0", "pretty_name: torchtraceap", "configs:"]
    for table in TABLES:
        head += [f"- config_name: {table}", "  data_files:"]
        for split in splits:
            head += [f"  - split: {split}", f"    path: {table}/{split}-*.parquet"]
    lines = [
        # Rows of tables stay whole.
        line
        if line.startswith("|")
        else textwrap.fill(line, 118, break_long_words=False, break_on_hyphens=False)
        for line in _card(found, dataset.about)
    ]
    write_text(folder / "README.md", "\n".join([*head, "---", *lines]) + "\n")
    write_text(folder / "croissant.json", json.dumps(_croissant(dataset), indent=1) + "\n")
    return found


# ------------------------------------------------------------------------- the card


def _card(found: Mapping[str, Any], about: Mapping[str, Any]) -> list[str]:
    """Return the paragraphs of the card, in Markdown."""
    built = about.get("built")
    how = "by `torchtraceap dataset add`"
    if built:
        how = (
            f"by `torchtraceap dataset build` with the seed {built['seed']} and "
            f"{len(built['bases'])} recorded bases"
        )
    on_cpus = []
    if found["cpu_traces"]:
        on_cpus = [
            f"{found['cpu_traces']} traces more are of CPUs, where collecting was tried out. They "
            f"are in the split `{CPU_SPLIT}`, and in no other number on this page.",
            "",
        ]
    splits = [
        (name, of["traces"], of["bases"], of["faulty"], ", ".join(of["families"]))
        for name, of in found["splits"].items()
    ]
    types = [
        (
            name,
            sum(of["traces"].values()),
            sum(of["positive_windows"].values()),
            "" if of["cost_share"] is None else f"{of['cost_share']['p50']:.3f}",
            _counts_text(of["forms"]),
        )
        for name, of in found["types"].items()
    ]
    windows = [
        (n, of["mean"], of["median"], of["p95"], of["empty_share"])
        for n, of in found["gpu_events_per_window"].items()
    ]
    forms_for_tests = [name for name, fault in GRAPH_FAULTS.items() if fault.test]
    return [
        "# Traces with faults whose place and cost are known",
        "",
        f"{found['traces']} traces of PyTorch on GPUs, of {found['runs']} runs and "
        f"{found['bases']} bases, {found['bytes'] / 1e6:.1f} MB, made {how}. A trace with a fault "
        "has a twin: the same run without it. Some traces have decoys, which look like faults and "
        "cost nothing.",
        "",
        "**What it is for.** To train and to test what finds faults in traces, window by window, "
        "and what tells their types apart. **What it is not for.** To say how common a fault is, "
        "how fast a GPU or a network is, or that a detector works on your jobs: try it there.",
        "",
        "## Where the traces come from",
        "",
        *_table(("source", "traces", "what it is"), [
            (kind, count, _SOURCES.get(kind, "a trace that was added"))
            for kind, count in found["sources"].items()
        ]),
        "",
        *on_cpus,
        "Nothing of a predicted run was measured when the data set was built: the times of its "
        "kernels are those of a model of kernels that was fitted to measurements. Collectives of "
        "predicted runs come from a model of links. All inputs are synthetic, all weights random.",
        "",
        "## Labels",
        "",
        "The cost of a fault is the difference to the twin, and its intervals are where the main "
        "stream falls behind the twin. A window is positive where the intervals of a type cover a "
        "tenth of it or more; between a fiftieth and a tenth it is marked `ignore`. `already` "
        "names what the rules of `diagnose` find in the base itself: a twin is free of the fault, "
        "not of everything.",
        "",
        "## Splits",
        "",
        *_table(("split", "traces", "bases", "with a fault", "networks"), splits),
        "",
        "No base is in two splits, and neither is a run and its twin. The networks "
        f"{_names(NETWORKS_FOR_TESTS)} and the forms {_names(forms_for_tests)} are never in "
        "training or validation. `seen` has other traces of the tasks that training sees, `unseen` "
        "those of other tasks, `real` what was made of recorded traces: it is for testing alone.",
        "",
        "## Faults",
        "",
        "![Positive windows by type and task](figures/windows.svg)",
        "![Traces by type and task](figures/traces.svg)",
        "",
        *_table(
            ("type", "traces", "positive windows of 100", "cost share, median", "forms"), types
        ),
        "",
        f"Decoys: {_counts_text(found['decoys'])}.",
        "",
        "## Traces",
        "",
        "![GPU events in a window](figures/events.svg)",
        "![Traces by device](figures/devices.svg)",
        "![Length with a fault over that without](figures/slowdown.svg)",
        "![Length of traces](figures/lengths.svg)",
        "![GPU events of a trace by task](figures/kernels.svg)",
        "",
        *_table(
            ("windows", "GPU events, mean", "median", "95 % quantile", "windows without any"),
            windows,
        ),
        "",
        f"Collectives: {_counts_text(found['communication'])}.",
        "",
        "## What is known to be one-sided",
        "",
        "- Devices of predicted runs are virtual (`virtual_platform`), of seven kinds.",
        "- Networks are small, and of a few families; all runs have a single program per rank.",
        "- Each trace has one fault at most; recorded jobs have several at once.",
        "- Predicted traces can be told from recorded ones by what is not in them, such as stacks.",
        "",
        "## How it is kept",
        "",
        "`dataset.json` has the version of the format and the options of the build; the same "
        "options give the same tables. Licence of what was predicted: CC-BY-4.0. What was made of "
        "a recorded trace has the licence of that trace, and none is stated here.",
    ]  # fmt: skip


def _counts_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in counts.items())


def _names(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in sorted(words))


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]


# ------------------------------------------------------------------------- figures


def _figures(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the figures of the card by name, in SVG."""
    tasks = list(found["tasks"])
    types = found["types"]
    windows = found["gpu_events_per_window"]
    return {
        "windows": _grid(
            "Positive windows of 100 by type and task",
            {name: of["positive_windows"] for name, of in types.items()},
            tasks,
        ),
        "traces": _grid(
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


def bars(title: str, values: Mapping[str, float], unit: str = "") -> str:
    """Return a horizontal bar for each value, in SVG.

    Args:
        title: Title above them.
        values: Values by label, 0 or more.
        unit: Unit behind the numbers.
    """
    most = max(values.values(), default=0.0) or 1.0
    room = _WIDTH - _LEFT - 90
    parts = []
    for place, (label, value) in enumerate(values.items()):
        top, length = _TOP + place * _ROW, room * value / most
        number = f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
        parts += [
            _text(_LEFT - 8, top + 13, label, "end"),
            f'<rect x="{_LEFT}" y="{top + 2}" width="{length:.1f}" height="{_ROW - 5}"'
            f' fill="{_BLUE}"/>',
            _text(_LEFT + length + 6, top + 13, f"{number} {unit}".strip()),
        ]
    return _frame(title, len(values), parts)


def _grid(title: str, rows: Mapping[str, Mapping[str, int]], columns: Sequence[str]) -> str:
    """Return a table of counts whose cells are the darker the larger they are, in SVG."""
    cell = (_WIDTH - _LEFT - 10) / max(1, len(columns))
    most = max((count for of in rows.values() for count in of.values()), default=0) or 1
    parts = [
        _text(_LEFT + (place + 0.5) * cell, _TOP + 13, name, "middle")
        for place, name in enumerate(columns)
    ]
    for line, (label, of) in enumerate(rows.items(), 1):
        top = _TOP + line * _ROW
        parts.append(_text(_LEFT - 8, top + 14, label, "end"))
        for place, name in enumerate(columns):
            count, left = of.get(name, 0), _LEFT + place * cell
            shade = 0.85 * count / most
            color = "#ffffff" if shade > 0.5 else "#1a202c"
            parts += [
                f'<rect x="{left:.1f}" y="{top}" width="{cell - 1:.1f}" height="{_ROW - 1}"'
                f' fill="{_BLUE}" fill-opacity="{shade:.3f}"/>',
                _text(left + cell / 2, top + 14, f"{count:,}", "middle", color),
            ]
    return _frame(title, len(rows) + 1, parts)


def _text(x: float, y: float, text: str, anchor: str = "start", color: str = "#1a202c") -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" fill="{color}" {_FONT}>'
        f"{escape(text)}</text>"
    )


def _frame(title: str, lines: int, parts: Sequence[str]) -> str:
    height = _TOP + lines * _ROW + 10
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" role="img">\n<title>{escape(title)}</title>\n'
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>\n'
        f'<text x="10" y="20" fill="#1a202c" font-family="sans-serif" font-size="14" '
        f'font-weight="bold">{escape(title)}</text>\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"


# ------------------------------------------------------------------------- Croissant


def _croissant(dataset: DataSet) -> dict[str, Any]:
    """Return Croissant 1.0: files, and a record set for each table."""
    files, file_sets, record_sets = [], [], []
    for table in TABLES:
        for shard in dataset.shards:
            path = file_of(dataset.path, table, shard)
            name = f"{table}/{shard}.parquet"
            files.append({
                "@type": "cr:FileObject",
                "@id": name,
                "name": name,
                "contentUrl": name,
                "contentSize": f"{path.stat().st_size} B",
                "encodingFormat": "application/x-parquet",
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            })  # fmt: skip
        file_sets.append({
            "@type": "cr:FileSet",
            "@id": f"{table}-files",
            "name": f"{table}-files",
            "encodingFormat": "application/x-parquet",
            "includes": f"{table}/*.parquet",
        })  # fmt: skip
        # Croissant 1.0 has no type for a list of structs, and its reader fails on them.
        kinds = {field.name: str(field.type) for field in schemas()[table]}
        typed = {name: kind for name, kind in kinds.items() if "struct<" not in kind}
        record_set = {
            "@type": "cr:RecordSet",
            "@id": table,
            "name": table,
            "field": [_field(table, name, kind) for name, kind in typed.items()],
        }
        if others := [name for name in kinds if name not in typed]:
            record_set["description"] = (
                f"The files also have columns of lists of structs: {', '.join(others)}."
            )
        record_sets.append(record_set)
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": "torchtraceap",
        "description": "Traces of PyTorch on GPUs with faults whose place and cost are known.",
        "license": "https://creativecommons.org/licenses/by/4.0/",
        "version": "1.0.0",
        "distribution": [*files, *file_sets],
        "recordSet": record_sets,
    }


def _field(table: str, name: str, kind: str) -> dict[str, Any]:
    element = kind.removeprefix("list<element: ").removeprefix("list<item: ")
    data_type = "sc:Text"
    if element.startswith("int"):
        data_type = "sc:Integer"
    elif element.startswith(("float", "double")):
        data_type = "sc:Float"
    elif element.startswith("bool"):
        data_type = "sc:Boolean"
    source = {"fileSet": {"@id": f"{table}-files"}, "extract": {"column": name}}
    more = {"repeated": True} if kind.startswith("list") else {}
    found = {"@type": "cr:Field", "@id": f"{table}/{name}", "name": name, "dataType": data_type}
    return {**found, **more, "source": source}
