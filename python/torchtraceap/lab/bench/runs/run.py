"""Measurement of workloads in fresh, isolated processes, stored with everything that explains a
run.

Note [A run]: some processes measure the same configuration one after the other, each with steps
that are waited for and steps that run freely, by turns in either order. One more process is traced
and not timed. A process that hangs, crashes or runs out of memory ends its run, says why, and
nothing else.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtraceap.core.progress import progress_stage
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Result
from torchtraceap.errors import OptionError, TraceError
from torchtraceap.lab.bench.measured import FREE, STEPS, TRACE
from torchtraceap.lab.bench.processes.environment import environment_hash, fingerprint
from torchtraceap.lab.bench.processes.fresh import ProgramResult, last_line, run_fresh
from torchtraceap.lab.bench.runs.child import MISSING, OUT_OF_MEMORY, UNFIT, Spec
from torchtraceap.lab.bench.runs.config import Protocol, WorkloadConfig
from torchtraceap.lab.bench.runs.metrics import metrics_of
from torchtraceap.lab.bench.store.run_store import (
    MeasuredRun,
    Samples,
    Store,
    StoredRun,
    need_parquet,
)
from torchtraceap.lab.workloads.registry import workloads

if TYPE_CHECKING:
    from torchtraceap.trace.trace import Trace

__all__ = ["Outcome", "WorkloadError", "check_device", "measure", "run_all", "run_process"]

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
    """Measure configurations one after the other and store each at once.

    Args:
        asked: What.
        protocol: How.
        store: Where.
        resume: What the store has of the same configuration and environment, of as many processes
            and steps, is not measured again.

    Yields:
        What came of each.

    Raises:
        MissingDependencyError: pyarrow is not installed.
        OutputError: The store can't be written.
    """
    need_parquet()
    environment = fingerprint()
    missing = {entry.name: entry.why_not for entry in workloads() if entry.missing}
    for place, each in enumerate(asked, 1):
        kept = _already(each, protocol, store, environment) if resume else None
        if kept is not None:
            yield Outcome(each.name, each.label, "kept", kept.id)
            continue
        if each.workload in missing:  # known without starting a process
            yield Outcome(each.name, each.label, "skipped", None, missing[each.workload])
            continue
        with progress_stage(f"measuring {each.label} ({place} of {len(asked)})"):
            yield _outcome(each, protocol, store)


def _already(
    asked: WorkloadConfig, protocol: Protocol, store: Store, environment: dict[str, Any]
) -> StoredRun | None:
    wanted = environment_hash(environment)
    for run in reversed(store.runs(config_hash=asked.config_hash)):
        how = run.config.get("protocol", {})
        if run.environment_hash == wanted and all(
            how.get(key, 0) >= number for key, number in protocol.kept().items()
        ):
            return run
    return None


def _outcome(asked: WorkloadConfig, protocol: Protocol, store: Store) -> Outcome:
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
    """Measure a configuration; see Note [A run].

    Args:
        asked: What.
        protocol: How.
        folder: For files that may be gone when the run is kept.

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
    explained = _TraceResults()
    if protocol.trace:
        with progress_stage(f"{asked.label}: recording a trace"):
            explained = _trace_run(asked, protocol, folder)
    return MeasuredRun(
        name=asked.name,
        when=when,
        config={**asked.config(), "protocol": protocol.kept()},
        environment=environment,
        metrics={
            **metrics_of(results),
            "flops_per_step": explained.flops,
            "flops_by": explained.flops_by,
            "notes": explained.notes,
        },
        counts=explained.counts,
        samples=Samples.of_processes([result["times"] for result in results]),
        trace=explained.trace,
        diagnosis=explained.diagnosis,
    )


def _spec(asked: WorkloadConfig, protocol: Protocol, **more: Any) -> Spec:
    return Spec(**asdict(asked), steps=protocol.steps, warmup=protocol.warmup, **more)


def run_process(spec: Spec, timeout_s: float | None, folder: Path) -> dict[str, Any]:
    """Run one process of a workload and return its measurements.

    Args:
        spec: What it runs.
        timeout_s: So long it may take.
        folder: Where its result is written meanwhile.

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


# ------------------------------------------------------------------------- what explains a run


class _TraceResults:
    """Results of the traced process."""

    def __init__(self) -> None:
        self.trace: Path | None = None
        self.diagnosis: dict[str, Any] | None = None
        self.counts: dict[str, int] = {}
        self.flops: int | None = None
        self.flops_by: str | None = None
        self.notes: list[str] = []


def _trace_run(asked: WorkloadConfig, protocol: Protocol, folder: Path) -> _TraceResults:
    """Run a traced process; if it fails, the run is stored without a trace."""
    target, result = folder / "trace.json.gz", folder / "flops.json"
    spec = _spec(asked, protocol, flops=True, result=str(result))
    env = {**_QUIET, TRACE: str(target)}
    found = _TraceResults()
    try:
        _check(run_fresh(spec.command(), env=env, timeout_s=protocol.timeout_s))
    except WorkloadError as failure:
        found.notes.append(f"there is no trace: {failure}")
    if result.exists():
        found.flops = json.loads(result.read_text("utf-8"))["flops"]
        found.flops_by = "torch.utils.flop_counter" if found.flops else None
    if target.exists():
        _read_trace(target, found)
    return found


def _read_trace(target: Path, found: _TraceResults) -> None:
    from torchtraceap.diagnosis.diagnose import build_diagnosis
    from torchtraceap.trace.load import load

    try:
        trace = load(target)
        found.diagnosis = build_diagnosis(trace).to_dict()
        for file in found.diagnosis["files"]:  # the folder is gone, and may name a person
            file["path"] = Path(file["path"]).name
        found.counts = _counts(trace)
        if not found.flops:
            found.flops = _flops_of(trace)
            found.flops_by = "models of the trace's operators" if found.flops else None
    except TraceError as error:
        found.notes.append(f"the trace can't be explained: {error}")
    found.trace = target


def _counts(trace: Trace) -> dict[str, int]:
    from torchtraceap.contracts.measures.measurement import counts

    return counts(trace)


def _flops_of(trace: Trace) -> int | None:
    """Return the FLOPs of a step by our own operator models; None if they do not know an
    operator."""
    import numpy as np

    table = trace.roofline(by="call")
    steps = sum(len(rank.tree.steps) for rank in trace.ranks)
    if "flops" not in table or not steps:
        return None
    total = float(np.nansum(table["flops"]))
    return round(total / steps) or None
