"""Execution traces: both layouts, dependencies of hand-made calls, links to a Kineto trace."""

from __future__ import annotations

import gzip
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

import torchtraceap
from torchtraceap.errors import MissingFileError, ParseError
from torchtraceap.trace.execution import ExecutionTrace, load_execution_trace

Json = dict[str, Any]
RAW, WAR, WAW = "read_after_write", "write_after_read", "write_after_write"


def tensor(
    storage: int, offset: int = 0, elements: int = 8, item: int = 4, device: str = "cuda:0"
) -> list[Any]:
    return [1000 + storage, storage, offset, elements, item, device]


def call(
    node: int,
    name: str,
    inputs: list[Any] | None = None,
    outputs: list[Any] | None = None,
    *,
    parent: int = 2,
    schema: str = "",
    scope: int = 0,
    thread: int = 1,
    strides: list[Any] | None = None,
    shapes: list[Any] | None = None,
) -> Json:
    """A node as `flat` and `chakra` lay it out."""
    return {
        "id": node,
        "name": name,
        "parent": parent,
        "inputs": inputs or [],
        "outputs": outputs or [],
        "op_schema": schema,
        "scope": scope,
        "tid": thread,
        "rf_id": node,
        "fw_parent": 0,
        "fw_tid": 0,
        "seq_id": -1,
        "shapes": shapes or [],
        "strides": strides or [],
    }


def flat(calls: list[Json]) -> Json:
    nodes = [
        {
            **{k: v for k, v in c.items() if k not in ("shapes", "strides")},
            "input_shapes": c["shapes"],
            "output_shapes": [],
            "input_types": [],
            "output_types": [],
        }
        for c in calls
    ]
    return {"schema": "1.0.1", "pid": 5, "nodes": nodes}


def chakra(calls: list[Json]) -> Json:
    attributes = ("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid", "op_schema")
    nodes = [
        {
            "id": c["id"],
            "name": c["name"],
            "ctrl_deps": c["parent"],
            "inputs": {
                "values": c["inputs"],
                "shapes": c["shapes"],
                "types": [],
                "strides": c["strides"],
            },
            "outputs": {"values": c["outputs"], "shapes": [], "types": [], "strides": []},
            "attrs": [{"name": name, "type": "int64", "value": c[name]} for name in attributes],
        }
        for c in calls
    ]
    return {"schema": "1.1.1-chakra.0.0.4", "pid": 5, "nodes": nodes}


ROOTS = [
    call(1, "[pytorch|profiler|execution_trace|process]", parent=1, scope=7),
    call(2, "[pytorch|profiler|execution_trace|thread]", parent=1, scope=7),
]
MM = "aten::mm(Tensor self, Tensor mat2) -> Tensor"
ADD_ = "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"
VIEW = "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)"


