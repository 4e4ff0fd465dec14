"""Trains the scorers of a plan one after the other, in pieces of a few minutes.

    python benchmarks/device/train_detectors.py DATASET OUT --plan FILE [--minutes 9.5] [--tiny]

A plan is a TOML file of `[[run]]` tables: `name`, `scorer`, `seeds`, and the tables of settings
that `torchtraceap train` takes. Each run and seed has its folder in OUT. A call goes on where the
last one stopped and ends in time; OUT/figures.json has what is finished, with the figures of the
validation split. Exit code 3: there is more to do.

`all.py` calls it with the plan full_size.toml, on the minutes that are left of a machine with a
GPU.

`--tiny` trains one epoch of small networks, to see that the code runs.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import torch

from torchtraceap.core.writing import write_text
from torchtraceap.lab.training import train

UNFINISHED = 3
LEAST_MINUTES = 0.2  # loading a data set and a checkpoint takes about this long
TINY = {
    "loop": {"epochs": 1, "patience": 1},
    "v2": {"width": 16, "heads": 2, "layers": 1, "token_width": 8, "grids": [50], "validated": 50},
    "paper": {"width": 8, "layers": 1, "heads": 2, "feed_forward": 16, "cap": 4, "windows": 20},
}


def main() -> int:
    options = parsed()
    plan = tomllib.loads(options.plan.read_text("utf-8"))["run"]
    plan = [run for run in plan if options.only in (None, run["name"])]
    until = time.monotonic() + 60 * options.minutes
    todo = [
        (run, seed) for run in plan for seed in run.get("seeds", [0])[: 1 if options.tiny else None]
    ]
    finished: dict[str, dict[str, Any]] = {}
    for run, seed in todo:
        left = (until - time.monotonic()) / 60
        figures = done(options, run, seed, left)
        if figures is not None:
            finished[f"{run['name']}, seed {seed}"] = figures
            say(f"{run['name']}, seed {seed}: {figures}")
    about = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "runs": finished}
    write_text(options.out / "figures.json", json.dumps(about, indent=2) + "\n")
    say(f"{len(finished)} of {len(todo)} runs are finished")
    return 0 if len(finished) == len(todo) else UNFINISHED


def done(options: Any, run: dict[str, Any], seed: int, minutes: float) -> dict[str, Any] | None:
    """Figures of a run that is finished, after such a time at most; None where it is not."""
    folder = options.out / f"{run['name']}-{seed}"
    kept = folder / "finished.json"
    if kept.exists():
        return json.loads(kept.read_text("utf-8"))
    if minutes < LEAST_MINUTES:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "settings.toml"
    settings.write_text(toml_of(tables_of(run, options.tiny)), "utf-8")
    trained = train(
        run["scorer"],
        options.dataset,
        folder,
        config=settings,
        seed=seed,
        resume=True,
        minutes=minutes,
    )
    if not trained.finished:
        return None
    kept.write_text(json.dumps(trained.figures), "utf-8")
    return trained.figures


def tables_of(run: dict[str, Any], tiny: bool) -> dict[str, dict[str, Any]]:
    """Settings of a run, by table."""
    tables = {key: dict(value) for key, value in run.items() if isinstance(value, dict)}
    for key, changes in (TINY if tiny else {}).items():
        if key == "loop" or key in tables:
            tables.setdefault(key, {}).update(changes)
    return tables


def toml_of(tables: dict[str, dict[str, Any]]) -> str:
    """Numbers, texts and lists of these: JSON writes them as TOML does."""
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def machine() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"{platform.processor() or platform.machine()}, torch {torch.__version__}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9.5)
    parser.add_argument("--only", metavar="RUN", help="the run of this name alone")
    parser.add_argument("--tiny", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
