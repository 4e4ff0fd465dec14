"""`generate`: a folder of labeled traces.

Note [Units]: traces come in units of 16. A unit depends on the seed, its number and the options
alone, so it does not matter who makes it, or when. Its traces and then its labels take their places
when the unit is complete. So a run that was interrupted, or that is asked for more traces than
before, goes on with the units whose labels are not there. The last unit has fewer traces where
fewer were asked for, and its runs of many ranks are then of one; they are made again with more.

Note [Ranks of a run]: a trace is of one rank. Where all ranks of a run are recorded, the run is a
folder with a trace for each, and that counts as so many traces.

Note [Order]: it is drawn which of a pair comes first, and faults come in rounds, each in an order
of its own: neither numbers nor neighbors of traces tell their labels.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from torchtraceap import _core
from torchtraceap.core import PathLike, claim_folder, progress_stage, write_paths, write_text
from torchtraceap.datasets import LABELS, TASKS, TYPES
from torchtraceap.errors import OptionError
from torchtraceap.lab.generation.bases import Base, Bases, RecordedBases
from torchtraceap.lab.generation.graph_faults import FAULTS, LOOK_ALIKES, GraphFault
from torchtraceap.lab.generation.pairs import NO_FAULT, Pair, Side, draw_pair, window_labels
from torchtraceap.trace import RankTrace

__all__ = ["LABELS", "TYPES", "generate", "in_processes", "labeled_traces"]

_DONE = ".units"
_SUFFIX = ".json.gz"
_VERSION = 6
"""Version of what is generated: with another one the same seed gives other bytes."""
_PAIRS = 8
"""Pairs of traces in a unit."""
_MANY = 0.7
"""Share of units with runs of which all ranks are recorded, where the bases allow it."""
_ALL_OF_COPIES, _ALL_OF_PARTS = 0.5, 0.8
"""Share of their runs that do so: where each rank has the whole model, and where not."""
_BY_RANKS = 0.6
"""Share of these runs with a fault that a single rank can't have."""
_LOOK_ALIKES = 0.3
"""Share of the pairs."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class _Settings:
    """The options that decide the bytes."""

    seed: int
    types: tuple[str, ...]
    tasks: tuple[str, ...]
    bases: tuple[str, ...]


def generate(
    out: PathLike,
    count: int,
    seed: int = 0,
    *,
    types: Sequence[str] = (),
    tasks: Sequence[str] = (),
    bases: Sequence[str] = (),
    jobs: int = 1,
) -> Path:
    """Write traces and their labels; what an interrupted run left is taken over.

    Args:
        out: A folder, new or empty, or one of the same options; it is made if there is none.
        count: Number of traces, those without a fault among them: every fault has its twin.
        seed: The same seed gives the same bytes, whatever `jobs` is.
        types: Types of faults, and of what look-alikes resemble; empty: all.
        tasks: Tasks of the workloads whose runs are predicted; with `bases` the one task of these.
        bases: Paths of traces to inject faults into, each a file of one rank; empty: predicted
            runs.
        jobs: Number of processes.

    Returns:
        The path of the labels, a line of JSON for each trace.

    Raises:
        OptionError: A number that makes no sense, an unknown type or task, a folder with something
            else in it, or a base that no fault fits.
        OutputError: It can't be written.
        ParseError: A base can't be read.
    """
    if count < 1 or jobs < 1:
        raise OptionError(f"{count} traces by {jobs} processes make no sense")
    for words, known, what in ((types, TYPES, "type"), (tasks, TASKS, "task")):
        for word in words:
            if word not in known:
                raise OptionError(f"no fault or task is of the {what} {word!r}: {', '.join(known)}")
    if bases and len(tasks) > 1:
        raise OptionError("the given bases have one task; leave it out where they have several")
    paths = tuple(str(base) for base in bases)
    settings = _Settings(seed, tuple(sorted(set(types))), tuple(sorted(set(tasks))), paths)
    folder = Path(out)
    claim_folder(
        folder,
        folder / _DONE / "settings.json",
        json.dumps({"version": _VERSION, **asdict(settings)}),
        "holds traces that were generated with other options; a new folder, or the same options, "
        "are needed",
    )
    units = range(-(-count // (2 * _PAIRS)))
    left = [unit for unit in units if not _labels_of_unit(folder, unit, count).exists()]
    with progress_stage(f"generating {len(left)} units of {2 * _PAIRS} traces"):
        for _ in in_processes(partial(_make_unit, str(folder), settings, count), left, jobs):
            pass
    lines = [_labels_of_unit(folder, unit, count).read_text("utf-8") for unit in units]
    for unit, text in zip(units, lines, strict=True):
        _remove_older(folder, unit, _labels_of_unit(folder, unit, count), text)
    write_text(folder / LABELS, "".join(lines))
    return folder / LABELS


def _labels_of_unit(folder: Path, unit: int, count: int) -> Path:
    """Return the path of a unit's labels; the last unit may have fewer traces than among more."""
    size = min(2 * _PAIRS, count - unit * 2 * _PAIRS)
    return folder / _DONE / f"{unit:06d}-{size}.jsonl"


