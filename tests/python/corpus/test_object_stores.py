"""Traces in object stores that now and then fail."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorder import Recorder

from torchtraceap.corpus import Engine, Selection, build, run_corpus_sql, update
from torchtraceap.corpus import sources as source_room
from torchtraceap.errors import ParseError

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")
fsspec = pytest.importorskip("fsspec")

RUNS = 12


def write_runs(folder: Path) -> list[Path]:
    paths = []
    for number in range(RUNS):
        recorder = Recorder(base=1.79e15 + number * 86_400e6)
        recorder.steps(3, 5, 11.0 + number)
        paths.append(recorder.write(folder / f"run{number}.json.gz"))
    return paths


@pytest.fixture
def flaky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A store in memory whose every third call fails; the calls that did are listed."""
    from fsspec.implementations.memory import MemoryFileSystem

    files = fsspec.filesystem("memory")
    for path in write_runs(tmp_path / "traces"):
        files.pipe_file(f"/flaky/{path.name}", path.read_bytes())
    failed: list[str] = []
    count = itertools.count(1)

    def failing(name: str) -> Any:
        whole = getattr(MemoryFileSystem, name)

        def call(self: Any, *args: Any, **options: Any) -> Any:
            if next(count) % 3 == 0:
                failed.append(name)
                raise RuntimeError("503 slow down")
            return whole(self, *args, **options)

        return call

    for name in ("cat_file", "find"):
        monkeypatch.setattr(MemoryFileSystem, name, failing(name))
    monkeypatch.setattr(source_room, "FIRST_PAUSE_SECONDS", 0.0)
    yield failed
    monkeypatch.undo()
    files.rm("/flaky", recursive=True)


def test_calls_that_fail_are_made_again(flaky: list[str], tmp_path: Path) -> None:
    folder = str(tmp_path / "fleet")
    built = build(Selection(("memory://flaky",)), folder, engine=Engine(jobs=1))
    assert (built.runs, built.failed) == (RUNS, 0)
    assert flaky
    assert update(folder).new == 0


def test_a_store_that_keeps_failing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no credentials")

    monkeypatch.setattr(MemoryFileSystem, "find", fail)
    monkeypatch.setattr(source_room, "FIRST_PAUSE_SECONDS", 0.0)
    with pytest.raises(ParseError, match="can't be listed: RuntimeError: no credentials"):
        build(Selection(("memory://flaky",)), str(tmp_path / "fleet"))


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A server of S3 on this machine that fails one call in ten; the environment for it."""
    server_room = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    from werkzeug.serving import make_server

    application = server_room.DomainDispatcherApplication(server_room.create_backend_app)
    count = itertools.count(1)

    def sometimes(environ: Any, start: Any) -> Any:
        if environ["REQUEST_METHOD"] == "GET" and next(count) % 10 == 0:
            start("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        return application(environ, start)

    server = make_server("127.0.0.1", 0, sometimes, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    known = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
             "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
             "AWS_DEFAULT_REGION": "us-east-1"}  # fmt: skip
    environment = {**os.environ, **known, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    put = (
        "import sys, s3fs, pathlib\n"
        "files = s3fs.S3FileSystem()\n"
        "files.mkdir('bucket')\n"
        "for path in pathlib.Path(sys.argv[1]).iterdir():\n"
        "    files.put(str(path), f'bucket/traces/{path.name}')\n"
    )
    write_runs(tmp_path / "traces")
    subprocess.run(
        [sys.executable, "-c", put, str(tmp_path / "traces")], env=environment, check=True
    )
    yield environment
    server.shutdown()


def test_a_server_of_s3_that_fails_one_in_ten(bucket: dict[str, str], tmp_path: Path) -> None:
    folder = str(tmp_path / "fleet")
    command = [sys.executable, "-m", "torchtraceap", "corpus"]
    subprocess.run(
        [*command, "build", "s3://bucket/traces", folder, "--jobs", "2"], env=bucket, check=True
    )
    table = run_corpus_sql(folder, "select count(*), min(path) from runs")
    assert list(table.rows()) == [(RUNS, "s3://bucket/traces/run0.json.gz")]
    again = subprocess.run(
        [*command, "update", folder, "--json"], env=bucket, check=True, capture_output=True
    )
    assert b'"new": 0' in again.stdout
