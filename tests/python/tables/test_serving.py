"""Serving engines: iterations, phases, layers, bubbles and the operators behind replays."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served_model import Served

import torchtraceap as ttap
from torchtraceap.cli import main
from torchtraceap.errors import ParseError
from torchtraceap.report.terminal import render_text
from torchtraceap.tables.serving.attribution import attribute
from torchtraceap.tables.serving.layers import KernelClasses, fold_layers
from torchtraceap.tables.serving.roles import kernel_kind


def load(served: Served, folder: Path, name: str = "trace.json") -> ttap.Trace:
    path = folder / name
    path.write_text(json.dumps(served.trace()))
    return ttap.load(path)


def records(table: Any) -> list[dict[str, Any]]:
    document = table.to_dict()
    return [dict(zip(document["columns"], row, strict=True)) for row in document["rows"]]


# ----------------------------------------------------------------------------- the first screen


def test_the_first_screen_says_what_a_token_costs(tmp_path: Path) -> None:
    served = Served(dense=1, experts=7, iterations=9)
    trace = load(served, tmp_path)
    diagnosis = trace.diagnose()
    time = diagnosis.serving
    assert time is not None and time == trace.serving().time
    row = records(trace.serving().phases)[0]
    assert time.iteration_ns == row["median_ns"] and time.layers == 8
    assert time.time_per_output_token_ns == pytest.approx(row["time_per_output_token_ns"])
    layers = [each for each in records(trace.serving().layers) if each["layer"] is not None]
    assert time.layer_ns == round(sum(each["gpu_ns"] for each in layers) / 8)
    line = re.sub(r"\s+", " ", render_text(diagnosis))
    assert re.search(
        r"decode: [\d.]+ ms/iteration, 64 requests, [\d.]+ µs a token; 8 layers x [\d.]+ µs; "
        r"exchange [\d.]+ % \(wait [\d.]+ %\); bubble [\d.]+ %",
        line,
    )
    assert "Iteration " in line and "mean of 7 iterations" in line and " per step" not in line
    assert diagnosis.to_dict()["serving"] == time.to_dict()
    note = next(note for note in trace.steps().notes if "serving engine" in note)
    assert note == "Each step is an iteration that the serving engine marked."


def test_the_first_screen_leaves_out_what_is_not_known(tmp_path: Path) -> None:
    served = Served(iterations=1, annotation="execute_diffusion_1_1024x1024")
    time = load(served, tmp_path).diagnose().serving
    assert time is not None and time.time_per_output_token_ns is None
    assert time.bubble_share is None and "bubble" not in str(time) and "token" not in str(time)


def test_training_has_no_line_of_serving(tmp_path: Path) -> None:
    served = Served(annotation="ProfilerStep#{batch}")
    diagnosis = load(served, tmp_path).diagnose()
    assert diagnosis.serving is None and "serving" not in diagnosis.to_dict()
    assert diagnosis.step is not None and diagnosis.step.unit == "step"
    assert "Step " in render_text(diagnosis)


# ----------------------------------------------------------------------------- iterations


@pytest.mark.parametrize(
    ("annotation", "engine", "phase", "requests", "tokens_in", "tokens_out", "graph_batch"),
    [
        ("execute_context_0(0)_generation_{batch}({batch})", "vllm", "decode", 64, 0, 64, None),
        ("execute_context_2(512)_generation_62(62)", "vllm", "mixed", 64, 512, 62, None),
        ("execute_context_0(0)_generation_32(128)", "vllm", "speculative", 32, 0, None, None),
        ("step[DECODE bs={batch}]", "sglang", "decode", 64, 0, 64, None),
        ("step[EXTEND bs=2 toks=700]", "sglang", "prefill", 2, 700, 0, None),
        ("step[TARGET_VERIFY bs=2]", "sglang", "speculative", 2, 0, None, None),
        ("decode[bs=50/{batch} tok=50 d=50]", "atom", "decode", 50, 0, 50, 64),
        ("execute_diffusion_1_1024x1024", "xdit", "diffusion", 1, None, None, None),
        (
            "[Executor] _forward_step 9: 0 ctx reqs, 64 gen reqs",
            "tensorrt-llm",
            "decode",
            64,
            0,
            64,
            None,
        ),
    ],
)
def test_annotations_tell_iterations(
    annotation: str,
    engine: str,
    phase: str,
    requests: int,
    tokens_in: int | None,
    tokens_out: int | None,
    graph_batch: int | None,
    tmp_path: Path,
) -> None:
    document = load(Served(annotation=annotation), tmp_path).serving().to_dict()
    assert document["engine"] == engine
    assert len(document["iterations"]) == 6
    for row in document["iterations"]:
        assert (row["phase"], row["requests"]) == (phase, requests)
        assert (row["tokens_in"], row["tokens_out"]) == (tokens_in, tokens_out)
        assert row["graph_batch"] == graph_batch


def test_one_iteration_is_one(tmp_path: Path) -> None:
    trace = load(Served(iterations=1), tmp_path)
    assert len(trace.serving().iterations) == 1
    assert [step.kind for step in trace.ranks[0].tree.steps] == ["decode"]


def test_lengths_sum_to_the_time_that_passes(tmp_path: Path) -> None:
    served = Served(iterations=5)
    result = load(served, tmp_path).serving()
    rows = records(result.iterations)
    first, last = rows[0], rows[-1]
    passed = last["gpu_start_ns"] + last["gpu_duration_ns"] - first["gpu_start_ns"]
    assert sum(row["length_ns"] for row in rows) == passed
    for row in rows[1:]:
        assert row["length_ns"] == row["bubble_ns"] + row["gpu_duration_ns"]
    (phase,) = records(result.phases)
    assert phase["time_per_output_token_ns"] == round(passed / (5 * 64))
    assert phase["tokens_per_s"] == pytest.approx(5 * 64 / (passed / 1e9))


def test_graphs_tell_iterations_where_nothing_is_marked(tmp_path: Path) -> None:
    document = load(Served(annotation="forward"), tmp_path).serving().to_dict()
    assert document["engine"] is None
    assert len(document["iterations"]) >= 5


# ----------------------------------------------------------------------------- bubbles


@pytest.mark.parametrize(
    ("frame", "cause"),
    [
        ("vllm/v1/core/sched/scheduler.py(300): schedule", "scheduling"),
        ("vllm/v1/worker/gpu_model_runner.py(9): _prepare_inputs", "input_preparation"),
        ("vllm/v1/sample/sampler.py(40): forward", "sampling"),
        ("vllm/v1/engine/detokenizer.py(8): update", "detokenizing"),
        ("zmq/sugar/socket.py(700): recv", "waiting"),
        ("Garbage collection", "garbage_collection"),
        ("my_server.py(3): handle", "other_host_work"),
    ],
)
@pytest.mark.parametrize("delay_us", [100.0, 5000.0])
def test_a_delay_of_the_host_is_found_in_its_bubble(
    frame: str, cause: str, delay_us: float, tmp_path: Path
) -> None:
    plain = load(Served(), tmp_path, "plain.json").serving().to_dict()
    late = load(Served(delays_us={3: (frame, delay_us)}), tmp_path, "late.json").serving().to_dict()

    def spent(document: dict[str, Any]) -> int:
        return sum(bubble["causes"].get(cause, 0) for bubble in document["bubbles"])

    for bubble in late["bubbles"]:
        assert sum(bubble["causes"].values()) == bubble["end_ns"] - bubble["start_ns"]
    assert spent(late) - spent(plain) == pytest.approx(delay_us * 1000, rel=0.02)
    gaps = [row["bubble_ns"] for row in late["iterations"]]
    assert gaps[3] - gaps[2] == pytest.approx(delay_us * 1000, rel=0.02)


# ----------------------------------------------------------------------------- layers


@pytest.mark.parametrize(
    ("dense", "experts"), [(4, 0), (36, 0), (0, 24), (3, 58), (1, 26), (16, 16)]
)
def test_layers_are_counted(dense: int, experts: int, tmp_path: Path) -> None:
    served = Served(dense=dense, experts=experts, iterations=2)
    document = load(served, tmp_path).serving().to_dict()
    assert document["layers"]["count"] == dense + experts
    assert document["layers"]["covered_share"] > 0.9


def test_roles_are_those_of_the_model(tmp_path: Path) -> None:
    served = Served(dense=3, experts=10, iterations=1)
    part = load(served, tmp_path).ranks[0]
    found = attribute(part)
    expected = [role for (_, _, role), _ in served.kernels()]
    layers = [-1 if layer is None else layer for _, layer in served.kernels()]
    assert found.role.to_list() == expected
    assert found.layer.tolist() == layers


def test_layers_keep_a_kernel_that_is_fused_elsewhere() -> None:
    names = np.array([9, *(list(range(8)) * 12)])
    names = np.delete(names, 4)  # the first layer lacks one
    names[50] = 99  # and one kernel bears another name
    layer = fold_layers(names, classes(names))
    assert layer.max() + 1 == 12


def test_layers_that_take_turns_are_counted_apart() -> None:
    window = [0, 1, 2, 3, 4, 0, 5, 6]
    full = [0, 1, 7, 3, 4, 0, 5, 6]
    names = np.array((window + full) * 12)
    found = KernelClasses(
        norm=names == 0, attention=np.isin(names, [3]), product=np.isin(names, [1, 4, 5])
    )
    assert fold_layers(names, found).max() + 1 == 24


def classes(names: Any) -> KernelClasses:
    return KernelClasses(norm=names == 0, attention=names == 3, product=np.isin(names, [1, 4, 6]))


def test_sequences_without_layers_have_none() -> None:
    rng = random.Random(7)
    for _ in range(100):
        kinds = rng.randint(3, 40)
        names = np.array([rng.randrange(kinds) for _ in range(rng.randint(50, 2000))])
        assert (fold_layers(names, classes(names)) == -1).all()


def test_a_product_and_a_collective_in_turn_are_no_layers() -> None:
    names = np.array([1, 2] * 32)
    nothing = np.zeros(len(names), dtype=bool)
    found = KernelClasses(norm=nothing, attention=nothing, product=names == 1)
    assert (fold_layers(names, found) == -1).all()


def test_training_has_no_layers(tmp_path: Path) -> None:
    trace = Served().trace()
    trace["traceEvents"].append(
        {"ph": "X", "cat": "user_annotation", "name": "Optimizer.step#AdamW.step", "pid": 1,
         "tid": 1, "ts": 900.0, "dur": 5.0, "args": {}}
    )  # fmt: skip
    (tmp_path / "training.json").write_text(json.dumps(trace))
    document = ttap.load(tmp_path / "training.json").serving().to_dict()
    assert document["layers"]["count"] is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("flash::flash_fwd_splitkv_combine_kernel", "attention"),
        ("flashinfer::BatchDecodeWithPagedKVCacheKernel", "attention"),
        ("deep_ep::internode_ll::combine", "combine"),
        ("flashinfer::sampling::TopKTopPSamplingFromProbKernel", "sampling"),
        ("triton_red_fused_add_rms_norm_2", "norm"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu", "experts"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "all_reduce"),
        ("Memcpy DtoD (Device -> Device)", "metadata"),
    ],
)
def test_names_tell_kinds(name: str, kind: str) -> None:
    assert kernel_kind(name) == kind


# ----------------------------------------------------------------------------- annotations


def known_of(trace: ttap.Trace, eager: Path | None = None) -> list[tuple[str, str, int, str]]:
    """Return operator, module, layer and role of each kernel in the order of the nodes."""
    part = trace.ranks[0]
    rows = part.tree.gpu_rows
    nodes, _ = part.table.int_column("graph node id", rows=rows)
    found = attribute(part, eager=eager)
    order = np.lexsort((part.table.ts_ns[rows], nodes)).tolist()
    columns = (found.operator.to_list(), found.module.to_list(), found.layer.tolist())
    return [tuple(column[place] for column in (*columns, found.role.to_list())) for place in order]


def annotated(served: Served) -> list[tuple[str, str, int, str]]:
    found = []
    for (operator, _, role), layer in served.kernels():
        module = role if layer is None else f"model.layers.{layer}.{role}"
        found += [(operator, module, -1 if layer is None else layer, role)] * served.iterations
    return found


SHUFFLED = Served(dense=2, experts=5, node_ids=True, streams=4, iterations=3)


def test_annotations_that_torch_wrote_are_known(tmp_path: Path) -> None:
    torch_writer = pytest.importorskip("torch.cuda._annotate_cuda_graph_trace")
    document = SHUFFLED.trace()
    # torch finds nodes by `graph node id` alone.
    assert torch_writer.annotate_trace(document, SHUFFLED.annotations(whole=False)) > 0
    (tmp_path / "trace.json").write_text(json.dumps(document))
    trace = ttap.load(tmp_path / "trace.json")
    assert trace.serving().attribution["annotation"] == 1.0
    assert known_of(trace) == annotated(SHUFFLED)
    assert trace.serving().layers.facts["count"] == 7


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("folder", [".", "..", "capture_traces"])
def test_annotations_beside_the_trace_are_known(
    protocol: int, whole: bool, folder: str, tmp_path: Path
) -> None:
    (tmp_path / "traces").mkdir()
    place = tmp_path / "traces" / folder
    place.mkdir(parents=True, exist_ok=True)
    noted = defaultdict(list, SHUFFLED.annotations(whole=whole))
    data = pickle.dumps(noted, protocol)
    (place / "kernel_annotations_rank0_step_8.pkl").write_bytes(data)
    (place / "kernel_annotations_rank1_step_8.pkl").write_bytes(b"of another rank")
    trace = load(SHUFFLED, tmp_path / "traces")
    given = tmp_path / "traces" / folder if folder == "capture_traces" else None
    assert trace.serving(capture=given).attribution["annotation"] == 1.0
    if given is None:
        assert known_of(trace) == annotated(SHUFFLED)


def test_stacks_of_the_capture_are_known(tmp_path: Path) -> None:
    path = tmp_path / "kernel_py_stacks.json.gz"
    path.write_bytes(gzip.compress(json.dumps(SHUFFLED.stacks()).encode()))
    trace = load(SHUFFLED, tmp_path)
    for given in (None, path):
        rows = records(trace.kernels(by="event", capture=given))
        lines = {row["stack"] for row in rows}
        assert lines == set(SHUFFLED.stacks().values())


def test_a_backward_pass_in_a_graph_is_told(tmp_path: Path) -> None:
    noted = SHUFFLED.annotations()
    for marks in list(noted.values())[:10]:
        marks[0]["autograd_phase"] = "backward"
    (tmp_path / "annotations.pkl").write_bytes(pickle.dumps(noted))
    rows = records(load(SHUFFLED, tmp_path).kernels(by="event"))
    assert sum(row["phase"] == "backward" for row in rows) == 10 * SHUFFLED.iterations


@pytest.mark.parametrize(
    ("marks", "operator", "module", "layer"),
    [
        ([{"str": "model.layers.7.mlp"}], None, "model.layers.7.mlp", 7),
        ([{"name": "attention"}], "attention", None, -1),
        (["linear"], "linear", None, -1),
        ([{"name": "h.2.attn", "Collective name": "allreduce"}], "allreduce", None, -1),
        ([{"name": "a"}, {"name": "b", "module_fqn": "stage.1.blocks.12.ffn"}], "b",
         "stage.1.blocks.12.ffn", 12),
    ],
)  # fmt: skip
def test_what_fields_mean(
    marks: list[Any], operator: str | None, module: str | None, layer: int, tmp_path: Path
) -> None:
    served = Served(dense=4, node_ids=True, iterations=1)
    noted = dict.fromkeys(served.annotations(), marks)
    (tmp_path / "annotations.pkl").write_bytes(pickle.dumps(noted))
    for row in known_of(load(served, tmp_path)):
        assert row[0] == operator
        assert module is None or row[1] == module
        assert layer < 0 or row[2] == layer


class Caller:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.mkdir, (Path("called"),))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"no pickle", pickle.dumps(Caller()), pickle.dumps({1: [Caller()]}),
        pickle.dumps({1: [b"bytes"]}), pickle.dumps([1]), pickle.dumps({"a": []}),
        pickle.dumps({1: 2}), pickle.dumps({((1,),): []}), pickle.dumps({1: []})[:-3],
        b"\x80\x04\x8d" + b"\xff" * 8 + b"a.",
    ],
)  # fmt: skip
def test_pickles_of_other_things_are_refused(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "annotations.pkl").write_bytes(data)
    result = load(SHUFFLED, tmp_path).serving()
    assert result.attribution["annotation"] == 0.0
    assert any("Annotations were left out" in note for note in result.notes)
    assert not (tmp_path / "called").exists()


def test_lists_of_a_pickle_are_taken_flat_and_once(tmp_path: Path) -> None:
    """A few bytes may describe a list without end, or one that is as long as memory if written."""
    endless: list[Any] = []
    endless.append(endless)
    doubling: list[Any] = [1]
    for _ in range(60):
        doubling = [doubling, doubling]
    served = Served(dense=2, node_ids=True)
    odd = {"In split size": doubling, "dtype": endless, "Process Group Ranks": [0] * 10**5}
    noted = {
        key: [*marks, {**odd, "Collective name": "allreduce"}]
        for key, marks in served.annotations().items()
    }
    (tmp_path / "annotations.pkl").write_bytes(pickle.dumps(noted))
    trace = load(served, tmp_path)
    assert {row[0] for row in known_of(trace)} == {"allreduce"}
    assert trace.collectives().num_rows > 0


@pytest.mark.parametrize("text", ['{"1": 2}', '{"1": ["a", 3]}', '{"1": "a"', '{"1x": "a"}'])
def test_damaged_stacks_are_left_out(text: str, tmp_path: Path) -> None:
    (tmp_path / "kernel_py_stacks.json").write_text('{"1": "a", ' + text[1:])
    notes = load(SHUFFLED, tmp_path).serving().notes
    assert any("Stacks were left out" in note for note in notes)


def test_a_replay_that_was_cut_off_is_known_by_its_nodes(tmp_path: Path) -> None:
    served = Served(dense=12, node_ids=True, iterations=3)
    path = served.write(tmp_path)
    document = served.trace()
    document["traceEvents"] = document["traceEvents"][: -len(served.kernels()) // 2]
    path.write_text(json.dumps(document))
    trace = ttap.load(path)
    shares = trace.serving().attribution
    assert shares["node"] > 0.1
    assert shares["node"] + shares["capture"] == pytest.approx(1.0)
    told = {(row["name"], row["operator"]) for row in records(trace.kernels(by="event"))}
    assert told == {(kernel, operator) for (operator, kernel, _), _ in served.kernels()}
    rows = records(trace.kernels(by="event"))
    outside = {row["name"] for row in rows if row["attribution"] == "node" and row["layer"] is None}
    assert outside == {served.kernels()[0][0][1]}


def test_a_node_of_another_graph_or_name_tells_nothing(tmp_path: Path) -> None:
    served = Served(dense=12, node_ids=True, iterations=2)
    document = served.trace()
    kernels = [event for event in document["traceEvents"] if event["cat"] == "kernel"]
    for number, event in enumerate(kernels[len(kernels) // 2 :]):
        if number % 2:
            event["args"]["graph id"] = 4
        else:
            event["name"] = f"other_{number}"
    (tmp_path / "trace.json").write_text(json.dumps(document))
    noted = {3 << 32 | 5000 + node: ["a"] for node in range(len(served.kernels()))}
    (tmp_path / "annotations.pkl").write_bytes(pickle.dumps(noted))
    for event in kernels[len(kernels) // 2 :]:
        event["args"]["graph node id"] += 1 << 20
    (tmp_path / "trace.json").write_text(json.dumps(document))
    shares = ttap.load(tmp_path / "trace.json").serving().attribution
    assert shares["node"] == 0.0


# ----------------------------------------------------------------------------- captures


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("streams", [1, 4])
def test_a_capture_tells_operators(named: bool, streams: int, tmp_path: Path) -> None:
    served = Served(dense=2, experts=6, node_ids=True, streams=streams, iterations=2)
    trace = ttap.load(served.write(tmp_path, named=named))
    result = trace.serving()
    assert result.attribution["capture"] == 1.0
    found = attribute(trace.ranks[0])
    order = np.argsort(
        trace.ranks[0].table.int_column("graph node id", rows=trace.ranks[0].tree.gpu_rows)[0],
        kind="stable",
    )
    operators = [found.operator.to_list()[place] for place in order.tolist()]
    expected = [operator for (operator, _, _), _ in served.kernels() for _ in range(2)]
    assert operators == expected
    rows = records(trace.kernels(by="event"))
    assert {row["attribution"] for row in rows} == {"capture"}
    assert {row["module"] for row in rows} >= {"DecoderLayer_0", "DecoderLayer_7"}


def test_the_roofline_counts_replayed_kernels_for_their_operators(tmp_path: Path) -> None:
    served = Served(dense=4, node_ids=True, iterations=3)
    path = served.write(tmp_path)
    capture = json.loads((tmp_path / "capture_traces" / "graph.json").read_text())
    for event in capture["traceEvents"]:
        if event["name"] == "aten::mm":
            event["args"] |= {
                "Input Dims": [[64, 4096], [4096, 1024]],
                "Input type": ["c10::BFloat16", "c10::BFloat16"],
            }
    (tmp_path / "capture_traces" / "graph.json").write_text(json.dumps(capture))
    trace = ttap.load(path)
    table = trace.roofline()
    rows = {row["name"]: row for row in records(table)}
    products = [kernel for kernel, _ in served.kernels() if kernel[0] == "aten::mm"]
    product = rows["aten::mm"]
    assert product["count"] == 3 * len(products)
    assert product["flops"] == 2 * 64 * 4096 * 1024
    assert product["dims"] == [[64, 4096], [4096, 1024]]
    assert product["attribution"] == "capture"
    durations = trace.ranks[0].table.dur_ns[trace.ranks[0].tree.gpu_rows]
    assert sum(row["gpu_ns"] for row in rows.values()) == durations.sum()
    assert rows["vllm::unified_attention"]["count"] == 3 * 8
    assert "cudaGraphLaunch" not in rows
    (tmp_path / "capture_traces" / "graph.json").write_text("{}")
    alone = {row["name"]: row for row in records(ttap.load(path).roofline())}
    assert alone["cudaGraphLaunch"]["attribution"] == "layer"


def test_attention_in_a_graph_takes_its_lengths_from_the_iteration(tmp_path: Path) -> None:
    served = Served(
        dense=4, iterations=2, annotation="step[DECODE bs={batch} g_sqsq=64 g_sqsk=6400 g_sk=6400]"
    )
    path = served.write(tmp_path)
    capture = served.capture()
    for event in capture["traceEvents"]:
        if event["name"] == "vllm::unified_attention":
            event["args"] = {
                "Input Dims": [[64, 8, 128], [64, 2, 128], [64, 2, 128], [64, 8, 128]],
                "Input type": ["c10::BFloat16"] * 4,
            }
    (tmp_path / "capture_traces" / "graph.json").write_text(json.dumps(capture))
    rows = {row["name"]: row for row in records(ttap.load(path).roofline())}
    attention = rows["vllm::unified_attention"]
    assert attention["attribution"] == "capture"
    assert attention["flops"] == 2 * 6400 * (8 * 128 * 2)
    assert attention["upper_bound"]


@pytest.mark.parametrize(
    ("kernel", "n", "k"),
    [
        ("deep_gemm::fp8_gemm_kernel<4096u, 7168u, 128u, 160u, 128u, 0u, 64u, 9u, 4u, 128u, 128u, "
         "1u, true, (deep_gemm::GemmType)0>(__nv_bfloat16*, float*)", 4096, 7168),
        ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 4096u, 1024u, 1u, "
         "256u, 128u, 128u, true, 132u, (deep_gemm::GemmType)0, "
         "deep_gemm::epilogue::transform::EpilogueIdentity>(float*, int*)", 4096, 1024),
        # Experts, shapes that are arguments, no template arguments, and others' kernels tell none.
        ("deep_gemm::fp8_gemm_kernel<4096u, 7168u, 128u, (deep_gemm::GemmType)1>(int)", 0, 0),
        ("deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 0u, 0u, 1u, "
         "(deep_gemm::GemmType)0>(int)", 0, 0),
        ("deep_gemm::fp8_gemm_kernel<(deep_gemm::GemmType)0>(int)", 0, 0),
        ("other::fp8_gemm_kernel<4096u, 7168u, (deep_gemm::GemmType)0>(int)", 0, 0),
    ],
)  # fmt: skip
def test_names_of_replayed_products_tell_their_shapes(
    kernel: str, n: int, k: int, tmp_path: Path
) -> None:
    served = Served(dense=4, iterations=2, batch=48)
    document = served.trace()
    replaced = 0
    for event in document["traceEvents"]:
        if event["name"].startswith("nvjet_tst_128x8"):
            event["name"] = kernel
            replaced += 1
    (tmp_path / "trace.json").write_text(json.dumps(document))
    trace = ttap.load(tmp_path / "trace.json")
    rows = [row for row in records(trace.roofline()) if row["dims"] is not None]
    if not n:
        assert not rows
        return
    (row,) = rows
    assert (row["count"], row["dims"]) == (replaced, [[48, k], [n, k]])
    assert row["flops"] == 2 * 48 * n * k
    assert row["bytes"] > n * k + 48 * (k + 2 * n)
    assert row["family"] == "gemm" and not row["upper_bound"]
    # A prompt is cut for its last product: its rows are not those of the batch.
    document = json.dumps(document).replace("execute_context_0(0)", "execute_context_1(90)")
    (tmp_path / "trace.json").write_text(document)
    mixed = ttap.load(tmp_path / "trace.json").roofline()
    assert all(row["dims"] is None for row in records(mixed))


def test_tiles_of_replayed_products_bound_their_shapes(tmp_path: Path) -> None:
    served = Served(dense=4, iterations=2, batch=48)
    document = served.trace()
    for event in document["traceEvents"]:
        if event["name"].startswith("nvjet_tst_128x8"):
            event["name"] = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn"
            event["args"] |= {"grid": [32, 1, 1], "block": [128, 1, 1]}
    (tmp_path / "trace.json").write_text(json.dumps(document))
    rows = records(ttap.load(tmp_path / "trace.json").roofline())
    (row,) = (row for row in rows if row["name"].startswith("ampere_"))
    assert row["why_not"] == "the kernel's name tells no k, but rows 48, n 3969 to 4096"
    assert (row["count"], row["flops"], row["has_model"]) == (8, None, False)
    assert row["gpu_ns"] == 8 * 20_000 and row["family"] == "gemm"


def test_tables_say_on_what_evidence(tmp_path: Path) -> None:
    served = Served(dense=2, node_ids=True, iterations=2)
    trace = ttap.load(served.write(tmp_path))
    for table in (trace.kernels(), trace.kernels(by="canonical"), trace.modules()):
        told = [row["attribution"] for row in records(table)]
        assert "capture" in told and set(told) <= {"capture", None}
    for by in ("name", "args", "category", "call"):
        told = [row["attribution"] for row in records(trace.ops(by=by))]
        assert "capture" in told and set(told) <= {"capture", None}
    eager = tmp_path / "eager.json"
    eager.write_text(json.dumps(served.eager()))
    told = [row["attribution"] for row in records(ttap.load(eager).ops())]
    assert set(told) == {"launch"}


def test_one_dispatch_more_loses_no_other(tmp_path: Path) -> None:
    served = Served(dense=12, iterations=1)
    path = served.write(tmp_path)
    capture = served.capture()
    events = capture["traceEvents"]
    extra = dict(next(each for each in events if each["name"] == "cudaLaunchKernel"))
    extra["args"] = {"kernel": "warm_up_kernel"}
    extra["ts"] = events[1]["ts"] + 2.0
    events.insert(2, extra)
    (tmp_path / "capture_traces" / "graph.json").write_text(json.dumps(capture))
    assert ttap.load(path).serving().attribution["capture"] == 1.0


def test_captures_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    served = Served(dense=12, iterations=1)
    path = served.write(tmp_path)
    graph = tmp_path / "capture_traces" / "graph.json"
    others = {
        "another model": Served(experts=12, dense=0).capture(),
        "a smaller batch": served.capture(batch=32),
        "cut off": {"traceEvents": served.capture()["traceEvents"][:100]},
    }
    for what, capture in others.items():
        graph.write_text(json.dumps(capture))
        result = ttap.load(path).serving()
        assert result.attribution["capture"] == 0.0, what
        assert any("capture fits" in note for note in result.notes), what


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, '[{"file": 3, "batch_size": "x"}]', "[1]"]
)
def test_damaged_details_of_captures_cost_nothing(text: str, tmp_path: Path) -> None:
    path = Served(iterations=1).write(tmp_path)
    (tmp_path / "capture_traces" / "execution_details.json").write_text(text)
    assert ttap.load(path).serving().attribution["capture"] == 1.0


def test_what_is_no_trace_among_captures_is_said(tmp_path: Path) -> None:
    path = Served(iterations=1).write(tmp_path)
    (tmp_path / "capture_traces" / "graph.json").write_text('{"a": 1}')
    notes = ttap.load(path).serving().notes
    assert any("graph.json is no trace of a capture" in note for note in notes)


# ----------------------------------------------------------------------------- twins


@pytest.mark.parametrize("prefill", [False, True])
@pytest.mark.parametrize("streams", [1, 4])
def test_an_eager_twin_tells_operators(prefill: bool, streams: int, tmp_path: Path) -> None:
    served = Served(dense=2, experts=6, node_ids=True, streams=streams, iterations=2)
    twin = tmp_path / "eager.json"
    twin.write_text(json.dumps(served.eager(prefill=prefill)))
    trace = load(served, tmp_path)
    assert trace.serving().attribution["twin"] == 0.0
    found = known_of(trace, twin)
    kernels = [each for each in served.kernels() for _ in range(served.iterations)]
    lost = 0
    for (operator, module, layer, _), ((expected, kernel, _), number) in zip(
        found, kernels, strict=True
    ):
        if prefill and "combine_kernel" in kernel and operator is None:
            lost += 1  # a prefill has no counterpart of the kernel that joins split attention
            continue
        assert operator == expected, kernel
        assert number is None or (module, layer) == (f"DecoderLayer_{number}", number)
    assert lost == (16 if prefill else 0)
    share = trace.serving(eager=twin).attribution["twin"]
    assert share > 0.9 if prefill else share == 1.0


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (Served(dense=8), "it has 8 layers, the model in the graphs has 12 layers"),
        (Served(dense=0, experts=12), "kernels align"),
        (Served(dense=0), "no iteration launches"),
    ],
)
def test_a_twin_of_another_model_is_refused(other: Served, reason: str, tmp_path: Path) -> None:
    twin = tmp_path / "eager.json"
    twin.write_text(json.dumps(other.eager()))
    result = load(Served(dense=12), tmp_path).serving(eager=twin)
    assert result.attribution["twin"] == 0.0
    assert any("eager.json is no twin" in note and reason in note for note in result.notes)


def test_what_is_no_twin_is_said(tmp_path: Path) -> None:
    trace = load(Served(), tmp_path)
    notes = trace.serving(eager=tmp_path / "trace.json").notes
    assert any("no iteration launches its kernels itself" in note for note in notes)
    with pytest.raises(ParseError):
        trace.serving(eager=tmp_path / "none.json")


def test_the_command_prints_what_the_function_returns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = Served()
    path = served.write(tmp_path)
    assert main(["serving", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads(ttap.load(path).serving().to_json())
    assert main(["serving", str(path), "--phase", "decode"]) == 0
    text = capsys.readouterr().out
    assert "decode" in text and "4 layers" in text
    assert main(["serving", str(path), "--capture", str(tmp_path / "none")]) == 2
    assert main(["serving", str(path), "--eager", str(tmp_path / "none")]) == 2


def test_operators_and_modules_of_a_capture_have_the_time_of_its_replays(tmp_path: Path) -> None:
    served = Served(dense=3)
    trace = ttap.load(served.write(tmp_path))
    busy_ns = trace.ranks[0].timeline().busy_ns
    ops = {row["name"]: row for row in records(trace.ops())}
    products = sum(operator == "aten::mm" for (operator, _, _), _ in served.kernels())
    assert ops["aten::mm"]["kind"] == "replayed operator"
    assert ops["aten::mm"]["count"] == ops["aten::mm"]["gpu_events"] == 6 * products
    assert ops["aten::mm"]["exclusive_gpu_ns"] == 6 * products * 20_000
    assert ops["cudaGraphLaunch"]["exclusive_gpu_ns"] == 0
    assert ops["cudaGraphLaunch"]["subtree_gpu_ns"] == busy_ns
    assert ops["cudaGraphLaunch"]["launches"] == 6
    for by in ("name", "args", "category", "call"):
        assert trace.ops(by=by)["exclusive_gpu_ns"].sum() == busy_ns, by
    families = {row["family"]: row for row in records(trace.ops(by="category"))}
    assert families["gemm"]["exclusive_gpu_ns"] == ops["aten::mm"]["exclusive_gpu_ns"]
    calls = [row for row in records(trace.ops(by="call")) if row["kind"] == "replayed operator"]
    assert {row["module"] for row in calls} == {None, *(f"DecoderLayer_{i}" for i in range(3))}
    modules = {row["module"]: row for row in records(trace.modules())}
    layer = sum(row["exclusive_gpu_ns"] for row in calls if row["module"] == "DecoderLayer_1")
    assert modules["DecoderLayer_1"]["own_gpu_ns"] == layer > 0
    assert modules["DecoderLayer_1"]["attribution"] == "capture"
    assert sum(row["own_gpu_ns"] for row in modules.values()) == busy_ns
    roots = [row for row in modules.values() if row["parent_id"] is None]
    assert sum(row["gpu_ns"] for row in roots) == busy_ns


def test_names_of_annotated_modules_are_a_tree(tmp_path: Path) -> None:
    served = Served(dense=2, node_ids=True)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(served.trace()))
    (tmp_path / "kernel_annotations.pkl").write_bytes(pickle.dumps(served.annotations()))
    trace = ttap.load(path)
    modules = {row["module"]: row for row in records(trace.modules())}
    below = [row["gpu_ns"] for name, row in modules.items() if name.startswith("model.layers.1.")]
    assert len(below) > 4
    assert modules["model.layers.1"]["gpu_ns"] == sum(below)
    assert modules["model.layers.1"]["own_gpu_ns"] == 0
    busy_ns = trace.ranks[0].timeline().busy_ns
    assert sum(row["own_gpu_ns"] for row in modules.values()) == busy_ns
    assert trace.ops()["exclusive_gpu_ns"].sum() == busy_ns
    document = served.trace()
    document["traceEvents"] = [
        event for event in document["traceEvents"] if event["cat"] != "user_annotation"
    ]
    path.write_text(json.dumps(document))
    assert ttap.load(path).modules().facts["source"] == "graphs"


def test_the_first_screen_says_how_much_has_an_operator(tmp_path: Path) -> None:
    trace = ttap.load(Served(dense=3).write(tmp_path))
    diagnosis = trace.diagnose()
    assert diagnosis.serving is not None
    line = "operator known for 100 % of GPU time: capture 100 %"
    assert diagnosis.serving.operators_line == line
    assert line in str(diagnosis)
    assert diagnosis.to_dict()["serving"]["operators"]["capture"] == 1.0


def test_messages_of_replayed_collectives_come_from_annotations(tmp_path: Path) -> None:
    served = Served(dense=2, node_ids=True)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(served.trace()))
    before = records(ttap.load(path).collectives())
    assert len(before) == 24 and all(row["bytes"] is None for row in before)
    noted = served.annotations()
    message = {
        "Collective name": "allreduce",
        "In msg nelems": 64 * 4096,
        "Out msg nelems": 64 * 4096,
        "dtype": "BFloat16",
        "Group size": 8,
        "Process Group Name": "tp",
        "Process Group Ranks": list(range(8)),
        "stream": 61,
    }
    for (operator, _, _), fields in zip(
        (kernel for kernel, _ in served.kernels()), noted.values(), strict=True
    ):
        if operator == "vllm::all_reduce":
            fields[0] |= message
    (tmp_path / "kernel_annotations.pkl").write_bytes(pickle.dumps(noted))
    trace = ttap.load(path)
    rows = records(trace.collectives())
    assert len(rows) == 24
    for row in rows:
        assert row["kind"] == "all_reduce" and row["group"] == "tp" and row["group_size"] == 8
        assert row["bytes"] == 2 * 64 * 4096 and row["dtype"] == "bfloat16"
        assert row["stream"] == 61
        name = trace.ranks[0].table.name_of(row["row"][0])
        assert "cross_device_reduce" in name
