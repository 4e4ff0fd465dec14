"""Runs every stage on a machine with a GPU, the most valuable first, and packs what came of it.

    python benchmarks/device/all.py [--device cuda] [--minutes 9] [--only STAGE ...] [--again]
                                    [--tiny] [--work FOLDER] [--out FOLDER]
    python benchmarks/device/all.py keep FOLDER

`all.sh` is what to call: it brings the built parts into place first. Each stage is a process of its
own with a limit; one that fails, hangs or crashes costs its limit at most, and the next one starts.
`WORK/state.json` says what came of each. A call goes on where the one before it stopped: stages
that are complete are left out (`--again` runs them anew), and stages that ran out of time go on if
they can.

Behind every stage all files of WORK but checkpoints are packed into OUT: `results.tar.0` and so on,
at most 4 pieces of 15 MiB, and `state.json`. What does not fit is left out from the end and listed
in the state. `keep` unpacks a returned folder here, into `build/device/back`, and leaves in
`build/device/pack/done` what the next call has to know.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build/device"
PACK = Path(os.environ.get("PACK", BUILD / "pack"))
STATE = "state.json"
PIECE_BYTES, MOST_PIECES = 15 << 20, 4
"""The most bytes of a piece that comes back; all pieces may have 60 MiB."""
_LARGEST_BYTES = 28 << 20
_CARRIED_BYTES = 1 << 18
"""A file that is larger does not travel to the next call."""
_PACKING_S = 5.0
_NOT_PACKED = ("checkpoint.safetensors", "result.json.part")
_COMPLETE, _FAILED, _STOPPED = "complete", "failed", "stopped at its limit"
_STATUS = {2: "nothing here to try it on", 3: "unfinished", 4: "complete but for what it left out"}
_LAST = "training"
_LIBRARIES = ("torch", "numpy", "triton", "transformers", "pyarrow", "nvidia-ml-py", "scikit-learn")


@dataclass(frozen=True)
class Entry:
    """A row of the table of stages."""

    name: str
    letter: str
    """The part of the plan in OWED.md that it answers."""
    program: str
    limit_s: float
    """It is stopped then."""
    least_s: float
    """It is not started with less."""
    result: str = "result.json"
    answers: tuple[int, ...] = (0,)
    """Exit codes that answer what the stage asks."""


STAGES = (
    Entry("kernels_parity", "a", "check_kernels.py", 40, 5),
    Entry("emulated", "a", "check_emulated.py", 60, 15),
    Entry("nccl_two_ranks", "a", "nccl_two_ranks.py", 45, 15, answers=(0, 1)),
    Entry("scoring", "b", "score.py", 60, 15),
    Entry("predictions", "e", "predictions.py", 100, 20),
    Entry("runs", "c", "record_runs.py", 110, 20),
    Entry("pairs", "c", "record_pairs.py", 110, 45),
    Entry("kernel_times", "d", "measure_kernels.py", 60, 15, "machine.json"),
    Entry("products", "f", "products.py", 60, 20),
    Entry(_LAST, "g", "train_detectors.py", 600, 25, "figures.json"),
)
"""Predictions go before recordings, since both record models and only predictions can be wrong."""


@dataclass(frozen=True)
class Options:
    """How a call runs."""

    device: str
    tiny: bool
    work: Path
    out: Path


def command(entry: Entry, seconds: float, options: Options) -> list[str]:
    """Return the command that starts a stage which may take so many seconds."""
    folder = str(options.work / entry.name)
    words = [sys.executable, "-W", "ignore", str(HERE / entry.program)]
    if entry.program == "nccl_two_ranks.py":
        backend = "nccl" if options.device != "cpu" else "gloo"
        return [*words, "--backend", backend, "--timeout", f"{seconds - 5:.0f}", "--out", folder]
    if entry.program == "measure_kernels.py":
        words += ["--device", options.device, "--minutes", f"{(seconds - 5) / 60:.3f}"]
        return [*words, "--out", folder, *(["--rows", "1"] if options.tiny else [])]
    if entry.program == "train_detectors.py":
        words += [str(_dataset()), folder, "--plan", str(HERE / "full_size.toml")]
        words += ["--minutes", f"{(seconds - 10) / 60:.3f}"]
        return [*words, *(["--tiny", "--only", "paper"] if options.tiny else [])]
    words += ["--device", options.device, "--seconds", f"{seconds - 3:.0f}", "--out", folder]
    return [*words, *(["--tiny"] if options.tiny else [])]


def _dataset() -> Path:
    carried = PACK / "dataset"
    return carried if carried.is_dir() else ROOT / "examples/mini_dataset"


# ------------------------------------------------------------------------- the machine


def describe() -> dict[str, Any]:
    """Describe this machine without importing torch, in a fraction of a second."""
    asked = "name,driver_version,memory.total,clocks.max.sm,power.limit"
    smi = shutil.which("nvidia-smi")
    gpu = None
    if smi is not None:
        query = [smi, f"--query-gpu={asked}", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
        gpu = (done.stdout or done.stderr).strip()
    versions = {}
    for name in _LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "gpu": gpu,
        "python": platform.python_version(),
        "system": f"{platform.release()}, {' '.join(platform.libc_ver())}",
        "cores": len(os.sched_getaffinity(0)),
        "free_gib": round(shutil.disk_usage(ROOT).free / 2**30, 1),
        "libraries": versions,
        **{name: shutil.which(name) is not None for name in ("nvcc", "cmake", "ninja", "g++")},
    }


def problems(machine: dict[str, Any], device: str) -> list[str]:
    """Name in sentences what will make stages fail."""
    found = []
    if device != "cpu" and not machine["gpu"]:
        found.append("nvidia-smi is not here: there is no GPU")
    about = PACK / "built.json"
    if about.is_file():
        built = json.loads(about.read_text("utf-8"))
        here = ".".join(machine["python"].split(".")[:2])
        if built["python"] != here:
            found.append(f"the pack was built for Python {built['python']}, and here is {here}")
        torch = ".".join((machine["libraries"]["torch"] or "0.0").split(".")[:2])
        if built["torch"] != torch:
            found.append(f"the pack was built with torch {built['torch']}, and here is {torch}")
    for module in ("torchtraceap._core", "torchtraceap._model"):
        done = subprocess.run(
            [sys.executable, "-c", f"import {module} as m; getattr(m, 'native', m)"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            said = (done.stderr.strip() or "no reason given").splitlines()[-1]
            found.append(f"{module} can't be imported: {said}")
    return found


# ------------------------------------------------------------------------- the run


def run_all(options: Options, names: list[str], minutes: float, again: bool) -> int:
    """Runs the stages; returns 0 if all of them are complete, 1 if one failed, else 3."""
    ends = time.monotonic() + 60 * minutes
    _take_over(options)
    state = _read_state(options.work)
    state["machine"] = describe()
    print(json.dumps(state["machine"], indent=1), flush=True)
    state["problems"] = problems(state["machine"], options.device)
    for problem in state["problems"]:
        print(f"PROBLEM: {problem}", flush=True)
    state |= {"device": options.device, "tiny": options.tiny, "commit": _commit()}
    for entry in _in_order(state["stages"]):
        status = state["stages"].get(entry.name, {}).get("status", "")
        if entry.name not in names or (status.startswith(_COMPLETE) and not again):
            continue
        left = ends - time.monotonic() - _PACKING_S
        if left < entry.least_s and not options.tiny:
            print(f"==> {entry.name}: {left:.0f} s are left, {entry.least_s:.0f} are needed")
            state["stages"].setdefault(entry.name, {"status": "no time was left"})
            continue
        if again:
            shutil.rmtree(options.work / entry.name, ignore_errors=True)
        seconds = 600.0 if options.tiny else min(entry.limit_s, left)
        print(f"==> {entry.name} ({entry.letter}): {seconds:.0f} s at most", flush=True)
        state["stages"][entry.name] = _run_stage(entry, seconds, options)
        print(f"    {state['stages'][entry.name]}", flush=True)
        _write_state(options.work, state)
        pack(options, state)
    _write_state(options.work, state)
    pack(options, state)
    statuses = [state["stages"].get(name, {}).get("status", "") for name in names]
    if _FAILED in statuses or _STOPPED in statuses:
        return 1
    return 0 if all(status.startswith(_COMPLETE) for status in statuses) else 3


def _in_order(before: dict[str, Any]) -> list[Entry]:
    """Stages that never ran go before those that an earlier call began; training takes the rest."""
    return sorted(STAGES, key=lambda e: (e.name == _LAST, "exit_code" in before.get(e.name, {})))


def _run_stage(entry: Entry, seconds: float, options: Options) -> dict[str, Any]:
    """Runs one stage in a process group of its own, which ends with it."""
    folder = options.work / entry.name
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with (folder / "log.txt").open("ab") as log:
        process = subprocess.Popen(
            command(entry, seconds, options),
            stdout=log, stderr=log, cwd=ROOT, start_new_session=True,
        )  # fmt: skip
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            # Workers of a stage that ended may still be there.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    status = _STOPPED if code is None else _STATUS.get(code, _FAILED)
    status = _COMPLETE if code in entry.answers else status
    return {
        "status": status,
        "exit_code": code,
        "seconds": round(time.monotonic() - began, 1),
        "limit_s": round(seconds, 1),
        "letter": entry.letter,
        "result": entry.result if (folder / entry.result).is_file() else None,
        "end_of_log": _end_of(folder / "log.txt") if code != 0 else [],
    }


def _end_of(path: Path, lines: int = 8) -> list[str]:
    text = path.read_text("utf-8", errors="replace")
    return [line[:300] for line in text.splitlines()[-lines:]]


def _read_state(work: Path) -> dict[str, Any]:
    path = work / STATE
    if not path.is_file():
        return {"schema": "torchtraceap.device_state/1", "stages": {}}
    state: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return state


def _write_state(work: Path, state: dict[str, Any]) -> None:
    (work / STATE).write_text(json.dumps(state, indent=1) + "\n", "utf-8")


def _take_over(options: Options) -> None:
    """Drops what a call of another kind left, such as a tiny one on a CPU, and takes over what the
    pack has of earlier calls, unless a call on this machine went further."""
    wanted = {"device": options.device, "tiny": options.tiny}

    def is_alike(folder: Path) -> bool:
        state = _read_state(folder)
        return all(state.get(key) == value for key, value in wanted.items())

    if (options.work / STATE).exists() and not is_alike(options.work):
        shutil.rmtree(options.work)
    options.work.mkdir(parents=True, exist_ok=True)
    if not (options.work / STATE).exists() and is_alike(PACK / "done"):
        shutil.copytree(PACK / "done", options.work, dirs_exist_ok=True)


def _commit() -> str | None:
    """Return the commit of the tree or, where there is no git, of the pack."""
    try:
        asked = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        done = None
    if done is not None and done.returncode == 0:
        return done.stdout.strip()
    about = PACK / "built.json"
    return json.loads(about.read_text("utf-8")).get("commit") if about.is_file() else None


# ------------------------------------------------------------------------- what comes back


def pack(options: Options, state: dict[str, Any]) -> None:
    """Writes what WORK has into pieces in OUT."""
    options.out.mkdir(parents=True, exist_ok=True)
    chosen, left_behind, size = [], [], 0
    for path in _by_value(options.work):
        bytes_ = path.stat().st_size
        # A member takes a header and whole blocks; the archive ends with two empty ones.
        taken = 512 + -(-bytes_ // 512) * 512
        if bytes_ > _LARGEST_BYTES or size + taken > MOST_PIECES * PIECE_BYTES - 20480:
            left_behind.append(f"{path.relative_to(options.work)} ({bytes_} bytes)")
            continue
        chosen.append(path)
        size += taken
    state["left_behind"] = left_behind
    archive = options.work.parent / "results.tar"
    with tarfile.open(archive, "w") as tar:
        for path in chosen:
            tar.add(path, str(path.relative_to(options.work)), recursive=False)
    for old in options.out.glob("results.tar.*"):
        old.unlink()
    with archive.open("rb") as whole:
        for number in range(MOST_PIECES):
            if piece := whole.read(PIECE_BYTES):
                (options.out / f"results.tar.{number}").write_bytes(piece)
    archive.unlink()
    _write_state(options.out, state)


def _by_value(work: Path) -> Iterator[Path]:
    """Files of the state, then of each stage in the order of the table, small ones first."""
    folders = [work, *(work / entry.name for entry in STAGES)]
    for folder in folders:
        walk = folder.glob("*") if folder == work else folder.rglob("*")
        files = (path for path in walk if path.is_file() and path.name not in _NOT_PACKED)
        yield from sorted(files, key=lambda path: (path.suffix == ".gz", path.stat().st_size, path))


def keep(folder: Path) -> int:
    """Unpacks what came back, and leaves the small files of it for the next call."""
    back, done = BUILD / "back", PACK / "done"
    pieces = sorted(folder.glob("results.tar.*"))
    if not pieces:
        print(f"{folder} has no results.tar.0", file=sys.stderr)
        return 1
    back.mkdir(parents=True, exist_ok=True)
    archive = BUILD / "results.tar"
    with archive.open("wb") as whole:
        for piece in pieces:
            whole.write(piece.read_bytes())
    with tarfile.open(archive) as tar:
        for member in tar:
            target = (back / member.name).resolve()
            if not (member.isfile() and target.is_relative_to(back.resolve())):
                raise ValueError(f"{member.name}: no file below the folder that is unpacked")
            content = tar.extractfile(member)
            assert content is not None
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.read())
    archive.unlink()
    shutil.rmtree(done, ignore_errors=True)
    for path in back.rglob("*"):
        small = path.is_file() and path.stat().st_size <= _CARRIED_BYTES
        if small and path.suffix not in (".gz", ".txt"):
            target = done / path.relative_to(back)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    for name, stage in _read_state(back)["stages"].items():
        print(f"{name}: {stage['status']}")
    print(f"{back} has what came back; python benchmarks/device/read.py {back} reads it")
    return 0


def main() -> int:
    if sys.argv[1:2] == ["keep"] and len(sys.argv) == 3:
        return keep(Path(sys.argv[2]))
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = [entry.name for entry in STAGES]
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything; default 9")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--again", action="store_true", help="complete stages too")
    parser.add_argument("--tiny", action="store_true", help="small sizes, without limits of time")
    parser.add_argument("--work", type=Path, default=BUILD / "work")
    parser.add_argument("--out", type=Path, default=BUILD / "out")
    asked = parser.parse_args()
    options = Options(asked.device, asked.tiny, asked.work.resolve(), asked.out.resolve())
    return run_all(options, asked.only, asked.minutes, asked.again)


if __name__ == "__main__":
    sys.exit(main())
