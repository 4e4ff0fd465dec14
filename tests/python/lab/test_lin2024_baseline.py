"""The source's algorithm: a hand-computed example, overheads of a made trace, a made execution
trace."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap.errors import OptionError
from torchtraceap.ops.durations import elementwise_ns, gemm_ns
from torchtraceap.ops.durations.collectives import estimate_collective
from torchtraceap.trace.execution.reader import NodeFile, read_nodes

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks" / "prediction"))

from lin2024 import (
    BaselineOp,
    Overheads,
    Piece,
    launches_by_name,
    measure_overheads,
    ops_of_ranks,
    simulate,
)

TIMES = Overheads(
    t1=5_000.0,
    t4=4_000.0,
    t2={"": 10_000.0, "linear": 20_000.0},
    t3={"": 3_000.0},
    t5={"": 2_000.0, "view": 1_000.0},
)


def five_ops(transfer: float = 50_000.0) -> list[BaselineOp]:
    """A product, a view, an all-to-all behind a concatenation, two kernels that need nothing of it,
    and one that reads what it wrote."""
    return [
        BaselineOp("linear", (Piece(30_000.0),)),
        BaselineOp("view"),
        BaselineOp("all_to_all", (Piece(6_000.0), Piece(transfer, is_collective=True)),
                   writes=frozenset({7})),
        BaselineOp("relu", (Piece(8_000.0), Piece(4_000.0))),
        BaselineOp("add", (Piece(9_000.0),), reads=frozenset({7})),
    ]  # fmt: skip


def test_five_operators_by_hand() -> None:
    (found,) = simulate([five_ops()], [TIMES])
    # linear: T1 5, T2 20, launched at 25, runs from 29 to 59; T4 and T3: the host stands at 32.
    # view: T1 5, T5 1: 38.
    # all_to_all: both fronts at 59. T1 5, T2 10: 53. The concatenation begins at max(57, 59 + 1)
    #   and ends at 66; T4, T5: 59. The transfer begins at max(63, 59 + 1, 66) and ends at 116;
    #   T4, T3: 66.
    # relu: T1, T2: 81. From max(85, 67) to 93; T4, T5: 87. From max(91, 94) to 98; T4, T3: 94.
    # add reads what was exchanged: both fronts at 116; 116 - 98 of the transfer are exposed.
    #   T1, T2: 109. From max(113, 117) to 126; T4, T3: 116.
    assert found.step_ns == pytest.approx(126_000)
    assert found.host_ns == pytest.approx(116_000)
    assert found.exposed_communication_ns == pytest.approx(18_000)
    compute = 30_000 + 6_000 + 8_000 + 4_000 + 9_000
    assert found.gpu_active_ns == pytest.approx(compute + 18_000)


def test_ranks_end_a_collective_together() -> None:
    late = [BaselineOp("view")] * 20 + five_ops()  # 20 x (5 + 1) us later
    early, other = simulate([five_ops(), late], [TIMES, TIMES])
    # The late rank's transfer ends at 116 + 120; the early one's add begins 1 us behind that.
    assert other.step_ns == pytest.approx(126_000 + 120_000)
    assert early.step_ns == pytest.approx(236_000 + 1_000 + 9_000)
    told, _ = simulate([five_ops(), five_ops()], [TIMES, TIMES], [0.0, 120_000.0])
    assert told.step_ns == pytest.approx(early.step_ns)


def test_a_wait_and_a_blocking_copy() -> None:
    ops = [BaselineOp("all_to_all", (Piece(50_000.0, is_collective=True),)),
           BaselineOp("wait", waits=True),
           BaselineOp("relu", (Piece(1_000.0),))]  # fmt: skip
    # The transfer runs from 19 to 69, the host stands at 22; T1 and T5 of the wait: 29; relu may
    # begin at 69 + 1.
    (found,) = simulate([ops], [TIMES])
    assert found.step_ns == pytest.approx(71_000)
    (without,) = simulate([[ops[0], BaselineOp("view"), ops[2]]], [TIMES])
    assert without.step_ns == pytest.approx(69_000)
    copy = BaselineOp("copy_", (Piece(40_000.0),), blocks=True, is_plain_copy=True)
    # T1, T2: 15; a plain copy launches in 2: it runs from 17 to 57, and the host waits for it.
    (copied,) = simulate([[copy, BaselineOp("view")]], [TIMES])
    assert copied.host_ns == pytest.approx(57_000 + 6_000)


def test_ranks_that_differ_are_refused() -> None:
    with pytest.raises(OptionError, match=r"different numbers of collectives: \[1, 0\]"):
        simulate([five_ops(), five_ops()[:2]], [TIMES, TIMES])


# ------------------------------------------------------------------------------ overheads


def event(name: str, ts: int, dur: int, cat: str = "cpu_op", **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1,
            "args": args}  # fmt: skip


def launched(name: str, ts: int, dur: int, correlation: int) -> list[dict[str, Any]]:
    kernel = event("k", ts + 20, 5, "kernel", correlation=correlation, device=0, stream=7)
    return [event(name, ts, dur, "cuda_runtime", correlation=correlation), kernel | {"tid": 7}]


def made_trace(folder: Path, wait: int = 0) -> ttap.Trace:
    """Three times aten::linear (20 us to its launch, of 6; 4 after it) and aten::view of 3 us, 10
    us apart."""
    events: list[dict[str, Any]] = []
    at = 1000
    for number in range(3):
        end = at + 30 + wait
        events.append(event("aten::linear", at, 30 + wait))
        events.append(event("aten::addmm", at + 2, 27 + wait))
        events += launched("cudaLaunchKernel", at + 20, 6, 10 + number)
        if wait:
            events.append(event("cudaStreamSynchronize", at + 26, wait, "cuda_runtime"))
        events.append(event("aten::view", end + 10, 3))
        at = end + 23
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return ttap.load(path)


def test_overheads_of_a_made_trace(tmp_path: Path) -> None:
    part = made_trace(tmp_path).rank()
    plain = measure_overheads([part], event_ns=0.0, launch_event_ns=0.0)
    assert (plain.t1, plain.t4) == (10_000, 6_000)
    assert (plain.of("t2", "aten::linear"), plain.of("t3", "aten::linear")) == (20_000, 4_000)
    assert plain.of("t5", "aten::view") == 3_000
    assert plain.of("t2", "never seen") == 20_000
    # addmm was recorded on the way to the launch: 2 us; a launch is recorded in 6.
    less = measure_overheads([part])
    assert (less.t1, less.t4) == (10_000, 0)
    assert less.of("t2", "aten::linear") == 18_000
    assert launches_by_name([part]) == {"aten::addmm": 1}


def test_waits_are_no_overheads(tmp_path: Path) -> None:
    part = made_trace(tmp_path, wait=500).rank()
    found = measure_overheads([part], event_ns=0.0, launch_event_ns=0.0)
    assert found.of("t3", "aten::linear") == 4_000


def test_a_trace_without_launches_has_no_overheads(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [event("aten::view", 0, 3)]}))
    with pytest.raises(OptionError, match="no operator of these traces launches"):
        measure_overheads([ttap.load(path).rank()])


# ------------------------------------------------------------------------- execution traces

FLOAT = "Tensor(float)"


def tensor(storage: int, *shape: int) -> list[Any]:
    count = 1
    for size in shape:
        count *= size
    return [storage + 1000, storage, 0, count, 4, "cuda:0"]


def node(number: int, name: str, parent: int = 1, scope: int = 0, **more: Any) -> dict[str, Any]:
    return {"id": number, "name": name, "parent": parent, "rf_id": number, "tid": 1, "scope": scope,
            "inputs": [], "input_shapes": [], "input_types": [], "outputs": [],
            "output_shapes": [], **more}  # fmt: skip


def made_nodes(folder: Path, rows: int = 1024, *, kind: str = "all_to_allv") -> NodeFile:
    """addmm within linear, an all-to-all of its result, relu of what came."""
    shapes = [[256], [rows, 512], [512, 256], [], []]
    nodes = [
        node(1, "[pytorch|profiler|execution_graph|process]", 1, 7),
        node(2, "## forward ##", 1, 7),
        node(3, "aten::linear", 2),
        node(4, "aten::addmm", 3, inputs=[tensor(10, 256), tensor(11, rows, 512),
                                          tensor(12, 512, 256), 1, 1],
             input_shapes=shapes, input_types=[FLOAT] * 3 + ["Int"] * 2,
             outputs=[tensor(13, rows, 256)], output_shapes=[[rows, 256]]),
        node(5, "c10d::alltoall_base_", 2),
        node(6, "record_param_comms", 5, inputs=[tensor(13, rows, 256), 1, 2, 0, kind, [], []],
             input_shapes=[[rows, 256], [], [], [], [], [], []],
             input_types=[FLOAT, "Int", "Int", "Int", "String", "List", "List"],
             outputs=[tensor(14, rows, 256)], output_shapes=[[rows, 256]]),
        node(7, "record_param_comms", 2, inputs=[1, 0, 0, "wait", [], []],
             input_types=["Int", "Int", "Int", "String", "List", "List"]),
        node(8, "aten::relu", 2, inputs=[tensor(14, rows, 256)], input_shapes=[[rows, 256]],
             input_types=[FLOAT], outputs=[tensor(15, rows, 256)], output_shapes=[[rows, 256]]),
    ]  # fmt: skip
    path = folder / f"et_{rows}_{kind}.json"
    path.write_text(json.dumps({"schema": "1.0.1", "pid": 1, "nodes": nodes}))
    return read_nodes(path, with_arguments=True)


LAUNCHES = {"aten::addmm": 2, "aten::relu": 1}


def test_operators_of_execution_traces(tmp_path: Path) -> None:
    files = [made_nodes(tmp_path, 1024), made_nodes(tmp_path, 2048)]
    small, large = ops_of_ranks(files, "V100 SXM2 32GB", LAUNCHES)
    assert [op.name for op in small] == [
        "aten::linear",
        "c10d::alltoall_base_",
        "record_param_comms",
        "aten::relu",
    ]
    product = gemm_ns(1024, 256, 512, "fp32", "V100 SXM2 32GB")
    relu = elementwise_ns("relu", 1024 * 256, "fp32", "V100 SXM2 32GB")
    assert product is not None
    assert relu is not None
    assert len(small[0].pieces) == 2
    assert sum(piece.ns for piece in small[0].pieces) == pytest.approx(product.ns, rel=0.3)
    assert small[3].pieces[0].ns == pytest.approx(relu.ns, rel=0.5)
    # All ranks take as long as the one that moves most.
    transfer = estimate_collective("all_to_all", 2048 * 256 * 4, 2, "V100 SXM2 32GB")
    assert small[1].pieces == large[1].pieces == (Piece(transfer.ns, is_collective=True),)
    assert small[1].writes == {14}
    assert 14 in small[3].reads
    assert small[2].waits
    times = simulate([small, large], [TIMES, TIMES])
    assert all(one.step_ns > transfer.ns for one in times)


def test_an_operator_that_nobody_knows_takes_time(tmp_path: Path) -> None:
    path = tmp_path / "et.json"
    table = tensor(20, 1 << 20, 64)
    nodes = [node(1, "process", 1, 7),
             node(2, "mylib::lookup", 1, inputs=[table], input_shapes=[[1 << 20, 64]],
                  input_types=[FLOAT], outputs=[tensor(21, 16, 64)],
                  output_shapes=[[16, 64]])]  # fmt: skip
    path.write_text(json.dumps({"schema": "1.0.1", "pid": 1, "nodes": nodes}))
    ((op,),) = ops_of_ranks(
        [read_nodes(path, with_arguments=True)], "V100 SXM2 32GB", {"mylib::lookup": 1}
    )
    assert 1_000 < op.pieces[0].ns < 10_000  # the 256 MiB table is not read whole


def test_execution_traces_that_do_not_go_together(tmp_path: Path) -> None:
    files = [made_nodes(tmp_path), made_nodes(tmp_path, kind="allreduce")]
    with pytest.raises(OptionError, match="differ in their collectives"):
        ops_of_ranks(files, "V100 SXM2 32GB", LAUNCHES)
    with pytest.raises(OptionError, match="no device of that name"):
        ops_of_ranks(files, "Z9000", LAUNCHES)
    made_nodes(tmp_path)
    plain = read_nodes(tmp_path / "et_1024_all_to_allv.json")
    with pytest.raises(OptionError, match="without arguments"):
        ops_of_ranks([plain], "V100 SXM2 32GB", LAUNCHES)
