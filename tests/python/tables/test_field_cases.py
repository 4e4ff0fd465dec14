"""Situations from the field, each with a look-alike beside it: who is late, what a pipeline costs,
communication without an NCCL name, gaps within graphs, what the host does in a gap."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from recorder import Recorder

import torchtraceap as ttap
from torchtraceap.errors import ParseError

CASES = Path(os.environ.get("TORCHTRACEAP_CASES", ROOT.parent / "shared" / "cases"))
needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not here")
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def types(diagnosis: ttap.Diagnosis) -> set[str]:
    return {finding.type for finding in diagnosis.findings}


def finding(diagnosis: ttap.Diagnosis, name: str) -> Any:
    found = diagnosis.finding(name)
    assert found is not None, f"no {name} among {sorted(types(diagnosis))}"
    return found


def kernel(recorder: Recorder, launched: float, start: float, dur: float, **options: Any) -> Any:
    """A launch call and its kernel; returns the kernel's event."""
    return recorder.gpu(recorder.call(recorder.launch_name, launched, 3), start, dur, **options)


# ------------------------------------------------------------------------------------- ranks


def paired_ranks(folder: Path, late: dict[int, float], size: int = 4) -> ttap.Trace:
    """Ranks in pairs, each pair a group: five steps of 6 ms and an all-reduce of 100 us. A rank in
    `late` computes for so many us longer in every step."""
    for rank in range(size):
        mate = rank ^ 1
        group = sorted((rank, mate))
        recorder = Recorder(pid=4000 + rank, device=rank)
        recorder.members["distributedInfo"] = {"rank": rank, "world_size": size, "backend": "nccl"}
        at = 0.0
        longest = max(late.get(rank, 0.0), late.get(mate, 0.0))
        for step in range(5):
            own = 6000 + late.get(rank, 0.0)
            recorder.host("cpu_op", "aten::mm", at, 8)
            kernel(recorder, at + 1, at + 20, own)
            arrived, ends = at + 20 + own + 1, at + 20 + 6000 + longest + 101
            event = kernel(recorder, at + 12, arrived, ends - arrived, name=NCCL, stream=20)
            event["args"] |= {
                "Collective name": "allreduce", "In msg nelems": 1 << 20, "dtype": "BFloat16",
                "Process Group Name": "tp", "Process Group Description": "tp",
                "Process Group Ranks": str(group), "Group size": 2, "Seq": step,
            }  # fmt: skip
            recorder.host("user_annotation", f"ProfilerStep#{step}", at, ends + 5 - at)
            at = ends + 10
        recorder.write(folder / f"rank{rank}.json.gz")
    return ttap.load(folder)


def test_a_rank_that_is_late_in_its_own_group_is_the_straggler(tmp_path: Path) -> None:
    found = finding(paired_ranks(tmp_path, {2: 3000.0}).diagnose(), "straggler")
    assert found.facts["late rank"].value == "2"
    assert found.cost_ns == pytest.approx(5 * 3_000_000, rel=0.02)
    assert "compute" in found.why


def test_pairs_of_different_pace_make_nobody_late(tmp_path: Path) -> None:
    diagnosis = paired_ranks(tmp_path, {2: 3000.0, 3: 3000.0}).diagnose()
    assert "straggler" not in types(diagnosis)
    assert diagnosis.further_verdicts["straggler"] == "absent"


