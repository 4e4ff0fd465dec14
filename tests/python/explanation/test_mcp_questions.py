"""Forty questions that people ask about a run, each answered by at most three calls of an MCP
server's tools. What is right comes from the library's tables, or from what made the trace."""

from __future__ import annotations

import json
import runpy
import shutil
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from gpu_traces import GpuTrace

import torchtraceap as ttap
from torchtraceap.explanation.mcp_server import McpTools
from torchtraceap.explanation.tool_results import MOST_BYTES, to_compact_json

jsonschema = pytest.importorskip("jsonschema")

Json = dict[str, Any]
MOST_CALLS = 3
SLOWEST_S = 0.2
"""The longest processor time of a call after the trace is loaded."""

SLOW, FAST, RANKS, SERVING = "slow.json.gz", "fast.json.gz", "ranks", "serving/decode.json"


def serving() -> list[Json]:
    """Four iterations of a serving engine: a prompt of 9 ms, then three tokens of 2, 3 and 4 ms;
    `at::mystery` is called by the sampler of the last one."""
    made = GpuTrace()
    names = ["step[EXTEND bs=1 toks=512]", *["step[DECODE bs=8]"] * 3]
    at = 0.0
    for name, length in zip(names, (9000, 2000, 3000, 4000), strict=True):
        made.host("user_annotation", name, at, length)
        made.op("aten::mm", at + 10, 40)
        made.launch("gemm_kernel", (at + 15, 5), (at + 60, length - 100))
        if length == 4000:
            made.host("user_annotation", "sampler", at + 100, 200)
            made.op("at::mystery", at + 120, 100)
            made.launch("mystery_kernel", (at + 130, 5), (at + length - 30, 20))
        at += length + 100
    return made.events


class Asker:
    """The tools of a server over one folder, with what each question took."""

    def __init__(self, root: Path) -> None:
        self.tools = McpTools([], None, ttap.load, root=str(root))
        self.schemas = {tool.name: tool.output_schema() for tool in self.tools.tools}
        self.trace = cache(lambda name: ttap.load(root / name))

    def call(self, tool: str, **given: Any) -> Json:
        answer = self.tools.call(tool, given)
        assert not answer.is_error, answer.value
        jsonschema.validate(answer.value, self.schemas[tool])
        assert len(to_compact_json(answer.value).encode()) <= MOST_BYTES
        return answer.value

    def rows(self, tool: str, **given: Any) -> list[Json]:
        answer = self.call(tool, **given)
        member = {"sql": "table", "events_around": "events", "explain": "segments"}
        rows: list[Json] = answer[member.get(tool, "table")]["rows"]
        return rows


