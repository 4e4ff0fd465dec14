"""Records what every command answers on every trace, for `compare.py`.

    python benchmarks/answers/record.py OUT [--jobs N] [--only TEXT] [--corpus DIR]

Commands run in-process through `torchtraceap.cli.main`, and all those on one trace run in one
forked process, so that the recording takes minutes. OUT receives a `.json.gz` for each trace and
`digests.json`. PYTHONPATH chooses the version that is recorded.

An answer is the exit code, standard output, standard error and the files that were written. JSON is
kept as values. Lists of more than 1,000 items are shortened to their first 100 items and a digest
of each column. Nothing is kept of values that vary between runs (`VOLATILE`).
"""

from __future__ import annotations

import argparse
import base64
import gc
import gzip
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from commands import Unit, units, write_inputs

ROOT = Path(__file__).resolve().parents[2]
LONG = 1_000
HEAD = 100
VOLATILE: Mapping[str, str] = {
    "place": "a workload's module and function, which a move of modules changes",
}
"""JSON keys whose values are not kept, with the reason."""
_SCRIPT = re.compile(r'<script type="(application/[a-z-]+)" id="([^"]+)">(.*?)</script>', re.DOTALL)


def kept(value: Any) -> Any:
    """A JSON value without what is volatile, its long lists shortened."""
    if isinstance(value, dict):
        return {key: "(volatile)" if key in VOLATILE else kept(part) for key, part in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) <= LONG:
        return [kept(part) for part in value]
    return {"length": len(value), "digests": _digests(value), "first": kept(value[:HEAD])}


def _digests(items: list[Any]) -> Any:
    """The digest of each column of rows of equal length, of each key of objects, or of all."""
    first = items[0]
    if isinstance(first, list) and all(
        isinstance(row, list) and len(row) == len(first) for row in items
    ):
        return [digest(column) for column in zip(*items, strict=True)]
    if all(isinstance(item, dict) for item in items):
        keys = dict.fromkeys(key for item in items for key in item)
        return {
            key: digest([item.get(key) for item in items]) for key in keys if key not in VOLATILE
        }
    return digest(items)


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


class Reader:
    """Reads what a command wrote, with paths and the version by their names."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = sorted(names.items(), key=lambda pair: -len(pair[0]))

    def text(self, raw: bytes) -> str:
        text = raw.decode("utf-8", "backslashreplace")
        for found, name in self._names:
            text = text.replace(found, name)
        return text

    def document(self, raw: bytes) -> Any:
        """JSON as values, anything else as lines."""
        text = self.text(raw)
        with suppress(ValueError):
            return kept(json.loads(text))
        return kept(text.splitlines())

    def file(self, path: Path) -> Any:
        """The content of a file by its kind; of binary ones the digest."""
        raw = path.read_bytes()
        if path.suffix == ".gz":
            raw = gzip.decompress(raw)
        if path.suffix == ".html":
            return self._page(raw)
        if b"\0" in raw[:1_000] or path.suffix == ".pftrace":
            return {"bytes": len(raw), "digest": hashlib.sha256(raw).hexdigest()[:16]}
        if path.suffix == ".jsonl":
            return kept([json.loads(line) for line in self.text(raw).splitlines()])
        return self.document(raw)

    def _page(self, raw: bytes) -> dict[str, Any]:
        """The data that are embedded in a page, and the digest of the rest."""
        text = self.text(raw)
        found: dict[str, Any] = {"rest": digest(_SCRIPT.sub("", text))}
        for kind, name, content in _SCRIPT.findall(text):
            if kind == "application/json":
                found[name] = kept(json.loads(content))
                continue
            packed = gzip.decompress(base64.b64decode(content))
            with suppress(ValueError):
                found[name] = kept(json.loads(packed))
                continue
            found[name] = hashlib.sha256(packed).hexdigest()[:16]
        return found


class Recorder:
    """Runs commands in this process, whose standard streams go to files."""

    def __init__(self, work: Path, reader: Reader) -> None:
        self._work, self._reader = work, reader
        self._streams: dict[int, int] = {}
        for number in (1, 2):
            target = os.open(work / f"stream{number}", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            os.dup2(target, number)
            self._streams[number] = target

    def answer(self, words: list[str], out: Path) -> dict[str, Any]:
        from torchtraceap.cli import main

        out.mkdir()
        code = main(words)
        sys.stdout.flush()
        sys.stderr.flush()
        found = {
            "exit": code,
            "stdout": self._reader.document(self._taken(1)),
            "stderr": self._reader.text(self._taken(2)).splitlines(),
            "files": {
                path.relative_to(out).as_posix(): self._reader.file(path)
                for path in sorted(out.rglob("*"))
                if path.is_file()
            },
        }
        shutil.rmtree(out)
        gc.enable()  # the command line turns it off, as a process of its own
        gc.collect()
        return found

    def _taken(self, number: int) -> bytes:
        file = self._streams[number]
        raw = os.pread(file, os.fstat(file).st_size, 0)
        os.ftruncate(file, 0)
        os.lseek(file, 0, os.SEEK_SET)  # `dup2` shares the place with it
        return raw


def record_unit(unit: Unit, work: Path, target: Path, names: Mapping[str, str]) -> None:
    """Runs the unit's commands and writes their answers; for a process of its own."""
    folder = Path(tempfile.mkdtemp(dir=work))
    out = folder / "out"
    recorder = Recorder(folder, Reader({**names, str(out): "OUT"}))
    answers: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    for command in unit.commands:
        (folder / "now").write_text(command, "utf-8")
        words = [word.format(**unit.inputs, out=out) for word in shlex.split(command)]
        began = time.perf_counter()
        answers[command] = recorder.answer(words, out)
        seconds[command] = round(time.perf_counter() - began, 3)
    target.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"answers": answers, "seconds": seconds})
    target.write_bytes(gzip.compress(text.encode(), compresslevel=6, mtime=0))
    shutil.rmtree(folder)


