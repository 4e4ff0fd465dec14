"""The files of a corpus: tables in Parquet, and a manifest that says which of them count.

Note [Batches]: runs are written in batches. A batch is a file for each table and day,
`runs/day=2026-11-28/00000012-ab12cd34.parquet`, and behind them
`manifest/00000012-ab12cd34.json`, which names them with the runs that they hold. All are written
under hidden names and renamed, the manifest last. So a killed build leaves batches that count and
files that nothing names, which the next one removes.

Note [Living rows]: a later batch replaces what earlier ones say of the same run, and runs of which
it has read a file anew. Rows of a run count only in the batch in which it lives. Compaction writes
the rows that count as one batch and removes the others.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torchtraceap.core.formatting import short_repr
from torchtraceap.core.records import dataclass
from torchtraceap.core.stored import check_fields, read_json
from torchtraceap.core.writing import naming, write_paths, write_text
from torchtraceap.corpus.analyse import COLUMNS, MOST_ROWS, Outcome, Rows
from torchtraceap.errors import MissingDependencyError, OptionError, SchemaError

__all__ = ["SCHEMA", "TABLES", "Batch", "Store"]

SCHEMA = "torchtraceap.corpus/1"
TABLES = (*COLUMNS, *MOST_ROWS)
_BATCH = re.compile(r"(\d{8})-[0-9a-f]{8}")
_DATA = re.compile(rf"(?:{'|'.join(TABLES)})/day=\d{{4}}-\d\d-\d\d/\d{{8}}-[0-9a-f]{{8}}\.parquet")
Known = dict[str, Any]
"""The entry of a run in a manifest: `run`, `key`, `failed`, `files`."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that counts. See Note [Batches]."""

    name: str
    tables: Mapping[str, Sequence[str]]
    """Its files by table, relative to the corpus."""
    runs: Sequence[Known]


def import_pyarrow() -> Any:
    """Return the module `pyarrow`.

    Raises:
        MissingDependencyError: It is not installed.
    """
    try:
        import pyarrow
    except ImportError:
        raise MissingDependencyError(
            "a corpus needs pyarrow: pip install 'torchtraceap[corpus]'"
        ) from None
    return pyarrow


