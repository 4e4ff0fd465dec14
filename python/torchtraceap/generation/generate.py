"""`generate`: a folder of labelled traces.

Note [Units]: traces come in units of some pairs on one base. A unit depends on the seed, its number
and the options alone, so it does not matter who makes it, or when. Its traces and then its labels
take their places when the unit is complete. So a run that was interrupted, or that is asked for
more traces than before, goes on with the units whose labels are not there.

Note [Order]: which of a pair comes first is drawn, and forms come in rounds, each in an order of
its own: neither numbers nor neighbours of traces tell their labels.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from torchtraceap import _core
from torchtraceap.aliases import PathLike
from torchtraceap.errors import OptionError
from torchtraceap.generation.bases import TASKS, UNITS_OF_A_BASE, Base, Bases, make_bases
from torchtraceap.generation.decoys import DECOYS
from torchtraceap.generation.faults import FAULTS
from torchtraceap.generation.pairs import WINDOWS, Pair, drawn_pair
from torchtraceap.generation.planting import Form
from torchtraceap.ranks import RankTrace
from torchtraceap.stages import stage
from torchtraceap.writing import naming, write_paths, write_text

__all__ = ["LABELS", "TYPES", "generate"]

LABELS = "labels.jsonl"
TYPES = tuple(sorted({form.type for form in FAULTS}))
"""Of the faults that can be put in."""
_DONE = ".units"
_PAIRS = 4
"""Of a unit."""
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
    with stage(f"generating {len(left)} units of {2 * _PAIRS} traces"):
        _make_all(partial(_make_unit, str(folder), settings, count), left, jobs)
    lines = [_part(folder, unit, count).read_text("utf-8") for unit in units]
    write_text(folder / LABELS, "".join(lines))
    known = {_part(folder, unit, count) for unit in units}
    for part in (folder / _DONE).glob("*.jsonl"):  # of a unit that had fewer traces before
        if part not in known and part.name[:6] in {place.name[:6] for place in known}:
            part.unlink()
    return folder / LABELS


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
    if place.exists():
        if place.read_text("utf-8") != text:
            raise OptionError(
                f"{folder}: holds traces that were generated with other options; a new folder, or "
                "the same options, are needed"
            )
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OptionError(f"{folder}: a new or empty folder is needed")
    with naming(folder):
        place.parent.mkdir(parents=True, exist_ok=True)
    write_text(place, text)


_VERSION = 3
"""Of what is generated: with another one the same seed gives other bytes."""


def _part(folder: Path, unit: int, count: int) -> Path:
    """The labels of a unit; the last one may have fewer traces than it would have among more."""
    size = min(2 * _PAIRS, count - unit * 2 * _PAIRS)
    return folder / _DONE / f"{unit:06d}-{size}.jsonl"


def _make_all(make: partial[None], units: Sequence[int], jobs: int) -> None:
    if jobs == 1 or len(units) < 2:
        for unit in units:
            make(unit)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(jobs, len(units)), mp_context=context, initializer=_leave_with_parent
    )
    try:
        for _ in pool.map(make, units, chunksize=UNITS_OF_A_BASE):
            pass
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _leave_with_parent() -> None:
    """A process whose parent was killed would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_leave_after, args=(parent,), daemon=True).start()


def _leave_after(parent: Any) -> None:
    parent.join()
    os._exit(1)


@cache
def _bases(seed: int, tasks: tuple[str, ...], paths: tuple[str, ...]) -> Bases:
    """Those of this process."""
    return make_bases(seed, tasks, paths)


def _make_unit(folder: str, settings: _Settings, count: int, unit: int) -> None:
    """Traces, then labels."""
    base = _bases(settings.seed, settings.tasks, settings.bases)[unit]
    files: list[tuple[str, Any]] = []
    lines = []
    for label, part in _labelled(base, settings, unit):
        if int(label["id"]) < count:
            files.append((f"{label['id']}.json.gz", partial(_core.write_trace, part.table)))
            lines.append(json.dumps(label, allow_nan=False) + "\n")
    place = _part(Path(folder), unit, count).relative_to(folder)
    files.append((str(place), partial(_write_lines, lines)))
    write_paths(folder, files)


def _write_lines(lines: Sequence[str], path: Path) -> None:
    write_text(path, "".join(lines))


def _labelled(
    base: Base, settings: _Settings, unit: int
) -> Iterator[tuple[dict[str, Any], RankTrace]]:
    """In the order of their ids."""
    for number in range(unit * _PAIRS, (unit + 1) * _PAIRS):
        seed = f"{settings.seed}/{number}"
        pair = drawn_pair(base, _forms(settings, number), seed)
        faulty_last = random.Random(f"{seed}/order").random() < 0.5
        ids = [f"{2 * number:06d}", f"{2 * number + 1:06d}"]
        faulty_id, twin_id = ids[::-1] if faulty_last else ids
        faulty = _label(base, settings.seed, pair, faulty_id, twin_id), pair.faulty
        twin = _twin_label(faulty[0], twin_id), pair.twin
        yield from (twin, faulty) if faulty_last else (faulty, twin)


def _forms(settings: _Settings, number: int) -> list[Form]:
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
        forms += order[place:] + order[:place]
    return forms


def _label(base: Base, seed: int, pair: Pair, own: str, twin: str) -> dict[str, Any]:
    form = pair.form
    return {
        "id": own,
        "seed": seed,
        "task": base.task,
        "source": {"kind": base.kind, "base": base.name},
        "device": pair.device,
        "world_size": pair.world_size,
        "rank": pair.rank,
        "twin": twin,
        "type": None if form.decoy else form.type,
        "form": form.name,
        "decoy": form.decoy,
        "looks_like": form.type,
        "cost_ns": pair.cost_ns,
        "severity": round(pair.severity, 6),
        "intervals": pair.intervals.tolist(),
        "steps": len(pair.faulty.tree.steps),
        "windows": {str(count): pair.windows(count) for count in WINDOWS},
        "already": sorted(base.types),
        "split": base.split,
    }


def _twin_label(faulty: dict[str, Any], own: str) -> dict[str, Any]:
    """Of the trace without a fault."""
    clean: dict[str, Any] = {"id": own, "twin": None, "type": None, "form": "none"}
    clean |= {"decoy": False, "looks_like": None, "cost_ns": 0, "severity": 0.0, "intervals": []}
    windows = {key: [0] * len(labels) for key, labels in faulty["windows"].items()}
    return {**faulty, **clean, "windows": windows}
