"""`check`: a contract on a trace, what is told of it, and what other programs are given."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
import yaml
from gpu_traces import GpuTrace
from report_samples import HOSTILE, TraceMaker, hostile_calls, slow_loader

import torchtraceap as ttap
from torchtraceap.cli import main
from torchtraceap.contracts import CheckResult, Contract, KeyResult, check
from torchtraceap.contracts.output import (
    annotation_lines,
    check_text,
    junit_text,
    markdown_text,
    sarif_of,
)
from torchtraceap.contracts.result import Frame
from torchtraceap.core.results import EventStart
from torchtraceap.simulation.edits.base import default_edits, edit_names


def training(launches: tuple[int, ...] = (2, 4, 4), *, rank: int | None = None) -> TraceMaker:
    """Steps of 1 ms with as many launches, an `.item()` in the last, a copy of 1 KiB in each."""
    maker = TraceMaker(rank=rank, world_size=1 if rank is None else 2)
    for step, count in enumerate(launches):
        at = 10_000 + 1000 * step
        maker.host("user_annotation", f"ProfilerStep#{step + 5}", at, 1000)
        maker.host("python_function", "train.py(12): step", at + 2, 990)
        maker.host("cpu_op", "aten::linear", at + 10, 500)
        for i in range(count):
            name = f"gemm_{i}"
            maker.gpu("kernel", name, at + 60 + 100 * i, 90, launch=at + 20 + 50 * i)
        maker.gpu("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", at + 600, 10, launch=at + 550,
                  call="cudaMemcpyAsync", bytes=1024)  # fmt: skip
    maker.host("python_function", "torch/_tensor.py(900): item", at + 650, 110)
    maker.host("cpu_op", "aten::item", at + 700, 50)
    maker.host("cuda_runtime", "cudaStreamSynchronize", at + 710, 30)
    return maker


def checked(
    maker: TraceMaker | GpuTrace, folder: Path, /, *, price: bool = False, **more: Any
) -> CheckResult:
    about = {key: more.pop(key) for key in ("device", "tolerance", "name", "file") if key in more}
    one_step = more.pop("one_step", False)
    if isinstance(maker, GpuTrace):
        trace = maker.load(folder)
    else:
        trace = ttap.load(maker.write(folder / "trace.json"))
    return check(trace, Contract.parse(more, **about), price=price, one_step=one_step)


def one(maker: TraceMaker | GpuTrace, folder: Path, /, **more: Any) -> KeyResult:
    (found,) = checked(maker, folder, **more).results
    return found


# ------------------------------------------------------------------------------- statuses


def test_contract_of_the_readme_holds_or_says_what_breaks(tmp_path: Path) -> None:
    found = checked(
        training(), tmp_path, syncs=0, launches_per_step="<=3", h2d_bytes="<=4 MiB",
        gpu_idle="<10%", collectives={"all_reduce": 2}, recompiles=0, findings=["no_memory_pin"],
    )  # fmt: skip
    statuses = {each.key: each.status for each in found.results}
    assert statuses == {
        "syncs": "failed",
        "launches_per_step": "failed",
        "h2d_bytes": "passed",
        "gpu_idle": "failed",
        "collectives": "failed",
        "recompiles": "passed",
        "findings": "passed",
    }
    assert not found.passed
    assert [each.key for each in found.failed] == [k for k, s in statuses.items() if s == "failed"]


def test_first_event_is_the_one_that_goes_beyond(tmp_path: Path) -> None:
    maker = training()
    found = one(maker, tmp_path, launches_per_step="<=3")
    assert (found.measured, found.limit, found.step) == (4, "<=3", "ProfilerStep#6")
    part = ttap.load(tmp_path / "trace.json").ranks[0]
    assert found.first_event is not None
    (kernel,) = part.tree.launched_rows[
        part.tree.launched_offsets[found.first_event.row] :
        part.tree.launched_offsets[found.first_event.row + 1]
    ]  # fmt: skip
    assert part.table.name_of(kernel) == "gemm_3"  # the fourth
    assert found.first_event.start_ns == int(part.table.ts_ns[found.first_event.row])
    assert found.reason == (
        "4 launches in ProfilerStep#6, and the contract says at most 3: 1 too many; "
        "2 steps break it"
    )


def test_first_wait_is_named_with_the_programs_frame(tmp_path: Path) -> None:
    found = one(training(), tmp_path, syncs=0)
    assert found.first_event is not None
    assert found.first_event.name == "cudaStreamSynchronize"
    assert found.frame == Frame("python", "step", "train.py", 12)
    assert "1 wait of the host for the GPU in the profiled time" in found.reason


def test_sum_of_bytes_names_the_copy_that_exceeds(tmp_path: Path) -> None:
    found = one(training(), tmp_path, h2d_bytes="<=2 KiB")
    assert found.measured == 3072
    assert found.first_event is not None and found.first_event.name.startswith("Memcpy HtoD")
    trace = ttap.load(tmp_path / "trace.json")
    copies = trace.memory(by="copy").records()
    assert found.first_event.row == copies[2]["row"]
    assert "1.00 KiB too much" in found.reason


@pytest.mark.parametrize(
    ("limit", "status"),
    [("<=4", "passed"), ("<4", "failed"), (4, "failed"), ("2..4", "passed"), (">=2", "passed"),
     (">=3", "failed"), ("==3", "failed")],
)  # fmt: skip
def test_limit_per_step_holds_for_every_step(tmp_path: Path, limit: Any, status: str) -> None:
    found = one(training(), tmp_path, launches_per_step=limit)
    assert found.status == status
    if limit == ">=3":  # too few: nothing to point at
        assert found.first_event is None and "1 too few" in found.reason
        assert found.step == "ProfilerStep#5"


def test_without_steps_a_limit_per_step_is_inconclusive(tmp_path: Path) -> None:
    trace = GpuTrace().launch("a", (0, 5), (20, 30)).launch("b", (50, 5), (60, 30))
    found = one(trace, tmp_path, launches_per_step="<=1")
    assert (found.status, found.measured) == ("inconclusive", None)
    assert "profiler.step()" in found.reason
    assert checked(trace, tmp_path, launches_per_step="<=1").passed  # none failed
    whole = one(trace, tmp_path, launches_per_step="<=1", one_step=True)
    assert whole.status == "failed" and "taken as one step" in whole.reason


def test_collectives_by_kind_and_together(tmp_path: Path) -> None:
    trace = GpuTrace().op("aten::add", 0, 5)
    for i, kind in enumerate(("AllReduce", "AllReduce", "AllGather", "Broadcast")):
        name = f"ncclDevKernel_{kind}_RING_LL(x)"
        trace.launch(name, (10 + 100 * i, 5), (20 + 100 * i, 30))
    assert one(trace, tmp_path, collectives={"all_reduce": 2}).status == "passed"
    assert one(trace, tmp_path, collectives=4).status == "passed"
    found = one(trace, tmp_path, collectives={"all_reduce": 1})
    assert found.measured == {"all_reduce": 2, "broadcast": 1, "all_gather": 1}
    assert found.reason.startswith("2 all_reduce in the whole trace")
    other = one(trace, tmp_path, collectives={"all_reduce": 2, "other": 1})
    assert other.status == "failed" and other.first_event is not None
    assert "Broadcast" in other.first_event.name
    assert one(trace, tmp_path, collectives="<=3").status == "failed"


def test_a_limit_holds_on_every_rank(tmp_path: Path) -> None:
    for rank, launches in enumerate(((2, 2, 2), (2, 3, 2))):
        training(launches, rank=rank).write(tmp_path / f"rank{rank}.json")
    trace = ttap.load(tmp_path)
    (found,) = check(trace, Contract.parse({"launches_per_step": 2}), price=False).results
    assert (found.status, found.rank, found.measured) == ("failed", 1, 3)
    assert "on rank 1" in found.reason
    (held,) = check(trace, Contract.parse({"launches_per_step": "<=3"}), price=False).results
    assert (held.status, held.rank, held.measured) == ("passed", 1, 3)


def test_cpu_only_traces_hold_counts_and_not_shares(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.top["deviceProperties"] = []
    maker.host("cpu_op", "aten::item", 0, 10)
    found = checked(maker, tmp_path, syncs=0, collectives=0, h2d_bytes=0, gpu_idle="<10%",
                    recompiles=0, launches="<=5")  # fmt: skip
    statuses = {each.key: each.status for each in found.results}
    assert statuses == {
        "syncs": "failed",
        "collectives": "passed",
        "h2d_bytes": "inconclusive",
        "gpu_idle": "inconclusive",
        "recompiles": "passed",
        "launches": "inconclusive",
    }
    assert found.device == "cpu"
    assert "record_shapes=True" in found.results[-1].reason


# -------------------------------------------------------------------------- shares and times


def test_shares_and_times_are_of_one_device(tmp_path: Path) -> None:
    limits = {"gpu_idle": "<99%", "step_time": "<=1 s", "launches": "<=1000"}
    for device, status in (("Test GPU", "passed"), (" test gpu", "passed"), (None, "passed"),
                           ("NVIDIA A100-SXM4-80GB", "inconclusive")):  # fmt: skip
        found = checked(slow_loader(), tmp_path, device=device, **limits)
        assert [each.status for each in found.results] == [status, status, "passed"]
    assert "recorded on NVIDIA A100-SXM4-80GB, the trace on Test GPU" in found.results[0].reason


def test_step_time_of_a_cpu_needs_a_contract_that_says_so(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.top["deviceProperties"] = []
    for step in range(4):
        maker.host("user_annotation", f"ProfilerStep#{step + 5}", 100 * step, 100)
        maker.host("cpu_op", "aten::add", 100 * step + 1, 90)
    assert one(maker, tmp_path, step_time="<=1 s").status == "inconclusive"
    assert one(maker, tmp_path, step_time="<=1 s", device="cpu").status == "passed"
    slow = one(maker, tmp_path, step_time="<=50 us", device="cpu")
    assert slow.status == "failed" and "50.0 µs too much" in slow.reason


def test_idle_names_what_the_longest_gap_waits_for(tmp_path: Path) -> None:
    found = one(slow_loader(), tmp_path, gpu_idle="<10%")
    assert found.status == "failed" and found.first_event is not None
    assert found.first_event.name in ("aten::stack",) or "DataLoader" in found.first_event.name
    assert "percentage points too much" in found.reason


def test_tolerance_is_of_shares_and_not_of_counts(tmp_path: Path) -> None:
    share = one(slow_loader(), tmp_path, gpu_busy=">=1%").measured
    written = f"<={share * 95:.3f}%"
    assert one(slow_loader(), tmp_path, gpu_busy=written).status == "failed"
    assert one(slow_loader(), tmp_path, gpu_busy=written, tolerance=0.1).status == "passed"
    assert one(training(), tmp_path, launches_per_step="<=3", tolerance=1.0).status == "failed"


# ------------------------------------------------------------------ findings, prices, wins


def test_findings_are_present_absent_or_not_told(tmp_path: Path) -> None:
    present = one(slow_loader(), tmp_path, findings=["single_process_data_loading"])
    assert (present.status, present.measured) == ("failed", ["single_process_data_loading"])
    assert present.first_event is not None
    assert one(slow_loader(), tmp_path, findings=["graph_break"]).status == "passed"
    assert one(slow_loader(), tmp_path, findings="none").status == "failed"
    maker = TraceMaker()
    maker.top["deviceProperties"] = []
    maker.host("cpu_op", "aten::add", 0, 10)
    unknown = one(maker, tmp_path, findings=["no_memory_pin"])
    assert unknown.status == "inconclusive" and "GPU events" in unknown.reason


def test_what_fails_has_a_price(tmp_path: Path) -> None:
    limits = {"findings": ["single_process_data_loading"], "launches": "<=1", "operators": ">=0"}
    found = checked(slow_loader(), tmp_path, price=True, **limits).results
    assert found[0].price_ns and found[0].price_per_step
    assert found[0].price_ns == pytest.approx(45e6, rel=0.2)  # the loader's part of the step
    assert "loader_workers" in found[0].price_note
    assert "cuda_graph" in found[1].price_note
    assert found[2].price_note == ""
    unpriced = checked(slow_loader(), tmp_path, **limits).results
    assert unpriced[0].price_ns is None and unpriced[0].price_note == ""


def test_price_of_idle_time_is_that_of_what_is_present(tmp_path: Path) -> None:
    found = one(slow_loader(), tmp_path, gpu_idle="<10%", price=True)
    assert found.price_note.startswith("loader_workers=4")


def test_fixes_are_edits_that_there_are() -> None:
    from torchtraceap.contracts.checker import _FIXES

    names = {name.partition("[")[0].partition("=")[0] for name in edit_names()}
    for edits in _FIXES.values():
        assert {edit.partition("=")[0] for edit in edits} <= names
    assert default_edits()


def test_wins_are_told(tmp_path: Path) -> None:
    found = one(training(), tmp_path, launches_per_step="<=120")
    assert found.won == "4 where 120 are allowed: the limit can be tightened"
    assert not one(training(), tmp_path, launches_per_step="<=4").won
    assert not one(training(), tmp_path, syncs=1).won
    fewer = one(training(), tmp_path, syncs=2)  # an exact limit says when it is better too
    assert fewer.status == "failed" and "1 too few" in fewer.reason


# ----------------------------------------------------------------------------------- frames


@pytest.mark.parametrize(
    ("around", "frame"),
    [
        ([("python_function", "/home/me/train.py(7): main"),
          ("python_function", "/usr/lib/python3/site-packages/torch/nn/modules/linear.py(1): f"),
          ("python_function", "<built-in method item of Tensor object at 0x7f>")],
         Frame("python", "main", "/home/me/train.py", 7)),
        ([("python_function", "torch/nn/modules/module.py(1): _call_impl"),
          ("python_function", "nn.Module: Linear_0")],
         Frame("python", "_call_impl", "torch/nn/modules/module.py", 1)),
        ([("user_annotation", "ProfilerStep#3"), ("user_annotation", "loss"),
          ("cpu_op", "aten::to"), ("cpu_op", "aten::copy_")],
         Frame("annotation", "loss")),
        ([("python_function", "nn.Module: Linear_0"), ("cpu_op", "aten::to")],
         Frame("module", "Linear_0")),
        ([("cpu_op", "ProfilerStep#3"), ("cpu_op", "aten::to"), ("cpu_op", "aten::copy_")],
         Frame("operator", "aten::to")),
        ([], None),
    ],
)  # fmt: skip
def test_frame_is_the_programs_own(
    tmp_path: Path, around: list[tuple[str, str]], frame: Frame | None
) -> None:
    trace = GpuTrace().launch("a", (500, 5), (510, 30))
    for depth, (category, name) in enumerate(around):
        trace.host(category, name, 10 + depth, 400 - 2 * depth)
    trace.call("cudaStreamSynchronize", 100, 5)
    assert one(trace, tmp_path, syncs=0).frame == frame


def test_frame_of_a_backward_pass_is_that_of_the_forward_operator(tmp_path: Path) -> None:
    trace = GpuTrace().host("python_function", "train.py(3): forward", 0, 100)
    trace.op("aten::mul", 10, 20, **{"Sequence number": 5, "Fwd thread id": 0})
    backward = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 2}
    name = "autograd::engine::evaluate_function: MulBackward0"
    args = {"Sequence number": 5, "Fwd thread id": 1}
    trace.raw(backward | {"name": name, "ts": 200, "dur": 50, "args": args})
    trace.raw(backward | {"name": "MulBackward0", "ts": 205, "dur": 40, "args": args})
    call = {"ph": "X", "cat": "cuda_runtime", "pid": 1, "tid": 2}
    trace.raw(call | {"name": "cudaStreamSynchronize", "ts": 210, "dur": 5, "args": {}})
    trace.launch("a", (500, 5), (510, 30))
    found = one(trace, tmp_path, syncs=0)
    part = ttap.load(tmp_path / "trace.json").ranks[0]
    linked = (part.tree.forward != 0xFFFFFFFF).any()
    assert found.frame == (Frame("python", "forward", "train.py", 3) if linked else found.frame)
    assert linked


# ---------------------------------------------------------------------------- other programs


def hostile_results() -> CheckResult:
    """Every text is somebody's attempt."""
    names = [
        *HOSTILE,
        "a|b`c\n| d | [x](javascript:1) @team #1",
        "]]>&amp;<!--\x00\x1f\ud800\ufffe",
        "::error::x%0A::warning::y",
        "--> <b>",
        "https://evil.example www.evil.example",
    ]
    results = [
        KeyResult(
            "syncs", name, {name: 1}, status, f"{name}: reason", EventStart(1, name, 2), None, name,
            Frame("python", name, name, 3), 1000, True, name, name, 7, name,
        )
        for name in names
        for status in ("failed", "passed", "inconclusive")
    ]  # fmt: skip
    return CheckResult(False, tuple(results), HOSTILE[0], "a:b,c%\n::x.yaml", ("t.json",), names[4])


