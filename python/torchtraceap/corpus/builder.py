"""Build a corpus, and keep it up to date."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Result
from torchtraceap.core.threads import core_count
from torchtraceap.corpus.analyse import Failure, Outcome, Task, failed
from torchtraceap.corpus.executors import Executor, InlineExecutor, PoolExecutor, RayExecutor
from torchtraceap.corpus.sources import (
    FoundFile,
    find_files,
    is_remote,
    read_signs,
    read_tag_table,
    run_key,
    tag_of,
)
from torchtraceap.corpus.store import Known, Store
from torchtraceap.errors import OptionError
from torchtraceap.trace.jobs import RecordedFile, group_runs

__all__ = ["Built", "Engine", "Selection", "build", "compact", "status", "update", "verify"]

COMMIT_RUNS = 250
"""Runs of a batch: a killed build loses at most so many."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The sources and options of a corpus, stored in it, so that an update needs nothing else."""

    sources: tuple[str, ...]
    tags: tuple[str, ...] = ()
    """Each as `tag_of` takes it."""
    since: str = ""
    """A date, or days before now such as "7d": older files are left out."""
    sample: float = 1.0
    """Share of the runs, chosen by their content."""
    max_file: int = 0
    """Bytes; runs with a larger file are failures. 0: no limit."""
    tag_table: str = ""
    """A CSV file with further tags, as `read_tag_table` takes it."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The options of the executor that runs a build."""

    jobs: int = 0
    """Processes; 0: as many as cores."""
    ray: str = ""
    """Address of a cluster of Ray."""
    seconds: float = 600.0
    """The longest that a run may take."""
    max_memory: int = 0
    """Bytes that a process may have resident. 0: what the machine has, over the processes."""


@dataclass(frozen=True, slots=True)
class Built(Result):
    """The counts of a build, or of a corpus."""

    files: int
    """Files that look like traces."""
    runs: int
    """Runs that are in the corpus now."""
    failed: int
    """Runs that could not be read."""
    new: int
    """Runs that were analysed this time, failures among them."""
    left_out: int
    """Runs that `since` or `sample` leaves out."""


Progress = Callable[[int, int], object]
"""Called now and then with (runs done, in all)."""


def build(
    selection: Selection,
    folder: str,
    *,
    engine: Engine | None = None,
    retry: bool = False,
    progress: Progress | None = None,
) -> Built:
    """Analyse what is not in a corpus yet.

    Args:
        selection: The traces.
        folder: The corpus; it is made if there is none.
        engine: What runs the tasks; by default a process for each core.
        retry: Runs that failed are analysed again.
        progress: Called now and then.

    Raises:
        OptionError: An option makes no sense, or the folder holds something else.
        ParseError: There is no trace.
        OutputError: The corpus can't be written.
        MissingDependencyError: pyarrow, fsspec or Ray is needed and not installed.
    """
    tags = dict(map(tag_of, selection.tags))
    if not 0 < selection.sample <= 1:
        raise OptionError(f"--sample: a share above 0 and up to 1 is needed: {selection.sample}")
    since_ns = _since_ns(selection.since)
    store = Store(folder)
    listed = os.path.abspath(selection.tag_table) if selection.tag_table else ""
    further = read_tag_table(listed)[1] if listed else _no_tags
    selection = replace(
        selection,
        sources=tuple(s if is_remote(s) else os.path.abspath(s) for s in selection.sources),
        tag_table=listed,
    )
    files = [file for file in find_files(selection.sources) if file.modified_ns >= since_ns]
    store.create(asdict(selection))
    store.sweep()
    known = store.living(store.batches())
    options = json.dumps(sorted(selection.tags))
    tasks: list[tuple[Task, Known]] = []
    left_out = 0
    for task, about in _tasks(files, known, tags, options, further):
        there = known.get(task.run)
        if int(task.run[:12], 16) >= selection.sample * (1 << 48):
            left_out += 1
        elif there is None or there[1]["key"] != task.key or (retry and there[1]["failed"]):
            tasks.append((task, about))
    tasks.sort(key=lambda each: each[0].modified_ns)
    if tasks:
        _run(store, selection, engine or Engine(), tasks, progress)
    alive = store.living(store.batches()).values()
    failures = sum(entry["failed"] for _, entry in alive)
    return Built(len(files), len(alive) - failures, failures, len(tasks), left_out)


def update(folder: str, **options: Any) -> Built:
    """Build again what a corpus was built of; options are those of `build`."""
    stored = Store(folder).settings()
    names = {field.name for field in fields(Selection)}
    found: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in stored.items()
        if name in names
    }
    return build(Selection(**found), folder, **options)


def status(folder: str) -> dict[str, Any]:
    """Return what a corpus holds, and what of its sources is missing there."""
    store = Store(folder)
    settings, batches = store.settings(), store.batches()
    alive = store.living(batches)
    in_corpus = {path for _, entry in alive.values() for path, *_ in entry["files"]}
    found = {file.path for file in find_files(settings["sources"])}
    codes = Counter("failed" if entry["failed"] else "done" for _, entry in alive.values())
    return {
        "schema": "torchtraceap.corpus_status/1",
        "sources": settings["sources"],
        "runs": codes["done"],
        "failed": codes["failed"],
        "batches": len(batches),
        "tables": sum(len(names) for batch in batches for names in batch.tables.values()),
        "files": len(found),
        "new_files": len(found - in_corpus),
        "gone_files": len(in_corpus - found),
    }


