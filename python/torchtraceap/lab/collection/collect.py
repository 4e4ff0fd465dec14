"""`collect`: a folder of labelled traces of real runs.

Note [Parts]: what came of an entry is a small file of its own, written when its traces are there.
So a call that runs out of time, or is interrupted, leaves whole pairs, and the next one goes on
with entries that have no file. labels.jsonl is made from these files at the end of every call.

Note [Processes]: each workload is recorded in a process of its own: one that hangs or crashes loses
what it was at, and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

from torchtraceap.core.aliases import PathLike
from torchtraceap.core.progress import progress_stage
from torchtraceap.core.writing import claim_folder, write_files, write_text
from torchtraceap.datasets.labels import LABELS
from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.lab.collection.manifest import PlannedPair
from torchtraceap.lab.collection.pairs import RecordingOptions, UnfitError, record_pair
from torchtraceap.record.notices import RecordingError
from torchtraceap.record.torch_access import import_torch

__all__ = ["Collection", "collect"]


_LEFT_OUT = "left_out.jsonl"
_PARTS = ".pairs"
_SUFFIX = ".json.gz"
_VERSION = 1
_PAIR_S, _COMPILED_PAIR_S = 20.0, 90.0
"""A pair is not begun with less time left."""
_GRACE_S = 20.0
"""Of a process whose time is over."""
_MOST_WORKERS = 8
_BACKENDS = {"cuda": "inductor", "cpu": "aot_eager"}


@dataclass(frozen=True)
class Collection:
    """What is in the folder."""

    labels: Path
    accepted: int
    """Pairs with a fault."""
    benign: int
    """Pairs whose fault costs too little."""
    decoys: int
    left_out: dict[str, str]
    """Why a pair is not there, by its workload and form."""
    to_do: int
    """Pairs that there was no time for."""


def collect(
    out: PathLike,
    entries: Sequence[PlannedPair],
    *,
    minutes: float = 10.0,
    device: str = "cpu",
    seed: int = 0,
) -> Collection:
    """Records pairs until all are there or the time is over; goes on where it stopped.

    Args:
        out: A folder, new or empty, or one of the same seed and device; it is made.
        entries: Of a manifest, or of a part of one.
        minutes: So long this call may take.
        device: cpu or cuda. Traces without a GPU are of the split "cpu", which is no GPU data.
        seed: Of weights, data, orders and crops.

    Raises:
        OptionError: A number that makes no sense, a device that is not there, or a folder with
            something else in it.
        MissingDependencyError: torch is not installed.
        OutputError: It can't be written.
    """
    if device not in _BACKENDS:
        raise OptionError(f"no device {device!r}: {', '.join(_BACKENDS)}")
    if not minutes > 0:
        raise OptionError(f"{minutes} minutes make no sense")
    if device == "cuda" and not import_torch().cuda.is_available():
        raise OptionError("there is no CUDA device here; with the device cpu the way is tried out")
    end = time.monotonic() + 60 * minutes
    folder = Path(out)
    _take_over(folder, seed, device)
    workers = min(_MOST_WORKERS, max(1, (os.cpu_count() or 2) - 2))
    job = _Job(str(folder), RecordingOptions(device, seed, workers))
    left = [entry for entry in entries if not _part(folder, entry).exists()]
    try:
        for _, group in groupby(left, key=lambda entry: entry.workload.name):
            of_workload = list(group)
            if end - time.monotonic() < _needed_s(of_workload[0], device):
                break
            with progress_stage(f"recording {of_workload[0].workload.name}"):
                _in_process(job, of_workload, end)
            _summed_up(folder, entries)  # also what is killed leaves a folder that can be used
    finally:
        found = _summed_up(folder, entries)
    return found


@dataclass(frozen=True)
class _Job:
    folder: str
    options: RecordingOptions


def _take_over(folder: Path, seed: int, device: str) -> None:
    place = folder / _PARTS / "settings.json"
    text = json.dumps({"version": _VERSION, "seed": seed, "device": device})
    claim_folder(folder, place, text, "holds traces of another seed or device")


def _part(folder: Path, entry: PlannedPair) -> Path:
    return folder / _PARTS / f"{entry.index:06d}-{entry.workload.name}-{entry.form.name}.json"


def _needed_s(entry: PlannedPair, device: str) -> float:
    compiled = entry.form.compiled and _BACKENDS[device] == "inductor"
    return _COMPILED_PAIR_S if compiled else _PAIR_S


# ------------------------------------------------------------------------- a workload


def _in_process(job: _Job, entries: list[PlannedPair], end: float) -> None:
    """See Note [Processes]."""
    context = multiprocessing.get_context("spawn")
    left_s = end - time.monotonic()
    process = context.Process(target=_record_workload, args=(job, entries, left_s))
    process.start()
    try:
        process.join(max(1.0, end + _GRACE_S - time.monotonic()))
    finally:
        if process.is_alive():
            process.terminate()
            process.join(0.1)
            process.kill()
    if process.exitcode:
        _blame(Path(job.folder), entries, process.exitcode)


def _blame(folder: Path, entries: Iterable[PlannedPair], code: int) -> None:
    """The first that has no result is what the process ended at, if it ended by itself."""
    for entry in entries:
        if not _part(folder, entry).exists():
            if code not in (-15, -9):  # stopped as its time was over
                _leave_out(folder, entry, f"its process ended with {code}")
            return


def _record_workload(job: _Job, entries: list[PlannedPair], left_s: float) -> None:
    """The pairs of one workload in this process, as far as the time goes."""
    from torchtraceap.lab.collection.workloads import use_platform

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started this process ends it
    end = time.monotonic() + left_s
    folder, options = Path(job.folder), job.options
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else two lines for every recording
    os.environ["HF_HUB_OFFLINE"] = "1"
    _prepare_torch(options)
    context = _context(entries[0], options)
    try:
        limit = use_platform(context.workload, context.device)
    except RecordingError as error:
        for entry in entries:
            _leave_out(folder, entry, str(error))
    else:
        _record_pairs(job, entries, context, end)
        del limit  # in force until here
    os._exit(0)  # all is written; threads of libraries may crash a process that ends


def _record_pairs(job: _Job, entries: list[PlannedPair], context: Any, end: float) -> None:
    folder, options = Path(job.folder), job.options
    for entry in entries:
        if end - time.monotonic() < _needed_s(entry, options.device):
            break
        try:
            made = record_pair(entry, options, context)
        except (UnfitError, MissingDependencyError) as error:
            _leave_out(folder, entry, str(error))
        except Exception as error:  # a model that does not fit a form must not end the others
            _leave_out(folder, entry, f"{type(error).__name__}: {str(error).strip()[:300]}")
        else:
            _keep(folder, entry, made)


def _prepare_torch(options: RecordingOptions) -> None:
    torch = import_torch()
    torch.set_float32_matmul_precision("high")  # slow arithmetic is not the subject
    if options.on_gpu:
        torch.backends.cudnn.allow_tf32 = True
    else:
        torch.set_num_threads(1)
    # The first profile of a process starts the tracing library, which takes long.
    with torch.profiler.profile():
        torch.ones(8, device=options.device).sum().item()


def _context(entry: PlannedPair, options: RecordingOptions) -> Any:
    from torchtraceap.lab.collection.workloads import Context

    workload = entry.workload
    return Context(
        workload=workload,
        scale=workload.full if options.on_gpu else workload.tiny,
        device=import_torch().device(options.device),
        seed=options.seed,
        workers=options.workers,
        backend=_BACKENDS[options.device],
    )


# ------------------------------------------------------------------------- files


def _keep(folder: Path, entry: PlannedPair, made: list[tuple[dict[str, Any], bytes]]) -> None:
    """Traces, then labels."""
    files: list[tuple[str, Callable[[BinaryIO], object]]] = [
        (f"{label['id']}{_SUFFIX}", partial(_put, data)) for label, data in made
    ]
    write_files(folder, files)
    document = {"entry": str(entry), "labels": [label for label, _ in made]}
    write_text(_part(folder, entry), json.dumps(document, allow_nan=False))


def _put(data: bytes, stream: BinaryIO) -> None:
    stream.write(data)


def _leave_out(folder: Path, entry: PlannedPair, reason: str) -> None:
    reason = " ".join(reason.split())
    write_text(_part(folder, entry), json.dumps({"entry": str(entry), "left_out": reason}))


def _summed_up(folder: Path, entries: Sequence[PlannedPair]) -> Collection:
    """Writes the labels of all that is there, whatever part of a manifest this call was for."""
    parts = [json.loads(path.read_text("utf-8")) for path in sorted(_parts(folder))]
    labels = sorted((x for part in parts for x in part.get("labels", ())), key=lambda x: x["id"])
    left_out = {part["entry"]: part["left_out"] for part in parts if "left_out" in part}
    write_text(folder / LABELS, "".join(json.dumps(label) + "\n" for label in labels))
    lines = (json.dumps({"entry": k, "reason": why}) + "\n" for k, why in left_out.items())
    write_text(folder / _LEFT_OUT, "".join(lines))
    verdicts = [label["collected"]["verdict"] for label in labels]
    counts = {word: verdicts.count(word) for word in ("accepted", "benign", "decoy")}
    to_do = sum(not _part(folder, entry).exists() for entry in entries)
    return Collection(
        folder / LABELS, counts["accepted"], counts["benign"], counts["decoy"], left_out, to_do
    )


def _parts(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from (folder / _PARTS).glob("[0-9]*.json")
