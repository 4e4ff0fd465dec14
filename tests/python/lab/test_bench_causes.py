"""What makes one recording slower than another: the first name is the right one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from torchtraceap.lab.bench.causes import Causes, causes, causes_text

Event = dict[str, Any]
Work = Sequence[tuple[str, float] | tuple[str, float, "Work"]]


class Made:
    """A CPU trace of steps: each a tree of calls with the time that they take themselves."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.clock = 0.0
        self.steps = 0

    def step(self, work: Work, *, factor: float = 1.0) -> None:
        start = self.clock
        self.clock += 20 * factor
        self._run(work, factor)
        self._add("user_annotation", f"ProfilerStep#{self.steps}", start)
        self.steps += 1
        self.clock += 1

    def _run(self, work: Work, factor: float) -> None:
        for name, us, *inner in work:
            start = self.clock
            self.clock += us * factor
            self._run(inner[0] if inner else (), factor)
            module = name.startswith("nn.Module: ")
            self._add("python_function" if module else "cpu_op", name, start)

    def _add(self, category: str, name: str, start: float) -> None:
        args: dict[str, Any] = {}
        if category == "python_function":
            args = {"Python id": len(self.events) + 1, "Python module id": 0}
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start,
             "dur": self.clock - start, "args": args}
        )  # fmt: skip

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps({"traceEvents": self.events}), encoding="utf-8")
        return path


def feed(*ops: tuple[str, float], module: str = "Feed_0") -> Any:
    return (f"nn.Module: {module}", 5, ops)


NET = (
    ("aten::embedding", 100),
    feed(("aten::addmm", 400), ("aten::gelu", 200)),
    ("aten::cross_entropy_loss", 50),
)


@pytest.fixture
def made(tmp_path: Path) -> Any:
    def make(
        before: Any, after: Any, *, factor: float = 1.0, change: float | None = None
    ) -> Causes:
        paths = []
        for side, (work, scale) in enumerate([(before, 1.0), (after, factor)]):
            trace = Made()
            for number in range(8):
                # Steps vary a little, alike in both.
                trace.step(work, factor=scale * (1 + 0.002 * (number % 3)))
            paths.append(trace.write(tmp_path / f"{side}.json"))
        found = causes(*paths, change=change, findings=False)
        assert sum(cause.delta_ns for cause in found.causes) == found.difference_ns
        return found

    return make


def test_an_operator_that_was_added_comes_first(made: Any) -> None:
    found = made(NET, (*NET, ("aten::sort", 300)))

    assert found.top.name == "aten::sort"
    assert found.top.share == pytest.approx(1.0, abs=0.02)
    assert (found.top.before_calls, found.top.after_calls) == (0, 1)


def test_a_slower_operator_is_named_with_its_module(made: Any) -> None:
    after = (NET[0], feed(("aten::addmm", 900), ("aten::gelu", 200)), NET[2])

    top = made(NET, after).top

    assert (top.name, top.path) == ("aten::addmm", "Feed")
    assert top.beyond_noise


def test_more_calls_are_told(made: Any) -> None:
    after = (NET[0], feed(*[("aten::addmm", 400)] * 3, ("aten::gelu", 200)), NET[2])

    top = made(NET, after).top

    assert top.name == "aten::addmm"
    assert top.sentence().endswith("1 → 3 calls a step")


def test_a_module_under_another_name_is_no_cause(made: Any) -> None:
    renamed = feed(("aten::addmm", 400), ("aten::gelu", 200), module="Expert_0")

    found = made(NET, (NET[0], renamed, NET[2], ("aten::sort", 60)))

    assert found.top.name == "aten::sort"


