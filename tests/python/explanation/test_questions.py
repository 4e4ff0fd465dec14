"""Sixty questions that people ask about a run, answered without a model. What is right is computed
from the tables of the library, which know nothing of questions."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from gpu_traces import GpuTrace

import torchtraceap as ttap
from torchtraceap.core.formatting import format_bytes, format_count, format_ns
from torchtraceap.explanation.numbers import Metric, numbers_in, quantities_in
from torchtraceap.explanation.offline_answer import OfflineAnswer, answer_offline

Json = dict[str, Any]
SLOW, FAST, RANKS, SERVING, HOST = "slow", "fast", "ranks", "serving", "host"


def share(value: float) -> str:
    return Metric.of_share("", value).text


class Run:
    """A trace with what the questions about it are checked against."""

    def __init__(self, trace: Any) -> None:
        self.trace = trace
        self.diagnosis = trace.diagnose()
        self.table = cache(lambda name, **options: getattr(trace, name)(**options))

    def first(self, table: str, column: str, *, least: bool = False, **options: Any) -> Json:
        rows = self.table(table, **options).records()
        known = [row for row in rows if row[column] is not None]
        return (min if least else max)(known, key=lambda row: row[column])

    def sum(self, table: str, column: str, where: str = "", **options: Any) -> int:
        key, _, wanted = where.partition("=")
        rows = self.table(table, **options).records()
        return sum(row[column] for row in rows if not where or wanted in (row[key] or ""))

    def cost(self, name: str) -> list[str]:
        found = self.diagnosis.finding(name)
        return [name, f"costs {format_ns(found.cost_ns)}"]


def serving() -> list[Json]:
    """Four iterations of a serving engine: a prompt of 9 ms, then three tokens of 2, 3 and 4 ms."""
    made, at = GpuTrace(), 0.0
    names = ["step[EXTEND bs=1 toks=512]", *["step[DECODE bs=8]"] * 3]
    for name, length in zip(names, (9000, 2000, 3000, 4000), strict=True):
        made.host("user_annotation", name, at, length)
        made.op("aten::mm", at + 10, 40)
        made.launch("gemm_kernel", (at + 15, 5), (at + 60, length - 100))
        at += length + 100
    return made.events


@pytest.fixture(scope="module")
def runs(bundled: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Run]:
    root = tmp_path_factory.mktemp("asked")
    (root / RANKS).mkdir()
    runpy.run_path(str(bundled.parents[1] / "make_ranks.py"))["write_ranks"](root / RANKS)
    (root / "serving.json").write_text(json.dumps({"traceEvents": serving()}), "utf-8")
    (root / "host.json").write_text(
        json.dumps({"traceEvents": GpuTrace().op("aten::mm", 0, 10).events}), "utf-8"
    )
    paths = {
        SLOW: bundled,
        FAST: bundled.with_name("resnet50_num_workers_4.json.gz"),
        RANKS: root / RANKS,
        SERVING: root / "serving.json",
        HOST: root / "host.json",
    }
    return {name: Run(ttap.load(path)) for name, path in paths.items()}


def step(run: Run, name: str) -> Json:
    return next(row for row in run.table("steps").records() if row["name"] == name)


def kernel(run: Run, column: str, **options: Any) -> Json:
    """The kernel with the largest value, copies and memsets left out."""
    rows = run.table("kernels", **options).records()
    known = [row for row in rows if row["class"] in ("compute", "communication")]
    known = [row for row in known if row[column] is not None]
    return max(known, key=lambda row: row[column])


Right = Callable[[Run], list[str]]

QUESTIONS: dict[str, tuple[str, str, Right]] = {
    "Why is my GPU idle?": (
        SLOW,
        "diagnose PATH",
        lambda r: [
            *(format_ns(ns) for ns in sorted(r.diagnosis.idle_ns.values())[-3:]),
            format_ns(sum(r.diagnosis.idle_ns.values())),
            "data loading",
            r.diagnosis.lead.type,
        ],
    ),
    "What does the GPU wait for?": (
        FAST,
        "diagnose PATH",
        lambda r: [format_ns(max(r.diagnosis.idle_ns.values()))],
    ),
    "Is the GPU starved?": (
        SLOW,
        "diagnose PATH",
        lambda r: [format_ns(sum(r.diagnosis.idle_ns.values()))],
    ),
    "why is my gpu idle in step 7": (
        SLOW,
        "steps PATH",
        lambda r: [
            "ProfilerStep#7",
            format_ns(step(r, "ProfilerStep#7")["idle_ns"]),
            format_ns(step(r, "ProfilerStep#7")["idle_data_loading_ns"]),
        ],
    ),
    "How busy is the GPU?": (
        SLOW,
        "diagnose PATH",
        lambda r: [share(r.diagnosis.busy_share), format_ns(r.diagnosis.time_ns["compute"])],
    ),
    "Where does the time go?": (
        FAST,
        "diagnose PATH",
        lambda r: [format_ns(max(r.diagnosis.time_ns.values()))],
    ),
    "What is the bottleneck?": (
        SLOW,
        "critical-path PATH --by cause",
        lambda r: ["host", format_ns(r.first("critical_path", "time_ns")["time_ns"])],
    ),
    "Is this run CPU bound or GPU bound?": (
        RANKS,
        "critical-path PATH --by cause",
        lambda r: [r.diagnosis.bound_by.replace("_", " "), "gpu compute"],
    ),
    "Which kernel takes most time?": (
        SLOW,
        "kernels PATH --by name",
        lambda r: [
            kernel(r, "sum_ns", by="name")["name"][:60],
            format_ns(kernel(r, "sum_ns", by="name")["sum_ns"]),
            format_count(kernel(r, "sum_ns", by="name")["count"]),
        ],
    ),
    "Show me the top 5 kernels": (
        SLOW,
        "kernels PATH --by name",
        lambda r: [
            format_ns(row["sum_ns"])
            for row in r.table("kernels", by="name").sort("sum_ns").records()[:5]
        ],
    ),
    "Which kernel runs most often?": (
        SLOW,
        "kernels PATH --by name",
        lambda r: [f"{format_count(kernel(r, 'count', by='name')['count'])} runs"],
    ),
    "Which kernel has the longest single run?": (
        SLOW,
        "kernels PATH --by name",
        lambda r: [format_ns(kernel(r, "max_ns", by="name")["max_ns"])],
    ),
    "Which kernel is slow on average?": (
        FAST,
        "kernels PATH --by name",
        lambda r: [format_ns(round(kernel(r, "mean_ns", by="name")["mean_ns"]))],
    ),
    "How many kernels ran?": (
        SLOW,
        "kernels PATH --by name",
        lambda r: [format_count(r.sum("kernels", "count", "class=compute", by="name"))],
    ),
    "Which kernel takes most time on rank 2?": (
        RANKS,
        "kernels PATH --by name --rank 2",
        lambda r: [format_ns(kernel(r, "sum_ns", by="name", rank=2)["sum_ns"])],
    ),
    "Which kernel has the lowest occupancy?": (
        SLOW,
        "kernels PATH --by name",
        lambda r: [
            share(min(o for o in r.table("kernels").to_list("occupancy_share") if o is not None))
        ],
    ),
    "What does dgrad_engine cost?": (
        SLOW,
        "kernels PATH --by name",
        lambda r: [
            "dgrad_engine",
            format_ns(r.sum("kernels", "sum_ns", "name=dgrad_engine", by="name")),
        ],
    ),
    "Which operator takes the most GPU time?": (
        SLOW,
        "ops PATH --by name",
        lambda r: [
            r.first("ops", "exclusive_gpu_ns")["name"],
            format_ns(r.first("ops", "exclusive_gpu_ns")["exclusive_gpu_ns"]),
        ],
    ),
    "Which operator costs most CPU time?": (
        SLOW,
        "ops PATH --by name",
        lambda r: [
            r.first("ops", "self_host_ns")["name"][:40],
            format_ns(r.first("ops", "self_host_ns")["self_host_ns"]),
        ],
    ),
    "Which op is called most often?": (
        SLOW,
        "ops PATH --by name",
        lambda r: [f"{format_count(r.first('ops', 'count')['count'])} calls"],
    ),
    "Which operator launches the most?": (
        SLOW,
        "ops PATH --by name",
        lambda r: [format_count(r.first("ops", "launches")["launches"])],
    ),
    "How long does aten::add_ take?": (
        SLOW,
        "ops PATH --by name",
        lambda r: [
            format_ns(row["exclusive_gpu_ns"])
            for row in r.table("ops").records()
            if row["name"] == "aten::add_"
        ],
    ),
    "How long do convolutions take?": (
        SLOW,
        "ops PATH --by category",
        lambda r: [
            format_ns(r.sum("ops", "exclusive_gpu_ns", "family=convolution", by="category"))
        ],
    ),
    "How much time do matmuls take?": (
        RANKS,
        "ops PATH --by category",
        lambda r: [format_ns(r.sum("ops", "exclusive_gpu_ns", "family=gemm", by="category"))],
    ),
    "Is there attention in this model?": (
        SLOW,
        "ops PATH --by category",
        lambda r: ["no operator or kernel of that kind"],
    ),
    "With which shapes is the slowest operator called?": (
        SLOW,
        "ops PATH --by args",
        lambda r: [r.first("ops", "exclusive_gpu_ns", by="args")["input_dims"][:40]],
    ),
    "Which layer of the model is slowest?": (
        SLOW,
        "modules PATH",
        lambda r: [
            r.first("modules", "own_gpu_ns")["module"],
            format_ns(r.first("modules", "own_gpu_ns")["own_gpu_ns"]),
        ],
    ),
    "How long does the backward pass take?": (
        SLOW,
        "kernels PATH --by event",
        lambda r: [
            format_ns(r.sum("kernels", "exclusive_ns", f"phase={phase}", by="event"))
            for phase in ("forward", "backward", "optimizer")
        ],
    ),
    "How long is a step?": (
        SLOW,
        "steps PATH",
        lambda r: [
            format_ns(r.diagnosis.step.measured_ns),
            format_ns(r.diagnosis.step.median_ns),
        ],
    ),
    "Which step is the slowest?": (
        SLOW,
        "steps PATH",
        lambda r: [
            r.first("steps", "duration_ns")["name"],
            format_ns(r.first("steps", "duration_ns")["duration_ns"]),
        ],
    ),
    "How many steps are there?": (
        SLOW,
        "steps PATH",
        lambda r: [f"has {r.table('steps').num_rows} steps"],
    ),
    "Do the steps vary?": (
        SLOW,
        "steps PATH",
        lambda r: [share(r.table("steps").facts["jitter"]["mad_share"])],
    ),
    "Why is step 8 slow?": (
        SLOW,
        "steps PATH",
        lambda r: [
            step(r, "ProfilerStep#8")["differs"][0]["name"],
            format_ns(step(r, "ProfilerStep#8")["differs"][0]["delta_ns"]),
        ],
    ),
    "Why is step 99 slow?": (
        SLOW,
        "steps PATH",
        lambda r: ["no such step", r.table("steps").to_list("name")[0]],
    ),
    "How much data is copied to the GPU?": (
        SLOW,
        "memory PATH --by direction",
        lambda r: [format_bytes(r.sum("memory", "total_bytes", "direction=HtoD"))],
    ),
    "How fast are host-to-device copies?": (
        SLOW,
        "memory PATH --by direction",
        lambda r: [
            f"{r.first('memory', 'time_ns')['bandwidth_gb_per_s']:.1f} GB/s",
        ],
    ),
    "Is pinned memory used?": (
        SLOW,
        "memory PATH --by direction",
        lambda r: ["host memory Pageable", "no_memory_pin"],
    ),
    "Which copies go from device to host?": (
        SLOW,
        "memory PATH --by direction",
        lambda r: ["no such copies"],
    ),
    "What is the peak memory?": (
        SLOW,
        "memory PATH --by allocator",
        lambda r: [
            format_bytes(peak["peak_growth_bytes"])
            for peak in r.table("memory", by="allocator").facts["peaks"]
        ],
    ),
    "How much memory do we use?": (
        RANKS,
        "memory PATH --by allocator",
        lambda r: ["profile_memory=True"],
    ),
    "Is data loading the problem?": (
        SLOW,
        "host PATH --by op",
        lambda r: [
            format_ns(r.diagnosis.idle_ns["data_loading"]),
            *r.cost("single_process_data_loading"),
        ],
    ),
    "What does the CPU do while the GPU is idle?": (
        SLOW,
        "host PATH --by op",
        lambda r: [
            r.first("host", "gpu_idle_ns", by="op")["name"][:40],
            format_ns(r.first("host", "gpu_idle_ns", by="op")["gpu_idle_ns"]),
        ],
    ),
    "Which Python function is slow?": (
        SLOW,
        "host PATH --by op",
        lambda r: ["with_stack=True", format_ns(r.first("host", "self_ns", by="op")["self_ns"])],
    ),
    "How much does launching cost?": (
        SLOW,
        "launches PATH --by call",
        lambda r: [format_ns(r.sum("launches", "host_sum_ns", by="call")), *r.cost("cpu_bound")],
    ),
    "How many launches are there?": (
        FAST,
        "launches PATH --by call",
        lambda r: [f"{format_count(r.sum('launches', 'calls', by='call'))} calls"],
    ),
    "Does the host synchronize with the GPU?": (
        SLOW,
        "host PATH --by op",
        lambda r: ["cudaStreamSynchronize", "(host_sync_in_loop): was looked for and not found"],
    ),
    "Do we use tensor cores?": (
        SLOW,
        "roofline PATH --by args",
        lambda r: [
            "fp32 vector",
            format_ns(r.sum("roofline", "gpu_ns", "peak=fp32 vector")),
            *r.cost("fp32_matmul"),
        ],
    ),
    "Which operators are the worst against the roofline?": (
        SLOW,
        "roofline PATH --by args",
        lambda r: [share(r.first("roofline", "roofline_share", least=True)["roofline_share"])],
    ),
    "Which kernels should I fuse?": (
        SLOW,
        "sequences PATH",
        lambda r: [format_ns(r.first("sequences", "removable_ns")["removable_ns"])],
    ),
    "Which kernels do not fill the GPU?": (
        SLOW,
        "grids PATH --by name",
        lambda r: [format_ns(r.first("grids", "below_one_wave_ns")["below_one_wave_ns"])],
    ),
    "Which calls take longer than expected?": (
        SLOW,
        "expected PATH --by args",
        lambda r: [f"{r.first('expected', 'ratio')['ratio']:.3g} times"],
    ),
    "What is on the critical path?": (
        SLOW,
        "critical-path PATH --by name",
        lambda r: [format_ns(r.first("critical_path", "time_ns", by="name")["time_ns"])],
    ),
    "How many streams are used?": (
        SLOW,
        "launches PATH --by stream",
        lambda r: [
            "1 different streams",
            format_count(r.sum("launches", "gpu_events", by="stream")),
        ],
    ),
    "Which rank is late?": (
        RANKS,
        "ranks PATH --by rank",
        lambda r: [
            f"rank {r.first('ranks_table', 'lateness_ns')['rank']} (straggler)",
            format_ns(r.first("ranks_table", "lateness_ns")["lateness_ns"]),
        ],
    ),
    "Which rank is the straggler?": (SLOW, "ranks PATH", lambda r: ["a single rank"]),
    "How much communication is exposed?": (
        RANKS,
        "collectives PATH",
        lambda r: [
            format_ns(r.diagnosis.profiled_timeline.exposed_communication_ns),
            format_ns(r.diagnosis.profiled_timeline.communication_ns),
        ],
    ),
    "Which all-reduce waits longest?": (
        RANKS,
        "collectives PATH",
        lambda r: [format_ns(r.first("collectives", "longest_wait_ns")["longest_wait_ns"])],
    ),
    "How many all-gathers are there?": (RANKS, "collectives PATH", lambda r: ["no such"]),
    "What should I fix first?": (
        SLOW,
        "diagnose PATH",
        lambda r: [
            r.diagnosis.plan[0].edit,
            *(format_ns(fix.total_ns_after) for fix in r.diagnosis.plan),
        ],
    ),
    "What would 4 loader workers save?": (
        SLOW,
        "simulate PATH --edit loader_workers=4",
        lambda r: [format_ns(r.trace.simulate(["loader_workers=4"]).edits[0].predicted_ns)],
    ),
    "Would CUDA graphs help?": (
        SLOW,
        "simulate PATH --edit cuda_graph",
        lambda r: [format_ns(r.trace.simulate(["cuda_graph"]).edits[0].predicted_ns)],
    ),
    "Why is my training slow?": (
        SLOW,
        "diagnose PATH",
        lambda r: [finding.type for finding in r.diagnosis.findings[:3]],
    ),
    "What is wrong with this run?": (
        RANKS,
        "diagnose PATH",
        lambda r: [finding.type for finding in r.diagnosis.findings[:3]],
    ),
    "Are there graph breaks?": (
        SLOW,
        "diagnose PATH",
        lambda r: ["(graph_break): was looked for and not found"],
    ),
    "Which GPU was used?": (
        SLOW,
        "summary PATH",
        lambda r: ["Tesla V100-DGXS-32GB", format_count(r.trace.summary().events.gpu)],
    ),
    "How many ranks does the job have?": (RANKS, "summary PATH", lambda r: ["ranks: 4"]),
    "Is anything missing in the recording?": (
        SLOW,
        "quality PATH",
        lambda r: [share(r.table("quality").facts["recorded_share"])],
    ),
    "How long does a token take?": (
        SERVING,
        "serving PATH --by phases",
        lambda r: [
            format_ns(
                r.first("serving_table", "time_per_output_token_ns", by="phases")[
                    "time_per_output_token_ns"
                ]
            ),
            "sglang",
        ],
    ),
    "How long is prefill?": (
        SERVING,
        "serving PATH --by phases",
        lambda r: [format_ns(r.first("serving_table", "median_ns", by="phases")["median_ns"])],
    ),
    "How many tokens per second does decode give?": (
        SLOW,
        "serving PATH --by phases",
        lambda r: ["not known to be of a serving engine"],
    ),
    "why is the gpu idle": (HOST, "diagnose PATH", lambda r: ["ProfilerActivity.CUDA"]),
    "Which kernel is slow?": (HOST, "kernels PATH", lambda r: ["ProfilerActivity.CUDA"]),
}


def test_there_are_sixty() -> None:
    assert len(QUESTIONS) >= 60


def names_of(run: Run) -> list[str]:
    """Names of the trace, which hold digits that are no numbers."""
    names = {string for rank in run.trace.ranks for string in rank.table.strings}
    names |= {"Tesla V100-DGXS-32GB", "loader_workers=4"}
    names |= {f"{key}: {value}" for key, value in run.trace.summary().versions.items()}
    names |= {fix.edit for fix in run.diagnosis.plan}
    own = {text for finding in run.diagnosis.findings for text in (finding.title, finding.type)}
    names = {name for name in names if re.match(r"[A-Za-z_#<(\[]", name)}
    return sorted(own | {name for name in names if numbers_in(name)})


def uncited(answer: OfflineAnswer, names: list[str]) -> list[str]:
    """Numbers of an answer that are none of its citations; advice may hold some."""
    found = []
    for line in answer.text.splitlines():
        if line.startswith(("Change: ", "From `")):
            continue
        for name in names:
            line = line.replace(name, " ") if ": " in name else line
        figures = re.split(
            r"^- .*?: (?=(?:shapes \S+ |the longest |bound by |occupancy )?\d)", line
        )[-1]
        for quantity in quantities_in(re.sub(r"\[\[.*", " ", figures), names):
            if not any(quantity.tells(metric) for metric in answer.citations):
                found.append(f"{quantity} in {line!r}")
    return found


@pytest.mark.parametrize("question", list(QUESTIONS))
def test_a_question_is_answered_from_its_table(runs: Mapping[str, Run], question: str) -> None:
    name, command, right = QUESTIONS[question]
    run = runs[name]
    answer = answer_offline(run.diagnosis, question)
    assert f"`torchtraceap {command}" in answer.text
    for text in right(run):
        assert text in answer.text
    assert uncited(answer, names_of(run)) == []


@pytest.mark.parametrize(
    ("question", "needed"),
    [
        ("How much power does the GPU draw?", "nvidia-smi"),
        ("Why does the loss become NaN?", "log of the training"),
        ("What does this run cost in dollars?", "plan"),
        ("How often does the kernel miss the L2 cache?", "Nsight Compute"),
        ("Is the SSD too slow?", "iostat"),
        ("Why is it slower than yesterday?", "diff BEFORE AFTER"),
        ("How long would it take on an H100?", "device=NAME"),
        ("What is the largest batch size that fits?", "predict"),
    ],
)
def test_what_no_trace_tells_is_said_with_what_would(
    runs: Mapping[str, Run], question: str, needed: str
) -> None:
    answer = answer_offline(runs[SLOW].diagnosis, question)
    assert answer.text.startswith("The trace does not tell this.")
    assert needed in answer.text
    assert answer.citations == ()


def test_what_is_said_of_all_ranks_or_steps_is_marked(runs: Mapping[str, Run]) -> None:
    """A restriction that a table does not know is never dropped in silence."""
    of_step = answer_offline(runs[SLOW].diagnosis, "Which kernel is slow in step 7?")
    assert of_step.text.startswith("This is of the whole trace")
    of_rank = answer_offline(runs[RANKS].diagnosis, "Which kernel is slow on rank 9?")
    assert of_rank.text.startswith("The trace has no such rank")


def test_citations_are_in_the_documents(runs: Mapping[str, Run]) -> None:
    diagnosis = runs[SLOW].diagnosis
    response = diagnosis.ask("Which kernel takes most time?")
    first = response.to_dict()["citations"][0]
    row = runs[SLOW].first("kernels", "sum_ns", by="name")
    assert first["metric"] == "kernels.1.sum_ns"
    assert first["exact"] == row["sum_ns"]
    explained = diagnosis.explain(question="Which kernel takes most time?").to_dict()
    assert explained["answer"] == response.text
    assert explained["answer_citations"][0] == first
    assert diagnosis.explain().to_dict()["answer_citations"] == []
