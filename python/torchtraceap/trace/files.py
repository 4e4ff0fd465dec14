"""Find the files of a trace and the rank of each."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path

from torchtraceap.core.aliases import PathLike
from torchtraceap.core.results import Diagnostic, TraceFile
from torchtraceap.errors import MissingFileError, ParseError
from torchtraceap.trace import packed_file
from torchtraceap.trace.column_file import MAGIC, holds_events

__all__ = [
    "assign_ranks",
    "expand_paths",
    "list_trace_files",
    "looks_like_trace_name",
    "natural_key",
    "rank_in_name",
]

_TRACE_SUFFIXES = (".json", ".json.gz", ".json.zst")
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = tuple(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60))
_MAGIC = (_GZIP, _ZSTD, *_ZSTD_SKIPPABLE)
_RANK_IN_NAME = re.compile(r"(?<![a-z])rank[-_ .=]?(\d{1,9})(?!\d)", re.IGNORECASE)


MOST_NAMED = 8
"""The most folders that a sentence names."""
DEEPEST = 4
"""The depth of folders below a given one that are looked into."""
MOST_ENTRIES = 100_000
"""The most files and folders that are looked at below a given one: a job has a file for each rank,
and who gives a whole disk gets an answer in seconds."""


def natural_key(path: Path) -> list[tuple[int, int, str]]:
    """Return a sort key that puts rank2 before rank10."""
    parts = re.split(r"(\d+)", str(path))
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part]


def expand_paths(
    given: PathLike | Iterable[PathLike], *, deep: bool = False
) -> tuple[list[Path], bool]:
    """Return the files to read, and True if one that is no trace may be skipped (from a folder).

    A folder stands for what looks like a trace in it, or where nothing does, and if `deep`, for
    those in its folders, as deep as `DEEPEST`. Links to folders inside it are not followed.

    Raises:
        MissingFileError: A path does not exist.
        ParseError: A folder without anything that looks like a trace or with more than
            `MOST_ENTRIES`, or an empty list.
    """
    paths = [Path(given)] if isinstance(given, (str, os.PathLike)) else [Path(p) for p in given]
    if not paths:
        raise ParseError("no path was given")
    for path in paths:
        if not path.exists():
            raise MissingFileError(f"{path}: no such file or folder")
    files: dict[Path, None] = {}
    has_folder = False
    for path in paths:
        if not path.is_dir():
            files[path] = None
            continue
        has_folder = True
        found = list(_walk(path, deep, DEEPEST, count(1)))
        if not found:
            raise ParseError(
                f"{path}: no trace file (.json, .json.gz, .json.zst) in it or in its folders"
            )
        files |= dict.fromkeys(found)
    return list(files), has_folder


def list_trace_files(given: Iterable[PathLike]) -> list[Path]:
    """Return the files that paths stand for, as far as there are any."""
    files = []
    for path in given:
        with contextlib.suppress(ParseError, OSError):
            files += expand_paths(path)[0]
    return files


def looks_like_trace_name(path: PathLike) -> bool:
    """Return True if such a file makes its folder one that is read as a rank."""
    name = Path(path).name
    return name.lower().endswith(_TRACE_SUFFIXES) and not name.startswith(".")


def _walk(folder: Path, deep: bool, depth: int, entries: Iterator[int]) -> Iterator[Path]:
    """Yield what looks like a trace; `entries` counts what was looked at."""
    files, folders = [], []
    try:
        with os.scandir(folder) as found:
            for entry in found:
                if next(entries) > MOST_ENTRIES:
                    raise ParseError(
                        f"{folder}: more than {MOST_ENTRIES:,} files and folders were looked at; "
                        "give the folder that holds the traces"
                    )
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                elif _looks_like_trace(Path(entry.path)):
                    files.append(Path(entry.path))
    except OSError as error:
        raise ParseError(f"{folder}: {error.strerror}") from None
    yield from sorted(files, key=natural_key)
    if depth and (deep or not files):
        for inner in sorted(folders, key=natural_key):
            yield from _walk(inner, deep, depth - 1, entries)


def _looks_like_trace(path: Path) -> bool:
    """Return True if this is a file that looks like a trace by its name, or by content: compressed,
    an object or an array."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        if looks_like_trace_name(path):
            return True
        with path.open("rb") as file:
            head = file.read(64)
    except OSError:
        return False
    if head.startswith(MAGIC):
        return holds_events(path)
    if head.startswith(packed_file.MAGIC):
        return True
    return head.startswith(_MAGIC) or head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")


