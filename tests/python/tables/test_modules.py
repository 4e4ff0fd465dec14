"""`trace.modules()`: what stands where, what it says of its source, and that it adds up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.tables.ops import modules
from torchtraceap.trace.ranks import RankTrace
from torchtraceap.trace.trace import Trace

Event = dict[str, Any]


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> Event:
    place = {"pid": 1, "tid": tid, "ts": ts, "dur": dur}
    return {"ph": "X", "cat": cat, "name": name, **place, "args": args}


def launch(ts: float, link: int, tid: int = 1, dur: float = 10) -> list[Event]:
    """A launch call, and a kernel that runs in the slot of its number."""
    call = event("cuda_runtime", "hipLaunchKernel", ts, 1, tid, correlation=link)
    gpu = {"device": 0, "stream": 0, "correlation": link}
    return [call, event("kernel", f"k{link}", 1000 + 100 * link, dur, 0, **gpu)]


def trace_of(events: list[Event]) -> Trace:
    table = _core.read_trace_bytes(json.dumps({"traceEvents": events}).encode(), "test")
    return Trace([RankTrace(table, None)])


def model(prefix: str = "nn.Module: ", cat: str = "python_function") -> list[Event]:
    back = {"Sequence number": 1, "Fwd thread id": 1}
    return [
        event(cat, f"{prefix}Net_0", 0, 60),
        event(cat, f"{prefix}Linear_0", 5, 20),
        event("cpu_op", "aten::addmm", 6, 10, **{"Sequence number": 1}),
        *launch(7, 1),
        event(cat, f"{prefix}Linear_1", 30, 20),
        *launch(35, 2, dur=4),
        event("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 80, 9, 2, **back),
        *launch(82, 3, tid=2, dur=20),
        *launch(95, 4, dur=1),
    ]


def test_frames() -> None:
    table = trace_of(model()).modules()
    assert table.facts["source"] == "python_frames"
    rows = {record["module"]: record for record in table.records()}
    assert list(rows)[:3] == ["Net_0", "Net_0/Linear_0", "Net_0/Linear_1"]
    linear = rows["Net_0/Linear_0"]
    assert (linear["forward_gpu_ns"], linear["backward_gpu_ns"]) == (10_000, 20_000)
    assert (linear["calls"], linear["type"], linear["depth"]) == (1, "Linear", 1)
    assert linear["backward_host_ns"] == 9_000
    net = rows["Net_0"]
    assert (net["gpu_ns"], net["own_gpu_ns"]) == (34_000, 0)
    assert (net["host_ns"], net["self_host_ns"]) == (60_000, 20_000)
    assert (net["parent_id"], linear["parent_id"]) == (None, net["id"])
    assert rows["(outside modules)"]["gpu_ns"] == 1000
    assert rows["(outside modules)"]["calls"] is None
    assert table["own_gpu_ns"].sum() == table.facts["busy_ns"] == 35_000
    assert table["outline"][1] == "· Linear_0"
    assert "backward_gpu_ns" in table.shown
    assert "recompute_gpu_ns" not in table.shown


def test_annotations_say_so() -> None:
    table = trace_of(model("", "user_annotation")).modules()
    assert table.facts["source"] == "annotations"
    assert "record_function" in table.notes[0]
    assert table["module"][1] == "Net_0/Linear_0"


def test_no_source_says_how_to_record_one() -> None:
    table = trace_of([event("cpu_op", "aten::add", 0, 5), *launch(1, 1)]).modules()
    assert table.num_rows == 0
    assert "with_stack=True" in table.notes[0]
    assert "module" in table.columns
    assert json.loads(table.to_json())["source"] == "none"


def test_backward_that_cannot_be_joined_is_said() -> None:
    events = [e for e in model() if "Sequence number" not in e["args"]]
    events.append(event("cpu_op", "autograd::engine::evaluate_function: AddBackward0", 80, 9, 2))
    table = trace_of(events).modules()
    assert any("no sequence numbers match" in note for note in table.notes)
    rows = {record["module"]: record for record in table.records()}
    assert rows["(outside modules)/backward"]["gpu_ns"] == 20_000


def test_backward_of_calls_outside_all_modules_is_said() -> None:
    outside = ("Net_0", "Linear_0")
    events = [e for e in model() if not e["name"].endswith(outside)]
    table = trace_of(events).modules()
    assert any("no module or range encloses" in note for note in table.notes)
    rows = {record["module"]: record for record in table.records()}
    assert rows["(outside modules)/backward"]["gpu_ns"] == 20_000


def test_without_gpu_events() -> None:
    events = [e for e in model() if e["cat"] in ("python_function", "cpu_op")]
    table = trace_of(events).modules()
    assert any("host time only" in note for note in table.notes)
    assert "gpu_ns" not in table.shown
    assert table.to_list("subtree_busy_share")[0] is None


def test_ranks_are_stacked(tmp_path: Path) -> None:
    for rank in (0, 1):
        document = {"traceEvents": model(), "distributedInfo": {"rank": rank}}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    table = ttap.load(tmp_path).modules()
    assert set(table["rank"].tolist()) == {0, 1}
    assert table.facts["source"] == ["python_frames"] * 2


def test_every_real_trace(corpus_file: Path) -> None:
    for part in ttap.load(corpus_file).ranks:
        table = Trace([part]).modules()
        if not table.num_rows:
            assert table.facts["source"] == "none"
            continue
        assert int(table["own_gpu_ns"].sum()) == table.facts["busy_ns"]
        passes = table["forward_gpu_ns"] + table["backward_gpu_ns"] + table["recompute_gpu_ns"]
        assert (passes <= table["gpu_ns"]).all()
        parents = table["parent_id"]
        roots = table["gpu_ns"][parents.mask].sum()
        assert int(roots) == table.facts["busy_ns"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_recorded_here(reentrant: bool, tmp_path: Path) -> None:
    """Recompute goes to the checkpointed module, its backward too, whichever way it is done."""
    torch = pytest.importorskip("torch")
    from torch.utils.checkpoint import checkpoint

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())

        def forward(self, x: Any) -> Any:
            return checkpoint(self.inner, x, use_reentrant=reentrant)

    net, x = Net(), torch.randn(4, 8, requires_grad=True)
    with torch.profiler.profile(with_stack=True) as profiler:
        net(x).sum().backward()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    rows = {r["module"]: r for r in ttap.load(tmp_path / "trace.json").modules().records()}
    linear = rows["Net_0/Sequential_0/Linear_0"]
    assert (linear["calls"], linear["recompute_calls"]) == (1, 1)
    assert linear["recompute_host_ns"] > 0
    assert linear["backward_host_ns"] > 0


def test_nodes_without_a_text_are_absent_whatever_their_integers_are() -> None:
    """Rows of the core are unsigned, which NumPy 2.5 mixes with no -1."""
    codes = modules._texts(["a", "", "b"], np.array([2, 1, 0], dtype=np.uint32))
    assert codes.codes.dtype == np.int32
    assert codes.to_list() == ["b", None, "a"]
