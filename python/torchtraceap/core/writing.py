"""Files that appear whole: the one way in which this package writes to a path that it was given.

A file grows in a hidden folder beside its target, under the target's own name, and takes the
target's place when it is complete and on the disk. A full disk, an exception or a killed process
leaves what was there before.

Note [Scratch folders]: such a folder is called `.torchtraceap-XXXXXXXX.partial`. Its process holds
a lock on it, which goes with the process however that ends, so the next one that writes to the same
place removes what a killed one left. Where a file system has no locks, it stays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from torchtraceap import _core
from torchtraceap.core.aliases import PathLike
from torchtraceap.errors import OptionError, OutputError, TraceError

__all__ = [
    "cache_folder",
    "check_target",
    "claim_folder",
    "drop_scratch",
    "first_free",
    "is_abandoned",
    "make_scratch",
    "naming",
    "replacing",
    "replacing_stream",
    "staging",
    "standard_output_error",
    "write_files",
    "write_paths",
    "write_text",
]

_PREFIX, _SUFFIX = ".torchtraceap-", ".partial"
_STANDARD_OUTPUT = "-"
_DESCRIPTORS = re.compile(r"/proc/(\d+)(?:/task/\d+)?/fd")
_MOST_LINKS = 40  # as many as Linux follows


def check_target(path: PathLike, inputs: Iterable[PathLike] = ()) -> None:
    """Say before the work begins what would keep a file from being written.

    Args:
        path: The file to write; `-` is standard output.
        inputs: Files that are read: the target may be none of them, under whatever name.

    Raises:
        OptionError: It is one of the files that are read.
        OutputError: It is a folder, its folder does not exist, or there is no permission.
    """
    with naming(path):
        _refuse_inputs(path, inputs)
        _check_place(path, _resolve(path))


def _check_place(path: PathLike, target: Path | int) -> None:
    if isinstance(target, int):
        return
    found = _stat(target)
    if os.fspath(path).endswith(os.sep) or (found is not None and stat.S_ISDIR(found.st_mode)):
        raise OutputError(f"{path}: is a folder, a file name is needed")
    if not target.parent.is_dir():
        raise OutputError(f"{path}: can't be written: the folder {target.parent} does not exist")
    if found is not None and not os.access(target, os.W_OK):
        raise OutputError(f"{path}: can't be written: no permission")
    if _is_replaced(found) and not os.access(target.parent, os.W_OK | os.X_OK):
        raise OutputError(
            f"{path}: can't be written: no permission in {target.parent}, where a file grows "
            "before it takes its place"
        )


@contextlib.contextmanager
def replacing(path: PathLike, *, inputs: Iterable[PathLike] = ()) -> Iterator[Path]:
    """Give a path to write to, whose file takes the place of `path` if the block ends well.

    Behind a symbolic link the file that it points to is replaced; permissions are those of the
    file that was there, else what the umask leaves. What is no file (a pipe, a device, an open
    descriptor such as `/dev/stdout`, and `-` for standard output) gets the bytes at the end.

    Args:
        path: The file to write; `-` is standard output.
        inputs: Files that are read; none of them may be the target.

    Yields:
        A path with the name of the target.

    Raises:
        OptionError: It is one of the files that are read.
        OutputError: See `check_target`; or writing failed, and `path` is as it was.
    """
    check_target(path, inputs)
    target = _resolve(path)
    found = None if isinstance(target, int) else _stat(target)
    beside = target.parent if isinstance(target, Path) and _is_replaced(found) else None
    name = target.name if isinstance(target, Path) else Path(path).name
    with naming(path), staging(beside) as folder:
        staged = folder / name
        with naming(path, staged):
            yield staged
        _settle(staged, target)


@contextlib.contextmanager
def replacing_stream(path: PathLike, *, inputs: Iterable[PathLike] = ()) -> Iterator[BinaryIO]:
    """Do as `replacing` for what writes to an open binary file."""
    with replacing(path, inputs=inputs) as staged, staged.open("xb") as stream:
        yield stream


def write_text(path: PathLike, text: str, *, inputs: Iterable[PathLike] = ()) -> None:
    """Write a text as UTF-8; see `replacing`."""
    with replacing_stream(path, inputs=inputs) as stream:
        stream.write(text.encode("utf-8", errors="replace"))


def claim_folder(folder: Path, place: Path, settings: str, others: str) -> None:
    """Claim a folder for these settings, or check that it was: work in it can go on.

    Args:
        folder: New, empty, or claimed before.
        place: The file in the folder that states the settings.
        settings: The text of that file.
        others: The message about a folder that was claimed with other settings.

    Raises:
        OptionError: The folder was claimed with other settings, or holds something else.
        OutputError: It can't be written.
    """
    if place.exists():
        if place.read_text("utf-8") != settings:
            raise OptionError(f"{folder}: {others}")
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OptionError(f"{folder}: a new or empty folder is needed")
    with naming(folder):
        place.parent.mkdir(parents=True, exist_ok=True)
    write_text(place, settings)


def write_files(
    folder: PathLike,
    files: Iterable[tuple[str, Callable[[BinaryIO], object]]],
    *,
    inputs: Iterable[PathLike] = (),
) -> list[Path]:
    """Do as `write_paths` for what writes to an open binary file."""

    def opening(write: Callable[[BinaryIO], object], staged: Path) -> None:
        with staged.open("xb") as stream:
            write(stream)

    return write_paths(folder, ((n, partial(opening, write)) for n, write in files), inputs=inputs)


def write_paths(
    folder: PathLike,
    files: Iterable[tuple[str, Callable[[Path], object]]],
    *,
    inputs: Iterable[PathLike] = (),
) -> list[Path]:
    """Write several files, which take their places when all of them are complete.

    An error leaves every file of before. A process that is killed while they take their places
    leaves some old and some new ones, each whole.

    Args:
        folder: The folder of the files; it is made if there is none.
        files: The path of each inside the folder, and what writes it to a path of that name.
        inputs: Files that are read; none of them may be replaced.

    Returns:
        The files, in order.

    Raises:
        OptionError: One of them is a file that is read.
        OutputError: As `replacing`.
    """
    target, inputs = Path(folder), list(inputs)
    with contextlib.ExitStack() as open_until_done:
        open_until_done.enter_context(naming(folder))
        open_until_done.enter_context(_make_folders(target))
        grown = open_until_done.enter_context(staging(target))
        places = []
        for name, write in files:
            place, staged = target / name, grown / name
            open_until_done.enter_context(_make_folders(place.parent))
            check_target(place, inputs)
            staged.parent.mkdir(parents=True, exist_ok=True)
            with naming(place, staged):
                write(staged)
            places.append((staged, place))
        for staged, place in places:
            with naming(place):
                _settle(staged, _resolve(place))
    return [place for _, place in places]


@contextlib.contextmanager
def staging(folder: PathLike | None) -> Iterator[Path]:
    """Make a hidden folder inside `folder` (else in the system's for temporary files), gone at the
    end.

    Raises:
        OutputError: It can't be made.
    """
    staged = make_scratch(folder)
    _core.keep_scratch(staged)
    try:
        yield staged
    finally:
        drop_scratch(staged)
        _core.drop_scratch(staged)


_held: dict[Path, int] = {}
"""Scratch folders of this process, with the descriptors that lock them."""
_swept: set[str] = set()
"""Places whose abandoned folders this process has removed."""


def cache_folder() -> Path:
    """Return the user's folder for what can be made again; it need not exist."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "torchtraceap"


def make_scratch(folder: PathLike | None) -> Path:
    """Make a hidden folder that `drop_scratch` removes, or after this process has ended, the next
    one that writes there; see Note [Scratch folders].

    Raises:
        OutputError: It can't be made.
    """
    # Here, as what only shows something writes nothing, and should start fast.
    import tempfile

    place = os.fspath(folder or tempfile.gettempdir())
    with naming(place):
        if place not in _swept:
            _swept.add(place)
            _sweep(place)
        while True:
            scratch = Path(tempfile.mkdtemp(prefix=_PREFIX, suffix=_SUFFIX, dir=place))
            lock = _lock(scratch)
            if scratch.exists():  # else it was swept before it was locked
                break
            os.close(lock)
    _held[scratch] = lock
    return scratch


def drop_scratch(scratch: Path) -> None:
    """Remove a folder of `make_scratch` with what is in it."""
    import shutil

    shutil.rmtree(scratch, ignore_errors=True)
    with contextlib.suppress(KeyError, OSError):
        os.close(_held.pop(scratch))


def is_abandoned(scratch: PathLike) -> bool:
    """Return True if a scratch folder's process has ended, or the folder is gone."""
    try:
        lock = _lock(scratch, wanted=True)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    os.close(lock)
    return True


def _lock(scratch: PathLike, *, wanted: bool = False) -> int:
    """Return an open descriptor of a folder of ours, locked if it can be.

    Raises:
        OSError: It is no such folder, or if `wanted`, it can't be locked.
    """
    descriptor = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "is another user's", os.fspath(scratch))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if wanted:
                raise
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _sweep(place: str) -> None:
    """Remove scratch folders whose processes have ended."""
    import shutil

    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and entry.name.endswith(_SUFFIX):
                with contextlib.suppress(OSError):
                    lock = _lock(entry.path, wanted=True)
                    shutil.rmtree(entry.path, ignore_errors=True)
                    os.close(lock)


