"""`build`: a data set of predicted runs, and of recorded traces that are given.

A group of the plan is a shard, and depends on the seed and its number alone. So it does not matter
who makes it, or when, and an interrupted build goes on with the groups that are not there.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torchtraceap.core import PathLike, claim_folder, progress_stage
from torchtraceap.datasets import ABOUT, FORMAT, import_pyarrow, is_written, write_shard
from torchtraceap.errors import MissingFileError, OptionError
from torchtraceap.lab.building.describe import describe
from torchtraceap.lab.building.plan import (
    LOOK_ALIKE,
    NETWORKS_FOR_TESTS,
    Group,
    plan_groups,
    plan_mini_groups,
    type_order,
)
from torchtraceap.lab.generation.bases import Base, Bases, RecordedBases
from torchtraceap.lab.generation.generate import in_processes, labeled_traces
from torchtraceap.lab.generation.graph_faults import FAULTS, LOOK_ALIKES, GraphFault
from torchtraceap.trace import RankTrace

__all__ = ["COUNT", "build", "group_traces"]

COUNT = 640
"""Traces of predicted runs."""
_VERSION = 3
"""Version of what is built: with another one the same seed gives another data set."""
_TURNS, _MOST_TURNS = 4, 24
"""Bases that are drawn for a group, until one fits; where nothing but its own types will do."""
_RARE = ("nccl_blocks_main_stream",)
"""Types for which another base is drawn where they do not fit: they fit one of two, at most."""
_ALL_RANKS = 0.3
"""Share of groups that may have runs of which all ranks are recorded, and do."""
_LICENCE = "CC-BY-4.0"

Label = dict[str, Any]


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
    """Build a data set.

    Args:
        out: A folder, new or empty; with `resume` one in which the same was begun.
        count: Least number of traces of predicted runs.
        seed: The same seed gives the same tables, whatever `jobs` is.
        bases: Recorded traces of one rank, to inject faults into; the results are for tests.
        mini: Make 32 traces instead, with every type once, for tests and examples.
        resume: Go on where an interrupted build stopped.
        jobs: Number of processes.

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
    groups = plan_mini_groups() if mini else plan_groups(count, [str(base) for base in bases])
    folder = Path(out)
    place = folder / ABOUT
    if place.exists() and not resume:
        raise OptionError(f"{folder}: holds a data set; resume it, or name a new folder")
    size = sum(group.size for group in groups) if mini else count
    built = {"version": _VERSION, "count": size, "seed": seed, "bases": [*map(str, bases)]}
    about = json.dumps({"format": FORMAT, "built": built}, indent=1) + "\n"
    claim_folder(folder, place, about, "holds a data set of other options")
    left = [group for group in groups if not is_written(folder, group.shard)]
    results = in_processes(partial(_make_group, str(folder), seed), left, jobs)
    for done in range(len(left)):
        with progress_stage(
            f"building the data set: {len(groups) - len(left) + done} of {len(groups)}"
        ):
            next(results)
    with progress_stage("describing the data set"):
        describe(folder)
    return folder


def _make_group(folder: str, seed: int, group: Group) -> None:
    write_shard(Path(folder), group.shard, group_traces(group, seed))


def group_traces(group: Group, seed: int) -> Iterator[tuple[Label, RankTrace]]:
    """Yield the traces of a group with their labels, whose ids begin with the group's number.

    Args:
        group: A group of the plan.
        seed: The same seed gives the same traces.

    Raises:
        OptionError: No fault fits the base.
        ParseError: A recorded base can't be read.
    """
    turns = 1 if group.base else _MOST_TURNS if group.types else _TURNS
    for turn in range(turns):
        is_last = turn == turns - 1
        text = f"{seed}/{group.number}/{group.split}/{turn}".encode()
        number = int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "little")
        try:
            found = list(_traces_of_base(group, number, is_strict=not is_last))
        except OptionError:
            if is_last:
                raise
            continue
        licence = _LICENCE if group.base is None else None
        for label, part in found:
            names = {key: _group_id(label[key], group) for key in ("id", "twin", "run")}
            yield {**label, **names, "split": group.split, "licence": licence}, part
        return


def _group_id(own: str | None, group: Group) -> str | None:
    """Return an id that no other group has."""
    if own is None:
        return None
    run, _, rank = own.partition("/rank")
    return f"{group.number:04d}-{int(run):02d}" + (f"-rank{rank}" if rank else "")


def _traces_of_base(
    group: Group, seed: int, *, is_strict: bool
) -> Iterator[tuple[Label, RankTrace]]:
    if group.base is not None:
        bases: Bases = RecordedBases([group.base], None)
    else:
        from torchtraceap.lab.generation.predicted_bases import PredictedBases
        from torchtraceap.lab.workloads.suite.networks import NETWORKS

        # Networks of tasks that are trained on are for training or for tests.
        task, many = str(group.task), group.is_collective
        networks = [
            name
            for name in NETWORKS[task]
            if group.split == "unseen" or (name in NETWORKS_FOR_TESTS) == group.is_new
        ]
        bases = PredictedBases(seed, [task], of_many=many, by_copies=many, networks=networks)
    if group.way == "event_space":
        from torchtraceap.lab.generation.event_injection import injected_traces

        return injected_traces(bases.get(0, 0), group.size, seed)
    # All ranks of a run would take the place of the next type.
    has_all_ranks = not group.types and random.Random(f"{seed}/ranks").random() < _ALL_RANKS

    def faults(number: int, ranks: int) -> Sequence[GraphFault]:
        rng = random.Random(f"{seed}/{number}/forms")
        return _faults_of_pair(group, rng, number, is_strict=is_strict)

    def ranks(base: Base, most: int) -> int:
        fitting = [count for count in base.rank_counts if count <= most]
        return fitting[0] if has_all_ranks and fitting else 1

    return labeled_traces(bases, seed, 0, group.size, faults=faults, ranks=ranks)


def _faults_of_pair(
    group: Group, rng: random.Random, number: int, *, is_strict: bool
) -> list[GraphFault]:
    """Return the faults that a pair may have in order of preference; of a rare type alone if it is
    strict."""
    is_look_alike, types = type_order(group, rng, number)
    faults = [fault for fault in FAULTS if group.is_test or not fault.test]
    look_alikes = list(LOOK_ALIKES)
    rng.shuffle(faults)
    rng.shuffle(look_alikes)
    if group.types:
        wanted = group.types[number]
        if wanted == LOOK_ALIKE:
            return look_alikes
        return [fault for fault in faults if fault.type == wanted]
    faults.sort(key=lambda fault: types.index(fault.type))
    if is_strict and not is_look_alike and types[0] in _RARE:
        return 2 * [fault for fault in faults if fault.type == types[0]]
    return [*look_alikes, *faults] if is_look_alike else [*faults, *look_alikes]
