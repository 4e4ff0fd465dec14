"""`build`: a data set of predicted runs, and of recorded traces that are given.

A group of the plan is a shard, and depends on the seed and its number alone. So it does not matter
who makes it, or when, and an interrupted build goes on with the groups that are not there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torchtraceap.core.aliases import PathLike
from torchtraceap.core.progress import progress_stage
from torchtraceap.core.writing import claim_folder
from torchtraceap.datasets.arrow import FORMAT, import_pyarrow
from torchtraceap.datasets.reader import ABOUT
from torchtraceap.datasets.writer import is_written, write_shard
from torchtraceap.errors import MissingFileError, OptionError
from torchtraceap.lab.building.describe import describe
from torchtraceap.lab.building.generated import group_traces
from torchtraceap.lab.building.plan import Group, planned, planned_mini
from torchtraceap.lab.generation.processes import in_processes

__all__ = ["COUNT", "build"]

COUNT = 640
"""Of traces of predicted runs."""
_VERSION = 3
"""Of what is built: with another one the same seed gives another data set."""


def build(
    out: PathLike,
    *,
    count: int = COUNT,
    seed: int = 0,
    bases: Sequence[PathLike] = (),
    mini: bool = False,
    resume: bool = False,
    jobs: int = 1,
) -> Path:
    """Builds a data set.

    Args:
        out: A folder, new or empty; with `resume` one in which the same was begun.
        count: How many traces of predicted runs there are at least.
        seed: The same gives the same tables, whatever `jobs` is.
        bases: Recorded traces of one rank, to put faults into; what is made of them is for tests.
        mini: 32 traces instead, with every type once, for tests and examples.
        resume: Go on where an interrupted build stopped.
        jobs: Processes.

    Returns:
        The folder.

    Raises:
        MissingDependencyError: pyarrow is not installed.
        MissingFileError: A base is not there.
        OptionError: A number that makes no sense, or a folder with something else in it.
        OutputError: It can't be written.
    """
    import_pyarrow()
    if jobs < 1:
        raise OptionError(f"{jobs} processes make no sense")
    for base in bases:
        if not Path(base).is_file():
            raise MissingFileError(f"{base}: no such file")
    if mini and bases:
        raise OptionError("the mini set has no recorded bases")
    groups = planned_mini() if mini else planned(count, [str(base) for base in bases])
    folder = Path(out)
    about = _about(sum(group.size for group in groups) if mini else count, seed, bases)
    _begin(folder, about, resume=resume)
    left = [group for group in groups if not is_written(folder, group.shard)]
    results = in_processes(partial(_make, str(folder), seed), left, jobs)
    for done in range(len(left)):
        with progress_stage(
            f"building the data set: {len(groups) - len(left) + done} of {len(groups)}"
        ):
            next(results)
    with progress_stage("describing the data set"):
        describe(folder)
    return folder


def _make(folder: str, seed: int, group: Group) -> None:
    write_shard(Path(folder), group.shard, group_traces(group, seed))


def _about(count: int, seed: int, bases: Sequence[PathLike]) -> dict[str, Any]:
    built = {"version": _VERSION, "count": count, "seed": seed, "bases": [*map(str, bases)]}
    return {"format": FORMAT, "built": built}


def _begin(folder: Path, about: dict[str, Any], *, resume: bool) -> None:
    """A new folder, or that of the same data set."""
    place, text = folder / ABOUT, json.dumps(about, indent=1) + "\n"
    if place.exists() and not resume:
        raise OptionError(f"{folder}: holds a data set; resume it, or name a new folder")
    claim_folder(folder, place, text, "holds a data set of other options")
