"""Scores of weights of one's own on traces of a data set, as a document for `evaluate --scores`.

    python benchmarks/detectors/score_dataset.py v2 WEIGHTS DATASET OUT.json --name "v2 W"
        [--labels window] [--split validation ...] [--windows 50 100 200]

Each rank is scored alone, as its labels are. Labels are not looked at, but which split they are of.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from torchtraceap.core.writing import write_text
from torchtraceap.datasets.reader import labeled_runs
from torchtraceap.trace.trace import Trace

SCHEMA = "torchtraceap.scores/1"


def scored(
    scorer: Any, dataset: Path, splits: set[str], counts: list[int]
) -> Iterator[dict[str, Any]]:
    """An entry for each trace and number of windows; its path is the trace's id."""
    for run in labeled_runs(dataset):
        if run.labels[0]["split"] not in splits:
            continue
        for label, part in zip(run.labels, run.load().ranks, strict=True):
            for count in counts:
                said = scorer.score(Trace([part]), count).to_dict()
                kept = {key: said[key] for key in ("bounds_ns", "scores", "types")}
                yield {"path": label["id"]} | kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scorer", choices=("v2", "paper"))
    parser.add_argument("weights", type=Path)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--name", required=True, help="of the row in tables")
    parser.add_argument("--labels", default="window", help="it learned from; of the row in tables")
    parser.add_argument("--split", action="append", default=[])
    parser.add_argument("--windows", type=int, nargs="+", default=[50, 100, 200])
    options = parser.parse_args()
    scorer = import_module(f"torchtraceap.diagnosis.scoring.{options.scorer}").load(options.weights)
    splits = set(options.split) or {"validation"}
    traces = list(scored(scorer, options.dataset, splits, options.windows))
    label = f"{scorer.name} {scorer.version}"
    about = {"schema": SCHEMA, "scorer": label, "name": options.name, "labels": options.labels}
    write_text(options.out, json.dumps({**about, "traces": traces}))


if __name__ == "__main__":
    main()