@pytest.fixture(params=[flat, chakra], ids=["flat", "chakra"])
def load_calls(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    def load(*calls: Json) -> ExecutionTrace:
        path = tmp_path / "execution.json"
        path.write_text(json.dumps(request.param([*ROOTS, *calls])), encoding="utf-8")
        return load_execution_trace(path)

    return load


def edges(trace: ExecutionTrace) -> list[tuple[int, int, str]]:
    return sorted((d["producer"], d["consumer"], d["kind"]) for d in trace.dependencies.records())


def test_a_result_that_is_read(load_calls: Any) -> None:
    trace = load_calls(
        call(3, "aten::mm", [tensor(1), tensor(2)], [tensor(3)], schema=MM),
        call(4, "aten::mm", [tensor(3), tensor(2)], [tensor(4)], schema=MM),
    )
    assert edges(trace) == [(3, 4, RAW)]
    assert trace.dependencies["consumer_bytes"].tolist() == [32]
    assert trace.nodes.num_rows == 4 and trace.nodes["name"][2] == "aten::mm"


def test_views_pass_a_dependency_on(load_calls: Any) -> None:
    trace = load_calls(
        call(3, "aten::mm", [tensor(1), tensor(2)], [tensor(3)], schema=MM),
        call(4, "aten::view", [tensor(3), [8]], [tensor(3)], schema=VIEW),
        call(5, "aten::mm", [tensor(3), tensor(2)], [tensor(4)], schema=MM),
    )
    assert edges(trace) == [(3, 5, RAW)]


def test_in_place_waits_for_readers_and_the_writer(load_calls: Any) -> None:
    trace = load_calls(
        call(3, "aten::mm", [tensor(1), tensor(2)], [tensor(3)], schema=MM),
        call(4, "aten::mm", [tensor(3), tensor(2)], [tensor(4)], schema=MM),
        call(5, "aten::add_", [tensor(3), tensor(9), 1], [tensor(3)], schema=ADD_),
    )
    assert edges(trace) == [(3, 4, RAW), (3, 5, RAW), (3, 5, WAW), (4, 5, WAR)]


def test_parts_of_a_buffer_are_independent(load_calls: Any) -> None:
    trace = load_calls(
        call(3, "aten::add_", [tensor(1, 0), tensor(9), 1], [tensor(1, 0)], schema=ADD_),
        call(4, "aten::add_", [tensor(1, 8), tensor(9), 1], [tensor(1, 8)], schema=ADD_),
        call(5, "aten::mm", [tensor(1, 4), tensor(2)], [tensor(3)], schema=MM),
    )
    assert edges(trace) == [(3, 5, RAW), (4, 5, RAW)]


def test_a_number_that_is_used_again_is_another_storage(load_calls: Any) -> None:
    trace = load_calls(
        call(3, "aten::mm", [tensor(1), tensor(2)], [tensor(3)], schema=MM),
        call(4, "aten::mm", [tensor(3), tensor(2)], [tensor(4)], schema=MM),
        call(5, "aten::mm", [tensor(1), tensor(2)], [tensor(3)], schema=MM),
        call(6, "aten::mm", [tensor(3), tensor(2)], [tensor(5)], schema=MM),
    )
    assert edges(trace) == [(3, 4, RAW), (5, 6, RAW)]


def test_the_innermost_call_counts(load_calls: Any) -> None:
    """linear(x) is addmm(x); the bias is put in place by a copy below addmm."""
    addmm = "aten::addmm(Tensor self, Tensor mat1, Tensor mat2) -> Tensor"
    copy = "aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)"
    x, weight, bias, y = tensor(1), tensor(2), tensor(3), tensor(4)
    trace = load_calls(
        call(3, "aten::relu", [tensor(9)], [x], schema="aten::relu(Tensor self) -> Tensor"),
        call(
            4,
            "aten::linear",
            [x, weight, bias],
            [y],
            schema="aten::linear(Tensor i, Tensor w, Tensor b) -> Tensor",
        ),
        call(5, "aten::addmm", [bias, x, weight], [y], parent=4, schema=addmm),
        call(6, "aten::copy_", [y, bias, False], [y], parent=5, schema=copy),
        call(7, "aten::relu", [y], [tensor(5)], schema="aten::relu(Tensor self) -> Tensor"),
    )
    assert edges(trace) == [(3, 5, RAW), (5, 7, RAW)]


def test_memory_that_was_only_handed_out_has_no_writer(load_calls: Any) -> None:
    zeros = "aten::zeros(SymInt[] size) -> Tensor"
    fill = "aten::zero_(Tensor(a!) self) -> Tensor(a!)"
    trace = load_calls(
        call(3, "aten::zeros", [[8]], [tensor(1)], schema=zeros),
        call(
            4,
            "aten::empty",
            [[8]],
            [tensor(1)],
            parent=3,
            schema="aten::empty(int[] size) -> Tensor",
        ),
        call(5, "aten::zero_", [tensor(1)], [tensor(1)], parent=3, schema=fill),
        call(6, "aten::empty", [[8]], [tensor(2)], schema="aten::empty(int[] size) -> Tensor"),
        call(7, "aten::mm", [tensor(1), tensor(2)], [tensor(3)], schema=MM),
    )
    assert edges(trace) == [(3, 7, RAW)]


def test_a_storage_made_in_a_call_has_no_past_below_it(load_calls: Any) -> None:
    fill = "aten::zero_(Tensor(a!) self) -> Tensor(a!)"
    trace = load_calls(
        call(3, "aten::mm", [tensor(1), tensor(2)], [tensor(3)], schema=MM),
        call(4, "aten::mm", [tensor(3), tensor(2)], [tensor(4)], schema=MM),
        call(5, "aten::zeros", [[8]], [tensor(3)], schema="aten::zeros(SymInt[] size) -> Tensor"),
        call(6, "aten::zero_", [tensor(3)], [tensor(3)], parent=5, schema=fill),
    )
    assert edges(trace) == [(3, 4, RAW)]


def test_collectives_write_what_they_are_given(load_calls: Any) -> None:
    schema = "c10d::allreduce_(Tensor[] tensors, int timeout) -> (Tensor[], int)"
    base = "c10d::_allgather_base_(Tensor output, Tensor input, int timeout) -> Tensor"
    trace = load_calls(
        call(3, "aten::mm", [tensor(1), tensor(2)], [tensor(3)], schema=MM),
        call(4, "c10d::allreduce_", [[tensor(3)], -1], [[tensor(3)]], schema=schema),
        call(5, "record_param_comms", [[tensor(3)]], [], parent=4),
        call(6, "nccl:all_reduce", [[tensor(3)]], [], parent=5, scope=7),
        call(7, "c10d::_allgather_base_", [tensor(8), tensor(3), -1], [tensor(8)], schema=base),
        call(8, "aten::mm", [tensor(8), tensor(2)], [tensor(9)], schema=MM),
    )
    assert edges(trace) == [(3, 4, RAW), (3, 4, WAW), (4, 7, RAW), (7, 8, RAW)]


def test_strides_tell_how_far_a_tensor_reaches(tmp_path: Path) -> None:
    """A column of a matrix of 4 columns: elements 0, 4, 8, 12."""
    calls = [
        call(3, "aten::add_", [tensor(1, 12, 1), tensor(9), 1], [tensor(1, 12, 1)], schema=ADD_),
        call(
            4,
            "aten::mm",
            [tensor(1, 0, 4), tensor(2)],
            [tensor(3)],
            schema=MM,
            shapes=[[4], [8]],
            strides=[[4], [1]],
        ),
    ]
    path = tmp_path / "e.json"
    path.write_text(json.dumps(chakra([*ROOTS, *calls])))
    assert edges(load_execution_trace(path)) == [(3, 4, RAW)]


def test_order_of_the_file_does_not_matter(tmp_path: Path) -> None:
    calls = [
        *ROOTS,
        call(3, "aten::mm", [tensor(1), tensor(2)], [tensor(3)], schema=MM),
        call(4, "aten::mm", [tensor(3), tensor(2)], [tensor(4)], schema=MM),
    ]
    found = []
    for name, order in (("a", calls), ("b", calls[::-1])):
        path = tmp_path / name
        path.write_text(json.dumps(flat(order)))
        found.append(edges(load_execution_trace(path)))
    assert found[0] == found[1] == [(3, 4, RAW)]


# -- bad files ------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no JSON"),
        ("[]", "no list 'nodes'"),
        ('{"traceEvents": []}', "no list 'nodes'"),
        ('{"nodes": []}', "none of its 0 nodes"),
        ('{"nodes": [1, {"id": "x"}]}', "none of its 2 nodes"),
        ('{"nodes": [', "no JSON"),
        ("[" * 100_000, "no JSON|no list"),
        (
            json.dumps(
                {
                    "nodes": [
                        {"id": 1, "name": "a", "parent": 2},
                        {"id": 2, "name": "b", "parent": 1},
                    ]
                }
            ),
            "own ancestor",
        ),
    ],
)
def test_files_that_are_no_execution_traces(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(ParseError, match=message):
        load_execution_trace(path)


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError):
        load_execution_trace(tmp_path / "none.json")
    with pytest.raises(ParseError):
        load_execution_trace(tmp_path)
    path = tmp_path / "half.json.gz"
    path.write_bytes(gzip.compress(b'{"nodes": []}' * 1000)[:40])
    with pytest.raises(ParseError):
        load_execution_trace(path)


