"""`generate`: a folder of labelled traces.

Note [Units]: traces come in units of 16. A unit depends on the seed, its number and the options
alone, so it does not matter who makes it, or when. Its traces and then its labels take their places
when the unit is complete. So a run that was interrupted, or that is asked for more traces than
before, goes on with the units whose labels are not there. The last unit has fewer traces where
fewer were asked for, and its runs of many ranks are then of one; they are made again with more.

Note [Ranks of a run]: a trace is of one rank. Where all ranks of a run are recorded, the run is a
folder with a trace for each, and that counts as so many traces.

Note [Order]: which of a pair comes first is drawn, and forms come in rounds, each in an order of
its own: neither numbers nor neighbours of traces tell their labels.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from torchtraceap import _core
from torchtraceap.core.aliases import PathLike
from torchtraceap.core.progress import progress_stage
from torchtraceap.core.writing import claim_folder, write_paths, write_text
from torchtraceap.datasets.labels import LABELS, TASKS, TYPES
from torchtraceap.errors import OptionError
from torchtraceap.lab.generation.bases import Base, Bases, RecordedBases
from torchtraceap.lab.generation.decoys import DECOYS
from torchtraceap.lab.generation.faults import FAULTS
from torchtraceap.lab.generation.pairs import WINDOWS, Pair, Side, drawn_pair
from torchtraceap.lab.generation.placement import Form
from torchtraceap.lab.generation.processes import in_processes
from torchtraceap.trace.ranks import RankTrace

__all__ = ["LABELS", "TYPES", "generate", "labelled"]

_DONE = ".units"
_SUFFIX = ".json.gz"
_PAIRS = 8
"""Of traces, in a unit."""
_MANY = 0.7
"""Of units, those with runs of which all ranks are recorded, where the bases allow it."""
_ALL_OF_COPIES, _ALL_OF_PARTS = 0.5, 0.8
"""Of their runs, those of which all are: where each rank has the whole model, and where not."""
_DECOYS = 0.3
"""Of the pairs."""


@dataclass(frozen=True)
class _Settings:
    """What decides of the bytes."""

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
    """Writes traces and their labels; what an interrupted run left is taken over.

    Args:
        out: A folder, new or empty, or one of the same options; it is made if there is none.
        count: How many traces, those without a fault among them: every fault has its twin.
        seed: The same gives the same bytes, whatever `jobs` is.
        types: Of faults, and of what decoys look like; empty: all.
        tasks: Of the workloads whose runs are predicted; with `bases` the one task of these.
        bases: Paths of traces to put faults into, each a file of one rank; empty: predicted runs.
        jobs: Processes.

    Returns:
        The path of the labels, a line of JSON for each trace.

    Raises:
        OptionError: A number that makes no sense, an unknown type or task, a folder with something
            else in it, or a base that no fault fits.
        OutputError: It can't be written.
        ParseError: A base can't be read.
    """
    settings = _checked(count, seed, jobs, types, tasks, bases)
    folder = Path(out)
    _take_over(folder, settings)
    units = range(-(-count // (2 * _PAIRS)))
    left = [unit for unit in units if not _part(folder, unit, count).exists()]
    with progress_stage(f"generating {len(left)} units of {2 * _PAIRS} traces"):
        for _ in in_processes(partial(_make_unit, str(folder), settings, count), left, jobs):
            pass
    lines = [_part(folder, unit, count).read_text("utf-8") for unit in units]
    _forget(folder, units, count)
    write_text(folder / LABELS, "".join(lines))
    return folder / LABELS


def _forget(folder: Path, units: Sequence[int], count: int) -> None:
    """What a unit had when it had fewer or more traces, as far as it has it no more."""
    for unit in units:
        part = _part(folder, unit, count)
        kept = {json.loads(line)["id"] for line in part.read_text("utf-8").splitlines()}
        for old in (folder / _DONE).glob(f"{unit:06d}-*.jsonl"):
            if old == part:
                continue
            for line in old.read_text("utf-8").splitlines():
                trace = json.loads(line)["id"]
                if trace not in kept:
                    (folder / f"{trace}{_SUFFIX}").unlink(missing_ok=True)
            old.unlink()


def _checked(
    count: int,
    seed: int,
    jobs: int,
    types: Sequence[str],
    tasks: Sequence[str],
    bases: Sequence[str],
) -> _Settings:
    if count < 1 or jobs < 1:
        raise OptionError(f"{count} traces by {jobs} processes make no sense")
    for words, known, what in ((types, TYPES, "type"), (tasks, TASKS, "task")):
        for word in words:
            if word not in known:
                raise OptionError(f"no fault or task is of the {what} {word!r}: {', '.join(known)}")
    if bases and len(tasks) > 1:
        raise OptionError("the given bases have one task; leave it out where they have several")
    paths = tuple(str(base) for base in bases)
    return _Settings(seed, tuple(sorted(set(types))), tuple(sorted(set(tasks))), paths)


def _take_over(folder: Path, settings: _Settings) -> None:
    """The folder is new, empty, or of the same settings."""
    place = folder / _DONE / "settings.json"
    text = json.dumps({"version": _VERSION, **asdict(settings)})
    others = (
        "holds traces that were generated with other options; a new folder, or the same options, "
        "are needed"
    )
    claim_folder(folder, place, text, others)


_VERSION = 6
"""Of what is generated: with another one the same seed gives other bytes."""


def _part(folder: Path, unit: int, count: int) -> Path:
    """The labels of a unit; the last one may have fewer traces than it would have among more."""
    size = min(2 * _PAIRS, count - unit * 2 * _PAIRS)
    return folder / _DONE / f"{unit:06d}-{size}.jsonl"


@cache
def _bases(settings: _Settings) -> Bases:
    """Those of this process; without given traces, runs that are predicted."""
    if settings.bases:
        return RecordedBases(settings.bases, settings.tasks[0] if settings.tasks else None)
    from torchtraceap.lab.generation.predicted_bases import PredictedBases

    forms = [form for form in FAULTS if form.type in (settings.types or TYPES)]
    by_copies = all(form.spread is not None for form in forms)
    of_many = all(form.of_one_rank or form.spread is not None for form in forms)
    return PredictedBases(settings.seed, settings.tasks, of_many=of_many, by_copies=by_copies)


def _make_unit(folder: str, settings: _Settings, count: int, unit: int) -> None:
    """Traces, then labels."""
    size = min(2 * _PAIRS, count - unit * 2 * _PAIRS)
    files: list[tuple[str, Any]] = []
    lines = []
    for label, part in _labelled(_bases(settings), settings, unit, size):
        files.append((f"{label['id']}{_SUFFIX}", partial(_core.write_trace, part.table)))
        lines.append(json.dumps(label, allow_nan=False) + "\n")
    place = _part(Path(folder), unit, count).relative_to(folder)
    files.append((str(place), partial(_write_lines, lines)))
    write_paths(folder, files)


def _write_lines(lines: Sequence[str], path: Path) -> None:
    write_text(path, "".join(lines))


def _labelled(
    bases: Bases, settings: _Settings, unit: int, size: int
) -> Iterator[tuple[dict[str, Any], RankTrace]]:
    """So many, in the order of their ids."""
    rng = random.Random(f"{settings.seed}/unit/{unit}")
    is_of_many = rng.random() < _MANY

    def ranks(base: Base, most: int) -> int:
        return _ranks(base, rng, most) if is_of_many or base.world_size > 1 else 1

    forms = partial(_forms, settings)
    yield from labelled(bases, settings.seed, unit, size, forms=forms, ranks=ranks)


def labelled(
    bases: Bases,
    seed: int,
    unit: int,
    size: int,
    *,
    forms: Callable[[int, int], Sequence[Form]],
    ranks: Callable[[Base, int], int],
) -> Iterator[tuple[dict[str, Any], RankTrace]]:
    """Traces of a unit with their labels, in the order of their ids.

    Args:
        bases: One for each unit.
        seed: The same gives the same.
        unit: Which.
        size: How many traces.
        forms: Those that a pair may have, the wanted one first; of its number, and how many ranks
            are recorded.
        ranks: How many are recorded of the next run; of its base, and how many there may be.

    Raises:
        OptionError: None of the forms fits the base.
    """
    place, first = 0, unit * 2 * _PAIRS
    while 2 * place < size:
        number = unit * _PAIRS + place
        base = bases.of(unit, number)
        pair = _drawn(base, forms, f"{seed}/{number}", number, ranks(base, size // 2 - place))
        count = len(pair.sides)
        faulty_last = random.Random(f"{seed}/{number}/order").random() < 0.5
        runs = [first + 2 * place, first + 2 * place + count]
        faulty, twin = runs[::-1] if faulty_last else runs
        labels = [_label(base, seed, pair, side, faulty, twin) for side in pair.sides]
        bad = [(label, side.faulty) for label, side in zip(labels, pair.sides, strict=True)]
        good = [
            (_twin_label(label), side.twin) for label, side in zip(labels, pair.sides, strict=True)
        ]
        both = [*good, *bad] if faulty_last else [*bad, *good]
        yield from both[: size - 2 * place]
        place += count


def _drawn(
    base: Base,
    forms: Callable[[int, int], Sequence[Form]],
    seed: str,
    number: int,
    ranks: int,
) -> Pair:
    """With so many ranks recorded, or with one where nothing fits so many."""
    if ranks > 1:
        with suppress(OptionError):
            return drawn_pair(base, forms(number, ranks), seed, ranks)
    return drawn_pair(base, forms(number, 1), seed)


def _ranks(base: Base, rng: random.Random, most: int) -> int:
    """How many ranks of the next run are recorded."""
    fitting = [ranks for ranks in base.spreads if ranks <= most]
    share = _ALL_OF_PARTS if base.world_size > 1 else _ALL_OF_COPIES
    return rng.choice(fitting) if fitting and rng.random() < share else 1


def _forms(settings: _Settings, number: int, ranks: int) -> list[Form]:
    """Those that a pair may have, the wanted one first. See Note [Order]."""
    rng = random.Random(f"{settings.seed}/{number}/kind")
    wanted = set(settings.types or TYPES)
    kinds = [[form for form in forms if form.type in wanted] for forms in (FAULTS, DECOYS)]
    first = 1 if kinds[1] and rng.random() < _DECOYS else 0
    forms = []
    for kind in (kinds[first], kinds[1 - first]):
        round_, place = divmod(number, max(1, len(kind)))
        order = kind[:]
        random.Random(f"{settings.seed}/{round_}/{len(kind)}").shuffle(order)
        found = order[place:] + order[:place]
        if ranks > 1 and rng.random() < _OF_RANKS:  # what only several ranks can have, first
            found.sort(key=lambda form: not (form.of_one_rank or form.spread is not None))
        forms += found
    return forms


_OF_RANKS = 0.6
"""Of runs of which all ranks are recorded, those with a form that a single rank can't have."""