def in_processes(tasks: Mapping[str, Callable[[], None]], jobs: int) -> list[str]:
    """Runs each task in a forked process; returns the names of those that failed."""
    waiting, running, failed = list(tasks.items()), {}, []
    while waiting or running:
        while waiting and len(running) < jobs:
            name, task = waiting.pop(0)
            process = os.fork()
            if process == 0:
                _run_and_leave(task)
            running[process] = name
        process, status = os.wait()
        name = running.pop(process)
        if status:
            failed.append(name)
        done = len(tasks) - len(waiting) - len(running)
        words = f"FAILED, status {status}" if status else "recorded"
        print(f"{done}/{len(tasks)} {name}: {words}", flush=True)
    return failed


def _run_and_leave(task: Callable[[], None]) -> None:
    errors = os.dup(2)
    try:
        task()
    except BaseException as error:  # a forked process never returns
        os.write(errors, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)
    os._exit(0)


def version() -> str:
    """Return the version that `--version` prints, without the name."""
    import contextlib
    import io

    from torchtraceap.cli import main

    with contextlib.redirect_stdout(io.StringIO()) as taken:
        main(["--version"])
    return taken.getvalue().split()[-1]


def prepare(work: Path, corpus: Path) -> None:
    """Makes the folder in which commands run: inputs by short names, an environment of its own."""
    (work / "traces").symlink_to(corpus)
    (work / "examples").symlink_to(ROOT / "examples")
    write_inputs(work)
    os.chdir(work)
    for name in [name for name in os.environ if name.startswith("TORCHTRACEAP_")]:
        del os.environ[name]
    os.environ.update(HOME=str(work), COLUMNS="100", NO_COLOR="1", TZ="UTC", OMP_NUM_THREADS="1")
    os.environ["XDG_CACHE_HOME"] = str(work / "cache")


def record(out: Path, corpus: Path, jobs: int, only: str) -> int:
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    found = [unit for unit in units(corpus, ROOT / "examples") if only in unit.name]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="answers-") as folder:
        work = Path(folder).resolve()
        prepare(work, corpus)
        names = {
            str(corpus): "traces",
            str(ROOT / "examples"): "examples",
            str(work): "WORK",
            f"torchtraceap {version()}": "torchtraceap VERSION",
            f'"version":"{version()}"': '"version":"VERSION"',
        }
        tasks = {
            unit.name: lambda unit=unit: record_unit(unit, work, _target(out, unit.name), names)
            for unit in found
        }
        failed = in_processes(tasks, jobs)
        os.chdir(ROOT)
    _write_digests(out, [unit.name for unit in found if unit.name not in failed])
    print(f"{len(found)} units in {time.perf_counter() - began:.0f} s into {out}")
    return 1 if failed else 0


def _target(out: Path, name: str) -> Path:
    return out / f"{name}.answers.json.gz"


def _write_digests(out: Path, names: list[str]) -> None:
    """The digest of each answer, so that equal recordings are told without reading them."""
    path = out / "digests.json"
    digests = json.loads(path.read_text("utf-8")) if path.exists() else {}
    for name in names:
        answers = json.loads(gzip.decompress(_target(out, name).read_bytes()))["answers"]
        digests[name] = {command: digest(answer) for command, answer in answers.items()}
    text = json.dumps(digests, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the folder for the answers")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once [2]")
    parser.add_argument("--only", default="", help="only traces whose name holds this text")
    corpus = os.environ.get("TORCHTRACEAP_CORPUS", ROOT.parent / "shared/traces")
    parser.add_argument("--corpus", type=Path, default=corpus, help="the folder of traces")
    options = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    return record(options.out, Path(options.corpus).resolve(), options.jobs, options.only)


if __name__ == "__main__":
    sys.exit(main())
