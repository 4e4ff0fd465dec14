"""`collect`: a folder of labeled traces of real runs.

Note [Parts]: the result of an entry is a small file of its own, written when its traces are there.
So a call that runs out of time, or is interrupted, leaves whole pairs, and the next one goes on
with entries that have no file. labels.jsonl is made from these files at the end of every call.

Note [Processes]: each workload is recorded in a process of its own: one that hangs or crashes loses
what it was at, and nothing else.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

from torchtraceap.core import (
    PathLike,
    claim_folder,
    progress_stage,
    read_json,
    write_files,
    write_text,
)
from torchtraceap.datasets import LABELS
from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.lab.collection.manifest import PlannedPair
from torchtraceap.lab.collection.pairs import UnfitError, record_pair
from torchtraceap.record import RecordingError, import_torch

__all__ = ["Collection", "collect"]


_LEFT_OUT = "left_out.jsonl"
_PARTS = ".pairs"
_SUFFIX = ".json.gz"
_VERSION = 1
_PAIR_S, _COMPILED_PAIR_S = 20.0, 90.0
"""A pair is not begun with less time left."""
_GRACE_S = 20.0
"""Time that a process gets beyond its own."""
_MOST_WORKERS = 8
_BACKENDS = {"cuda": "inductor", "cpu": "aot_eager"}


@dataclass(frozen=True)
class Collection:
    """The contents of the folder."""

    labels: Path
    accepted: int
    """Pairs with a fault."""
    benign: int
    """Pairs whose fault costs too little."""
    decoys: int
    """Pairs with a look-alike."""
    left_out: dict[str, str]
    """Reasons why pairs are not there, by workload and fault."""
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
    """Record pairs until all are there or the time is over; go on where it stopped.

    Args:
        out: A folder, new or empty, or one of the same seed and device; it is made.
        entries: Pairs of a manifest, or of a part of one.
        minutes: Time that this call may take.
        device: cpu or cuda. Traces without a GPU are of the split "cpu", which is no GPU data.
        seed: Seed of weights, data, orders and crops.

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
    settings = json.dumps({"version": _VERSION, "seed": seed, "device": device})
    others = "holds traces of another seed or device"
    claim_folder(folder, folder / _PARTS / "settings.json", settings, others)
    left = [entry for entry in entries if not _part(folder, entry).exists()]
    try:
        for _, group in groupby(left, key=lambda entry: entry.workload.name):
            pairs = list(group)
            if end - time.monotonic() < _needed_s(pairs[0], device):
                break
            with progress_stage(f"recording {pairs[0].workload.name}"):
                _in_process(folder, pairs, end, device, seed)
            _sum_up(folder, entries)  # also what is killed leaves a folder that can be used
    finally:
        found = _sum_up(folder, entries)
    return found


def _part(folder: Path, entry: PlannedPair) -> Path:
    return folder / _PARTS / f"{entry.index:06d}-{entry.workload.name}-{entry.fault.name}.json"


def _needed_s(entry: PlannedPair, device: str) -> float:
    compiled = entry.fault.compiled and _BACKENDS[device] == "inductor"
    return _COMPILED_PAIR_S if compiled else _PAIR_S


# ------------------------------------------------------------------------- a workload


def _in_process(
    folder: Path, entries: list[PlannedPair], end: float, device: str, seed: int
) -> None:
    """Record the pairs of one workload. See Note [Processes]."""
    context = multiprocessing.get_context("spawn")
    left_s = end - time.monotonic()
    process = context.Process(
        target=_record_workload, args=(folder, entries, left_s, device, seed)
    )  # fmt: skip
    process.start()
    try:
        process.join(max(1.0, end + _GRACE_S - time.monotonic()))
    finally:
        if process.is_alive():
            process.terminate()
            process.join(0.1)
            process.kill()
    if process.exitcode:
        _blame(folder, entries, process.exitcode)


def _blame(folder: Path, entries: Iterable[PlannedPair], code: int) -> None:
    """Leave out the first pair without a result, if its process ended by itself."""
    for entry in entries:
        if not _part(folder, entry).exists():
            if code not in (-15, -9):  # stopped as its time was over
                _leave_out(folder, entry, f"its process ended with {code}")
            return


def _record_workload(
    folder: Path, entries: list[PlannedPair], left_s: float, device: str, seed: int
) -> None:
    """Record the pairs of one workload in this process, as far as the time goes, and end it."""
    from torchtraceap.lab.collection.workloads import Context, use_platform

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started this process ends it
    end = time.monotonic() + left_s
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else two lines for every recording
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch = import_torch()
    torch.set_float32_matmul_precision("high")  # slow arithmetic is not the subject
    if device == "cuda":
        torch.backends.cudnn.allow_tf32 = True
    else:
        torch.set_num_threads(1)
    # The first profile of a process starts the tracing library, which takes long.
    with torch.profiler.profile():
        torch.ones(8, device=device).sum().item()
    workload = entries[0].workload
    context = Context(
        workload=workload,
        scale=workload.full if device == "cuda" else workload.tiny,
        device=torch.device(device),
        seed=seed,
        workers=min(_MOST_WORKERS, max(1, (os.cpu_count() or 2) - 2)),
        backend=_BACKENDS[device],
    )
    try:
        limit = use_platform(workload, context.device)
    except RecordingError as error:
        for entry in entries:
            _leave_out(folder, entry, str(error))
        os._exit(0)
    for entry in entries:
        if end - time.monotonic() < _needed_s(entry, device):
            break
        try:
            made = record_pair(entry, context)
        except (UnfitError, MissingDependencyError) as error:
            _leave_out(folder, entry, str(error))
        except Exception as error:  # a model that does not fit a fault must not end the others
            _leave_out(folder, entry, f"{type(error).__name__}: {str(error).strip()[:300]}")
        else:
            _keep(folder, entry, made)
    del limit  # in force until here
    os._exit(0)  # all is written; threads of libraries may crash a process that ends


# ------------------------------------------------------------------------- files


def _keep(folder: Path, entry: PlannedPair, made: list[tuple[dict[str, Any], bytes]]) -> None:
    """Write the traces of a pair, then their labels."""

    def writing(data: bytes) -> Callable[[BinaryIO], object]:
        return lambda stream: stream.write(data)

    write_files(folder, [(f"{label['id']}{_SUFFIX}", writing(data)) for label, data in made])
    document = {"entry": str(entry), "labels": [label for label, _ in made]}
    write_text(_part(folder, entry), json.dumps(document, allow_nan=False))


def _leave_out(folder: Path, entry: PlannedPair, reason: str) -> None:
    reason = " ".join(reason.split())
    write_text(_part(folder, entry), json.dumps({"entry": str(entry), "left_out": reason}))


def _sum_up(folder: Path, entries: Sequence[PlannedPair]) -> Collection:
    """Write the labels of all that is there, whatever part of a manifest this call was for."""
    paths = sorted((folder / _PARTS).glob("[0-9]*.json"))
    parts = [read_json(path) for path in paths]
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