class Store:
    """A corpus on this machine's file systems.

    Args:
        folder: Its folder.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self._manifest = self.folder / "manifest"
        self._settings = self._manifest / "corpus.json"

    # -------------------------------------------------------------------------- settings

    def create(self, settings: Mapping[str, Any]) -> None:
        """Make the folder, or store other settings in it.

        Raises:
            OptionError: It holds something else.
            OutputError: It can't be written.
        """
        if not self._settings.exists() and self.folder.exists():
            if not self.folder.is_dir():
                raise OptionError(f"{self.folder}: is a file, a folder is needed")
            names = {entry.name for entry in self.folder.iterdir()} - {"manifest"}
            if any(not name.startswith(".torchtraceap-") for name in names):
                raise OptionError(f"{self.folder}: is no corpus; a new or empty folder is needed")
        text = json.dumps({"schema": SCHEMA, **settings}, indent=1)
        if self._settings.exists() and self._settings.read_text("utf-8") == text:
            return
        with naming(self.folder):
            self._manifest.mkdir(parents=True, exist_ok=True)
        write_text(self._settings, text)

    def settings(self) -> dict[str, Any]:
        """Return the settings with which it was built.

        Raises:
            OptionError: It is no corpus.
            SchemaError: It is one of another version, or damaged.
        """
        if not self._settings.exists():
            raise OptionError(
                f"{self.folder}: is no corpus; torchtraceap corpus build TRACES... {self.folder} "
                "makes one"
            )
        found = read_json(self._settings)
        if found.get("schema") != SCHEMA:
            raise SchemaError(f"{self._settings}: expected {SCHEMA}, found {found.get('schema')!r}")
        return found

    # -------------------------------------------------------------------------- reading

    def batches(self) -> list[Batch]:
        """Return the batches that count, the earliest first.

        Raises:
            SchemaError: A manifest is damaged.
        """
        found = []
        for path in sorted(self._manifest.glob("*-*.json")):
            if not _BATCH.fullmatch(path.stem):
                continue
            try:
                entry = read_json(path)
            except FileNotFoundError:  # compacted meanwhile
                continue
            check_fields(entry, {"tables": dict, "runs": list}, str(path))
            for names in entry["tables"].values():
                for name in names if isinstance(names, list) else [names]:
                    if not (isinstance(name, str) and _DATA.fullmatch(name)):
                        raise SchemaError(f"{path}: {short_repr(name)} is no file of a corpus")
            for known in entry["runs"]:
                if not _is_run(known):
                    raise SchemaError(f"{path}: {short_repr(known)} is no run of a corpus")
            found.append(Batch(path.stem, entry["tables"], entry["runs"]))
        return found

    def living(self, batches: Sequence[Batch]) -> dict[str, tuple[str, Known]]:
        """Return the batch in which each run lives, and what its manifest says of it.

        See Note [Living rows].
        """
        alive: dict[str, tuple[str, Known]] = {}
        by_path: dict[str, str] = {}
        for batch in batches:
            for known in batch.runs:
                run = known["run"]
                for path, *_ in known["files"]:
                    old = by_path.get(path)
                    if old is not None and old != run:
                        alive.pop(old, None)
                    by_path[path] = run
                alive.pop(run, None)
                alive[run] = (batch.name, known)
        return alive

    # -------------------------------------------------------------------------- writing

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other builders from committing, where the file system has locks."""
        descriptor = os.open(self._manifest, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def commit(self, outcomes: Sequence[tuple[Outcome, Known]]) -> int:
        """Write what became of runs; those that another builder has committed are left out.

        Returns:
            The number of runs that were written.

        Raises:
            OutputError: They can't be written: none of them counts.
        """
        with self._locked():
            batches = self.batches()
            there = {
                (run, known["key"], known["failed"])
                for run, (_, known) in self.living(batches).items()
            }
            fresh = [
                (outcome, known)
                for outcome, known in outcomes
                if (known["run"], known["key"], known["failed"]) not in there or known["failed"]
            ]
            if fresh:
                parts: dict[tuple[str, str], list[Any]] = defaultdict(list)
                for outcome, _ in fresh:
                    for table, columns in outcome.rows.items():
                        parts[table, _day_of(outcome.rows)].append(_to_arrow(columns))
                self._write(batches, parts, [known for _, known in fresh])
        return len(fresh)

    def _write(
        self,
        batches: Sequence[Batch],
        parts: Mapping[tuple[str, str], Sequence[Any]],
        runs: Sequence[Known],
    ) -> None:
        number = max((int(batch.name[:8]) for batch in batches), default=0) + 1
        name = f"{number:08d}-{secrets.token_hex(4)}"
        pa = import_pyarrow()
        files: list[tuple[str, Any]] = []
        tables: dict[str, list[str]] = defaultdict(list)
        for (table, day), rows in sorted(parts.items()):
            if not sum(map(len, rows)):
                continue
            place = f"{table}/day={day}/{name}.parquet"
            tables[table].append(place)
            whole = pa.concat_tables(rows, promote_options="default")
            batch_column = pa.array([name] * len(whole)).dictionary_encode()
            whole = whole.append_column("batch", batch_column)
            files.append((place, partial(_write_parquet, whole)))
        entry = {"schema": SCHEMA, "tables": tables, "runs": runs}
        text = json.dumps(entry, separators=(",", ":"))
        files.append((f"manifest/{name}.json", lambda path: path.write_text(text, "utf-8")))
        write_paths(self.folder, files)

    def compact(self) -> tuple[int, int]:
        """Merge all batches into one, and remove what does not count.

        Returns:
            The number of files of tables before and after.
        """
        pa = import_pyarrow()
        from pyarrow import parquet

        with self._locked():
            batches = self.batches()
            before = sum(len(names) for batch in batches for names in batch.tables.values())
            if len(batches) > 1:
                alive = self.living(batches)
                parts: dict[tuple[str, str], list[Any]] = defaultdict(list)
                for batch in batches:
                    mine = {run for run, (name, _) in alive.items() if name == batch.name}
                    for table, names in batch.tables.items():
                        for name in names:
                            rows = parquet.read_table(self.folder / name, partitioning=None)
                            runs = rows.column("run").to_pylist()
                            kept = pa.array([run.partition(".")[0] in mine for run in runs])
                            day = Path(name).parent.name.removeprefix("day=")
                            parts[table, day].append(rows.filter(kept).drop_columns(["batch"]))
                self._write(batches, parts, [known for _, known in alive.values()])
                for batch in batches:
                    (self._manifest / f"{batch.name}.json").unlink(missing_ok=True)
            self._sweep()
            after = sum(len(names) for batch in self.batches() for names in batch.tables.values())
        return before, after

    def sweep(self) -> int:
        """Remove files that no manifest names, which a killed build left; returns how many."""
        with self._locked():
            return self._sweep()

    def _sweep(self) -> int:
        swept = self._unnamed()
        for path in swept:
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                path.parent.rmdir()
        return len(swept)

    def _unnamed(self) -> list[Path]:
        named = {n for batch in self.batches() for names in batch.tables.values() for n in names}
        return [
            path
            for table in TABLES
            for path in (self.folder / table).glob("day=*/*.parquet")
            if str(path.relative_to(self.folder)) not in named
        ]

    def verify(self) -> list[str]:
        """Return what is wrong with the files, a sentence each; none where all is well."""
        pa = import_pyarrow()
        from pyarrow import parquet

        wrong = []
        batches = self.batches()
        alive = self.living(batches)
        for batch in batches:
            held: dict[str, set[str]] = {"runs": set(), "failures": set()}
            for table, names in batch.tables.items():
                for name in names:
                    try:
                        rows = parquet.read_table(self.folder / name, partitioning=None)
                        rows.validate(full=True)
                    except (pa.ArrowException, OSError) as error:
                        wrong.append(f"{name}: can't be read: {str(error).splitlines()[0]}")
                        continue
                    if table in held:
                        held[table] |= {r.partition(".")[0] for r in rows["run"].to_pylist()}
            for run, (name, known) in alive.items():
                table = "failures" if known["failed"] else "runs"
                if name == batch.name and run not in held[table]:
                    wrong.append(f"manifest/{name}.json: {run} has no row in {table}")
        wrong += [
            f"{path.relative_to(self.folder)}: no manifest names it" for path in self._unnamed()
        ]
        return wrong


def _is_run(known: Any) -> bool:
    match known:
        case {"run": str(), "key": str(), "failed": bool(), "files": [*files]}:
            return all(_is_file(file) for file in files)
    return False


def _is_file(file: Any) -> bool:
    """Is it path, size, time of change, a hash and what the head says, as a builder noted it?"""
    match file:
        case [str(), int(), int(), _, _]:
            return True
    return False


def _day_of(rows: Rows) -> str:
    table = rows.get("runs") or rows["failures"]
    day: str = table["day"][1][0]
    return day


def _to_arrow(columns: Mapping[str, tuple[str, list[Any]]]) -> Any:
    pa = import_pyarrow()
    types = {"s": pa.string(), "i": pa.int64(), "f": pa.float64(), "b": pa.bool_()}
    return pa.table(
        {name: pa.array(_clean(kind, v), types[kind]) for name, (kind, v) in columns.items()}
    )


def _clean(kind: str, values: list[Any]) -> list[Any]:
    if kind == "s":  # half a character can't be stored
        return [
            None if v is None else str(v).encode("utf-8", "replace").decode("utf-8") for v in values
        ]
    if kind == "b":
        return [None if v is None else bool(v) for v in values]
    return values


def _write_parquet(rows: Any, path: Path) -> None:
    from pyarrow import parquet

    about = {**(rows.schema.metadata or {}), b"torchtraceap.corpus": b"1"}
    parquet.write_table(rows.replace_schema_metadata(about), path, compression="zstd")
