"""Decide which files are of one job, and which are several runs.

Note [One job]: no job mixes GPUs of several makers or sizes of the world, has two files of equal
events, or other GPUs at another time. What else tells runs apart holds where nobody named the
files: a rank comes once in a run, so files of one rank are as many runs, and those of other ranks
go to the one that began nearest. Files that don't say their rank are of one run if they lie in one
folder, are named alike and were recorded at the same time. Folders may hold a part of the ranks
each: they are joined where no rank would come twice, from the deepest folder upwards.

Note [Clocks]: some profilers write times since the host's start. Only where times are those of a
calendar, files that began more than an hour apart are of several runs.
"""

from __future__ import annotations

import hashlib
import os
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from torchtraceap import _core
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Diagnostic
from torchtraceap.errors import ParseError, SeveralRunsError
from torchtraceap.trace.files import MOST_NAMED, natural_key, rank_in_name

__all__ = [
    "RecordedFile",
    "Run",
    "base_ns",
    "check_one_job",
    "check_one_run",
    "group_runs",
    "signs_of",
    "signs_of_head",
]


@dataclass(frozen=True, slots=True)
class RecordedFile:
    """Signs by which a file can be of the same job as another one."""

    path: Path
    devices: tuple[str, ...] = ()
    """Names of its GPUs, sorted, each once; empty where it does not say."""
    world_size: int | None = None
    start_ns: int | None = None
    """None where no event is known."""
    end_ns: int | None = None
    """None where only the start is known."""
    content: str | None = None
    """Equal for files of equal events and rank; None where these are too few to tell."""
    ranks: tuple[int, ...] = ()
    """Ranks that it says it holds: several in what `Trace.merge` wrote."""


@dataclass(frozen=True, slots=True)
class Run:
    """Files that were recorded together, by rank."""

    files: tuple[RecordedFile, ...]
    copies: tuple[RecordedFile, ...] = ()
    """Files with the same events as some of them."""


_LEAST_TELLING = 32
"""The number of events from which two recordings never have equal times, as short ones may."""


def signs_of(path: Path, parts: Sequence[_core.EventTable]) -> RecordedFile:
    """Return the signs of a file by what was read of it: a table for each rank that it holds."""
    table = parts[0]
    rows = np.flatnonzero(table.complete)
    start_ns, dur_ns = table.ts_ns[rows], table.dur_ns[rows]
    content = None
    if len(rows) >= _LEAST_TELLING:
        about = f"{len(parts)} {table.rank}".encode()
        digest = hashlib.blake2b(about, digest_size=16)
        digest.update(start_ns.tobytes())
        digest.update(dur_ns.tobytes())
        content = digest.hexdigest()
    return RecordedFile(
        path=path,
        devices=tuple(sorted({device.name for device in table.devices if device.name})),
        world_size=table.world_size,
        start_ns=base_ns(table) + int(start_ns[0]) if len(rows) else None,
        end_ns=base_ns(table) + int((start_ns + dur_ns).max()) if len(rows) else None,
        content=content,
        ranks=tuple(dict.fromkeys(part.rank for part in parts if part.rank is not None)),
    )


def signs_of_head(path: Path, head: bytes, size: int) -> RecordedFile:
    """Return the signs of a file of `size` bytes by its first ones; none where these tell nothing.

    Where they are not all, the end is unknown, and equal content is equal bytes.
    """
    try:
        table = _core.read_trace_bytes(head, str(path), threads=1)
    except ParseError:
        return RecordedFile(path)
    parts = [part for _, part in _core.split_merged_trace(table, threads=1)] or [table]
    signs = signs_of(path, parts)
    return (
        signs
        if len(head) >= size
        else replace(
            signs,
            end_ns=None,
            content=f"{size} {hashlib.blake2b(head, digest_size=16).hexdigest()}",
        )
    )


def base_ns(table: _core.EventTable) -> int:
    """Return what the times of a trace are relative to; 0 where it does not say."""
    text = dict(table.metadata).get("baseTimeNanoseconds", "0")
    return int(text) if text.isdecimal() and len(text) < 20 else 0