def test_junit_is_xml_that_any_reader_takes() -> None:
    text = junit_text(hostile_results())
    text.encode("utf-8")
    root = ElementTree.fromstring(text)
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]", text)
    suite = root.find("testsuite")
    assert suite is not None
    cases = suite.findall("testcase")
    assert len(cases) == int(suite.attrib["tests"]) == len(hostile_results().results)
    assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure"))
    assert int(suite.attrib["skipped"]) == len(suite.findall("testcase/skipped"))
    assert cases[0].attrib["line"] == "7"
    assert {child.tag for case in cases for child in case} <= {"failure", "skipped", "system-out"}


def test_sarif_has_what_its_schema_asks_for() -> None:
    result = hostile_results()
    document = json.loads(sarif_of([result]))
    assert document["version"] == "2.1.0" and document["$schema"].endswith("sarif-2.1.0.json")
    (run,) = document["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "torchtraceap"
    rules = [rule["id"] for rule in driver["rules"]]
    assert len(rules) == len(set(rules))
    assert len(run["results"]) == len(result.failed)
    for each in run["results"]:
        assert rules[each["ruleIndex"]] == each["ruleId"] and each["message"]["text"]
        assert each["level"] == "error"
        places = [*each["locations"], *each["relatedLocations"]]
        for place in places:
            uri = place["physicalLocation"]["artifactLocation"]["uri"]
            assert re.fullmatch(r"[A-Za-z0-9_.~/%!$&'()*+,;=@:-]+", uri), uri
            assert "\n" not in unquote(uri)
            assert place["physicalLocation"]["region"]["startLine"] >= 1
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is True
    assert len(invocation["toolExecutionNotifications"]) == len(result.inconclusive)


def test_markdown_shows_names_and_formats_none() -> None:
    text = markdown_text(hostile_results())
    lines = text.splitlines()
    assert lines[0].startswith("<!-- ") and lines[0].endswith(" -->")
    assert lines[0].count("--") == 2
    for line in lines[1:]:
        outside = re.sub(r"`[^`]*`", "", line)
        assert line.count("`") % 2 == 0
        for sign in ("<", ">", "](", "@", "://", "www."):
            assert sign not in outside, line
    table = [line for line in lines if line.startswith("|")]
    assert {line.count("|") for line in table} == {5}
    assert not re.search("[\x00-\x09\x0b-\x1f\u2028\u202e]", text)


def test_annotations_are_one_command_each() -> None:
    lines = annotation_lines(hostile_results())
    command = r"::(error|warning|notice) (title|file|line)=[^:\n]*::[^\n\r]*"
    assert lines and all(re.fullmatch(command, line) for line in lines)
    assert all(line.startswith("::") and "\n" not in line for line in lines)
    first = lines[0].partition("::")[2].partition("::")[0]
    assert "file=a%3Ab%2Cc%25 %3A%3Ax.yaml" in first and "line=7" in first


def test_text_for_a_terminal_commands_nothing() -> None:
    text = check_text(hostile_results(), 80)
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)
    assert text.splitlines()[-1].endswith("11 failed, 11 passed, 11 inconclusive")