@pytest.fixture(scope="module")
def asker(bundled: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    root = tmp_path_factory.mktemp("served")
    shutil.copy(bundled, root / SLOW)
    shutil.copy(bundled.with_name("resnet50_num_workers_4.json.gz"), root / FAST)
    (root / RANKS).mkdir()
    runpy.run_path(str(bundled.parents[1] / "make_ranks.py"))["write_ranks"](root / RANKS)
    (root / "serving").mkdir()
    (root / SERVING).write_text(json.dumps({"traceEvents": serving()}), "utf-8")
    asker = Asker(root)
    for name in (SLOW, FAST, RANKS, SERVING):
        asker.call("summary", trace=name)  # loaded
    yield asker


Answer = Callable[[Asker], Any]


def first(asker: Asker, name: str, method: str, sort: str, **options: Any) -> Json:
    """The row of a table with the largest value."""
    made = getattr(asker.trace(name), method)(**options).sort(sort, descending=True)
    return dict(made.take(slice(0, 1)).records()[0])


def finding(asker: Asker, name: str, type: str) -> Any:
    return asker.trace(name).diagnose().finding(type)


def step_numbers(asker: Asker) -> Json:
    rows = asker.call("step", trace=SLOW, sort="duration_ns")["steps"]["rows"]
    return asker.call("step", trace=SLOW, number=rows[0]["number"])


QUESTIONS: dict[str, tuple[Answer, Answer]] = {
    "Which traces are there?": (
        lambda a: a.call("traces")["traces"]["rows"][:2],
        lambda a: [FAST, SLOW],
    ),
    "On which GPU did it run?": (
        lambda a: a.call("summary", trace=SLOW)["devices"]["rows"][0]["name"],
        lambda a: "Tesla V100-DGXS-32GB",
    ),
    "How long is a step?": (
        lambda a: a.call("summary", trace=SLOW)["step_time"]["measured"]["ns"],
        lambda a: a.trace(SLOW).summary().step.measured_ns,
    ),
    "What share of the time is the GPU idle?": (
        lambda a: a.call("summary", trace=SLOW)["timeline"]["times"]["idle"]["ns"],
        lambda a: a.trace(SLOW).summary().timeline.idle_ns,
    ),
    "What bounds the run?": (
        lambda a: a.call("diagnosis", trace=SLOW)["bound_by"],
        lambda a: a.trace(SLOW).diagnose().bound_by,
    ),
    "What is the worst problem?": (
        lambda a: a.call("diagnosis", trace=SLOW)["findings"]["rows"][0]["type"],
        lambda a: "single_process_data_loading",
    ),
    "What would its fix save?": (
        lambda a: a.call("diagnosis", trace=SLOW)["findings"]["rows"][0]["saving"]["best"]["ns"],
        lambda a: a.trace(SLOW).diagnose().findings[0].saving.best_ns,
    ),
    "Which code fixes it?": (
        lambda a: a.call("diagnosis", trace=SLOW, type="single_process_data_loading")["code"],
        lambda a: finding(a, SLOW, "single_process_data_loading").code,
    ),
    "Which event shows the small kernels best?": (
        lambda a: a.call("diagnosis", trace=SLOW, type="tiny_kernels")["evidence"]["rows"][0][
            "row"
        ],
        lambda a: finding(a, SLOW, "tiny_kernels").evidence[0].row,
    ),
    "Is there a straggler?": (
        lambda a: a.call("diagnosis", trace=SLOW, type="straggler")["verdict"],
        lambda a: "absent",
    ),
    "Which operator takes most GPU time?": (
        lambda a: a.call("ops", trace=SLOW, limit=1)["table"]["rows"][0]["name"],
        lambda a: first(a, SLOW, "ops", "exclusive_gpu_ns")["name"],
    ),
    "How long do all convolutions take on the GPU?": (
        lambda a: sum(
            row["exclusive_gpu"]["ns"]
            for row in a.rows("ops", trace=SLOW, by="category", contains="convolution")
        ),
        lambda a: sum(
            row["exclusive_gpu_ns"]
            for row in a.trace(SLOW).ops(by="category").records()
            if "convolution" in row["family"]
        ),
    ),
    "With which shapes is the slowest operator called?": (
        lambda a: a.rows("ops", trace=SLOW, by="args", limit=1)[0]["input_dims"],
        lambda a: first(a, SLOW, "ops", "exclusive_gpu_ns", by="args")["input_dims"],
    ),
    "Which kernel runs most often?": (
        lambda a: a.rows("kernels", trace=SLOW, sort="count", limit=1)[0]["count"],
        lambda a: first(a, SLOW, "kernels", "count", by="canonical")["count"],
    ),
    "Which kernel event is the longest?": (
        lambda a: a.rows("kernels", trace=SLOW, by="event", sort="duration_ns", limit=1)[0]["row"],
        lambda a: first(a, SLOW, "kernels", "duration_ns", by="event")["row"],
    ),
    "How many bytes are copied to the GPU?": (
        lambda a: a.rows("memory", trace=SLOW, contains="HtoD")[0]["total"]["bytes"],
        lambda a: next(
            row["total_bytes"]
            for row in a.trace(SLOW).memory().records()
            if row["direction"] == "HtoD"
        ),
    ),
    "Which layer of the model is slowest?": (
        lambda a: a.rows("modules", trace=SLOW, sort="own_gpu_ns", limit=1)[0]["outline"].strip(),
        lambda a: first(a, SLOW, "modules", "own_gpu_ns")["outline"].strip(),
    ),
    "What does the critical path consist of?": (
        lambda a: [row["cause"] for row in a.rows("critical_path", trace=SLOW, limit=3)],
        lambda a: a.trace(SLOW).critical_path().to_list("cause")[:3],
    ),
    "How far is the slowest product from the peak?": (
        lambda a: a.rows("roofline", trace=SLOW, sort="gpu_ns", limit=1)[0]["roofline"]["share"],
        lambda a: pytest.approx(first(a, SLOW, "roofline", "gpu_ns")["roofline_share"], abs=1e-6),
    ),
    "Which step is the longest?": (
        lambda a: a.rows("steps", trace=SLOW, sort="duration_ns", limit=1)[0]["name"],
        lambda a: first(a, SLOW, "steps", "duration_ns")["name"],
    ),
    "What is slower in it than in other steps?": (
        lambda a: {each["name"] for each in step_numbers(a)["longer_than_usual"]["rows"]},
        lambda a: {each["name"] for each in first(a, SLOW, "steps", "duration_ns")["differs"]},
    ),
    "What does the host do while the GPU waits?": (
        lambda a: a.rows("host", trace=SLOW, by="op", sort="gpu_idle_ns", limit=1)[0]["name"],
        lambda a: first(a, SLOW, "host", "gpu_idle_ns", by="op")["name"],
    ),
    "How long does a launch take on the host?": (
        lambda a: a.rows("launches", trace=SLOW, contains="cudaLaunchKernel")[0]["host_sum"]["ns"],
        lambda a: next(
            row["host_sum_ns"]
            for row in a.trace(SLOW).launches().records()
            if row["call"] == "cudaLaunchKernel"
        ),
    ),
    "Which sequence of kernels should be fused?": (
        lambda a: a.rows("sequences", trace=SLOW, sort="removable_ns", limit=1)[0]["removable"][
            "ns"
        ],
        lambda a: first(a, SLOW, "sequences", "removable_ns")["removable_ns"],
    ),
    "Which kernel fills the GPU least?": (
        lambda a: a.rows("grids", trace=SLOW, sort="empty_share", limit=1, columns=["empty_share"])[
            0
        ]["empty"]["share"],
        lambda a: pytest.approx(first(a, SLOW, "grids", "empty_share")["empty_share"], abs=1e-6),
    ),
    "Is anything missing in the recording?": (
        lambda a: a.call("quality", trace=SLOW)["table"]["rows"],
        lambda a: [],
    ),
    "How many GPU events are longer than a millisecond?": (
        lambda a: a.rows(
            "sql", trace=SLOW, query="select count(*) n from gpu_events where duration_ns > 1000000"
        )[0]["n"],
        lambda a: int((a.trace(SLOW).kernels(by="event")["duration_ns"] > 1_000_000).sum()),
    ),
    "Which call launched the longest GPU event?": (
        lambda a: a.rows(
            "events_around",
            trace=SLOW,
            row=a.rows("kernels", trace=SLOW, by="event", sort="duration_ns", limit=1)[0]["row"],
            within_ns=0,
            limit=1,
        )[0]["stack"][0],
        lambda a: "cudaMemcpyAsync",
    ),
    "What would four loader workers save?": (
        lambda a: a.call("simulate", trace=SLOW, edits=["loader_workers=4"])["edits"]["rows"][0][
            "predicted"
        ]["ns"],
        lambda a: a.trace(SLOW).simulate(["loader_workers=4"]).edits[0].predicted_ns,
    ),
    "How much faster is the other run?": (
        lambda a: a.call("diff", trace=FAST, baseline=SLOW)["difference"]["ns"],
        lambda a: ttap.diff(a.trace(SLOW), a.trace(FAST)).facts["difference_ns"],
    ),
    "What makes the other run faster?": (
        lambda a: a.rows("diff", trace=FAST, baseline=SLOW, by="cause", limit=1)[0]["name"],
        lambda a: ttap.diff(a.trace(SLOW), a.trace(FAST), by="cause").to_list("name")[0],
    ),
    "Where in time is most lost, and why?": (
        lambda a: a.rows("explain", trace=SLOW, limit=1)[0]["type"],
        lambda a: a.trace(SLOW).diagnose().explain().segments[0].type,
    ),
    "How many ranks does the job have?": (
        lambda a: a.call("summary", trace=RANKS)["ranks"],
        lambda a: 4,
    ),
    "Which rank is late?": (
        lambda a: a.rows("ranks", trace=RANKS, sort="lateness_ns", limit=1)[0]["rank"],
        lambda a: 2,
    ),
    "Whose clock is ahead?": (
        lambda a: sorted(
            row["rank"]
            for row in a.rows("ranks", trace=RANKS, by="clock")
            if row["offset"]["ns"] > 1_000_000
        ),
        lambda a: [2, 3],
    ),
    "Which all-reduce waits longest?": (
        lambda a: a.rows("collectives", trace=RANKS, sort="longest_wait_ns", limit=1)[0][
            "longest_wait"
        ]["ns"],
        lambda a: int(a.trace(RANKS).collectives()["longest_wait_ns"].max()),
    ),
    "How much communication of rank 2 is not hidden?": (
        lambda a: a.rows(
            "ranks", trace=RANKS, columns=["rank", "exposed_communication_ns"], limit=4
        )[2]["exposed_communication"]["ns"],
        lambda a: int(a.trace(RANKS).ranks_table()["exposed_communication_ns"][2]),
    ),
    "What do decode iterations of the server take?": (
        lambda a: a.rows(
            "sql",
            trace=SERVING,
            query="select median(duration_ns) as decode_ns from steps where kind = 'decode'",
        )[0]["decode"]["ns"],
        lambda a: 3_000_000,
    ),
    "How long was the prompt's iteration?": (
        lambda a: a.rows("steps", trace=SERVING, contains="EXTEND")[0]["duration"]["ns"],
        lambda a: 9_000_000,
    ),
    "Which engine serves, and how long is its prefill?": (
        lambda a: (
            (answer := a.call("serving", trace=SERVING, contains="prefill"))["facts"]["engine"],
            answer["table"]["rows"][0]["iterations"],
        ),
        lambda a: ("sglang", 1),
    ),
    "Who launched the mystery kernel?": (
        lambda a: a.rows(
            "events_around",
            trace=SERVING,
            row=a.rows("kernels", trace=SERVING, by="event", contains="mystery")[0]["row"],
            limit=1,
            within_ns=0,
            contains="mystery_kernel",
        )[0]["stack"],
        lambda a: ["cudaLaunchKernel", "at::mystery", "sampler", "step[DECODE bs=8]"],
    ),
}


def test_there_are_forty() -> None:
    assert len(QUESTIONS) >= 40


@pytest.mark.parametrize("question", list(QUESTIONS))
def test_a_question_is_answered(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    answer, expected = QUESTIONS[question]
    calls: list[float] = []
    call = Asker.call

    def counted(self: Asker, tool: str, **given: Any) -> Json:
        begin = time.process_time()
        result = call(self, tool, **given)
        calls.append(time.process_time() - begin)
        return result

    monkeypatch.setattr(Asker, "call", counted)
    found = answer(asker)
    monkeypatch.undo()
    assert 1 <= len(calls) <= MOST_CALLS
    assert found == expected(asker)
    # What a call makes for the first time is kept: asked again, it is there at once.
    monkeypatch.setattr(Asker, "call", counted)
    calls.clear()
    answer(asker)
    assert max(calls) <= SLOWEST_S