def rank_in_name(path: Path) -> int | None:
    """Return the number behind "rank" in the file's name, else in its folder's."""
    for part in (path.name, path.parent.name):
        if found := _RANK_IN_NAME.findall(part):
            return int(found[-1])
    return None


def assign_ranks(claims: Sequence[TraceFile]) -> tuple[list[int | None], list[Diagnostic]]:
    """Return a rank for each file, different from each other, and notes on how they were found.

    They are from `distributedInfo`; where that is missing or repeats, from the file name; else the
    lowest number that is free, in the order of the files. A lone file that says nothing has no
    rank.
    """
    if len(claims) == 1:
        if claims[0].rank is not None:
            return [claims[0].rank], []
        rank = rank_in_name(Path(claims[0].path))
        return [rank], _from_name_note(claims) if rank is not None else []
    said = [claim.rank for claim in claims]
    named = [rank_in_name(Path(claim.path)) for claim in claims]
    if len(set(said)) < len(said) and None not in named and len(set(named)) == len(named):
        ranks: list[int | None] = list(named)
        diagnostics = _from_name_note(
            [c for c, r in zip(claims, ranks, strict=True) if c.rank != r]
        )
    else:
        ranks, diagnostics = _claim_in_order(claims, said, named)
    return ranks, [*diagnostics, *_world_notes(claims, ranks)]


def _claim_in_order(
    claims: Sequence[TraceFile], said: Sequence[int | None], named: Sequence[int | None]
) -> tuple[list[int | None], list[Diagnostic]]:
    ranks: list[int | None] = []
    from_name, repeated, silent = [], [], []
    taken: set[int] = set()
    for claim, by_file, by_name in zip(claims, said, named, strict=True):
        rank = by_file if by_file is not None else by_name
        if rank is None:
            silent.append(claim)
        elif rank in taken:
            repeated.append(claim)
            rank = None
        elif by_file is None:
            from_name.append(claim)
        ranks.append(rank)
        if rank is not None:
            taken.add(rank)
    free = (number for number in range(len(claims) + len(taken)) if number not in taken)
    ranks = [rank if rank is not None else next(free) for rank in ranks]
    notes = _from_name_note(from_name)
    notes += _note("duplicate_rank", repeated, "name the rank of another file: numbered in order")
    notes += _note("rank_from_order", silent, "do not say their rank: numbered in order")
    return ranks, notes


def _from_name_note(claims: Sequence[TraceFile]) -> list[Diagnostic]:
    return _note("rank_from_file_name", claims, "say their rank only in the file name")


def _note(code: str, claims: Sequence[TraceFile], what: str) -> list[Diagnostic]:
    if not claims:
        return []
    first = Path(claims[0].path).name
    return [Diagnostic(code, len(claims), None, f"files that {what} ({first}, ...)")]


def _world_notes(claims: Sequence[TraceFile], ranks: Sequence[int | None]) -> list[Diagnostic]:
    sizes = sorted({claim.world_size for claim in claims if claim.world_size is not None})
    if not sizes:
        return []
    present = {rank for rank in ranks if rank is not None and 0 <= rank < sizes[-1]}
    if missing := sizes[-1] - len(present):
        first = next(rank for rank in range(len(present) + 1) if rank not in present)
        text = f"ranks of {sizes[-1]} without a file, the first is {first}"
        return [Diagnostic("missing_ranks", missing, None, text)]
    return []