@pytest.mark.parametrize(("pausing", "found"), [((0, 1, 2, 3), True), ((1, 1, 1, 1), False)])
def test_ranks_that_pause_in_turn(tmp_path: Path, pausing: tuple[int, ...], found: bool) -> None:
    """Four ranks, eight steps of 5 ms; in every second one a rank pauses for 4 ms."""
    for rank in range(4):
        recorder = Recorder(pid=4000 + rank, device=rank)
        recorder.members["distributedInfo"] = {"rank": rank, "world_size": 4, "backend": "nccl"}
        at = 0.0
        for step in range(8):
            late_us = 4000.0 if step % 2 else 0.0
            mine_us = late_us if pausing[step // 2] == rank else 0.0
            recorder.host("cpu_op", "aten::mm", at + mine_us, 8)
            kernel(recorder, at + mine_us + 1, at + mine_us + 20, 5000)
            arrived, ends = at + mine_us + 5021, at + late_us + 5121
            event = kernel(
                recorder, at + mine_us + 12, arrived, ends - arrived, name=NCCL, stream=20
            )
            event["args"] |= {
                "Collective name": "allreduce", "In msg nelems": 1 << 20, "dtype": "BFloat16",
                "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3]", "Seq": step,
            }  # fmt: skip
            recorder.host("user_annotation", f"ProfilerStep#{step}", at, ends + 5 - at)
            at = ends + 10
        recorder.write(tmp_path / f"rank{rank}.json.gz")
    diagnosis = ttap.load(tmp_path).diagnose()
    assert ("rotating_pauses" in types(diagnosis)) is found
    assert ("straggler" in types(diagnosis)) is not found
    if found:
        assert finding(diagnosis, "rotating_pauses").cost_ns == pytest.approx(4 * 3 * 4e6, rel=0.02)


def pipeline_stage(
    folder: Path, recv_us: float, *, coalesced: bool = False, steps: int = 4
) -> ttap.Diagnosis:
    """The middle stage of a pipeline of four: eight micro-batches; the first receive of a step
    takes `recv_us`, the others 30 us."""
    recorder = Recorder()
    recorder.members["distributedInfo"] = {"rank": 1, "world_size": 4, "backend": "nccl"}
    at = 0.0
    for step in range(steps):
        begin = at
        for batch in range(8):
            wait = recv_us if batch == 0 else 30.0
            recv = kernel(recorder, at, at + 6, wait, name=SEND_RECV, stream=30)
            send = kernel(recorder, at + 8, at + 6 + wait + 1001, 30, name=SEND_RECV, stream=31)
            recorder.host("cpu_op", "aten::mm", at + 12, 8)
            kernel(recorder, at + 14, at + 6 + wait + 1, 1000)
            for event, kind, peer in ((recv, "recv", 0), (send, "send", 2)):
                event["args"] |= {
                    "Collective name": "all_reduce" if coalesced else kind,
                    "In msg nelems": 1 << 16, "dtype": "BFloat16", "Group size": 4,
                    "Process Group Ranks": "[0, 1, 2, 3]", "Process Group Description": "pp",
                    "Src Rank": min(peer, 1), "Dst Rank": max(peer, 1),
                }  # fmt: skip
            at += wait + 1010
        recorder.host("user_annotation", f"ProfilerStep#{step}", begin, at - begin - 1)
    return recorder.load(folder).diagnose()


def test_waits_between_pipeline_stages_are_the_bubble(tmp_path: Path) -> None:
    diagnosis = pipeline_stage(tmp_path, 3000.0)
    assert types(diagnosis) == {"pipeline_bubble"}
    found = finding(diagnosis, "pipeline_bubble")
    assert found.cost_ns == pytest.approx(4 * 2_970_000, rel=0.05)
    assert found.facts["stages"].value == 4
    assert found.facts["micro-batches per step"].value == 8
    assert "micro-batches" in found.fix and "async_op" not in found.fix


def test_exchanges_as_long_as_their_message_are_no_bubble(tmp_path: Path) -> None:
    assert "pipeline_bubble" not in types(pipeline_stage(tmp_path, 30.0))


# ------------------------------------------------------------------------------- communication


@pytest.mark.parametrize(
    ("name", "communicates"),
    [
        ("void deep_ep::internode_ll::dispatch<true, 8>(void*)", True),
        ("deepep_combine", True),
        ("nvshmemi_transfer_allgather", True),
        ("pplx::all_to_all::dispatch_send", True),
        ("mori::moe::EpDispatchIntraNode", True),
        ("userbuffers_fp16_sum_inplace_gpu_rr_rs_oop", True),
        ("void ub::pull_kernel<4>", True),
        ("symm_mem_one_shot", True),
        ("symmmem_two_shot", True),
        ("multimem_all_reduce_kernel", True),
        ("void trtllm::alltoall::moeAllToAllKernel", True),
        ("void cub::DeviceReduceKernel<float>", False),
        ("void at::native::memorize_kernel", False),
        ("armori_gemm", False),
        ("hub::gather_kernel", False),
        ("vectorized_elementwise_kernel", False),
    ],
)
def test_communication_is_known_without_an_nccl_name(
    tmp_path: Path, name: str, communicates: bool
) -> None:
    recorder = Recorder()
    recorder.steps(3, 10, 50.0, edit=lambda s, k, e: {**e, "name": name} if k == 3 else e)
    timeline = recorder.load(tmp_path).timeline()
    assert timeline.communication_ns == (3 * 50_000 if communicates else 0)


def test_collectives_that_nobody_waits_for_are_not_many_small_ones(tmp_path: Path) -> None:
    def run(folder: Path, *, hidden: bool) -> set[str]:
        recorder = Recorder()
        recorder.members["distributedInfo"] = {"rank": 0, "world_size": 8, "backend": "nccl"}
        at = 0.0
        for step in range(4):
            begin = at
            for _ in range(16):
                recorder.host("cpu_op", "aten::mm", at, 8)
                kernel(recorder, at + 2, at + 7, 25)
                start = at + 12 if hidden else at + 34
                event = kernel(recorder, at + 10, start, 9, name=SEND_RECV, stream=20)
                event["args"] |= {"Collective name": "all_to_allv", "In msg nelems": 4096}
                at += 40 if hidden else 45
            recorder.host("user_annotation", f"ProfilerStep#{step}", begin, at - begin - 1)
        return types(recorder.load(folder).diagnose())

    assert "small_nccl_kernels" not in run(tmp_path / "hidden", hidden=True)
    assert "small_nccl_kernels" in run(tmp_path / "exposed", hidden=False)


@pytest.mark.parametrize("slower", [True, False])
def test_kernels_that_a_collective_slows(tmp_path: Path, slower: bool) -> None:
    recorder = Recorder()
    recorder.members["distributedInfo"] = {"rank": 0, "world_size": 8, "backend": "nccl"}
    at = 0.0
    for step in range(4):
        begin, beside_us = at, 700.0 if slower else 400.0
        event = kernel(recorder, at, at + 10, 5 * beside_us + 5, name=NCCL, stream=20)
        event["args"] |= {"Collective name": "allreduce", "In msg nelems": 1 << 24}
        now = at + 10
        for number in range(10):
            recorder.host("cpu_op", "aten::mm", at + 12 * number, 8)
            dur = beside_us if number < 5 else 400.0
            kernel(recorder, at + 12 * number + 2, now, dur)
            now += dur + 1
        at = now + 5
        recorder.host("user_annotation", f"ProfilerStep#{step}", begin, at - begin - 1)
    diagnosis = recorder.load(tmp_path).diagnose()
    if not slower:
        assert "compute_slowed_by_communication" not in types(diagnosis)
        return
    found = finding(diagnosis, "compute_slowed_by_communication")
    assert found.cost_ns == 4 * 5 * 300_000
    assert "takes 700 µs then and 400 µs alone" in found.why


@pytest.mark.parametrize("needless", [True, False])
def test_gradients_exchanged_more_often_than_used(tmp_path: Path, needless: bool) -> None:
    """Four micro-batches before each update; all exchange, or only the last."""
    recorder = Recorder()
    recorder.members["distributedInfo"] = {"rank": 0, "world_size": 8, "backend": "nccl"}
    at = 0.0
    for step in range(4):
        begin = at
        for batch in range(4):
            recorder.host("user_annotation", "DistributedDataParallel.forward", at, 30)
            recorder.host("cpu_op", "aten::mm", at + 2, 20)
            kernel(recorder, at + 4, at + 20, 500)
            name = "autograd::engine::evaluate_function: MmBackward0"
            for place in range(3):
                recorder.host("cpu_op", name, at + 40 + 20 * place, 18)
                kernel(recorder, at + 44 + 20 * place, at + 520 + 200 * place, 200)
            if needless or batch == 3:
                event = kernel(recorder, at + 100, at + 1121, 400, name=NCCL, stream=20)
                event["args"] |= {"Collective name": "allreduce", "In msg nelems": 1 << 22}
            at += 1540
        recorder.host("user_annotation", "Optimizer.step#SGD.step", at, 30)
        recorder.host("cpu_op", "aten::_foreach_add_", at + 2, 20)
        kernel(recorder, at + 4, at + 20, 100)
        at += 150
        recorder.host("user_annotation", f"ProfilerStep#{step}", begin, at - begin - 1)
    diagnosis = recorder.load(tmp_path).diagnose()
    assert ("needless_gradient_sync" in types(diagnosis)) is needless
    if needless:
        assert finding(diagnosis, "needless_gradient_sync").cost_ns == 4 * 3 * 400_000
        assert "no_sync" in finding(diagnosis, "needless_gradient_sync").fix


@pytest.mark.parametrize("ahead", [True, False])
def test_parameters_gathered_without_prefetching(tmp_path: Path, ahead: bool) -> None:
    recorder = Recorder()
    recorder.members["distributedInfo"] = {"rank": 0, "world_size": 8, "backend": "nccl"}
    gathers = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    at = 0.0
    for step in range(4):
        begin, gpu = at, at + 420
        for layer in range(8):
            recorder.host("user_annotation", "FSDP::all_gather", at, 8)
            gathered = gpu - 410 if not ahead or layer == 0 else gpu - 800
            event = kernel(recorder, at + 1, gathered, 400, name=gathers, stream=20)
            event["args"] |= {"Collective name": "_allgather_base", "In msg nelems": 1 << 22}
            recorder.host("cpu_op", "aten::mm", at + 10, 8)
            kernel(recorder, at + 12, gpu, 800)
            gpu += 801 if ahead else 1215
            at += 20
        at = gpu + 10
        recorder.host("user_annotation", f"ProfilerStep#{step}", begin, at - begin - 1)
    diagnosis = recorder.load(tmp_path).diagnose()
    assert ("unprefetched_parameters" in types(diagnosis)) is not ahead


# ------------------------------------------------------------------------------ graphs and host


def replays(recorder: Recorder, gap_us: float, *, host_us: float = 0.0, count: int = 12) -> None:
    """Graph launches of 40 kernels of 20 us, `gap_us` apart, queued ahead unless the host does
    something else for `host_us` in between."""
    launched = gpu = 0.0
    for _ in range(count):
        correlation = recorder.call("cudaGraphLaunch", launched, 8)
        gpu = max(gpu, launched + 10)
        for _ in range(40):
            recorder.gpu(correlation, gpu, 20)
            gpu += 20 + gap_us
        gpu -= gap_us
        launched += 9
        if host_us:
            recorder.host("python_function", "engine/scheduler.py(10): schedule", gpu, host_us)
            launched = gpu + host_us + 1


def test_gaps_within_a_graph_are_no_launch_latency(tmp_path: Path) -> None:
    recorder = Recorder()
    replays(recorder, 5.0)
    idle = recorder.load(tmp_path).diagnose().idle_ns
    assert idle["within_graph"] == 12 * 39 * 5_000
    assert idle["launch_latency"] < 20_000


def test_gaps_between_replays_are_the_hosts(tmp_path: Path) -> None:
    recorder = Recorder()
    replays(recorder, 0.0, host_us=500.0)
    diagnosis = recorder.load(tmp_path).diagnose()
    assert diagnosis.idle_ns["within_graph"] == 0
    found = finding(diagnosis, "cpu_bound")
    assert "engine/scheduler.py(10): schedule" in found.why
    assert found.facts["time of host work"].value == 12 * 500_000


@pytest.mark.parametrize(("lookup_us", "found"), [(2000.0, True), (10.0, False)])
def test_guards_of_compiled_code(tmp_path: Path, lookup_us: float, found: bool) -> None:
    recorder = Recorder()
    at = 0.0
    for step in range(8):
        begin = at
        recorder.host("cpu_op", "TorchDynamo Cache Lookup", at, lookup_us)
        at += lookup_us + 5
        recorder.host("cpu_op", "Torch-Compiled Region: 0/0", at, 100)
        gpu = at + 12
        for _ in range(10):
            recorder.host("cpu_op", "triton_poi_fused_add_0", at, 8)
            kernel(recorder, at + 2, gpu, 100)
            gpu, at = gpu + 100, at + 9
        recorder.call(recorder.sync_name, at, gpu - at)
        at = gpu + 2
        recorder.host("user_annotation", f"ProfilerStep#{step}", begin, at - begin - 1)
    diagnosis = recorder.load(tmp_path).diagnose()
    assert ("guard_evaluation" in types(diagnosis)) is found
    if found:
        assert finding(diagnosis, "guard_evaluation").cost_ns == pytest.approx(16e6, rel=0.1)
        assert "TorchDynamo Cache Lookup" in finding(diagnosis, "cpu_bound").why


# ------------------------------------------------------------------------------- roles and steps


@pytest.mark.parametrize(
    ("names", "role", "kinds"),
    [
        (["execute_context_2(512)_generation_30(30)", "execute_context_0(0)_generation_32(32)"],
         "mixed", {"mixed", "decode"}),
        (["execute_3_context_1(sq512sk512sqsq262144sqsk262144)_generation_2(sq2sk900sqsq2sqsk900)"],
         "mixed", {"mixed"}),
        (["step[DECODE bs=64]"], "decode", {"decode"}),
        (["step[EXTEND bs=2 toks=900]", "step[DECODE bs=64]"], "mixed", {"prefill", "decode"}),
        (["prefill[bs=1 toks=77]"], "prefill", {"prefill"}),
        (["execute_diffusion_1_1024x1024"], "diffusion", {"diffusion"}),
        (["[Executor] _forward_step 7: 0 ctx reqs, 30 gen reqs"], "decode", {"decode"}),
        (["[Executor] _forward_step 8: 2 ctx reqs, 0 gen reqs"], "prefill", {"prefill"}),
        (["step[DECODE bs=64", "execute_context_(1)", "decode", "my step 3"], "unknown", set()),
    ],
)  # fmt: skip
def test_iterations_of_serving_engines(
    tmp_path: Path, names: list[str], role: str, kinds: set[str]
) -> None:
    recorder = Recorder()
    at = 0.0
    for number in range(12):
        recorder.host("user_annotation", names[number % len(names)], at, 900)
        correlation = recorder.call("cudaGraphLaunch", at + 10, 9)
        for place in range(10):
            recorder.gpu(correlation, at + 30 + 80 * place, 80)
        at += 1000
    trace = recorder.load(tmp_path)
    diagnosis = trace.diagnose()
    assert diagnosis.role == role
    steps = trace.steps()
    assert set(steps["kind"]) - {"unmarked"} == kinds
    if kinds:
        assert steps.num_rows == 12
        assert list(steps["name"][: len(names)]) == names


def test_each_kind_of_step_has_its_own_median(tmp_path: Path) -> None:
    recorder = Recorder()
    at = 0.0
    for number in range(12):
        prefills = number in (3, 8)
        name = f"execute_context_{2 * prefills}({512 * prefills})_generation_30(30)"
        length = 20_000.0 if prefills else 2000.0
        recorder.host("user_annotation", name, at, length)
        kernel(recorder, at + 10, at + 30, length - 40)
        at += length + 100
    trace = recorder.load(tmp_path)
    assert not any(trace.steps()["slow"])
    step = trace.diagnose().step
    assert step is not None
    assert step.kinds == {
        "decode": pytest.approx(2_100_000, rel=0.05),
        "mixed": pytest.approx(20_100_000, rel=0.05),
    }


def test_training_is_told_by_its_backward_pass(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.steps(4, 10, 50.0)
    assert recorder.load(tmp_path / "a").diagnose().role == "inference"
    recorder.host("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 20, 3)
    diagnosis = recorder.load(tmp_path / "b").diagnose()
    assert (diagnosis.role, diagnosis.framework) == ("training", "pytorch")


# ------------------------------------------------------------------------------- other files


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x80\x05\x95w\x02\x00", "pickle"),
        (b"SQLite format 3\x00\x10\x00", "SQLite"),
        (b'{"rocprofiler-sdk-tool": [{"metadata": {}}]}', "rocprofv3"),
        (b"\x0aK\x08\x01\x12\x0d/device:GPU:0\x1a*\x08\x01", "XPlane"),
        (b"\x0a\x04\x40\x10\x5a\x00\x0a\x02\x40\x11\x0a\x02\x40\x12", "Perfetto"),
        (b"PK\x03\x04\x14\x00", "zip archive"),
        (b"NVIDIA Tegra Profiler Report 2025@1@1@1.\n\x0b", "Nsight Systems"),
        (b"NVR\x00\x1c\x00\x00\x00", "Nsight Compute"),
        (b'{\n  "schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []}', "an execution trace"),
    ],
)
def test_files_of_other_tools_are_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(ParseError, match=said):
        ttap.load(path)


# ------------------------------------------------------------------------------- prices


def reading_loop(folder: Path, host_us: float) -> ttap.Diagnosis:
    """Ten steps of 30 kernels of 30 us, launched every `host_us`; an `.item()` in the middle."""
    recorder = Recorder()
    at = gpu = 0.0
    for step in range(10):
        begin = at
        for number in range(30):
            recorder.host("cpu_op", "aten::mul", at, host_us - 2)
            gpu = max(gpu, at + host_us)
            kernel(recorder, at + host_us - 8, gpu, 30)
            gpu += 30
            at += host_us
            if number == 15:
                recorder.host("cpu_op", "aten::item", at, gpu + 12 - at)
                copy = recorder.call("cudaMemcpyAsync", at + 2, 4)
                name = "Memcpy DtoH (Device -> Pinned)"
                event = recorder.gpu(copy, gpu + 1, 1, category="gpu_memcpy", name=name)
                event["args"]["bytes"] = 4
                recorder.call("cudaStreamSynchronize", at + 7, gpu + 4 - at)
                at = gpu + 13
        recorder.host("user_annotation", f"ProfilerStep#{step}", begin, at - begin - 1)
    return recorder.load(folder).diagnose()


def test_a_wait_costs_what_it_adds_to_the_usual_gap(tmp_path: Path) -> None:
    late = reading_loop(tmp_path / "late", 60.0)  # 30 us idle before every kernel
    assert late.verdicts["cpu_bound"] == "present"
    sync = late.finding("host_sync_in_loop")
    cost_ns = sync.cost_ns if sync else 0
    assert cost_ns < 10 * 50_000  # the gap behind the wait is 70 us long
    ahead = finding(reading_loop(tmp_path / "ahead", 10.0), "host_sync_in_loop")
    assert ahead.cost_ns > 10 * 20_000


def test_memory_that_is_given_back_and_taken_again_is_no_first_call(tmp_path: Path) -> None:
    def run(folder: Path, *, refills: bool) -> ttap.Diagnosis:
        recorder = Recorder()
        at = 0.0
        for number in range(40):  # every kernel has a name of its own: no loop to be seen
            recorder.host("cpu_op", "aten::mul", at, 8)
            kernel(recorder, at + 1, at + 10, 300, name=f"kernel_{number}")
            at += 320
            if number % 10 == 5:
                for call in ("cudaFree", "cudaMalloc") if refills else ("cudaMalloc",):
                    recorder.call(call, at, 400)
                    at += 410
        return recorder.load(folder).diagnose()

    thrash = run(tmp_path / "thrash", refills=True)
    assert "allocator_thrash" in types(thrash)
    grows = run(tmp_path / "grows", refills=False)
    assert "allocator_thrash" not in types(grows)
    assert "cold_start" in types(grows)


@pytest.mark.parametrize("masked", [True, False])
def test_the_mask_that_keeps_fused_attention_out_is_named(tmp_path: Path, masked: bool) -> None:
    recorder = Recorder()
    mask = [[2, 1, 512, 512]] if masked else [[]]
    at = gpu = 0.0
    for step in range(4):
        begin = at
        heads = [[2, 8, 512, 64]] * 3
        recorder.host("cpu_op", "aten::_scaled_dot_product_attention_math", at, 60,
                      **{"Input Dims": [*heads, *mask, [], []]})  # fmt: skip
        for place in range(3):
            kernel(recorder, at + 10 * place, max(gpu, at + 10 * place + 8), 400)
            gpu = max(gpu, at + 10 * place + 8) + 400
        at = gpu + 5
        recorder.host("user_annotation", f"ProfilerStep#{step}", begin, at - begin - 1)
    found = finding(recorder.load(tmp_path).diagnose(), "attention_not_fused")
    assert ("a mask of 2 by 1 by 512 by 512" in found.why) is masked
    assert "is_causal=True" in found.fix


# ------------------------------------------------------------------------------- shared cases


@needs_cases
def test_shared_cases_of_groups_roles_and_causes() -> None:
    def diagnose(name: str) -> ttap.Diagnosis:
        return ttap.load(CASES / name).diagnose()

    pairs = diagnose("late_in_one_pair")
    assert pairs.replay and pairs.step
    assert pairs.replay.measured_ns == pairs.step.measured_ns == 10_755_000
    late = finding(pairs, "straggler")
    assert (late.facts["late rank"].value, late.cost_ns) == ("3", pytest.approx(30e6, rel=0.02))
    bubble = diagnose("stages")
    assert finding(bubble, "pipeline_bubble").cost_share == pytest.approx(3 / 7, abs=0.01)
    assert set(finding(bubble, "pipeline_bubble").ranks) == {0, 1, 2, 3}
    assert bubble.further_verdicts["straggler"] != "present"
    assert "small_nccl_kernels" not in types(diagnose("hidden_all_to_alls"))
    graph = diagnose("gaps_within_a_graph").idle_ns
    assert graph["within_graph"] / sum(graph.values()) > 0.99
    frames = finding(diagnose("python_between_steps"), "cpu_bound")
    assert "48.0 ms" in frames.why and "30.0 ms" in frames.why
    experts = ttap.load(CASES / "expert_parallel")
    assert experts.timeline().exposed_communication_ns == 24_000_000
    slowed = finding(diagnose("slowed_by_a_collective"), "compute_slowed_by_communication")
    assert slowed.cost_ns == 5 * 8 * 900_000
    guards = diagnose("guards")
    assert finding(guards, "cpu_bound").cost_share == pytest.approx(0.75, abs=0.01)
    assert len(ttap.load(CASES / "two_kinds_of_steps").summary().steps) == 12
    for name in ("fused_all_reduce", "expert_parallel"):
        for each in diagnose(name).findings:
            said = f"{each.fix} {each.code}".lower()
            assert not any(word in said for word in ("ddp", "fsdp", "gradient", "bucket")), (
                each.type
            )
    for each in diagnose("jax_collectives").findings:
        assert "torch.distributed" not in f"{each.fix} {each.code}"


WAITS = {"host_sync_in_loop", "explicit_synchronize", "blocking_copy", "high_memcpy"}
COLLECTIVES = {"nccl_blocks_main_stream", "nccl_compute_not_overlapped", "small_nccl_kernels"}
LATE_HOST = {"cpu_bound", "tiny_kernels", "host_silence", "guard_evaluation"}
TRAINING = {"needless_gradient_sync", "one_bucket_ddp", "per_parameter_all_reduce",
            "unprefetched_parameters", "broadcast_buffers", "unfused_optimizer"}  # fmt: skip
ANY = None
"""Nothing at all may be found beside what is expected."""


@needs_cases
@pytest.mark.parametrize(
    ("case", "expected", "forbidden"),
    [
        ("overlong_kernels", set(), ANY),
        ("zero_timestamps", set(), ANY),
        ("gpu_records_in_two_of_32_steps", set(), ANY),
        ("first_kernels_dropped", set(), ANY),
        ("xpu_kernels_missing", set(), ANY),
        ("jax_cut_at_its_limit", set(), ANY),
        ("diff_with_lost_records/before.json.gz", set(), ANY),
        ("diff_with_lost_records/after.json.gz", set(), ANY),
        ("profiler_start_skew", set(), ANY),
        ("custom_all_reduce_waits_at_start", set(), ANY),
        ("recording_without_load", set(), ANY),
        ("two_ranks_in_one_file", set(), ANY),
        ("gaps_within_a_graph", set(), ANY),
        ("unclosed_c_calls", set(), ANY),
        ("stages", {"pipeline_bubble"}, ANY),
        ("slowed_by_a_collective", {"compute_slowed_by_communication"}, ANY),
        ("python_between_steps", {"host_between_tokens", "cpu_bound"}, ANY),
        ("guards", {"cpu_bound", "guard_evaluation"}, ANY),
        (
            "two_kinds_of_steps",
            {"host_between_tokens", "cpu_bound"},
            WAITS | COLLECTIVES | TRAINING,
        ),
        ("amd_compute_stream_missing", {"nccl_compute_not_overlapped"}, WAITS | LATE_HOST),
        ("late_in_one_pair", {"straggler"}, WAITS | LATE_HOST | TRAINING | {"rotating_pauses"}),
        ("hidden_all_to_alls", set(), COLLECTIVES | LATE_HOST | TRAINING),
        ("expert_parallel", {"nccl_blocks_main_stream"}, WAITS | LATE_HOST | TRAINING),
        ("fused_all_reduce", {"nccl_blocks_main_stream"}, WAITS | LATE_HOST | TRAINING),
        ("jax_collectives", {"nccl_blocks_main_stream"}, WAITS | LATE_HOST | TRAINING),
    ],
)
def test_what_is_and_what_must_not_be_found_in_shared_cases(
    case: str, expected: set[str], forbidden: set[str] | None
) -> None:
    found = types(ttap.load(CASES / case).diagnose())
    assert expected <= found
    assert not (found - expected if forbidden is None else found & forbidden)


@needs_cases
def test_a_token_costs_no_time_that_the_recording_leaves_unjudged() -> None:
    trace = ttap.load(CASES / "custom_all_reduce_waits_at_start")
    (phase,) = trace.serving().phases.to_dict()["rows"]
    row = dict(zip(trace.serving().phases.columns, phase, strict=True))
    assert row["gpu_busy"] > 0.99  # as the headline says
    assert row["time_per_output_token_ns"] == pytest.approx(row["median_ns"] / 64, rel=0.01)
    lengths = trace.serving().iterations["length_ns"]
    assert lengths.max() < 1.1 * row["median_ns"]