def first_free(staged: Path, places: Iterable[Path]) -> Path:
    """Put a complete file in the first place that is free; no two processes take the same.

    Raises:
        OutputError: It can't be put there.
    """
    with naming(staged):
        _flush_to_disk(staged, os.O_RDWR)
    for place in places:
        with naming(place):
            try:
                # An empty file keeps the name until the complete one replaces it.
                place.open("xb").close()
            except FileExistsError:
                continue
            try:
                _settle(staged, place)
            except BaseException:
                place.unlink(missing_ok=True)
                raise
        return place
    raise OutputError(f"{staged.name}: no name is free")


@contextlib.contextmanager
def naming(path: PathLike, staged: Path | None = None) -> Iterator[None]:
    """Name the target in errors of writing, never the place where its file grows.

    Args:
        path: The file to write; `-` is standard output.
        staged: The place where the file grows: the core's messages begin with it.

    Raises:
        OutputError: For an `OSError` in the block; a pipe without a reader passes as it is.
    """
    try:
        yield
    except (OutputError, BrokenPipeError):
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"{path}: can't be written: {reason}") from error
    except TraceError as error:
        if staged is None or str(staged) not in str(error):
            raise
        raise OutputError(str(error).replace(str(staged), str(path))) from error


def standard_output_error(error: OSError) -> OutputError:
    """Return the error for a standard output that takes no more."""
    return OutputError(f"standard output: can't be written: {error.strerror or error}")


