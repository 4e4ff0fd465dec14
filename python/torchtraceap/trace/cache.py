"""Keep the events of files in a folder, so that they load several times faster the second time.

An entry is a file of packed events (`packed_file`), named by what was read and by what read it.
It is written next to its place and renamed, so that it is whole or not there; whoever removes one
loses time and nothing else. Its checksums are tested at each use.

Note [Content]: the name is a hash of the size, the time of change, the first and the last bytes of
a file, and of the core that read it. Hashing all of it would take as long as reading it.
"""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from typing import TypeAlias

from torchtraceap import _core
from torchtraceap.core.aliases import PathLike
from torchtraceap.errors import MissingDependencyError, OutputError, ParseError

__all__ = ["VARIABLE", "Caching", "find_entry", "keep_entry", "read_entry"]

VARIABLE = "TORCHTRACEAP_CACHE"
"""The environment variable: `off`, `on`, or a folder."""
Caching: TypeAlias = "bool | PathLike | None"
"""Whether files are kept, or in which folder; None for what the environment says, else they are
not."""
LEAST_BYTES = 1_000_000
"""The size of a file from which keeping it saves time."""
MOST_BYTES = 20_000_000_000
"""The size of the folder: beyond it, entries that were not used for longest go."""
_EDGE_BYTES = 1 << 16


def find_entry(path: PathLike, caching: Caching = None) -> Path | None:
    """Return the place of a file's entry, which may not be there; None where none is wanted."""
    said = os.environ.get(VARIABLE) or "off"
    chosen = {"off": False, "on": True}.get(said, said) if caching is None else caching
    if chosen is False:
        return None
    try:
        with open(path, "rb") as stream:
            known = os.fstat(stream.fileno())
            if known.st_size < LEAST_BYTES:
                return None
            name = _name_of(stream, known)
    except OSError:
        return None  # who reads it says why
    if chosen is True:
        from torchtraceap.core.writing import cache_folder  # only here: start-up counts

        return cache_folder() / "traces" / f"{name}.arrow"
    return Path(os.fspath(chosen)) / f"{name}.arrow"


def _name_of(stream: io.BufferedReader, known: os.stat_result) -> str:
    """Return the hash that names an entry. See Note [Content]."""
    import hashlib  # only here: start-up counts

    core = os.stat(_core.__file__)
    about = (known.st_size, known.st_mtime_ns, core.st_size, core.st_mtime_ns)
    digest = hashlib.sha256(repr(about).encode())
    digest.update(stream.read(_EDGE_BYTES))
    stream.seek(max(0, known.st_size - _EDGE_BYTES))
    digest.update(stream.read(_EDGE_BYTES))
    return digest.hexdigest()


def read_entry(entry: Path, path: PathLike, *, threads: int = 0) -> _core.EventTable | None:
    """Return the events of a file as they were kept; None where they were not, or are damaged."""
    from torchtraceap.trace.packed_file import read_packed

    if not entry.is_file():
        return None
    try:
        table = read_packed(entry, threads=threads, name=os.fspath(path))
    except MissingDependencyError:
        return None
    except ParseError:
        with contextlib.suppress(OSError):
            entry.unlink()
        return None
    with contextlib.suppress(OSError):
        os.utime(entry)
    return table


def keep_entry(entry: Path, table: _core.EventTable) -> None:
    """Keep the events of a file, if that can be done."""
    from torchtraceap.trace.packed_file import write_packed

    try:
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_packed(table, entry, pack=False)
        _make_room(entry)
    except (MissingDependencyError, OutputError, OSError):
        return  # a full disk, a folder of somebody else, no pyarrow: the trace is read all the same


def _make_room(newest: Path) -> None:
    """Remove entries that were not used for longest, until the folder is small enough."""
    found = [(one.stat(), one) for one in newest.parent.glob("*.arrow")]
    total = sum(known.st_size for known, _ in found)
    for known, one in sorted(found, key=lambda pair: pair[0].st_mtime_ns):
        if total <= MOST_BYTES:
            break
        if one != newest:
            one.unlink(missing_ok=True)
            total -= known.st_size
