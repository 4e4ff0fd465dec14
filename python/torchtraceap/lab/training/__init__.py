"""Train scorers: docs/scorers.md. Each module of `TRAINERS` has a `train`, and is imported when it
is needed: not all need torch."""

from __future__ import annotations

import difflib
from importlib import import_module
from pathlib import Path
from typing import cast

from torchtraceap.core import PathLike, naming, read_toml
from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.lab.training.settings import Trained

__all__ = ["TRAINERS", "Trained", "train"]

TRAINERS = ("structural", "fused", "paper", "v2")
_NEEDED = {"torch", "safetensors", "sklearn", "lightgbm", "pyarrow"}


def train(
    name: str,
    dataset: PathLike,
    out: PathLike,
    *,
    config: PathLike | None = None,
    seed: int = 0,
    resume: bool = False,
    minutes: float | None = None,
) -> Trained:
    """Train a scorer on the split "train" of a data set; "validation" decides, no other is read.

    Args:
        name: One of `TRAINERS`.
        dataset: A folder that `dataset build` or `generate` made.
        out: A folder for the weights, figures, logs and the checkpoint; it is made.
        config: A TOML file of settings; what it lacks has its default.
        seed: Seed of everything that is drawn: the same one gives the same weights on one machine.
        resume: Go on from the checkpoint that `out` holds, if any.
        minutes: The longest time for this call; what is left is done by a call that resumes.

    Raises:
        OptionError: An unknown scorer, settings that make no sense, or a folder in use.
        MissingFileError: The data set or the file of settings does not exist.
        MissingDependencyError: A package that it needs is not installed.
        SchemaError: The checkpoint is of other settings or data.
        OutputError: `out` can't be written.
    """
    if name not in TRAINERS:
        near = difflib.get_close_matches(name, TRAINERS, n=1)
        guess = f", did you mean {near[0]!r}?" if near else ""
        raise OptionError(f"no scorer {name!r} can be trained{guess} ({', '.join(TRAINERS)})")
    tables = {} if config is None else read_toml(config)
    try:
        trainer = import_module(f"torchtraceap.lab.training.{name}")
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED:
            raise
        raise MissingDependencyError(
            f"training needs {error.name}: pip install 'torchtraceap[train]'"
        ) from error
    with naming(out):
        Path(out).mkdir(parents=True, exist_ok=True)
    return cast(
        "Trained",
        trainer.train(dataset, out, tables, seed=seed, resume=resume, minutes=minutes),
    )