def check_one_job(recorded: Sequence[RecordedFile]) -> list[Diagnostic]:
    """Check files that were named one by one: what cannot be of one job is refused; of doubtful
    ones a diagnostic says so. See Note [One job].

    Raises:
        SeveralRunsError: With the runs found.
    """
    jobs: list[list[RecordedFile]] = []
    for one in recorded:
        job = next((job for job in jobs if not any(_apart(one, other) for other in job)), None)
        if job is None:
            jobs.append([one])
        else:
            job.append(one)
    if len(jobs) > 1:
        listed = "; ".join(f"{n}. {_job_text(job)}" for n, job in enumerate(jobs[:MOST_NAMED], 1))
        raise SeveralRunsError(
            f"these files are of {len(jobs)} jobs (several_jobs), give one of them: "
            f"{listed}{_more(len(jobs), '; and')}",
            _paths(group_runs(recorded)),
        )
    doubts = [doubt for one in recorded[1:] if (doubt := _doubt(recorded[0], one))]
    if not doubts:
        return []
    text = f"files may be of several jobs: {doubts[0]}"
    return [Diagnostic("several_jobs", len(doubts) + 1, None, text)]


def check_one_run(folder: str, recorded: Sequence[RecordedFile]) -> None:
    """Check the files of a folder, which nobody named one by one.

    Raises:
        SeveralRunsError: They are of several runs, or some are copies.
    """
    runs = group_runs(recorded)
    copies = sum(len(run.copies) for run in runs)
    if len(runs) < 2 and not copies:
        return
    found = f"{len(recorded)} files of {len(runs)} run{'s' * (len(runs) > 1)} (several_jobs)"
    found += f", of which {copies} hold{'s' * (copies == 1)} what others hold" if copies else ""
    listed = ", ".join(_run_text(run, runs) for run in runs[:MOST_NAMED])
    raise SeveralRunsError(
        f"{folder}: {found}; give one of them: {listed}{_more(len(runs), ' and')}; all together: "
        f"torchtraceap corpus build {folder} OUT",
        _paths(runs),
    )


def _paths(runs: Sequence[Run]) -> list[list[str]]:
    return [[str(one.path) for one in run.files] for run in runs]


def _more(count: int, word: str) -> str:
    return f"{word} {count - MOST_NAMED} more" if count > MOST_NAMED else ""


def _run_text(run: Run, runs: Sequence[Run]) -> str:
    """Name a run by its folder if nothing else is there, no copy either, else by its first file."""
    first = run.files[0].path
    inside = Counter(each for other in runs for each in {f.path.parent for f in other.files})
    inside.update(copy.path.parent for other in runs for copy in other.copies)
    if inside[first.parent] == 1 and all(f.path.parent == first.parent for f in run.files):
        return str(first.parent)
    more = f" and {len(run.files) - 1} more" if len(run.files) > 1 else ""
    return f"{first}{more}"


def _job_text(job: Sequence[RecordedFile]) -> str:
    one = job[0]
    world = f", {one.world_size} ranks" if one.world_size else ""
    more = f" and {len(job) - 1} more" if len(job) > 1 else ""
    return f"{one.path}{more} ({', '.join(one.devices) or 'GPU not named'}{world})"


# ------------------------------------------------------------------------------ two files

_MAKERS = {
    "NVIDIA": ("nvidia", "tesla", "geforce", "quadro", "titan"),
    "AMD": ("amd", "instinct", "radeon"),
    "Intel": ("intel",),
}


def _makers(devices: Sequence[str]) -> set[str]:
    return {
        maker
        for maker, words in _MAKERS.items()
        for name in devices
        if any(word in name.lower() for word in words)
    }


def _apart(a: RecordedFile, b: RecordedFile) -> bool:
    """Can the two not be ranks of one job?"""
    if a.content is not None and a.content == b.content:
        return True
    return _other_kind(a, b) or (_other_devices(a, b) and not _overlap(a, b))


def _other_kind(a: RecordedFile, b: RecordedFile) -> bool:
    if None not in (a.world_size, b.world_size) and a.world_size != b.world_size:
        return True
    makers = _makers(a.devices), _makers(b.devices)
    return all(makers) and not makers[0] & makers[1]


def _other_devices(a: RecordedFile, b: RecordedFile) -> bool:
    return bool(a.devices and b.devices) and a.devices != b.devices


_AT_MOST_NS = 10_000_000_000
"""The assumed length of a recording of which only the start is known."""


def _overlap(a: RecordedFile, b: RecordedFile) -> bool:
    if a.start_ns is None or b.start_ns is None:
        return True
    return a.start_ns <= _end(b) and b.start_ns <= _end(a)


def _end(one: RecordedFile) -> int:
    return _start(one) + _AT_MOST_NS if one.end_ns is None else one.end_ns


