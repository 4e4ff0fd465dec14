"""Sources of traces are local paths and what fsspec reads; their files become runs.

Note [Key]: the content of a run is the sizes and first bytes of its files, in any order and under
any name. Its key also has the version of the product and the options that its rows depend on.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torchtraceap import _core
from torchtraceap._version import __version__
from torchtraceap.core.records import dataclass
from torchtraceap.errors import (
    MissingDependencyError,
    MissingFileError,
    OptionError,
    ParseError,
    TraceError,
)
from torchtraceap.trace.files import expand_paths, looks_like_trace_name
from torchtraceap.trace.jobs import RecordedFile, Run, signs_of, signs_of_head
from torchtraceap.trace.recordings import is_binary_recording, read_recording

__all__ = [
    "FoundFile",
    "find_files",
    "is_remote",
    "open_files",
    "read_signs",
    "read_tag_table",
    "run_key",
    "tag_names",
    "tag_of",
]

HEAD_BYTES = 1 << 15
ATTEMPTS, FIRST_PAUSE_SECONDS = 6, 0.1
_REMOTE = re.compile(r"[a-z][a-z0-9+]+://", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that may be a trace."""

    path: str
    size: int
    modified_ns: int
    """Or 0 where the store does not say."""


def is_remote(path: str) -> bool:
    """Return True for the address of a file system that fsspec knows, such as "s3://..."."""
    return bool(_REMOTE.match(path))


def _file_system(path: str) -> Any:
    try:
        import fsspec
    except ImportError:
        raise MissingDependencyError(
            f"{path} needs fsspec: pip install 'torchtraceap[corpus]'"
        ) from None
    try:
        return fsspec.core.url_to_fs(path)[0]
    except (ImportError, ValueError) as error:
        raise MissingDependencyError(f"{path}: {error}") from None


def _patiently(call: Callable[[], Any]) -> Any:
    """Return what a call of an object store gives; one that fails for now is made again.

    Raises:
        OSError: It keeps failing, or there is no such file.
    """
    for attempt in range(ATTEMPTS):
        try:
            return call()
        except (FileNotFoundError, PermissionError):
            raise
        except Exception as error:  # every store has errors of its own
            if attempt + 1 == ATTEMPTS:
                raise OSError(f"{type(error).__name__}: {error}") from error
            time.sleep(FIRST_PAUSE_SECONDS * 2**attempt)
    raise AssertionError


def find_files(sources: Iterable[str]) -> list[FoundFile]:
    """Return the files that look like traces, of folders with all that is in them, each once.

    Raises:
        MissingFileError, ParseError: A source is not there, or can't be listed.
        MissingDependencyError: fsspec, or what it needs for an address, is not installed.
    """
    found: dict[str, FoundFile] = {}
    for source in sources:
        for one in _find_remote(source) if is_remote(source) else _find_local(source):
            found.setdefault(one.path, one)
    return list(found.values())


def _find_local(source: str) -> Iterator[FoundFile]:
    path = Path(source)
    if not path.exists() and any(sign in source for sign in "*?["):
        import glob

        paths: Sequence[Path] = [Path(name) for name in glob.glob(source, recursive=True)]
        if not paths:
            raise MissingFileError(f"{source}: no such file or folder")
    else:
        paths = [path]
    for file in expand_paths(paths, deep=True)[0]:
        with contextlib.suppress(FileNotFoundError):  # gone since
            known = file.stat()
            yield FoundFile(os.path.abspath(file), known.st_size, known.st_mtime_ns)


def _find_remote(source: str) -> Iterator[FoundFile]:
    system = _file_system(source)
    system.invalidate_cache()
    search = system.glob if any(sign in source for sign in "*?[") else system.find
    try:
        listed = _patiently(lambda: search(source, detail=True))
    except OSError as error:
        raise ParseError(f"{source}: can't be listed: {error}") from None
    if not listed:
        raise MissingFileError(f"{source}: no such file or folder")
    for name, known in sorted(listed.items()):
        is_trace = looks_like_trace_name(name) or name.endswith(".arrow")
        if known.get("type", "file") == "file" and is_trace:
            when = known.get("mtime") or known.get("LastModified") or known.get("created")
            stamp = when if isinstance(when, (int, float)) else getattr(when, "timestamp", int)()
            yield FoundFile(system.unstrip_protocol(name), known.get("size") or 0, int(stamp * 1e9))


def read_signs(file: FoundFile) -> tuple[str, RecordedFile]:
    """Return the hash of the first bytes of a file, and the signs of what it belongs to."""
    try:
        if is_remote(file.path):
            system = _file_system(file.path)
            head: bytes = _patiently(lambda: system.cat_file(file.path, start=0, end=HEAD_BYTES))
        else:
            with open(file.path, "rb") as stream:
                head = stream.read(HEAD_BYTES)
    except OSError:
        head = b""
    digest = hashlib.sha256(head).hexdigest()[:32]
    if is_binary_recording(head):
        return digest, _signs_of_whole(file)
    return digest, signs_of_head(Path(file.path), head, file.size)