def _remove_older(folder: Path, unit: int, part: Path, labels: str) -> None:
    """Remove what a unit had when it had fewer or more traces, as far as it has it no more."""
    kept = {json.loads(line)["id"] for line in labels.splitlines()}
    for old in (folder / _DONE).glob(f"{unit:06d}-*.jsonl"):
        if old == part:
            continue
        for line in old.read_text("utf-8").splitlines():
            trace = json.loads(line)["id"]
            if trace not in kept:
                (folder / f"{trace}{_SUFFIX}").unlink(missing_ok=True)
        old.unlink()


@cache
def _bases(settings: _Settings) -> Bases:
    """Return the bases of this process; without given traces, runs that are predicted."""
    if settings.bases:
        return RecordedBases(settings.bases, settings.tasks[0] if settings.tasks else None)
    from torchtraceap.lab.generation.predicted_bases import PredictedBases

    faults = [fault for fault in FAULTS if fault.type in (settings.types or TYPES)]
    by_copies = all(fault.spread is not None for fault in faults)
    of_many = all(fault.of_one_rank or fault.spread is not None for fault in faults)
    return PredictedBases(settings.seed, settings.tasks, of_many=of_many, by_copies=by_copies)


def _make_unit(folder: str, settings: _Settings, count: int, unit: int) -> None:
    """Write the traces of a unit, then its labels."""
    bases = _bases(settings)
    rng = random.Random(f"{settings.seed}/unit/{unit}")
    is_of_many = rng.random() < _MANY

    def ranks(base: Base, most: int) -> int:
        if not is_of_many and base.world_size == 1:
            return 1
        fitting = [ranks for ranks in base.rank_counts if ranks <= most]
        share = _ALL_OF_PARTS if base.world_size > 1 else _ALL_OF_COPIES
        return rng.choice(fitting) if fitting and rng.random() < share else 1

    size = min(2 * _PAIRS, count - unit * 2 * _PAIRS)
    files: list[tuple[str, Any]] = []
    lines = []
    faults = partial(_faults_of_pair, settings)
    for label, part in labeled_traces(bases, settings.seed, unit, size, faults=faults, ranks=ranks):
        files.append((f"{label['id']}{_SUFFIX}", partial(_core.write_trace, part.table)))
        lines.append(json.dumps(label, allow_nan=False) + "\n")
    place = _labels_of_unit(Path(folder), unit, count).relative_to(folder)
    files.append((str(place), lambda path: write_text(path, "".join(lines))))
    write_paths(folder, files)


def _faults_of_pair(settings: _Settings, number: int, ranks: int) -> list[GraphFault]:
    """Return the faults that a pair may have in order of preference. See Note [Order]."""
    rng = random.Random(f"{settings.seed}/{number}/kind")
    wanted = set(settings.types or TYPES)
    kinds = [[each for each in faults if each.type in wanted] for faults in (FAULTS, LOOK_ALIKES)]
    if kinds[1] and rng.random() < _LOOK_ALIKES:
        kinds.reverse()
    found = []
    for kind in kinds:
        round_, place = divmod(number, max(1, len(kind)))
        order = kind[:]
        random.Random(f"{settings.seed}/{round_}/{len(kind)}").shuffle(order)
        order = order[place:] + order[:place]
        if ranks > 1 and rng.random() < _BY_RANKS:
            order.sort(key=lambda fault: not (fault.of_one_rank or fault.spread is not None))
        found += order
    return found


