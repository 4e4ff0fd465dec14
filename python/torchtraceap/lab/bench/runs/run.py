"""Measurement of workloads in fresh, isolated processes, stored with everything that explains a
run.

Note [A run]: some processes measure the same configuration one after the other, each with steps
that are waited for and steps that run freely, by turns in either order. One more process is traced
and not timed. A process that hangs, crashes or runs out of memory ends its run, says why, and
nothing else.

Note [Lost overlap]: waiting for the device behind each step keeps the host from running ahead, as a
training loop lets it. The mean step that is waited for, less the mean step of the same process when
it runs freely, is what such waiting costs; near zero where the host does not run ahead at all. On a
CPU it is the noise of the measurement.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from torchtraceap.core import Result, dataclass, progress_stage
from torchtraceap.errors import OptionError, TraceError
from torchtraceap.lab.bench.measured import FREE, STEPS, TRACE
from torchtraceap.lab.bench.processes.environment import environment_hash, fingerprint
from torchtraceap.lab.bench.processes.programs import ProgramResult, last_line, run_fresh
from torchtraceap.lab.bench.runs.child import MISSING, OUT_OF_MEMORY, UNFIT, Spec
from torchtraceap.lab.bench.runs.config import Protocol, WorkloadConfig
from torchtraceap.lab.bench.runs.run_store import MeasuredRun, Samples, Store, need_parquet
from torchtraceap.lab.workloads.registry import workloads

__all__ = [
    "Outcome",
    "WorkloadError",
    "check_device",
    "measure",
    "metrics_of",
    "run_all",
    "run_process",
]

_TAIL_LINES = 20
_CHECK_TIMEOUT_S = 120.0
_QUIET: dict[str, str | None] = {
    STEPS: None,
    FREE: None,
    TRACE: None,
    "HF_HUB_OFFLINE": "1",  # weights are random; nothing is fetched
    "TOKENIZERS_PARALLELISM": "false",
    "KINETO_LOG_LEVEL": "99",
}


class WorkloadError(TraceError, RuntimeError):
    """A process of a workload failed.

    Args:
        kind: "missing" (a library), "unfit" (it can't be run so), "out of memory", "timed out" or
            "failed".
        reason: In a sentence.
        stderr: The end of what it printed.
    """

    def __init__(self, kind: str, reason: str, stderr: str = "") -> None:
        super().__init__(reason)
        self.kind = kind
        self.stderr = stderr


@dataclass(frozen=True, slots=True)
class Outcome(Result):
    """The outcome of one configuration."""

    name: str
    label: str
    """The configuration in words."""
    status: str
    """"measured"; "kept" (already in the store); "skipped" (a library is missing, or it cannot run
    in this configuration); "failed", "timed out" or "out of memory"."""
    run: str | None
    """Id of the run in the store."""
    reason: str = ""
    """The reason why it was skipped or failed."""
    stderr: str = ""
    """The end of the output of a failed process."""
    unfit: bool = False
    """True if it was skipped because of its configuration, not for a missing library."""

    @property
    def failed(self) -> bool:
        return self.status not in ("measured", "kept", "skipped")


def check_device(device: str) -> None:
    """Check before any workload starts that a device exists; torch is asked in a process.

    Raises:
        OptionError: It is not there.
    """
    if device == "cpu":
        return
    asked = "import torch; raise SystemExit(not torch.cuda.is_available())"
    finished = run_fresh([sys.executable, "-c", asked], timeout_s=_CHECK_TIMEOUT_S)
    if not finished.ok:
        raise OptionError(f"there is no GPU that torch can use as {device!r} here: take cpu")


def run_all(
    asked: Sequence[WorkloadConfig], protocol: Protocol, store: Store, *, resume: bool = False
) -> Iterator[Outcome]:
    """Measure configurations one after the other, store each at once, and yield its outcome.

    With `resume`, what the store has of the same configuration and environment, of as many
    processes and steps, is not measured again.

    Raises:
        MissingDependencyError: pyarrow is not installed.
        OutputError: The store can't be written.
    """
    need_parquet()
    environment = environment_hash(fingerprint())
    missing = {entry.name: entry.why_not for entry in workloads() if entry.missing}
    for place, each in enumerate(asked, 1):
        like = store.runs(config_hash=each.config_hash) if resume else ()
        kept = [
            run.id
            for run in like
            if run.environment_hash == environment
            and all(
                run.config.get("protocol", {}).get(key, 0) >= number
                for key, number in protocol.stored_values().items()
            )
        ]
        if kept:
            yield Outcome(each.name, each.label, "kept", kept[-1])
            continue
        if each.workload in missing:  # known without starting a process
            yield Outcome(each.name, each.label, "skipped", None, missing[each.workload])
            continue
        with progress_stage(f"measuring {each.label} ({place} of {len(asked)})"):
            yield _measure_and_store(each, protocol, store)


def _measure_and_store(asked: WorkloadConfig, protocol: Protocol, store: Store) -> Outcome:
    try:
        with tempfile.TemporaryDirectory(prefix="ttap-run-") as folder:
            kept = store.save(measure(asked, protocol, Path(folder)))
    except WorkloadError as failure:
        skipped = failure.kind in ("missing", "unfit")
        return Outcome(
            asked.name,
            asked.label,
            "skipped" if skipped else failure.kind,
            None,
            str(failure),
            "" if skipped else failure.stderr,
            failure.kind == "unfit",
        )
    return Outcome(asked.name, asked.label, "measured", kept.id)


def measure(asked: WorkloadConfig, protocol: Protocol, folder: Path) -> MeasuredRun:
    """Measure a configuration; see Note [A run]. `folder` is for files that may be gone when the
    run is kept.

    Raises:
        WorkloadError: A process failed.
    """
    environment = fingerprint()
    when = datetime.now(UTC).isoformat(timespec="microseconds")
    results = []
    for process in range(protocol.processes):
        with progress_stage(f"{asked.label}: process {process + 1} of {protocol.processes}"):
            spec = _spec(asked, protocol, free_first=process % 2 == 1)
            results.append(run_process(spec, protocol.timeout_s, folder))
    run = MeasuredRun(
        name=asked.name,
        when=when,
        config={**asked.config(), "protocol": protocol.stored_values()},
        environment=environment,
        metrics={**metrics_of(results), "flops_per_step": None, "flops_by": None, "notes": []},
        counts={},
        samples=Samples.of_processes([result["times"] for result in results]),
    )
    if not protocol.trace:
        return run
    with progress_stage(f"{asked.label}: recording a trace"):
        return _with_trace(run, asked, protocol, folder)


def _spec(asked: WorkloadConfig, protocol: Protocol, **more: Any) -> Spec:
    return Spec(**asdict(asked), steps=protocol.steps, warmup=protocol.warmup, **more)


def run_process(spec: Spec, timeout_s: float | None, folder: Path) -> dict[str, Any]:
    """Run one process of a workload and return its measurements, which it writes into `folder`
    meanwhile.

    Raises:
        WorkloadError: It failed.
    """
    target = folder / "result.json"
    target.unlink(missing_ok=True)
    asked = replace(spec, result=str(target))
    _check(run_fresh(asked.command(), env=_QUIET, timeout_s=timeout_s))
    return dict(json.loads(target.read_text("utf-8")))


def _check(finished: ProgramResult) -> None:
    """Raise the error that a process of a workload reports."""
    if finished.ok:
        return
    tail = "\n".join(finished.stderr.splitlines()[-_TAIL_LINES:])
    said = last_line(finished.stderr)
    if finished.timed_out:
        raise WorkloadError("timed out", finished.reason, tail)
    if finished.returncode in (MISSING, UNFIT):
        kind = "missing" if finished.returncode == MISSING else "unfit"
        raise WorkloadError(kind, said, tail)
    if finished.returncode == OUT_OF_MEMORY:
        raise WorkloadError("out of memory", said, tail)
    reason = finished.reason
    if finished.returncode == -9:
        reason += " (killed from outside, as the system does where memory runs out)"
    raise WorkloadError("failed", reason, tail)


def _with_trace(
    run: MeasuredRun, asked: WorkloadConfig, protocol: Protocol, folder: Path
) -> MeasuredRun:
    """Return a run with the trace of one more process, its counts and diagnosis, and with FLOPs; if
    that process fails, with a note."""
    from torchtraceap.contracts import counts
    from torchtraceap.diagnosis import build_diagnosis
    from torchtraceap.trace import load

    target, result = folder / "trace.json.gz", folder / "flops.json"
    spec = _spec(asked, protocol, flops=True, result=str(result))
    flops: int | None = None
    flops_by: str | None = None
    notes: list[str] = []
    try:
        env = {**_QUIET, TRACE: str(target)}
        _check(run_fresh(spec.command(), env=env, timeout_s=protocol.timeout_s))
    except WorkloadError as failure:
        notes.append(f"there is no trace: {failure}")
    if result.exists():
        flops = json.loads(result.read_text("utf-8"))["flops"]
        flops_by = "torch.utils.flop_counter" if flops else None
    diagnosis: dict[str, Any] | None = None
    counted: dict[str, int] = {}
    if target.exists():
        try:
            trace = load(target)
            diagnosis = build_diagnosis(trace).to_dict()
            for file in diagnosis["files"]:  # the folder is gone, and may name a person
                file["path"] = Path(file["path"]).name
            counted = counts(trace)
            if not flops:  # by our own operator models, unless they do not know an operator
                table = trace.roofline(by="call")
                steps = sum(len(rank.tree.steps) for rank in trace.ranks)
                if steps and "flops" in table:
                    flops = round(float(np.nansum(table["flops"])) / steps) or None
                flops_by = "models of the trace's operators" if flops else None
        except TraceError as error:
            notes.append(f"the trace can't be explained: {error}")
    return replace(
        run,
        metrics={**run.metrics, "flops_per_step": flops, "flops_by": flops_by, "notes": notes},
        counts=counted,
        trace=target if target.exists() else None,
        diagnosis=diagnosis,
    )


def metrics_of(processes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the metrics of a run; times in ns, memory in bytes.

    Args:
        processes: Results that `child` writes, at least one.

    Returns:
        `batch`; `step_ns` of fenced steps: median, p10 and p90 over all, medians `by_process`, and
        `mean`; `free_step_ns`: the mean of a freely running step, median over the processes, and
        `by_process`; `lost_overlap_ns` and its share; `samples_per_s` by the mean free step and
        `samples_per_s_fenced` by the median fenced one; `first_batch_ns` with its parts, medians;
        `memory`, the largest of each; `device` and `threads`.
    """
    fenced = [each["times"]["fenced"] for each in processes]
    free = [fmean(each["times"]["free"]) for each in processes]
    every = np.concatenate([np.asarray(times, dtype=np.int64) for times in fenced])
    typical, freely = median(every.tolist()), median(free)
    lost = median(fmean(times) - mean for times, mean in zip(fenced, free, strict=True))
    first, batch = processes[0], processes[0]["batch"]
    memory = {
        name: max(
            (m for each in processes if (m := each["memory"][name]) is not None), default=None
        )
        for name in first["memory"]
    }
    return {
        "batch": batch,
        "step_ns": {
            "median": round(typical),
            "p10": round(float(np.quantile(every, 0.1))),
            "p90": round(float(np.quantile(every, 0.9))),
            "mean": round(float(every.mean())),
            "by_process": [round(median(times)) for times in fenced],
        },
        "free_step_ns": {"mean": round(freely), "by_process": [round(mean) for mean in free]},
        "lost_overlap_ns": round(lost),
        "lost_overlap_share": lost / fmean(map(fmean, fenced)),
        "samples_per_s": None if batch is None or not freely else batch * 1e9 / freely,
        "samples_per_s_fenced": None if batch is None or not typical else batch * 1e9 / typical,
        "first_batch_ns": {
            name: round(median(each["first_batch_ns"][name] for each in processes))
            for name in first["first_batch_ns"]
        },
        "memory": memory,
        "device": first["device"],
        "threads": first["threads"],
    }
