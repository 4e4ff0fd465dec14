"""Storage of runs: small manifests, and objects that are named by their content.

Note [Store]: `runs/<id>.json` is the manifest of a run; samples (Parquet), its trace and its
diagnosis lie under `objects/` by their sha256, so that equal ones are kept once. Every file appears
whole, and names follow from contents: several processes may write into one store at once. What is
read is hashed again; an object that is not what its name says is an error that names the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from torchtraceap.core import (
    Array,
    PathLike,
    check_fields,
    dataclass,
    naming,
    read_json,
    replacing_stream,
    write_text,
)
from torchtraceap.errors import MissingDependencyError, OptionError, SchemaError, TraceError
from torchtraceap.lab.bench.processes.environment import content_hash, environment_hash

__all__ = [
    "FOLDER_VARIABLE",
    "MODES",
    "MeasuredRun",
    "Samples",
    "Store",
    "StoreError",
    "StoredRun",
    "default_folder",
    "need_parquet",
]

FOLDER_VARIABLE = "TORCHTRACEAP_BENCH"
MODES = ("fenced", "free")
"""Modes of samples: the GPU was waited for after each step, or once after all."""

_DEFAULT_FOLDER = "ttap_bench"
_SCHEMA = "torchtraceap.run/1"
_HASH_DIGITS = 64


class StoreError(TraceError, ValueError):
    """A file of the store is missing, damaged or of another kind; the message names it."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Times of all measured steps, in order of the processes."""

    process: Array
    """int64 `[n]`, from 0."""
    mode: tuple[str, ...]
    """A value of `MODES`, `[n]`."""
    step: Array
    """int64 `[n]`, from 0 in each process and mode, without warm-up steps."""
    ns: Array
    """int64 `[n]`."""

    def __len__(self) -> int:
        return len(self.ns)

    def of(self, mode: str) -> list[Array]:
        """Return the step times of a mode by process, in ns."""
        chosen = np.array([each == mode for each in self.mode], dtype=bool)
        return [
            self.ns[chosen & (self.process == process)]
            for process in np.unique(self.process[chosen])
        ]

    @classmethod
    def of_processes(cls, processes: list[Mapping[str, list[int]]]) -> Samples:
        """Make samples from the times of each process by mode."""
        rows = [
            (process, mode, step, ns)
            for process, by_mode in enumerate(processes)
            for mode in MODES
            for step, ns in enumerate(by_mode.get(mode, ()))
        ]
        columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
        numbers = [np.array(columns[i], dtype=np.int64) for i in (0, 2, 3)]
        return cls(numbers[0], tuple(columns[1]), numbers[1], numbers[2])


@dataclass(frozen=True)
class MeasuredRun:
    """A run to be stored."""

    name: str
    when: str
    """The start in UTC, ISO 8601."""
    config: dict[str, Any]
    """The configuration. Its "protocol" (processes, steps) says how it was measured."""
    environment: dict[str, Any]
    """The environment, as from `environment.fingerprint`."""
    metrics: dict[str, Any]
    counts: dict[str, int]
    samples: Samples
    trace: Path | None = None
    diagnosis: dict[str, Any] | None = None

    @property
    def config_hash(self) -> str:
        """Hash of the configuration without the number of repetitions."""
        return content_hash({k: v for k, v in self.config.items() if k != "protocol"})