def _signs_of_whole(file: FoundFile) -> RecordedFile:
    """Return the signs of a file whose first bytes say nothing: columns, or another profiler's."""
    try:
        with open_files([file.path]) as local:
            table = read_recording(local[file.path], threads=1)
    except (TraceError, OSError):
        return RecordedFile(Path(file.path))
    parts = [part for _, part in _core.split_merged_trace(table, threads=1)]
    return signs_of(Path(file.path), parts or [table])


@contextlib.contextmanager
def open_files(paths: Sequence[str]) -> Iterator[dict[str, str]]:
    """Give a local path for each; what is remote lies in memory meanwhile, never on the disk."""
    if not any(map(is_remote, paths)):
        yield {path: path for path in paths}
        return
    with contextlib.ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory())  # of links
        local = {}
        for number, path in enumerate(paths):
            read = partial(_file_system(path).cat_file, path)
            data = _patiently(read)
            descriptor = os.memfd_create("trace", os.MFD_CLOEXEC)
            file = opened.enter_context(open(descriptor, "wb"))
            file.write(data)
            file.flush()
            # Its name and its folder's, which may say the rank.
            place = Path(folder, str(number), *Path(path).parts[-2:])
            place.parent.mkdir(parents=True)
            place.symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}")
            local[path] = str(place)
        yield local


# ------------------------------------------------------------------------------ names


def run_key(run: Run, heads: Mapping[Path, tuple[int, str]], options: str) -> tuple[str, str]:
    """Return the content of a run and its key. See Note [Key].

    Args:
        run: The files.
        heads: The size of each and the hash of its first bytes.
        options: What the rows depend on, beside the content.
    """
    parts = sorted(heads[one.path] for one in run.files)
    content = hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
    key = hashlib.sha256(f"{content} {__version__} {options}".encode()).hexdigest()[:24]
    return content, key


def tag_of(text: str) -> tuple[str, Callable[[str], str | None]]:
    """Return the name of a tag, and what takes its value from a path.

    Args:
        text: `NAME=PATTERN`. The value is the group of that name, else the first group, else all
            that the pattern matches.

    Raises:
        OptionError: It is not of this form, or the pattern is no regular expression.
    """
    name, sign, pattern = text.partition("=")
    if not sign or not name.isidentifier():
        raise OptionError(f"--tag {text}: NAME=PATTERN is needed, such as team='/(?P<team>[^/]+)/'")
    try:
        found = re.compile(pattern)
    except re.error as error:
        raise OptionError(f"--tag {text}: {error}") from None
    group = name if name in found.groupindex else min(1, found.groups)

    def value(path: str) -> str | None:
        match = found.search(path)
        return match[group] if match else None

    return name, value


def tag_names(settings: Mapping[str, Any]) -> list[str]:
    """Return the names of the tags that runs of a corpus have, from its settings."""
    names = [tag_of(text)[0] for text in settings["tags"]]
    table = settings.get("tag_table")
    return names + (list(read_tag_table(table)[0]) if table and os.path.exists(table) else [])


def read_tag_table(path: str) -> tuple[tuple[str, ...], Callable[[str], dict[str, str]]]:
    """Return the names of the tags in a CSV file, and what finds the tags of a trace in it.

    Args:
        path: The file. Its column `path` names traces or folders, whole or by their last parts; the
            longest that is in the path of a trace is the row of its tags.

    Raises:
        OptionError: It has no column `path`, or a column whose name is none.
        MissingFileError, ParseError: It is not there, or no CSV file.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as stream:
            rows = list(csv.DictReader(stream))
    except FileNotFoundError:
        raise MissingFileError(f"{path}: no such file") from None
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise ParseError(f"{path}: is no CSV file: {error}") from None
    if not rows or "path" not in rows[0]:
        raise OptionError(f"{path}: rows with a column path are needed")
    names = [name for name in rows[0] if name != "path"]
    if wrong := [name for name in names if name is None or not name.isidentifier()]:
        raise OptionError(f"{path}: a column has no name that a tag can have: {wrong[0]!r}")
    by_parts = {tuple(row["path"].strip("/").split("/")): row for row in rows if row["path"]}
    longest = max(map(len, by_parts), default=0)

    def tags(trace: str) -> dict[str, str]:
        parts = tuple(trace.strip("/").split("/"))
        for length in range(min(longest, len(parts)), 0, -1):
            for begin in range(len(parts) - length, -1, -1):
                row = by_parts.get(parts[begin : begin + length])
                if row is not None:
                    return {name: row[name] for name in names if row[name]}
        return {}

    return tuple(names), tags