def test_a_file_that_ends_early_gives_what_is_whole(tmp_path: Path) -> None:
    whole = json.dumps(flat([*ROOTS, call(3, "aten::mm", [tensor(1)], [tensor(2)], schema=MM)]))
    path = tmp_path / "cut.json"
    path.write_text(whole[:-30])
    trace = load_execution_trace(path)
    assert trace.nodes.num_rows == 2 and trace.schema == "1.0.1" and trace.pid == 5
    assert "ends early" in trace.nodes.notes[0]


def test_strange_nodes_are_left_out_and_counted(tmp_path: Path) -> None:
    document = flat(
        [*ROOTS, call(3, "a", [[1, 2, 3, 4, 5, 6], ["x"], None, {"a": []}], [[[[[[]]]]]])]
    )
    document["nodes"] += [
        None,
        {"id": -5, "name": "x"},
        {"id": 3, "name": "again"},
        {"id": 10**30, "name": "big"},
    ]
    path = tmp_path / "odd.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    trace = load_execution_trace(path)
    assert trace.nodes.num_rows == 3 and trace.dependencies.num_rows == 0
    assert any("3 entries" in note for note in trace.nodes.notes)
    assert any("repeat" in note for note in trace.nodes.notes)


# -- links to a Kineto trace ------------------------------------------------------------