def _doubt(a: RecordedFile, b: RecordedFile) -> str:
    """Return why the two are hardly ranks of one job; empty where nothing says so."""
    names = f"{a.path.name} and {b.path.name}"
    if _other_devices(a, b):
        return f"{names} are of {', '.join(a.devices)} and {', '.join(b.devices)}"
    return "" if _overlap(a, b) else f"{names} were not recorded at the same time"


_CALENDAR_NS = range(946_684_800 * 10**9, 4_102_444_800 * 10**9)
"""Times of this century, since 1970."""
_LONGEST_NS = 3600 * 10**9


def _far(a: RecordedFile, b: RecordedFile) -> bool:
    """Did the two begin too far apart for one run? See Note [Clocks]."""
    if _start(a) not in _CALENDAR_NS or _start(b) not in _CALENDAR_NS:
        return False
    return abs(_start(a) - _start(b)) > _LONGEST_NS


# ------------------------------------------------------------------------------ many files

_Group = dict[int, RecordedFile]
"""Files of a run by rank."""


def group_runs(found: Iterable[RecordedFile]) -> list[Run]:
    """Put files together that were recorded together, in the order of their names.

    See Note [One job].
    """
    files, copies = _without_copies(sorted(found, key=lambda one: natural_key(one.path)))
    families: dict[Hashable, list[RecordedFile]] = defaultdict(list)
    merged: list[RecordedFile] = []
    for one in files:
        if len(one.ranks) > 1:
            merged.append(one)
        else:
            stem = re.sub(r"\d+", "#", one.path.name)
            kind = (one.world_size, *sorted(_makers(one.devices)))
            families[_run_folder(one.path), stem, kind].append(one)
    groups: list[_Group] = []
    silent: list[list[RecordedFile]] = []
    for family in families.values():
        ranked = dict(_effective_ranks(family))
        groups += _split_by_rank(
            [(r, one) for one in family if (r := ranked[one.path]) is not None]
        )
        silent += _split_silent([one for one in family if ranked[one.path] is None], groups)
    groups = _join_folders(groups)
    runs = [[group[rank] for rank in sorted(group)] for group in groups] + silent
    for one in merged:
        parts = next((g for g in groups if set(g) == set(one.ranks) and _near(one, g)), None)
        if parts is None:
            runs.append([one])
        else:
            copies[min(parts.items())[1].path].append(one)
    runs.sort(key=lambda run: natural_key(run[0].path))
    return [
        Run(tuple(run), tuple(copy for one in run for copy in copies.get(one.path, ())))
        for run in runs
    ]


def _without_copies(
    files: Sequence[RecordedFile],
) -> tuple[list[RecordedFile], defaultdict[Path, list[RecordedFile]]]:
    firsts: dict[Hashable, RecordedFile] = {}
    copies: defaultdict[Path, list[RecordedFile]] = defaultdict(list)
    kept = []
    for one in files:
        first = one if one.content is None else firsts.setdefault(one.content, one)
        if first is one:
            kept.append(one)
        else:
            copies[first.path].append(one)
    return kept, copies


def _run_folder(path: Path) -> Path:
    """Return the folder of a run: folders that are named after a rank are inside of it."""
    return path.parent if rank_in_name(Path(path.parent.name)) is None else path.parent.parent


def _effective_ranks(family: Sequence[RecordedFile]) -> list[tuple[Path, int | None]]:
    """Return the rank of each file: what it says, or its name where that tells more of them
    apart."""
    said = [one.ranks[0] if one.ranks else None for one in family]
    named = [rank_in_name(one.path) for one in family]
    if None not in named and len(set(named)) > len(set(said)):
        said = named
    return [
        (one.path, name if rank is None else rank)
        for one, rank, name in zip(family, said, named, strict=True)
    ]


def _split_by_rank(ranked: Sequence[tuple[int, RecordedFile]]) -> list[_Group]:
    """Return as many groups as files of the rank that comes most often; those of other ranks go
    to the nearest of them that lacks the rank."""
    by_rank: dict[int, list[RecordedFile]] = defaultdict(list)
    for rank, one in ranked:
        by_rank[rank].append(one)
    if not by_rank:
        return []
    order = sorted(by_rank, key=lambda rank: -len(by_rank[rank]))
    seeds = sorted(by_rank[order[0]], key=_start)
    starts = [_start(one) for one in seeds]
    groups: list[_Group] = [{order[0]: one} for one in seeds]
    alone: list[tuple[int, RecordedFile]] = []
    for rank in order[1:]:
        for one in sorted(by_rank[rank], key=_start):
            place = _nearest_free(one, rank, starts, groups)
            if place is None or not _fits(one, seeds[place]):
                alone.append((rank, one))
            else:
                groups[place][rank] = one
    return groups + _split_by_rank(alone)