@dataclass(frozen=True)
class StoredRun:
    """A stored run; samples, trace and diagnosis are read on request."""

    id: str
    name: str
    when: str
    config: dict[str, Any]
    config_hash: str
    environment: dict[str, Any]
    environment_hash: str
    metrics: dict[str, Any]
    counts: dict[str, int]
    objects: dict[str, str]
    """Hashes of "samples", "trace" and "diagnosis", as far as they exist."""
    store: Store = field(repr=False, compare=False)

    @cached_property
    def samples(self) -> Samples:
        """Read all measured steps.

        Raises:
            MissingDependencyError: pyarrow is not installed.
            StoreError: The object is missing or damaged.
        """
        pa, parquet = need_parquet()
        place = self.store.path_of(self.objects["samples"])
        try:
            rows = parquet.read_table(BytesIO(place.read_bytes()))
            process, step, ns = (rows[name].to_numpy() for name in ("process", "step", "ns"))
            return Samples(process, tuple(rows["mode"].to_pylist()), step, ns)
        except (pa.ArrowException, KeyError, ValueError, TypeError) as error:
            raise StoreError(f"{place}: can't be read as samples ({error})") from error

    @property
    def trace(self) -> Path | None:
        """Read the recorded trace; None if there is none.

        Raises:
            StoreError: The object is missing or damaged.
        """
        found = self.objects.get("trace")
        return self.store.path_of(found) if found else None

    @cached_property
    def diagnosis(self) -> dict[str, Any] | None:
        """Read the document of `torchtraceap diagnose --json`; None if there is none.

        Raises:
            StoreError: The object is missing or damaged.
        """
        found = self.objects.get("diagnosis")
        return read_json(self.store.path_of(found)) if found else None

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest with the id."""
        manifest = {name: getattr(self, name) for name in _IN_MANIFEST}
        return {"id": self.id, "schema": _SCHEMA, **manifest}


_IN_MANIFEST: dict[str, type] = {
    "name": str, "when": str, "config": dict, "config_hash": str, "environment": dict,
    "environment_hash": str, "metrics": dict, "counts": dict, "objects": dict,
}  # fmt: skip


def default_folder() -> Path:
    """Return `$TORCHTRACEAP_BENCH`, else `ttap_bench` in the working directory."""
    return Path(os.environ.get(FOLDER_VARIABLE) or _DEFAULT_FOLDER)


def need_parquet() -> tuple[Any, Any]:
    """Import pyarrow and its Parquet module.

    Raises:
        MissingDependencyError: They are not installed.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise MissingDependencyError(
            "runs are kept as Parquet, by pyarrow: pip install 'torchtraceap[bench]'"
        ) from None
    return pa, parquet


