"""Documents of scores for `torchtraceap evaluate --scores`, of every network of the paper in RUNS.

    python benchmarks/detectors/paper_scores.py DATASET RUNS OUT --split validation [--split seen]

RUNS is what `benchmarks/device/train_detectors.py --plan benchmarks/device/paper_small.toml` wrote:
a folder for each run and seed. Of each the windows of all traces of the splits are scored, on all
three grids, each rank by itself. Labels are not looked at. The rows have the names that tables of
`evaluate` know: the losses, and the eight cells of the paper's Table 5.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from torchtraceap.datasets.runs import labelled_runs
from torchtraceap.evaluation.tables import ablation_name
from torchtraceap.ranks import RankTrace
from torchtraceap.results import PAPER_TYPES
from torchtraceap.scoring import label_of
from torchtraceap.scoring.base import common_bounds
from torchtraceap.scoring.paper import PaperScorer, load, paper_tokens
from torchtraceap.trace import Trace
from torchtraceap.writing import write_text

COUNTS = (50, 100, 200)
LOSSES = {"corrected": "paper, losses corrected", "literal": "paper, losses as printed"}
OTHER_LOSSES = ("topk", "noisy-or", "twin")
"""Runs that are no cell of Table 5 either: their row has the name of the folder."""
WHOLE = "corrected-0"
"""The cell with all three parts."""


def main() -> int:
    options = parsed()
    rows = rows_of(options.runs)
    scorers = {place: load(place / "weights.safetensors") for place in set(rows.values())}
    found: dict[Path, list[dict[str, Any]]] = {place: [] for place in scorers}
    for run in labelled_runs(options.dataset):
        wanted = [label["split"] in options.split for label in run.labels]
        if not any(wanted):
            continue
        for label, part in zip(run.labels, run.load().ranks, strict=True):
            add(found, scorers, label["id"], part)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, place in rows.items():
        document = {
            "schema": "torchtraceap.scores/1",
            "scorer": label_of(scorers[place]),
            "name": name,
            "labels": "trace",
            "traces": found[place],
        }
        path = options.out / f"{name.replace(': ', '_').replace(', ', '_').replace(' ', '-')}.json"
        write_text(path, json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n")
        print(path)
    return 0


def rows_of(runs: Path) -> dict[str, Path]:
    """Folders of runs by the name of their row."""
    rows = {}
    for place in sorted(runs.glob("*-[0-9]*")):
        if not (place / "finished.json").exists():
            continue
        name, _, seed = place.name.rpartition("-")
        if name in LOSSES:
            rows[LOSSES[name] + ("" if seed == "0" else f", seed {seed}")] = place
        elif name in OTHER_LOSSES:
            rows[f"paper, {name}"] = place
        else:
            rows[cell_name(place)] = place
    if (runs / WHOLE / "finished.json").exists():
        rows[cell_name(runs / WHOLE)] = runs / WHOLE
    return rows


def cell_name(place: Path) -> str:
    """As Table 5 of `evaluate` knows the network."""
    config = load(place / "weights.safetensors").config
    return ablation_name((config.adapter, config.transformer, config.relation))


def add(
    found: dict[Path, list[dict[str, Any]]],
    scorers: dict[Path, PaperScorer],
    id: str,
    part: RankTrace,
) -> None:
    """One rank on all grids; networks that read as many events share the tokens."""
    for count in COUNTS:
        bounds_ns = common_bounds(Trace([part]), count)
        by_cap = {s.config.cap: paper_tokens(part, bounds_ns, s.config) for s in scorers.values()}
        for place, scorer in scorers.items():
            tokens = by_cap[scorer.config.cap]
            scores = scorer.score_tokens([tokens])[0] if len(part.tree.gpu_rows) else [0.0] * count
            found[place].append(
                {
                    "path": id,
                    "bounds_ns": bounds_ns.tolist(),
                    "scores": [round(float(score), 7) for score in scores],
                    "types": {kind: [0] * count for kind in PAPER_TYPES},
                }
            )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("runs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--split", action="append", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