def _nearest_free(
    one: RecordedFile, rank: int, starts: Sequence[int], groups: Sequence[_Group]
) -> int | None:
    """Return the group without the rank that began nearest to a file."""
    right = bisect_left(starts, _start(one))
    left = right - 1
    while left >= 0 and rank in groups[left]:
        left -= 1
    while right < len(groups) and rank in groups[right]:
        right += 1
    free = [place for place in (left, right) if 0 <= place < len(groups)]
    return min(free, key=lambda place: abs(starts[place] - _start(one)), default=None)


def _start(one: RecordedFile) -> int:
    return one.start_ns or 0


def _fits(a: RecordedFile, b: RecordedFile) -> bool:
    return not _apart(a, b) and not _far(a, b)


def _near(one: RecordedFile, group: _Group) -> bool:
    """Do a file and one of the group's overlap? All of them, as clocks were aligned."""
    return all(not _other_kind(one, other) and not _far(one, other) for other in group.values())


def _split_silent(
    files: Sequence[RecordedFile], groups: Sequence[_Group]
) -> list[list[RecordedFile]]:
    """Group files that don't say their rank by time; one that was recorded with ranks beside it
    becomes the lowest rank that is missing there."""
    found: list[list[RecordedFile]] = []
    for one in sorted(files, key=_start):
        beside = [group for group in groups if _lacks(group, one)]
        if len(beside) == 1:
            beside[0][next(r for r in range(len(beside[0]) + 1) if r not in beside[0])] = one
        elif (
            one.start_ns is not None
            and found
            and all(_fits(one, other) and _overlap(one, other) for other in found[-1])
        ):
            found[-1].append(one)
        else:
            found.append([one])
    return found


def _lacks(group: _Group, one: RecordedFile) -> bool:
    """Were all of a group recorded with a file, in its folder, and is a rank missing?"""
    world = _first(group).world_size
    if world is not None and len(group) >= world:
        return False
    return all(
        _fits(one, other) and _overlap(one, other) and other.path.parent == one.path.parent
        for other in group.values()
    )


def _join_folders(groups: Sequence[_Group]) -> list[_Group]:
    """Join groups of the folders in a folder, the deepest ones first, where no rank would come
    twice."""
    places: dict[Path, list[_Group]] = defaultdict(list)
    for group in groups:
        folders = [str(_run_folder(one.path)) for one in group.values()]
        places[Path(os.path.commonpath(folders))].append(group)
    done: list[_Group] = []
    while places:
        deepest = max(map(_depth, places))
        for folder in [folder for folder in places if _depth(folder) == deepest]:
            joined = _join(places.pop(folder))
            if folder == folder.parent or (not places and len(joined) == 1):
                done += joined
            else:
                places[folder.parent] += joined
    return done


def _depth(folder: Path) -> int:
    return len(folder.parts)


def _join(groups: Sequence[_Group]) -> list[_Group]:
    """Join groups of one kind and time if each rank comes once among them."""
    joined: list[_Group] = []
    alike: dict[Hashable, list[_Group]] = defaultdict(list)
    for group in groups:
        first = _first(group)
        if first.world_size is not None and len(group) >= first.world_size:
            joined.append(group)
        else:
            alike[first.world_size, first.devices].append(group)
    for family in alike.values():
        family.sort(key=lambda group: _start(_first(group)))
        begin = 0
        for end in range(1, len(family) + 1):
            if end == len(family) or _far(_first(family[end - 1]), _first(family[end])):
                joined += _join_alike(family[begin:end])
                begin = end
    return joined


def _join_alike(groups: Sequence[_Group]) -> Sequence[_Group]:
    world = _first(groups[0]).world_size
    ranks = [rank for group in groups for rank in group]
    if len(set(ranks)) < len(ranks) or (world is not None and max(ranks) >= world):
        return groups
    return [{rank: one for group in groups for rank, one in group.items()}]


def _first(group: _Group) -> RecordedFile:
    return next(iter(group.values()))