def labeled_traces(
    bases: Bases,
    seed: int,
    unit: int,
    size: int,
    *,
    faults: Callable[[int, int], Sequence[GraphFault]],
    ranks: Callable[[Base, int], int],
) -> Iterator[tuple[dict[str, Any], RankTrace]]:
    """Yield the traces of a unit with their labels, in the order of their ids.

    Args:
        bases: The bases of each unit.
        seed: The same seed gives the same traces.
        unit: Number of the unit.
        size: Number of traces.
        faults: Gives the faults that a pair may have in order of preference, by its number and the
            number of recorded ranks.
        ranks: Gives the number of recorded ranks of the next run, by its base and the most that
            there may be.

    Raises:
        OptionError: None of the faults fits the base.
    """
    place, first = 0, unit * 2 * _PAIRS
    while 2 * place < size:
        number = unit * _PAIRS + place
        base = bases.get(unit, number)
        many, token = ranks(base, size // 2 - place), f"{seed}/{number}"
        pair = None
        if many > 1:
            with suppress(OptionError):
                pair = draw_pair(base, faults(number, many), token, many)
        if pair is None:
            pair = draw_pair(base, faults(number, 1), token)
        count = len(pair.sides)
        faulty_last = random.Random(f"{seed}/{number}/order").random() < 0.5
        runs = [first + 2 * place, first + 2 * place + count]
        faulty, twin = runs[::-1] if faulty_last else runs
        bad, good = [], []
        for side in pair.sides:
            label = _label(base, seed, pair, side, faulty, twin)
            windows = {key: [0] * len(labels) for key, labels in label["windows"].items()}
            own = {"id": label["twin"], "run": label["twin"].partition("/")[0], "windows": windows}
            bad.append((label, side.faulty))
            good.append(({**label, **NO_FAULT, **own}, side.twin))
        both = [*good, *bad] if faulty_last else [*bad, *good]
        yield from both[: size - 2 * place]
        place += count


def _label(base: Base, seed: int, pair: Pair, side: Side, run: int, twin: int) -> dict[str, Any]:
    """Return the label of a trace with a fault or a look-alike."""
    fault = pair.fault
    rank = "" if len(pair.sides) == 1 else f"/rank{side.rank}"
    return {
        "id": f"{run:06d}{rank}",
        "seed": seed,
        "task": base.task,
        "source": {"kind": base.kind, "base": base.name},
        "device": base.device,
        "world_size": pair.world_size,
        "rank": side.rank,
        "strategy": pair.strategy,
        "profiler": base.profiler,
        "run": f"{run:06d}",
        "twin": f"{twin:06d}{rank}",
        "type": None if fault.look_alike else side.type,
        "form": fault.name,
        "decoy": fault.look_alike,
        "looks_like": side.type,
        "late_rank": pair.late_rank,
        "role": side.role,
        "cost_ns": side.cost_ns,
        "severity": round(side.severity, 6),
        "intervals": side.intervals.tolist(),
        "steps": len(side.faulty.tree.steps),
        "windows": window_labels(side.faulty, side.intervals),
        "already": sorted(base.types),
        "split": base.split,
    }


def in_processes(
    function: Callable[[Item], Result], items: Sequence[Item], jobs: int
) -> Iterator[Result]:
    """Yield `function` of every item, in their order, as they are done.

    Args:
        function: A function; it and the items can be sent to another process.
        items: Arguments.
        jobs: Number of processes; with one, or for one item, it is called here.

    Raises:
        OptionError: A process was killed, as by a system that is out of memory.
        Exception: Whatever `function` raised for the first item for which it failed.
    """
    if jobs == 1 or len(items) < 2:
        yield from map(function, items)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(jobs, len(items)), mp_context=context, initializer=_leave_with_parent
    )
    try:
        yield from pool.map(function, items)
    except BrokenProcessPool:
        raise OptionError(
            f"one of {jobs} processes was killed, perhaps for lack of memory: fewer need less, and "
            "what is done is kept"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _leave_with_parent() -> None:
    """Let a process end whose parent was killed; it would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:

        def leave() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=leave, daemon=True).start()
