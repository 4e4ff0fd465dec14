"""Exchanges of tokens between the ranks of a served model: matches, waits and transfers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from served_model import Served
from served_ranks import ServedRanks

import torchtraceap as ttap


def exchanges(trace: ttap.Trace) -> list[dict[str, Any]]:
    return [row for row in trace.collectives().records() if row["kind"] in ("dispatch", "combine")]


def test_every_wait_of_eight_ranks_is_found(tmp_path: Path) -> None:
    job = ServedRanks(jitter_us=3.0, expert_us={(3, 2): 40.0, (5, 4): 25.0})
    rows = ttap.load(job.write(tmp_path)).collectives().records()
    met = {place for _, place, _ in job.waits_us}
    assert len(rows) == len(met) * job.served.iterations
    assert [row["kind"] for row in rows[: len(met)]].count("dispatch") == job.served.experts
    for number, row in enumerate(rows):
        iteration, place = divmod(number, len(met))
        assert row["ranks"] == list(range(8))
        assert row["transfer_ns"] == 12_000
        waits = [round(1000 * job.waits_us[iteration, place, rank]) for rank in range(8)]
        assert row["wait_ns"] == pytest.approx(waits, abs=2)
        durations = [wait + row["transfer_ns"] for wait in row["wait_ns"]]
        assert row["duration_ns"] == durations


def test_clocks_apart_and_iterations_that_some_ranks_lack(tmp_path: Path) -> None:
    job = ServedRanks(
        served=Served(dense=1, experts=12, iterations=8),
        jitter_us=4.0,
        clocks_us=(0.0, 900.0, -4000.0, 12.0, 0.0, 77_000.0, 5.0, -350.0),
        missing={2: 1, 5: 2, 6: 3},
        expert_us={(1, 3): 30.0},
    )
    rows = ttap.load(job.write(tmp_path)).collectives().records()
    met = 1 + max(place for _, place, _ in job.waits_us)
    right = 0
    for number, row in enumerate(rows):
        iteration, place = divmod(number, met)
        ranks = [rank for rank in range(8) if iteration >= job.missing.get(rank, 0)]
        waits = [round(1000 * job.waits_us[iteration, place, rank]) for rank in ranks]
        if row["ranks"] == ranks and row["wait_ns"] == pytest.approx(waits, abs=2):
            right += 1
    assert right >= 0.99 * met * job.served.iterations


def test_one_rank_tells_waits_by_replays_of_its_graph(tmp_path: Path) -> None:
    job = ServedRanks(expert_us={(3, 2): 40.0})
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(job.traces()[0]))
    rows = exchanges(ttap.load(path))
    waits = [row["wait_ns"][0] for row in rows if row["kind"] == "combine"]
    assert waits == [0, 40_000, 0, 0, 0, 0] * job.served.iterations
    assert {row["transfer_ns"] for row in rows} == {12_000}


def test_sizes_are_read_off_names_and_annotations(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(ServedRanks().traces()[0]))
    for row in exchanges(ttap.load(path)):
        dispatch = row["kind"] == "dispatch"
        assert row["bytes"] == 64 * 7168 * (1 if dispatch else 2)
        assert row["dtype"] == ("float8_e4m3fn" if dispatch else "bfloat16")
        assert row["experts"] is None


def test_an_operator_names_the_experts(tmp_path: Path) -> None:
    def event(category: str, name: str, start: float, length: float, **args: Any) -> dict[str, Any]:
        return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start,
                "dur": length, "args": args}  # fmt: skip

    path = tmp_path / "trace.json"
    inputs = {
        "Input Dims": [[32, 4096], [32, 8], [], []],
        "Input type": ["c10::BFloat16", "long int", "Scalar", "Scalar"],
        "Concrete Inputs": ["", "", "128", "256"],
    }
    operator = "deep_ep::low_latency_dispatch"
    kernel = event("kernel", "deep_ep::internode_ll::dispatch<true, 4096>", 20, 9,
                   correlation=1, device=0, stream=7)  # fmt: skip
    kernel["pid"] = 0
    path.write_text(json.dumps({"traceEvents": [
        event("cpu_op", operator, 1, 20, **inputs),
        event("cuda_runtime", "cudaLaunchKernel", 5, 4, correlation=1),
        kernel,
    ]}))  # fmt: skip
    (row,) = exchanges(ttap.load(path))
    assert (row["experts"], row["bytes"]) == (256, 32 * 4096 * 2)


def test_two_launches_of_an_exchange_are_told_apart(tmp_path: Path) -> None:
    """The first sends in 4 us, the second receives in 9 us or more."""
    events: list[dict[str, Any]] = []
    now = 1000.0
    for iteration in range(4):
        launch = {"correlation": 10 + iteration}
        events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 1,
                       "tid": 1, "ts": now, "dur": 10.0, "args": launch})  # fmt: skip
        now += 20.0
        for layer in range(3):
            for name, length in (
                ("deep_ep::internode_ll::dispatch<true, 7168>", 4.0),
                ("deep_ep::internode_ll::dispatch<true, 7168>", 9.0 + 5.0 * layer),
                ("m_grouped_gemm", 30.0),
            ):
                events.append({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7,
                               "ts": now, "dur": length,
                               "args": launch | {"device": 0, "stream": 7}})  # fmt: skip
                now += length
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    rows = exchanges(ttap.load(path))
    assert [row["wait_ns"][0] for row in rows[:6]] == [0, 0, 0, 5_000, 0, 10_000]
    assert [row["transfer_ns"] for row in rows[:2]] == [4_000, 9_000]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (
            "void deep_ep::internode_ll::dispatch<false, false, 7168>(void*, void*, int*)",
            "dispatch",
        ),
        ("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(int4*)", "combine"),
        ("void deep_ep::intranode::notify_dispatch<8>(int const*, int*)", "dispatch"),
        ("void deep_ep::internode::cached_notify<false>(int)", "barrier"),
        ("void deep_ep::internode_ll::clean_low_latency_buffer<128>(long*, int)", "barrier"),
        ("void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)", "unknown"),
        ("uccl::internode_ll::combine<7168, 9, 4>", "combine"),
        ("hybrid_ep::dispatch_kernel<unsigned char>", "dispatch"),
        ("void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<8, false>(int*)", "dispatch"),
        ("moeA2ACombineKernel", "combine"),
        ("a2a_combine_send_kernel", "combine"),
        ("pplx::dispatchKernel<true>", "dispatch"),
        ("mori::moe::EpDispatchIntraNodeKernel<float>", "dispatch"),
        ("EpCombineInterNodeV1Kernel_bf16", "combine"),
        ("trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<8>", "all_reduce"),
        ("two_shot_all_reduce_kernel<float>", "all_reduce"),
    ],
)
def test_kernels_of_all_libraries_have_kinds(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    args = {"device": 0, "stream": 7}
    kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 1, "dur": 5,
              "args": args}  # fmt: skip
    path.write_text(json.dumps({"traceEvents": [kernel]}))
    trace = ttap.load(path)
    assert [row["kind"] for row in trace.collectives().records()] == [kind]
    assert trace.summary().timeline.compute_ns == 0


@pytest.mark.parametrize(
    "name",
    [
        "flash::flash_fwd_splitkv_combine_kernel<128>",
        "moeA2APrepareDispatchKernel",
        "void StepDispatcher(int)",
        "cub::DispatchReduce",
        "ep_scatter_kernel",
        "moe_permute_kernel",
    ],
)
def test_work_of_the_rank_itself_is_no_exchange(name: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 1, "dur": 5,
              "args": {"device": 0, "stream": 7}}  # fmt: skip
    path.write_text(json.dumps({"traceEvents": [kernel]}))
    assert not ttap.load(path).collectives().records()


def test_copies_of_ranges_on_streams_count_for_nothing(tmp_path: Path) -> None:
    """CUPTI draws each range on every stream of a replay."""
    served = Served(streams=4)
    plain = served.trace()
    copied = {**plain, "traceEvents": list(plain["traceEvents"])}
    ranges = [event for event in plain["traceEvents"] if event["cat"] == "user_annotation"]
    kernels = [event for event in plain["traceEvents"] if event["cat"] == "kernel"]
    for number, marked in enumerate(ranges):
        mine = [event for event in kernels if event["args"]["correlation"] == 100 + number]
        begin = min(event["ts"] for event in mine)
        end = max(event["ts"] + event["dur"] for event in mine)
        for stream in range(7, 11):
            copied["traceEvents"].append(
                {"ph": "X", "cat": "gpu_user_annotation", "name": marked["name"], "pid": 0,
                 "tid": stream, "ts": begin, "dur": round(end - begin, 3), "args": {}}
            )  # fmt: skip
    documents = []
    for name, content in (("plain", plain), ("copied", copied)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(content))
        trace = ttap.load(path)
        documents.append(
            (
                trace.serving().to_dict(),
                trace.summary().timeline,
                trace.steps().to_dict(),
                trace.kernels().to_dict(),
                trace.ops().to_dict(),
            )
        )
    assert documents[0] == documents[1]