def test_work_that_moved_is_told_and_the_real_cause_is_first(made: Any) -> None:
    head = feed(("aten::mm", 50), module="Head_0")
    larger = feed(("aten::mm", 50), ("aten::gelu", 210), module="Head_0")
    without = feed(("aten::addmm", 400))

    found = made((*NET, head), (NET[0], without, NET[2], larger, ("aten::sort", 60)))

    assert found.top.name == "aten::sort"
    (entry,) = found.moved
    assert (entry["name"], entry["before"], entry["after"]) == ("aten::gelu", "Feed", "Head")
    assert entry["ns"] == pytest.approx(200_000, rel=0.02)


def test_what_a_fused_operator_replaces_is_netted_at_its_module(made: Any) -> None:
    after = (NET[0], feed(("triton_fused", 610)), NET[2], ("aten::sort", 80))

    found = made(NET, after)

    assert found.top.name == "aten::sort"


def test_a_slower_machine_is_no_operator(made: Any) -> None:
    found = made(NET, NET, factor=1.3)

    assert found.top.kind == "common"
    assert found.top.share == pytest.approx(1.0, abs=0.05)
    assert any("All work takes 1.3 times" in note for note in found.notes)


def test_an_operator_is_found_behind_a_slower_machine(made: Any) -> None:
    found = made(NET, (*NET, ("aten::sort", 100)), factor=1.5)

    assert found.causes[0].name == "aten::sort"
    assert "common" in [cause.kind for cause in found.causes]


def test_runs_say_which_way_to_look(made: Any) -> None:
    found = made(NET, (*NET, ("aten::sort", 100)), factor=0.6, change=0.08)

    assert found.difference_ns < 0
    assert found.causes[0].name == "aten::sort"
    assert any("something else ran on the machine" in note for note in found.notes)


def test_a_step_that_stands_still_is_noise(tmp_path: Path) -> None:
    paths = []
    for side in range(2):
        trace = Made()
        for number in range(8):
            stalled = side == 1 and number in (2, 5)
            trace.step(((NET[0][0], 100 + 3000 * stalled), *NET[1:], *[("aten::sort", 40)] * side))
        paths.append(trace.write(tmp_path / f"{side}.json"))

    found = causes(*paths, findings=False)

    assert found.top.name == "aten::sort"
    assert sum(cause.delta_ns for cause in found.causes) == found.difference_ns


def test_equal_recordings_have_no_top(made: Any) -> None:
    found = made(NET, NET)

    assert found.top is None
    assert found.difference_ns == 0
    assert found.causes == ()


def test_an_improvement_names_what_went(made: Any) -> None:
    found = made((*NET, ("aten::sort", 300)), NET)

    assert found.top.name == "aten::sort"
    assert found.top.delta_ns < 0
    assert found.top.share > 0


def test_python_between_operators_belongs_to_those_called_more_often(tmp_path: Path) -> None:
    def with_reads(reads: int) -> Path:
        trace = Made()
        for _ in range(8):
            start = trace.clock
            trace.clock += 20
            for _ in range(reads):
                trace._run([("aten::select", 2)], 1.0)
                trace.clock += 6
            trace._run(NET, 1.0)
            trace._add("user_annotation", f"ProfilerStep#{trace.steps}", start)
            trace.steps += 1
        return trace.write(tmp_path / f"{reads}.json")

    found = causes(with_reads(0), with_reads(50), findings=False)

    assert "aten::select" in found.top.name
    assert found.top.share == pytest.approx(1.0, abs=0.02)


def test_real_traces_sum_and_are_priced() -> None:
    folder = Path(__file__).parents[3] / "examples" / "traces"

    found = causes(
        folder / "resnet50_num_workers_4.json.gz", folder / "resnet50_num_workers_0.json.gz"
    )

    document = found.to_dict()
    assert sum(cause["delta_ns"] for cause in document["causes"]) == document["difference_ns"]
    assert found.top.name.startswith("idle: data loading")
    appeared = [entry["type"] for entry in document["findings"]["appeared"]]
    assert "single_process_data_loading" in appeared
    assert found.price["finding"] == "single_process_data_loading"
    assert 0.5 < found.price["share"] < 1.5
    assert "would save" in causes_text(found)
    json.dumps(document, allow_nan=False)