def _label(base: Base, seed: int, pair: Pair, side: Side, run: int, twin: int) -> dict[str, Any]:
    form = pair.form
    return {
        "id": _id(run, pair, side),
        "seed": seed,
        "task": base.task,
        "source": {"kind": base.kind, "base": base.name},
        "device": pair.device,
        "world_size": pair.world_size,
        "rank": side.rank,
        "strategy": pair.strategy,
        "profiler": base.profiler,
        "run": f"{run:06d}",
        "twin": _id(twin, pair, side),
        "type": None if form.decoy else side.type,
        "form": form.name,
        "decoy": form.decoy,
        "looks_like": side.type,
        "late_rank": pair.late_rank,
        "role": side.role,
        "cost_ns": side.cost_ns,
        "severity": round(side.severity, 6),
        "intervals": side.intervals.tolist(),
        "steps": len(side.faulty.tree.steps),
        "windows": {str(count): side.windows(count) for count in WINDOWS},
        "already": sorted(base.types),
        "split": base.split,
    }


def _id(run: int, pair: Pair, side: Side) -> str:
    """Of a trace: the run's number, and the rank where all are recorded."""
    return f"{run:06d}" if len(pair.sides) == 1 else f"{run:06d}/rank{side.rank}"


def _twin_label(faulty: dict[str, Any]) -> dict[str, Any]:
    """Of the trace without a fault."""
    clean: dict[str, Any] = {"id": faulty["twin"], "run": faulty["twin"].partition("/")[0]}
    clean |= {"twin": None, "type": None, "form": "none", "decoy": False, "looks_like": None}
    clean |= {"late_rank": None, "role": None, "cost_ns": 0, "severity": 0.0, "intervals": []}
    windows = {key: [0] * len(labels) for key, labels in faulty["windows"].items()}
    return {**faulty, **clean, "windows": windows}
