"""Load files as a `Trace`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from threading import Lock

from torchtraceap import _core
from torchtraceap.core.aliases import PathLike, Steps
from torchtraceap.core.results import Diagnostic, TraceFile
from torchtraceap.core.threads import core_count, map_on_threads
from torchtraceap.errors import OptionError, ParseError
from torchtraceap.trace.cache import Caching
from torchtraceap.trace.files import assign_ranks, expand_paths
from torchtraceap.trace.ranks import RankTrace
from torchtraceap.trace.recordings import losses_of, read_recording
from torchtraceap.trace.trace import Trace

__all__ = ["Progress", "load"]

Progress = Callable[[int, int], object]
"""Called now and then with (compressed bytes read, in all)."""


def load(
    path: PathLike | Sequence[PathLike],
    *,
    threads: int | None = None,
    progress: Progress | None = None,
    cache: Caching = None,
    steps: Steps | None = None,
) -> Trace:
    """Read a trace: a file, a folder with a file per rank, or a list of files.

    JSON, gzip, zstd, events in columns (`torchtraceap convert`) and exports of other profilers
    (docs/formats.md) are told apart by content. A damaged trace is read as far as it makes sense;
    what could not be taken at face value is counted in `Trace.diagnostics`.

    Args:
        path: A file or a folder, or a list of files. In a folder, files that hold no trace are
            skipped, with a diagnostic; if it has no traces, those in its folders are read.
        threads: Parsing threads; by default as many as there are cores.
        progress: Called now and then with (compressed bytes read, in all).
        cache: Whether files are kept in columns for the next time (docs/formats.md), or the folder
            for it; by default what the environment variable `TORCHTRACEAP_CACHE` says, else not.
        steps: Only these steps, as `Trace.in_steps` takes them: what follows takes the time and
            memory of the part. By default all that was recorded.

    Returns:
        One `Trace`, whose ranks come from `distributedInfo`, else from the file names, else from
        the order of the files; the diagnostics say which. What `Trace.merge` wrote is taken apart
        into its ranks, on their common clock.

    Raises:
        MissingFileError: A path does not exist.
        ParseError: A file without a single event, or a folder without any trace.
        SeveralRunsError: Files that are not of one run.
        OptionError: A negative number of threads, something that is no path, or no such step.
    """
    if threads is not None and threads < 0:
        raise OptionError(f"threads must not be negative, not {threads}")
    if not isinstance(path, (str, os.PathLike, Iterable)):
        raise OptionError(f"a trace is a file, a folder or a list of files, not {path!r}")
    files, from_folder = expand_paths(path)
    try:
        tables, skipped = _read_all(files, threads or 0, progress, cache, skip=from_folder)
    except ParseError:
        # Perhaps settings or results lie beside the folders of the traces.
        every = expand_paths(path, deep=True)[0] if from_folder else files
        if every == files:
            raise
        tables, skipped = _read_all(every, threads or 0, progress, cache, skip=True)
    claims = [TraceFile(str(p), rank, table.world_size) for p, rank, table in tables]
    numbers, diagnostics = assign_ranks(claims)
    of_files: dict[Path, list[_core.EventTable]] = {}  # parts of one file are of one job
    for p, _, table in tables:
        of_files.setdefault(p, []).append(table)
    if len(of_files) > 1:
        from torchtraceap.trace.jobs import check_one_job, check_one_run, signs_of

        recorded = [signs_of(p, parts) for p, parts in of_files.items()]
        if isinstance(path, (str, os.PathLike)):
            check_one_run(os.fspath(path), recorded)
        diagnostics += check_one_job(recorded)
    ranks = [
        RankTrace(table, number) for (_, _, table), number in zip(tables, numbers, strict=True)
    ]
    ranks.sort(key=lambda rank: -1 if rank.rank is None else rank.rank)
    trace = Trace(ranks, [*skipped, *diagnostics])
    return trace if steps is None else trace.in_steps(steps)


_Read = tuple[Path, int | None, _core.EventTable]
"""A file, the rank that it or the record of a merged trace says, and what it holds of that rank."""


def _read_all(
    files: Sequence[Path],
    threads: int,
    progress: Progress | None,
    cache: Caching,
    *,
    skip: bool,
) -> tuple[list[_Read], list[Diagnostic]]:
    at_once = min(threads or core_count(), len(files))
    each = max(1, (threads or core_count()) // at_once)
    processes: dict[int, int] = {}
    total = sum(os.stat(path).st_size for path in files) if progress else 0
    done = [0] * len(files)
    lock = Lock()

    def report(index: int, bytes_read: int, _: int) -> object:
        with lock:
            done[index] = bytes_read
            return progress(sum(done), total) if progress else None

    def read(index: int) -> list[_Read] | ParseError:
        path = files[index]
        try:
            each_report = partial(report, index) if progress else None
            table = read_recording(path, threads=each, progress=each_report, caching=cache)
            split = _core.split_merged_trace(table, threads=each)
        except ParseError as error:
            if not skip:
                raise
            return error
        if not split and (parts := _core.split_processes(table)):
            split = list(enumerate(parts))
            processes[index] = len(parts)
        return [(path, rank, part) for rank, part in split] or [(path, table.rank, table)]

    read_files = map_on_threads(read, range(len(files)), threads=at_once)
    tables = [one for found in read_files if not isinstance(found, ParseError) for one in found]
    failures = [found for found in read_files if isinstance(found, ParseError)]
    if not tables:
        first = f": {failures[0]}" if failures else ""
        raise ParseError(f"none of {len(files)} files is a trace{first}")
    notes = [note for found in tables for note in losses_of(found[2])]
    if processes:
        at = min(processes)
        holds = f"{files[at].name} holds {processes[at]} processes"
        message = f"{holds}: each is read as a rank of its own"
        notes.append(Diagnostic("several_processes", sum(processes.values()), None, message))
    if not failures:
        return tables, notes
    message = f"files of the folder that hold no trace were skipped, the first: {failures[0]}"
    return tables, [*notes, Diagnostic("skipped_file", len(failures), None, message)]