# ------------------------------------------------------------------------------ targets


def _resolve(path: PathLike) -> Path | int:
    """Return the file behind every symbolic link, or the number of an open descriptor of ours."""
    if os.fspath(path) == _STANDARD_OUTPUT:
        return 1
    place = Path(os.path.abspath(path))
    for _ in range(_MOST_LINKS):
        # The links under /proc lead to what is open, not to a path: they end the walk.
        parent = os.path.realpath(place.parent)
        if found := _DESCRIPTORS.fullmatch(parent):
            if int(found[1]) == os.getpid() and place.name.isdecimal():
                return int(place.name)
            return place
        place = Path(parent) / place.name
        if not place.is_symlink():
            return place
        place = Path(parent, os.readlink(place))
    raise OutputError(f"{path}: {os.strerror(errno.ELOOP)}")


def _stat(path: PathLike) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _is_replaced(found: os.stat_result | None) -> bool:
    """Return True if a new file replaces what is there: a regular file or nothing."""
    return found is None or stat.S_ISREG(found.st_mode)


def _refuse_inputs(path: PathLike, inputs: Iterable[PathLike]) -> None:
    target = _stat(path)
    if target is None:
        return
    for given in inputs:
        found = _stat(given)
        if found is not None and os.path.samestat(target, found):
            raise OptionError(
                f"{path}: this file was read, as {given}; input and output must not be the same "
                "file"
            )


# ------------------------------------------------------------------------------ putting in place


def _settle(staged: Path, target: Path | int) -> None:
    """Put a complete file in the place of its target."""
    if isinstance(target, int):
        sys.stdout.flush()
        with os.fdopen(os.dup(target), "wb") as stream:
            _copy(staged, stream)
        return
    found = _stat(target)
    if not _is_replaced(found):
        with target.open("wb") as stream:
            _copy(staged, stream)
        return
    if found is not None:
        with contextlib.suppress(OSError):
            if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
                os.chown(staged, found.st_uid, found.st_gid)
        os.chmod(staged, stat.S_IMODE(found.st_mode))
    _flush_to_disk(staged, os.O_RDWR)
    os.replace(staged, target)
    with contextlib.suppress(OSError):  # the file is whole; some file systems sync no folders
        _flush_to_disk(target.parent, os.O_RDONLY)


def _copy(staged: Path, stream: BinaryIO) -> None:
    from shutil import copyfileobj

    with staged.open("rb") as source:
        copyfileobj(source, stream)


def _flush_to_disk(path: Path, mode: int) -> None:
    """Sync a file to the disk: a name that outlives a crash may not point to bytes that don't."""
    descriptor = os.open(path, mode)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _make_folders(folder: Path) -> Iterator[None]:
    """Make a folder with those above it, and remove them again after an error."""
    missing = []
    place = folder
    while not place.is_dir() and place != place.parent:
        if place.exists():
            raise OutputError(f"{place}: is a file, a folder is needed")
        missing.append(place)
        place = place.parent
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for made in missing:
                made.rmdir()
        raise
