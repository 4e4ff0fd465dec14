"""Commands of the lab. `torchtraceap.cli` finds `ENTRIES` by name."""

from __future__ import annotations

from typing import Any

from torchtraceap.cli import Entry

__all__ = ["ENTRIES", "print_document"]

ENTRIES = {
    "predict": Entry(
        "what a step of a model would take on a GPU where it never ran, and its trace",
        "torchtraceap.lab.cli.predict",
    ),
    "plan": Entry(
        "which GPUs, how many, split how, for a run: time, memory and price",
        "torchtraceap.lab.cli.plan",
    ),
    "parallelism": Entry(
        "which split of a training job over GPUs is the fastest that fits, without a trace",
        "torchtraceap.lab.cli.plan",
    ),
    "shard": Entry(
        "which rank should hold which embedding table, by what a step would take",
        "torchtraceap.lab.cli.predict",
    ),
    "bench": Entry(
        "workloads and programs measured: suite, verdicts, causes, history",
        "torchtraceap.lab.cli.bench",
    ),
    "ci": Entry(
        "whether a pull request makes a program slower: counts first, then time, one comment",
        "torchtraceap.lab.cli.ci",
    ),
    "collect": Entry(
        "labeled traces of real runs: workloads with a fault, and their twins without",
        "torchtraceap.lab.cli.data_sets",
    ),
    "generate": Entry(
        "traces with faults whose place and cost are known, and their twins without",
        "torchtraceap.lab.cli.data_sets",
    ),
    "dataset": Entry(
        "labeled traces as a data set: built, described, exported, added to",
        "torchtraceap.lab.cli.data_sets",
    ),
    "train": Entry("a scorer from labeled traces", "torchtraceap.lab.cli.scorers"),
    "evaluate": Entry(
        "how well scorers and baselines find the windows of a data set's faults",
        "torchtraceap.lab.cli.scorers",
    ),
    "judge": Entry(
        "how well what names segments of lost time does on labeled traces",
        "torchtraceap.lab.cli.scorers",
    ),
}


def print_document(document: Any) -> None:
    """Print a document as JSON in one line."""
    import json

    from torchtraceap.cli import print_text

    print_text(json.dumps(document, separators=(",", ":"), allow_nan=False))