def op(name: str, at: int, dur: int, tid: int = 1, cat: str = "cpu_op", **args: Any) -> Json:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 5,
        "tid": tid,
        "ts": at,
        "dur": dur,
        "args": args,
    }


def launched(at: int, gpu_at: int, gpu_dur: int, correlation: int, stream: int = 7) -> list[Json]:
    launch = op("cudaLaunchKernel", at, 1, cat="cuda_runtime", correlation=correlation)
    args = {"correlation": correlation, "stream": stream, "device": 0}
    gpu = {
        "ph": "X",
        "cat": "kernel",
        "name": f"kernel{correlation}",
        "pid": 0,
        "tid": stream,
        "ts": gpu_at,
        "dur": gpu_dur,
        "args": args,
    }
    return [launch, gpu]


CALLS = [
    call(3, "aten::mm", [tensor(1), tensor(2)], [tensor(3)], schema=MM),
    call(4, "aten::relu", [tensor(8)], [tensor(9)], schema="aten::relu(Tensor self) -> Tensor"),
    call(5, "aten::mm", [tensor(3), tensor(2)], [tensor(4)], schema=MM),
]


def kineto(ids: str | None, second_at: int = 60) -> list[Json]:
    def name_ids(number: int) -> Json:
        return {} if ids is None else {ids: number}

    return [
        op("ProfilerStep#1", 0, 50, cat="user_annotation", **name_ids(90)),
        op("aten::mm", 1, 8, **name_ids(3)),
        *launched(2, 20, 30, 11),
        op("aten::relu", 10, 8, **name_ids(4)),
        *launched(11, 50, 5, 12),
        op("aten::mm", 20, 8, **name_ids(5)),
        *launched(21, second_at, 9, 13, stream=9),
    ]


@pytest.mark.parametrize(
    ("ids", "how"),
    [("Record function id", "record_function_id"), ("External id", "external_id"), (None, "order")],
)
def test_nodes_find_their_events(
    ids: str | None, how: str, tmp_path: Path, write_trace: Any
) -> None:
    path = tmp_path / "execution.json"
    path.write_text(json.dumps(flat([*ROOTS, *CALLS])))
    trace = torchtraceap.load(write_trace(kineto(ids)))
    linked = load_execution_trace(path).link(trace)
    assert linked.matches.facts["matched_by"] == how
    names = [trace.ranks[0].table.name_of(linked.rows[node]) for node in (3, 4, 5)]
    assert names == ["aten::mm", "aten::relu", "aten::mm"]
    (pair,) = linked.gpu_dependencies.records()
    assert (pair["producer_name"], pair["consumer_name"]) == ("kernel11", "kernel13")
    assert (pair["kind"], pair["same_stream"], pair["slack_ns"]) == (RAW, False, 10_000)