def compact(folder: str) -> tuple[int, int]:
    """Merge the files of a corpus; returns how many there were and are."""
    store = Store(folder)
    store.settings()
    return store.compact()


def verify(folder: str) -> list[str]:
    """Return what is wrong with the files of a corpus."""
    store = Store(folder)
    store.settings()
    return store.verify()


# ------------------------------------------------------------------------------ tasks


def _no_tags(trace: str) -> dict[str, str]:
    return {}


_SIGNS = ("devices", "world_size", "start_ns", "end_ns", "content", "ranks")


def _tasks(
    files: Sequence[FoundFile],
    known: Mapping[str, tuple[str, Known]],
    tags: Mapping[str, Callable[[str], str | None]],
    options: str,
    further: Callable[[str], dict[str, str]],
) -> Iterator[tuple[Task, Known]]:
    """Yield the runs of files. Files that have not changed are not read again."""
    stored = {
        (path, size, modified_ns): (head, signs)
        for _, entry in known.values()
        for path, size, modified_ns, head, signs in entry["files"]
    }
    by_path: dict[Path, tuple[FoundFile, str, list[Any]]] = {}
    every: list[RecordedFile] = []
    for file in files:
        found = stored.get((file.path, file.size, file.modified_ns))
        path = Path(file.path)
        if found is None:
            head, one = read_signs(file)
            signs = [getattr(one, name) for name in _SIGNS]
        else:
            head, signs = found
            devices, world_size, start_ns, end_ns, content, ranks = signs
            one = RecordedFile(
                path, tuple(devices), world_size, start_ns, end_ns, content, tuple(ranks)
            )
        by_path[path] = (file, head, signs)
        every.append(one)
    heads = {path: (file.size, head) for path, (file, head, _) in by_path.items()}
    seen: set[str] = set()
    for run in group_runs(every):
        more = further(str(by_path[run.files[0].path][0].path))
        content, key = run_key(run, heads, options + (json.dumps(more) if more else ""))
        if content in seen:  # the same files in another place
            continue
        seen.add(content)
        members = [by_path[one.path][0] for one in run.files]
        paths = tuple(file.path for file in members)
        values = {name: take(paths[0]) for name, take in tags.items()} | more
        host = tags.get("host")
        task = Task(
            run=content,
            key=key,
            paths=paths,
            bytes=sum(file.size for file in members),
            modified_ns=max(file.modified_ns for file in members),
            tags={name: value for name, value in values.items() if value is not None},
            hosts={path: named for path in paths if host and (named := host(path))},
        )
        held = [(by_path[one.path], str(one.path)) for one in (*run.files, *run.copies)]
        yield (
            task,
            {
                "run": content,
                "key": key,
                "failed": False,
                "files": [
                    [file.path, file.size, file.modified_ns, head, signs]
                    for (file, head, signs), _ in held
                ],
            },
        )


def _run(
    store: Store,
    selection: Selection,
    engine: Engine,
    tasks: Sequence[tuple[Task, Known]],
    progress: Progress | None,
) -> None:
    about = {task.run: entry for task, entry in tasks}
    done = 0
    waiting: list[tuple[Outcome, Known]] = []

    def take(outcome: Outcome) -> None:
        nonlocal done
        done += 1
        waiting.append((outcome, {**about[outcome.task.run], "failed": outcome.failed}))
        if len(waiting) >= COMMIT_RUNS:
            store.commit(waiting)
            waiting.clear()
        if progress:
            progress(done, len(tasks))

    executor = _executor(engine, tasks)
    try:
        for task, entry in tasks:
            largest = max(size for _, size, *_ in entry["files"])
            if selection.max_file and largest > selection.max_file:
                text = f"a file has {largest:,} bytes, more than {selection.max_file:,}"
                take(failed(task, Failure("too_large", text)))
            else:
                executor.submit(task)
        for outcome in executor.results():
            take(outcome)
    finally:
        executor.close()
        if waiting:
            store.commit(waiting)


def _executor(engine: Engine, tasks: Sequence[tuple[Task, Known]]) -> Executor:
    if engine.ray:
        return RayExecutor(engine.ray, seconds=engine.seconds)
    if any(path.startswith("memory://") for task, _ in tasks for path in task.paths):
        return InlineExecutor()
    jobs = min(engine.jobs or core_count(), len(tasks))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    most_bytes = engine.max_memory or memory * 3 // 4 // jobs
    return PoolExecutor(jobs, seconds=engine.seconds, most_bytes=most_bytes)


def _since_ns(text: str) -> int:
    if not text:
        return -(1 << 62)
    now = datetime.now(UTC)
    try:
        if text.endswith("d"):
            return int((now.timestamp() - 86_400 * float(text[:-1])) * 1e9)
        when = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(f"--since: a date or days such as 7d are needed, not {text!r}") from None
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1e9)
