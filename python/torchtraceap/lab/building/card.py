"""The text of a data card."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchtraceap.datasets.arrow import TABLES
from torchtraceap.datasets.labels import CPU_SPLIT
from torchtraceap.lab.building.plan import FORMS_FOR_TESTS, NETWORKS_FOR_TESTS

__all__ = ["card_text"]


def card_text(found: Mapping[str, Any], about: Mapping[str, Any], splits: Sequence[str]) -> str:
    """Markdown with the head that Hugging Face reads.

    Args:
        found: `statistics`.
        about: How it was built.
        splits: In order.
    """
    lines = [*_what(found, about), *_counts(found), *_rest()]
    return "\n".join([*_head(splits), *map(_wrapped, lines)]) + "\n"


def _wrapped(line: str) -> str:
    """A paragraph in short lines; rows of tables stay whole."""
    return (
        line
        if line.startswith("|")
        else textwrap.fill(line, 118, break_long_words=False, break_on_hyphens=False)
    )


def _head(splits: Sequence[str]) -> list[str]:
    lines = ["---", "license: cc-by-4.0", "pretty_name: torchtraceap", "configs:"]
    for table in TABLES:
        lines += [f"- config_name: {table}", "  data_files:"]
        for split in splits:
            lines += [f"  - split: {split}", f"    path: {table}/{split}-*.parquet"]
    return [*lines, "---"]


def _what(found: Mapping[str, Any], about: Mapping[str, Any]) -> list[str]:
    built = about.get("built")
    how = "by `torchtraceap dataset add`"
    if built:
        how = (
            f"by `torchtraceap dataset build` with the seed {built['seed']} and "
            f"{len(built['bases'])} recorded bases"
        )
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
        *_of_cpus(found["cpu_traces"]),
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
    ]  # fmt: skip


_SOURCES = {
    "lifted": "a run that was predicted for a small network, with a fault put into its graph",
    "lifted_event_space": "such a run, with the events of a fault put between its events",
    "real_graph": "a recorded trace, with a fault put into its graph, which was replayed",
    "event_space": "a recorded trace, with the events of a fault put between its events",
    "recorded": "a trace as it was recorded",
    "collected": "a real run with a fault put into its steps, or its twin without",
}


def _of_cpus(count: int) -> list[str]:
    if not count:
        return []
    return [
        f"{count} traces more are of CPUs, where collecting was tried out. They are in the split "
        f"`{CPU_SPLIT}`, and in no other number on this page.",
        "",
    ]


def _counts(found: Mapping[str, Any]) -> list[str]:
    splits = [
        (name, of["traces"], of["bases"], of["faulty"], ", ".join(of["families"]))
        for name, of in found["splits"].items()
    ]
    types = [
        (
            name,
            sum(of["traces"].values()),
            sum(of["positive_windows"].values()),
            _number(of["cost_share"], "p50"),
            ", ".join(f"{form} ({count})" for form, count in of["forms"].items()),
        )
        for name, of in found["types"].items()
    ]
    windows = [
        (n, of["mean"], of["median"], of["p95"], of["empty_share"])
        for n, of in found["gpu_events_per_window"].items()
    ]
    return [
        "## Splits",
        "",
        *_table(("split", "traces", "bases", "with a fault", "networks"), splits),
        "",
        "No base is in two splits, and neither is a run and its twin. The networks "
        f"{_listed(NETWORKS_FOR_TESTS)} and the forms {_listed(FORMS_FOR_TESTS)} are never in "
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
        "Decoys: " + ", ".join(f"{form} ({n})" for form, n in found["decoys"].items()) + ".",
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
        "Collectives: "
        + ", ".join(f"{kind} ({count})" for kind, count in found["communication"].items())
        + ".",
        "",
    ]


def _rest() -> list[str]:
    return [
        "## What is known to be one-sided",
        "",
        "- Devices of predicted runs are virtual (`virtual_platform`), of seven kinds.",
        "- Networks are small, and of a few families; all runs are of one program per rank.",
        "- Each trace has one fault at most; recorded jobs have several at once.",
        "- Predicted traces can be told from recorded ones by what is not in them, such as stacks.",
        "",
        "## How it is kept",
        "",
        "`dataset.json` has the version of the format and the options of the build; the same "
        "options give the same tables. Licence of what was predicted: CC-BY-4.0. What was made of "
        "a recorded trace has the licence of that trace, and none is stated here.",
    ]


def _listed(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in sorted(words))


def _number(quantiles: Mapping[str, float] | None, key: str) -> str:
    return "" if quantiles is None else f"{quantiles[key]:.3f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]