class Store:
    """A folder of runs; see Note [Store].

    Args:
        folder: Made when the first run is saved [`default_folder()`].
    """

    def __init__(self, folder: PathLike | None = None) -> None:
        self.folder = default_folder() if folder is None else Path(folder)
        self._verified: set[Path] = set()

    def save(self, run: MeasuredRun) -> StoredRun:
        """Store a run, its objects first.

        Raises:
            MissingDependencyError: pyarrow is not installed.
            OutputError: It can't be written.
        """
        pa, parquet = need_parquet()
        samples = run.samples
        rows = pa.table(
            {
                "run": pa.array([run.name] * len(samples), pa.string()).dictionary_encode(),
                "process": pa.array(samples.process, pa.int64()),
                "mode": pa.array(list(samples.mode), pa.string()).dictionary_encode(),
                "step": pa.array(samples.step, pa.int64()),
                "ns": pa.array(samples.ns, pa.int64()),
            }
        )
        stream = BytesIO()
        parquet.write_table(rows, stream)
        objects = {"samples": self._keep(stream, ".parquet")}
        if run.trace is not None:
            suffix = ".json.gz" if run.trace.name.endswith(".json.gz") else run.trace.suffix
            with run.trace.open("rb") as source:
                objects["trace"] = self._keep(source, suffix)
        if run.diagnosis is not None:
            text = json.dumps(run.diagnosis, separators=(",", ":"), allow_nan=False)
            objects["diagnosis"] = self._keep(BytesIO(text.encode()), ".json")
        manifest = {
            "schema": _SCHEMA,
            "name": run.name,
            "when": run.when,
            "config": run.config,
            "config_hash": run.config_hash,
            "environment": run.environment,
            "environment_hash": environment_hash(run.environment),
            "metrics": run.metrics,
            "counts": run.counts,
            "objects": objects,
        }
        name = content_hash(manifest)
        place = self.folder / "runs" / f"{name}.json"
        self._make_folder(place.parent)
        write_text(place, json.dumps(manifest, indent=1, allow_nan=False) + "\n")
        return self._read_manifest(place)

    def load(self, name: str) -> StoredRun:
        """Load a run by its id, by the beginning of an id, or the latest one by name.

        Raises:
            OptionError: There is none, or several ids begin so.
            StoreError: Its manifest is damaged.
        """
        found = (
            [place for place in self._manifests() if place.stem.startswith(name)] if name else []
        )
        if len(found) > 1:
            listed = ", ".join(sorted(place.stem for place in found)[:5])
            raise OptionError(f"{name!r} begins several runs: {listed}")
        if found:
            return self._read_manifest(found[0])
        named = self.runs(name=name)
        if not named:
            raise OptionError(f"{self.folder}: there is no run {name!r}")
        return named[-1]

    def runs(
        self, *, name: str | None = None, config_hash: str | None = None
    ) -> tuple[StoredRun, ...]:
        """Return runs in the order in which they began.

        Args:
            name: Only those of that workload.
            config_hash: Only those of that configuration.

        Raises:
            StoreError: A manifest is damaged.
        """
        every = (self._read_manifest(place) for place in self._manifests())
        chosen = [
            run
            for run in every
            if name in (None, run.name) and config_hash in (None, run.config_hash)
        ]
        return tuple(sorted(chosen, key=lambda run: (run.when, run.id)))

    def path_of(self, name: str) -> Path:
        """Return the file of an object after checking its content.

        Args:
            name: Its hash.

        Raises:
            StoreError: There is none, or its content is not what its name says.
        """
        is_hash = len(name) == _HASH_DIGITS and not set(name) - set("0123456789abcdef")
        folder = self.folder / "objects" / name[:2]
        found = sorted(folder.glob(f"{name}*")) if is_hash else []
        if not found:
            raise StoreError(f"{self.folder}: the object {name} is missing")
        place = found[0]
        if place not in self._verified:
            with _reading(place), place.open("rb") as stream:
                content = hashlib.file_digest(stream, "sha256").hexdigest()
            if content != name:
                raise StoreError(f"{place}: is damaged: its content is not what its name says")
            self._verified.add(place)
        return place

    def _manifests(self) -> list[Path]:
        return sorted((self.folder / "runs").glob("*.json"))

    def _read_manifest(self, place: Path) -> StoredRun:
        try:
            with _reading(place):
                document = read_json(place)
            check_fields(document, {"schema": str, **_IN_MANIFEST}, str(place))
            check_fields(document["objects"], {"samples": str}, f"{place}: objects")
            for name, kind in (("objects", str), ("counts", int)):
                kinds = dict.fromkeys(document[name], kind)
                check_fields(document[name], kinds, f"{place}: {name}")
        except SchemaError as error:
            raise StoreError(
                f"{place}: can't be read as the manifest of a run ({error})"
            ) from error
        fields = {name: document[name] for name in _IN_MANIFEST}
        if document["schema"] != _SCHEMA or content_hash(document) != place.stem:
            raise StoreError(f"{place}: is damaged: its content is not what its name says")
        return StoredRun(id=place.stem, store=self, **fields)

    def _keep(self, source: BinaryIO, suffix: str) -> str:
        """Store an object, and return the hash of its content."""
        source.seek(0)
        name = hashlib.file_digest(source, "sha256").hexdigest()  # type: ignore[arg-type]
        place = self.folder / "objects" / name[:2] / f"{name}{suffix}"
        if not place.exists():
            self._make_folder(place.parent)
            source.seek(0)
            with replacing_stream(place) as stream:
                shutil.copyfileobj(source, stream)
        return name

    def _make_folder(self, folder: Path) -> None:
        with naming(folder):
            folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def _reading(place: Path) -> Iterator[None]:
    """Add the file name to errors of the file system."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{place}: can't be read: {error.strerror or error}") from error