def test_work_that_begins_too_early_is_said(tmp_path: Path, write_trace: Any) -> None:
    path = tmp_path / "execution.json"
    path.write_text(json.dumps(flat([*ROOTS, *CALLS])))
    linked = load_execution_trace(path).link(torchtraceap.load(write_trace(kineto(None, 40))))
    assert linked.gpu_dependencies.facts["begin_early"] == 1
    assert "begin before" in linked.gpu_dependencies.notes[0]


def test_a_trace_of_another_program_matches_nothing(tmp_path: Path, write_trace: Any) -> None:
    path = tmp_path / "execution.json"
    path.write_text(json.dumps(flat([*ROOTS, *CALLS])))
    linked = load_execution_trace(path).link(torchtraceap.load(write_trace([op("x", 1, 1)])))
    assert linked.rows == {} and linked.matches.facts["matched_by"] is None
    assert "nothing matches" in linked.matches.notes[0]
    assert linked.gpu_dependencies.num_rows == 0


def test_matching_by_order_gets_over_differences(tmp_path: Path, write_trace: Any) -> None:
    names = ["a", "b", "c", "d", "e", "f", "g", "h"]
    calls = [call(10 + i, name, scope=7) for i, name in enumerate(names) if name != "c"]
    path = tmp_path / "execution.json"
    path.write_text(json.dumps(flat([*ROOTS, *calls])))
    events = [op(name, 10 * i, 5) for i, name in enumerate(names) if name != "f"]
    trace = torchtraceap.load(write_trace(events))
    linked = load_execution_trace(path).link(trace)
    matched = {trace.ranks[0].table.name_of(row) for row in linked.rows.values()}
    assert matched == set("abdegh")
    assert all(
        names[node - 10] == trace.ranks[0].table.name_of(row) for node, row in linked.rows.items()
    )


# -- recorded by torch ------------------------------------------------------------


def test_both_files_of_one_recording(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch = pytest.importorskip("torch", reason="torch is not installed")
        torch.set_num_threads(1)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        observer = torch.profiler.ExecutionTraceObserver()
        observer.register_callback(str(tmp_path / "execution.json"))
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(
            activities=activities, execution_trace_observer=observer
        ) as run:
            optimizer.zero_grad()
            model(torch.randn(5, 8)).sum().backward()
            optimizer.step()
        run.export_chrome_trace(str(tmp_path / "kineto.json"))
    execution = load_execution_trace(tmp_path / "execution.json")
    trace = torchtraceap.load(tmp_path / "kineto.json")
    linked = execution.link(trace)
    assert linked.matches.facts["matched_by"] == "record_function_id"
    assert linked.matches.facts["matched"] == linked.matches.facts["nodes"]
    named = {
        (d["producer_name"], d["consumer_name"], d["kind"])
        for d in execution.dependencies.records()
    }
    assert ("aten::randn", "aten::addmm", RAW) in named
    assert ("aten::addmm", "aten::clamp_min", RAW) in named
    assert ("aten::clamp_min", "aten::threshold_backward", RAW) in named
    assert (
        "aten::addmm",
        "aten::add_",
        WAR,
    ) in named  # the step waits for the weights' last reader
    # On one thread a producer has ended, or is still open above, when its consumer begins.
    table = trace.ranks[0].table
    for d in execution.dependencies.records():
        first, second = linked.rows[d["producer"]], linked.rows[d["consumer"]]
        if table.track[first] == table.track[second]:
            assert table.ts_ns[first] <= table.ts_ns[second]