def test_hostile_trace_is_checked_as_any(tmp_path: Path) -> None:
    found = checked(hostile_calls(), tmp_path, gpu_idle="<1%", operators="<=1")
    assert [each.status for each in found.results] == ["failed", "failed"]
    for made in (junit_text, lambda each: sarif_of([each]), markdown_text):
        made(found).encode()


# ------------------------------------------------------------------------------ command line


def run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    code = main([str(each) for each in arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A trace and a contract that it breaks."""
    contract = tmp_path / "contract.yaml"
    contract.write_text("# ours\nlaunches_per_step: <=3\nsyncs: 1\noperators: <=100\n")
    return training().write(tmp_path / "trace.json"), contract


def test_command_line_gives_the_document(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    trace, contract = files
    code, out, _ = run(capsys, "check", trace, "--contract", contract, "--json")
    document = json.loads(out)
    assert code == 1
    assert (document["schema"], document["passed"]) == ("torchtraceap.check/1", False)
    results = {each["key"]: each for each in document["results"]}
    for each in document["results"]:
        keys = {"key", "limit", "measured", "status", "first_event", "reason"}
        assert keys <= set(each)
    assert {*results["launches_per_step"]["first_event"]} == {"row", "name", "start_ns"}
    assert (results["syncs"]["limit"], results["syncs"]["measured"]) == (1, 1)
    assert (results["operators"]["line"], document["file"]) == (4, str(contract))


def test_command_line_says_it_in_words(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    trace, contract = files
    code, out, _ = run(capsys, "check", trace, "--contract", contract, "--github")
    assert code == 1
    assert out.startswith("FAILED launches_per_step: 4 launches in ProfilerStep#6")
    assert "contract on Test GPU: 1 failed, 2 passed" in out
    assert f"::error title=contract%3A launches_per_step,file={contract},line=2::4 launches" in out
    assert "::notice title=contract%3A operators" in out


def test_command_line_passes(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    trace, contract = files
    contract.write_text("contracts:\n  step: {launches_per_step: <=4}\n")
    code, out, _ = run(capsys, "check", trace, "--contract", contract, "--name", "step")
    assert code == 0 and "1 passed" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("launch_per_step: 3\n", "contract.yaml:1: 'launch_per_step' is nothing"),
        ("syncs: 0\n\nsyncs: 1\n", "contract.yaml:3: 'syncs' is there already"),
        ("", "contract.yaml:1: holds no limit"),
        ("syncs: [\n", "contract.yaml:2: is no YAML"),
    ],
)
def test_unusable_contract_is_2_and_names_the_line(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    trace, contract = files
    contract.write_text(text)
    code, out, err = run(capsys, "check", trace, "--contract", contract)
    assert (code, out) == (2, "") and said in err and "internal" not in err


@pytest.mark.parametrize(
    "options",
    [("--update",), ("--reason", "x"), ("--update", "--reason", " "), ("--github", "--json"),
     ("--name", "nobody"), ("--junit", "/nowhere/x.xml")],
)  # fmt: skip
def test_unusable_options(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    trace, contract = files
    before = contract.read_text()
    code, _, err = run(capsys, "check", trace, "--contract", contract, *options)
    assert code == 2 and err and "internal" not in err
    assert contract.read_text() == before


def test_command_line_writes_files(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace, contract = files
    places = [tmp_path / name for name in ("a.xml", "a.sarif", "a.md")]
    options = ("--junit", places[0], "--sarif", places[1], "--markdown", places[2])
    code, _, err = run(capsys, "check", trace, "--contract", contract, *options, "--no-price")
    assert code == 1 and all(str(place) in err for place in places)
    assert ElementTree.parse(places[0]).getroot().tag == "testsuites"
    (run_of,) = json.loads(places[1].read_text())["runs"]
    (found,) = run_of["results"]
    place = found["locations"][0]["physicalLocation"]
    assert place["region"]["startLine"] == 2 and place["artifactLocation"]["uri"].endswith(
        "contract.yaml"
    )
    related = found["relatedLocations"][0]["physicalLocation"]
    assert related["artifactLocation"]["uri"] == "train.py"
    assert related["region"]["startLine"] == 12
    assert "Performance contract broken" in places[2].read_text()
    code, _, err = run(capsys, "check", trace, "--contract", contract, "--markdown", contract)
    assert code == 2 and "was read" in err


def test_update_makes_it_hold(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    trace, contract = files
    why = ("--update", "--reason", "four heads")
    code, _, err = run(capsys, "check", trace, "--contract", contract, *why)
    assert code == 0 and "launches_per_step: <=3 -> <=4" in err
    text = contract.read_text()
    assert text.startswith("# ours\nlaunches_per_step: <=4\nsyncs: 1\noperators: <=4\n")
    history = yaml.safe_load(text)["history"]
    assert [(each["key"], each["reason"]) for each in history] == [
        ("launches_per_step", "four heads"),
        ("operators", "four heads"),
    ]
    assert run(capsys, "check", trace, "--contract", contract)[0] == 0
    code, _, err = run(capsys, "check", trace, "--contract", contract, *why)
    assert code == 0 and "nothing to change" in err and contract.read_text() == text
