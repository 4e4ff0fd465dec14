"""What an API call, a copy, warm-up and a step are: rules, edits, idle causes and tables agree."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from gpu_traces import GpuTrace

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap._core import ApiClass, IdleCause
from torchtraceap.core.codes import (
    ALLOCATOR_CALLS,
    HOST_MEMORY_CALLS,
    MEMORY_RETURNS,
    SYNCHRONISATIONS,
)
from torchtraceap.simulation.edits.base import (
    EditedGraph,
    NotApplicableError,
    edits_by_finding,
    make_edit,
)
from torchtraceap.simulation.edits.view import views
from torchtraceap.simulation.run import SimulatedRun
from torchtraceap.tables.grouping import steps_of

GOLDEN = Path(__file__).parents[2] / "golden"
CORPUS = Path(os.environ.get("TORCHTRACEAP_CORPUS", "../shared/traces"))

ALLOCATORS = [
    "cudaMalloc",
    "cudaMallocManaged",
    "cudaMallocPitch",
    "cudaMallocArray",
    "cudaMallocAsync",
    "cudaMallocFromPoolAsync",
    "cudaFree",
    "cudaFreeArray",
    "cudaFreeAsync",
    "cudaMemPoolTrimTo",
    "cudaHostAlloc",
    "cudaMallocHost",
    "cudaHostRegister",
    "cudaFreeHost",
    "cudaHostUnregister",
    "cuMemAlloc_v2",
    "cuMemAllocManaged",
    "cuMemAllocAsync",
    "cuMemFree_v2",
    "cuMemFreeAsync",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemAddressReserve",
    "cuMemUnmap",
    "cuMemRelease",
    "cuMemAddressFree",
    "cuMemHostAlloc",
    "cuMemAllocHost_v2",
    "cuMemFreeHost",
    "cuMemHostRegister_v2",
    "hipMalloc",
    "hipExtMallocWithFlags",
    "hipMallocAsync",
    "hipFree",
    "hipFreeAsync",
    "hipHostMalloc",
    "hipHostFree",
    "hipHostRegister",
    "hipHostUnregister",
    "hipMemCreate",
    "hipMemMap",
    "hipMemUnmap",
    "hipMemRelease",
    "urUSMDeviceAlloc",
    "urUSMHostAlloc",
    "urUSMFree",
    "zeMemAllocDevice",
    "zeMemFree",
]
SYNCHRONISING = [
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cudaThreadSynchronize",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "cuEventSynchronize",
    "hipStreamSynchronize",
    "hipDeviceSynchronize",
    "hipEventSynchronize",
    "urQueueFinish",
    "urEventWait",
    "zeCommandQueueSynchronize",
]
NEITHER = [
    "cudaMemGetInfo",
    "cudaHostGetDevicePointer",
    "cudaPointerGetAttributes",
    "cudaEventQuery",
    "cudaEventRecord",
    "cudaStreamWaitEvent",
    "cudaStreamIsCapturing",
    "cudaGraphAddMemAllocNode",
    "cudaGraphAddMemcpyNode",
    "cuMemGetAllocationGranularity",
    "cudaMemPrefetchAsync",
    "cudaFuncGetAttributes",
    "cudaLaunchHostFunc",
    "cudaGetDevice",
    "hipPointerGetAttribute",
    "INVALID",
]


def loop_with(name: str) -> GpuTrace:
    """Three warm steps; in each the host sits 400 us in a call while the GPU runs dry."""
    trace = GpuTrace()
    for i in range(3):
        at = 1000.0 * i
        trace.host("user_annotation", f"ProfilerStep#{5 + i}", at, 1000)
        trace.op("aten::mm", at + 5, 20).launch("gemm", (at + 10, 5), (at + 20, 520))
        trace.call(name, at + 150, 400)
        trace.op("aten::mm", at + 590, 20).launch("gemm", (at + 600, 5), (at + 610, 300))
    return trace


def applied(trace: ttap.Trace, edit: str) -> EditedGraph | None:
    try:
        return make_edit(edit).apply(SimulatedRun(trace))
    except NotApplicableError:
        return None


def idle_ns(trace: ttap.Trace, cause: IdleCause) -> int:
    (rank,) = trace.ranks
    return int(rank.idle(rank.tree.profiled).totals[cause.name.lower()])


@pytest.mark.parametrize("name", [*ALLOCATORS, *SYNCHRONISING, *NEITHER])
def test_rule_edit_idle_cause_and_table_agree_on_every_call(tmp_path: Path, name: str) -> None:
    trace = loop_with(name).load(tmp_path)
    verdicts = ttap.diagnose(trace).further_verdicts
    table = trace.memory(by="allocator")
    allocates = {
        "rule": verdicts["allocator_thrash"] == "present",
        "edit": applied(trace, "no_allocator_calls") is not None,
        "idle cause": idle_ns(trace, IdleCause.ALLOCATOR) > 0,
        "table": bool(table.to_list("call")),
    }
    assert set(allocates.values()) == {name in ALLOCATORS}, allocates
    waits = {
        "rule": verdicts["explicit_synchronize"] == "present",
        "edit": applied(trace, "remove_host_sync") is not None,
        "idle cause": idle_ns(trace, IdleCause.SYNCHRONIZATION) > 0,
    }
    assert set(waits.values()) == {name in SYNCHRONISING}, waits


def test_classes_of_calls_are_disjoint() -> None:
    assert not set(ALLOCATOR_CALLS) & set(SYNCHRONISATIONS)
    assert set(MEMORY_RETURNS) < set(ALLOCATOR_CALLS)
    assert set(HOST_MEMORY_CALLS) < set(ALLOCATOR_CALLS)
    assert ApiClass.NONE not in ALLOCATOR_CALLS


def test_host_and_device_memory_are_kinds_of_the_table(tmp_path: Path) -> None:
    trace = GpuTrace()
    for i, name in enumerate(("cudaMallocAsync", "cuMemUnmap", "cudaFreeHost", "cudaHostRegister")):
        trace.call(name, 10.0 * i, 5)
    kinds = trace.load(tmp_path).memory(by="allocator").to_list("kind")
    assert kinds == ["allocate", "free", "host", "host"]


# ------------------------------------------------------------------------------------ warm-up


def once_and_again(kernels: int, gpu_clock_us: float = 0.0) -> GpuTrace:
    """No steps: ten names of kernels, then the first again and again, an allocator call and idle
    time behind each."""
    trace = GpuTrace()
    for i in range(kernels):
        at = 1000.0 * i
        name = f"kernel_{i if i < 10 else 0}"
        trace.op("aten::mm", at, 50).launch(name, (at + 5, 5), (at + 15 + gpu_clock_us, 300))
        trace.call("cudaMalloc", at + 320, 500)
    return trace


@pytest.mark.parametrize(("kernels", "known"), [(30, False), (49, False), (50, True), (64, True)])
@pytest.mark.parametrize("clock_us", [0.0, -5e5, 5e5])
def test_rule_and_edit_know_the_same_end_of_warm_up(
    tmp_path: Path, kernels: int, known: bool, clock_us: float
) -> None:
    trace = once_and_again(kernels, clock_us).load(tmp_path)
    assert trace.ranks[0].tree.warm_up.known is known
    verdict = ttap.diagnose(trace).further_verdicts["allocator_thrash"]
    assert verdict == ("present" if known else "unknown")
    edited = applied(trace, "no_allocator_calls")
    assert edited is not None
    assert edited.cautious is not None
    if not known:
        assert not len(edited.cautious)
        assert f"gone: {kernels} calls" in edited.note
        assert "no steady state" in edited.note
        return
    # Of ten names nine have been seen with the ninth kernel: eight calls are warm-up.
    assert f"gone: {kernels - 8} calls" in edited.note
    finding = next(f for f in ttap.diagnose(trace).findings if f.type == "allocator_thrash")
    assert finding.facts["mallocs"].value == kernels - 8
    assert len(edited.cautious)


@pytest.mark.parametrize(("first", "known"), [(0, False), (1, False), (2, True)])
def test_a_single_step_is_warm_by_its_number(tmp_path: Path, first: int, known: bool) -> None:
    trace = GpuTrace().host("user_annotation", f"ProfilerStep#{first}", 0, 100)
    warm_up = trace.launch("gemm", (5, 5), (20, 10)).load(tmp_path).ranks[0].tree.warm_up
    assert (warm_up.known, warm_up.by_steps) == (known, known)


# ------------------------------------------------------------------------------------ steps


def test_a_step_holds_its_start_and_not_its_end(tmp_path: Path) -> None:
    trace = GpuTrace()
    for i in range(2):
        trace.host("user_annotation", f"ProfilerStep#{i}", 100.0 * i, 100)
    launches = (0.0, 99.0, 100.0, 199.0, 200.0)
    for at in launches:  # what is launched last in a step runs in the next
        trace.launch("gemm", (at, 0.5), (at + 40, 1))
    loaded = trace.load(tmp_path)
    (rank,) = loaded.ranks
    wanted = ["ProfilerStep#0"] * 2 + ["ProfilerStep#1"] * 2 + [None]
    gpu = rank.tree.gpu_rows.astype(np.int64)
    assert steps_of(rank, gpu).to_list() == wanted
    assert steps_of(rank, rank.tree.launch[gpu]).to_list() == wanted
    (view,) = views(SimulatedRun(loaded))
    assert view.step_of(gpu).tolist() == [0, 0, 1, 1, -1]
    assert rank.tree.step[gpu].tolist() == [0, 0, 1, 1, _core.NO_ROW]


# ------------------------------------------------------------------ findings, causes and edits

OWN_CAUSES: dict[str, tuple[IdleCause, ...]] = {
    "single_process_data_loading": (IdleCause.DATA_LOADING,),
    "worker_starvation": (IdleCause.DATA_LOADING,),
    "allocator_thrash": (IdleCause.ALLOCATOR,),
    "recompilation": (IdleCause.COMPILATION,),
    "cold_start": (IdleCause.COMPILATION, IdleCause.ALLOCATOR),
    "no_memory_pin": (IdleCause.MEMORY_COPY,),
    "blocking_copy": (IdleCause.MEMORY_COPY,),
    "high_memcpy": (IdleCause.MEMORY_COPY, IdleCause.SYNCHRONIZATION),
    "host_sync_in_loop": (IdleCause.SYNCHRONIZATION, IdleCause.MEMORY_COPY),
    "explicit_synchronize": (IdleCause.SYNCHRONIZATION,),
    "cpu_bound": (IdleCause.HOST_WAIT,),
    "tiny_kernels": (IdleCause.HOST_WAIT,),
    "host_silence": (IdleCause.HOST_WAIT,),
    "unfused_optimizer": (IdleCause.HOST_WAIT,),
    "zero_grad_not_none": (IdleCause.HOST_WAIT,),
}
"""Findings that cost idle time, with the causes that this time must have. Those that are left out
cost GPU time, or idle time that no cause of its own stands for (graph breaks, collectives)."""
LEAST_SHARE = {"explicit_synchronize": 0.65, "host_sync_in_loop": 0.6}
"""Of the idle time in a type's intervals; else 0.85, the rest being the latency of queued work. A
stall reaches 1 ms behind the call, a cause 300 us: beyond it the host would be late anyway. Lost
lead (docs/rules.md) is idle time of later launches, which bears their cause."""


def golden_traces() -> list[Path]:
    return sorted(GOLDEN.glob("*/trace.json*"))


def corpus_traces() -> list[Path]:
    found = [path for path in CORPUS.rglob("*.json*") if "_reference" not in str(path)]
    if not found:
        pytest.skip(f"no traces in {CORPUS} (TORCHTRACEAP_CORPUS)")
    return sorted(found)


@pytest.fixture(scope="module", params=[golden_traces, corpus_traces], ids=["golden", "corpus"])
def traces(request: pytest.FixtureRequest) -> list[ttap.Trace]:
    return [ttap.load(path) for path in request.param()]


def test_every_finding_has_an_edit_that_applies_or_says_why_not(traces: list[ttap.Trace]) -> None:
    edits = edits_by_finding()
    for trace in traces:
        for finding in ttap.diagnose(trace).findings:
            saving = finding.saving
            if saving is None or saving.method == "simulated":
                continue
            assert saving.note, (finding.type, trace)
            if finding.type not in edits:
                replay = ttap.diagnose(trace).replay
                reason = replay.trust.reason if replay else ""
                assert saving.note in ("no simulated edit stands for this fix", reason) or (
                    "no GPU work to replay" in saving.note
                )
    assert set(edits) <= {rule.type for rule in _core.rules()}


def covered_ns(intervals: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Of each [start, end) how much sorted, disjoint intervals cover."""
    edges = np.concatenate([[0], np.cumsum(intervals[:, 1] - intervals[:, 0])])

    def before(times: np.ndarray) -> np.ndarray:
        place = np.searchsorted(intervals[:, 0], times, side="right")
        last = np.maximum(place - 1, 0)
        inside = np.minimum(times, intervals[last, 1]) - intervals[last, 0]
        return np.where(place > 0, edges[last] + inside, 0)

    return before(ends) - before(starts)


def test_idle_time_in_a_finding_has_the_findings_own_cause(traces: list[ttap.Trace]) -> None:
    by_type: dict[str, np.ndarray] = {}
    for rank in (rank for trace in traces for rank in trace.ranks):
        idle = rank.idle(rank.tree.profiled)
        for finding in _core.detect(rank.table, rank.tree):
            if finding.verdict == "present" and finding.type in OWN_CAUSES:
                covered = covered_ns(finding.intervals, idle.start_ns, idle.end_ns)
                spent = np.bincount(idle.cause, covered, len(IdleCause))
                by_type[finding.type] = by_type.get(finding.type, 0) + spent
    assert by_type
    shares = {
        name: spent[list(OWN_CAUSES[name])].sum() / spent.sum() for name, spent in by_type.items()
    }
    assert {n: s for n, s in shares.items() if s < LEAST_SHARE.get(n, 0.85)} == {}
