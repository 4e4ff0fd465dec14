"""Explanations: every number is cited, every citation holds, and a judge's word is checked."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap.core.intervals import covered_ns
from torchtraceap.core.knowledge import load_knowledge
from torchtraceap.core.results import Finding
from torchtraceap.diagnosis.result import Diagnosis
from torchtraceap.explanation import explain as explaining
from torchtraceap.explanation.explain import build_explanation, code_diff, judge_segments
from torchtraceap.explanation.explanation import Explanation
from torchtraceap.explanation.language_model import ModelError, RefusalError
from torchtraceap.explanation.offline_judge import OfflineJudge
from torchtraceap.explanation.pack import Pack
from torchtraceap.explanation.segments import Segment
from torchtraceap.explanation.verdict import Citation, Verdict, check_verdict
from torchtraceap.lab.generation.generate import generate
from torchtraceap.trace.trace import Trace

from .test_llm_segments import with_windows

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
ZERO = re.compile(r"(?<![\d.,])(?<!ank )0(?:\.0+)? (?:%|[A-Za-zµ]+)")


@pytest.fixture(scope="module")
def diagnosis(bundled: Path) -> Diagnosis:
    return ttap.diagnose(bundled)


def check_holds(document: dict[str, Any], trace: Trace) -> None:
    """As an outsider would who has the JSON and the trace: no name is allowed for."""
    by_rank = {rank.rank: rank for rank in trace.ranks}
    for segment in document["segments"]:
        assert segment["start_ns"] < segment["end_ns"]
        assert segment["type"] in {"none", *load_knowledge()}
        assert 0 <= segment["confidence"] <= 1
        values = {cited["value"] for cited in segment["citations"] if "metric" in cited}
        for text in (segment["what"], segment["why"]):
            assert text
            said = {float(number.replace(",", "")) for number in NUMBER.findall(text)}
            assert said <= values, (text, said - values)
        for cited in segment["citations"]:
            if "row" in cited:
                table, row = by_rank[cited["rank"]].table, cited["row"]
                assert table.name_of(row) == cited["name"]
                assert int(table.ts_ns[row]) == cited["start_ns"]
                assert int(table.dur_ns[row]) == cited["duration_ns"]


def test_every_number_is_cited_and_every_citation_holds(bundled: Path) -> None:
    trace = ttap.load(bundled)
    document = trace.explain().to_dict()
    assert document["schema"] == "torchtraceap.explanation/1"
    assert (document["source"], document["model"], document["usage"]) == ("offline", None, None)
    check_holds(document, trace)
    leading = document["segments"][0]
    assert leading["type"] == "single_process_data_loading"
    assert "num_workers" in leading["change"]["diff"]
    cost = next(c for c in leading["citations"] if c.get("metric") == "finding.cost")
    finding = trace.diagnose().finding(leading["type"])
    assert finding is not None and cost["exact"] == finding.cost_ns


def share_of(finding: Finding, segment: dict[str, Any], ranks: int) -> float:
    """The part of a segment that a finding costs: the mean over the ranks, or of the rank that pays
    most where that is more than one rank's share of it."""
    bounds_ns = np.array([segment["start_ns"], segment["end_ns"]], dtype=np.int64)
    costs_ns = []
    for rank in dict.fromkeys(finding.interval_ranks):
        own = finding.intervals[[each == rank for each in finding.interval_ranks]]
        costs_ns.append(int(covered_ns(own, bounds_ns)[0]))
    length_ns = segment["end_ns"] - segment["start_ns"]
    return max(sum(costs_ns) / ranks, *costs_ns) / length_ns


def both_ns(one: Finding, other: Finding) -> int:
    """Time that both cost, pair by pair: nothing of the code under test."""
    total_ns = 0
    for rank, (start, end) in zip(one.interval_ranks, one.intervals.tolist(), strict=True):
        mine = other.intervals[[each == rank for each in other.interval_ranks]]
        inside = np.minimum(mine[:, 1], end) - np.maximum(mine[:, 0], start)
        total_ns += int(inside[inside > 0].sum())
    return total_ns


def check_owns_what_it_says(document: dict[str, Any], diagnosis: Diagnosis) -> None:
    """Every segment of a finding costs a tenth there, nothing is zero, each finding is told once,
    and time of two is said to be."""
    found = {finding.type: finding for finding in diagnosis.findings}
    told = [segment["type"] for segment in document["segments"] if segment["type"] != "none"]
    assert len(told) == len(set(told))
    for segment in document["segments"]:
        prose = f"{segment['what']} {segment['why']}"
        assert not ZERO.search(prose), prose
        assert segment["change"]["text"] and segment["verify"]
        places = [(each["start_ns"], each["end_ns"]) for each in segment["places"]]
        assert (segment["start_ns"], segment["end_ns"]) in places == sorted(places)
        finding = found.get(segment["type"])
        if finding is None:
            said = diagnosis.verdicts | diagnosis.further_verdicts
            assert segment["type"] == "none" or said[segment["type"]] == "unknown"
            continue
        assert share_of(finding, segment, len(diagnosis.trace.ranks)) >= 0.1 - 1e-9
        for start_ns, end_ns in places:
            place = {"start_ns": start_ns, "end_ns": end_ns}
            assert share_of(finding, place, len(diagnosis.trace.ranks)) >= 0.1 - 1e-9
        others = [each for each in diagnosis.findings if each is not finding]
        if any(2 * both_ns(finding, each) >= finding.cost_ns for each in others):
            assert "counts once" in prose
        steps = diagnosis.step.steps if diagnosis.step else 1
        saving = finding.saving
        if saving and saving.simulated and saving.best_ns:
            times = steps if saving.per_step else len(diagnosis.trace.ranks)
            more = saving.best_ns * times > finding.cost_ns
            assert not more or "more than its own cost" in prose or "The same change" in prose


def test_holds_on_real_traces(corpus_file: Path) -> None:
    try:
        trace = ttap.load(corpus_file)
    except ttap.errors.TraceError as error:
        pytest.skip(f"can't be read: {error}")
    diagnosis = trace.diagnose()
    document = diagnosis.explain().to_dict()
    check_holds(document, trace)
    check_owns_what_it_says(document, diagnosis)
    json.dumps(document, allow_nan=False)
    found = {finding.type for finding in diagnosis.findings if finding.cost_ns}
    told = {segment["type"] for segment in document["segments"]}
    assert found <= told or len(document["segments"]) == 10


def event(name: str, cat: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


def synchronized(tmp_path: Path, stack: str) -> Trace:
    """Steps that wait for the GPU in `.item()`; the line is in frames, in `Call stack`, or in
    neither."""
    events = []
    for step in range(12):
        at, number = 1000.0 * step, step + 1
        call = {"Call stack": "torch/_tensor.py(9): item;train.py(12): step;train.py(3): <module>"}
        args = call if stack == "args" else {}
        events += [
            event(f"ProfilerStep#{step}", "user_annotation", at, 990),
            event("aten::item", "cpu_op", at + 100, 500, **args),
            event("aten::_local_scalar_dense", "cpu_op", at + 101, 498, **args),
            event("cudaMemcpyAsync", "cuda_runtime", at + 110, 5, correlation=100 + number),
            event("cudaStreamSynchronize", "cuda_runtime", at + 120, 470),
            event("aten::mul", "cpu_op", at + 800, 20, **args),
            event("cudaLaunchKernel", "cuda_runtime", at + 805, 5, correlation=number),
        ]
        if stack == "frames":
            events += [
                event("train.py(12): step", "python_function", at + 5, 980),
                event("torch/_tensor.py(9): item", "python_function", at + 99, 502),
            ]
        copy = "Memcpy DtoH (Device -> Pageable)"
        on_gpu = [
            ("k", "kernel", at + 810, 185, number),
            (copy, "gpu_memcpy", at + 580, 2, 100 + number),
        ]
        for name, cat, ts, dur, correlation in on_gpu:
            args = {"device": 0, "stream": 7, "correlation": correlation}
            events.append({**event(name, cat, ts, dur, **args), "pid": 0, "tid": 7})
    path = tmp_path / f"{stack}.json"
    path.write_text(json.dumps({"traceEvents": events}), "utf-8")
    return ttap.load(path)


@pytest.mark.parametrize("stack", ["frames", "args", "none"])
def test_the_line_of_the_program_is_named_or_the_option_that_records_it(
    tmp_path: Path, stack: str
) -> None:
    document = synchronized(tmp_path, stack).explain().to_dict()
    where = document["segments"][0]["where"]
    if stack == "none":
        assert where["frames"] == [] and "with_stack=True" in where["text"]
    else:
        assert where["text"] == "train.py:12, in step"
        assert where["frames"] == [
            {"kind": "python", "name": "step", "file": "train.py", "line": 12}
        ]


@pytest.mark.slow  # generates 40 traces and diagnoses them
def test_holds_on_generated_traces(tmp_path: Path) -> None:
    labels = generate(tmp_path, 40, seed=2911)
    paths = sorted(path for path in labels.parent.iterdir() if path.name[:1].isdigit())
    assert len(paths) >= 20  # those of several ranks are one folder
    named = 0
    for path in paths:
        trace = ttap.load(path)
        diagnosis = trace.diagnose()
        document = diagnosis.explain().to_dict()
        check_holds(document, trace)
        check_owns_what_it_says(document, diagnosis)
        named += len(diagnosis.findings)
    assert named >= 20


def test_nothing_heavy_is_imported_offline(bundled: Path) -> None:
    code = (
        "import sys, torchtraceap as ttap\n"
        f"print(ttap.load({str(bundled)!r}).explain().source)\n"
        "heavy = {'openai', 'pydantic', 'mcp', 'torch', 'httpx', 'sqlite3', 'pandas'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n")[:2] == ["offline", "[]"]


def test_each_type_has_text_that_holds(diagnosis: Diagnosis) -> None:
    """The texts of every entry, put onto a segment of the trace."""
    finding = diagnosis.findings[0]
    for name, entry in load_knowledge().items():
        other = replace(finding, type=name, facts={}, fix=entry.advice.fix)
        known = replace(diagnosis, findings=(other,), verdicts={name: "present"})
        for found in judge_segments(known).first:
            assert check_verdict(found.verdict, found.pack) == []
            assert not re.search(r"\{|\[\[", found.verdict.what + found.verdict.why)


# ------------------------------------------------------------------------------------ judges


class Scripted:
    """A judge that says what it is told, and counts."""

    asked_by = "model"
    reads_tables = True

    def __init__(self, *verdicts: Verdict | Exception) -> None:
        self.verdicts = list(verdicts)
        self.asked: list[tuple[str, bool]] = []

    def judge(self, segment: Segment, pack: Pack, *, settled: bool) -> Verdict:
        self.asked.append((segment.type, settled))
        said = self.verdicts.pop(0) if len(self.verdicts) > 1 else self.verdicts[0]
        if isinstance(said, Exception):
            raise said
        return said


def verdict(kind: str = "anti_pattern", primary: str = "cpu_bound", **more: Any) -> Verdict:
    given: dict[str, Any] = {
        "verdict": kind,
        "labels": () if primary == "none" else (primary,),
        "primary": primary,
        "confidence": 0.9,
        "evidence": (Citation("r1", None, None),),
        "what": "It waits.",
        "why": "Nothing is queued.",
        "fix": primary,
        "suggested_windows": None,
    }
    return Verdict(**(given | more))


def test_a_judge_names_segments(diagnosis: Diagnosis) -> None:
    found = build_explanation(diagnosis, Scripted(verdict()), model="m")
    assert (found.source, found.model) == ("llm", "m")
    assert {segment.type for segment in found.segments} == {"cpu_bound"}
    assert found.segments[0].change.text == load_knowledge()["cpu_bound"].advice.fix
    assert "the rules prove single_process_data_loading" in " ".join(found.problems)


def test_falls_back_to_the_rules(diagnosis: Diagnosis) -> None:
    broken = Scripted(ModelError("the server is gone"))
    found = build_explanation(diagnosis, broken, model="m")
    assert found.source == "offline_fallback"
    assert found.problems == (
        "part at 0 ns (single_process_data_loading): the server is gone; this part and those "
        "behind it are judged offline",
    )
    assert len(broken.asked) == 1  # nobody waits for it ten times
    assert found.segments == build_explanation(diagnosis).segments
    assert {segment.source for segment in found.segments} == {"offline"}


def test_some_segments_by_the_model(diagnosis: Diagnosis) -> None:
    found = build_explanation(diagnosis, Scripted(RefusalError("it refuses"), verdict()), model="m")
    assert found.source == "llm"
    assert [segment.source for segment in found.segments][:2] == ["offline", "llm"]
    assert "it refuses; this part is judged offline" in found.problems[0]


def test_doubt_is_scored_again(diagnosis: Diagnosis) -> None:
    assert max(diagnosis.windows.scores[12:15]) < 0.5
    known = with_windows(diagnosis, graph_break={13: 0.9})
    known = replace(known, findings=(), plan=(), lead=None)
    found = judge_segments(known)
    assert [(r.grid, r.asked_by) for r in found.rounds][:2] == [(100, "start"), (200, "rule")]
    assert len(found.first) == len(found.final) == found.rounds[-1].segments == 1
    # A model drops what the real scorer, asked again, does not flag: it was flagged by hand.
    by_model = judge_segments(known, Scripted(verdict("misclassified", "none")))
    assert [doubt.gone for doubt in by_model.doubts.values()] == [True]
    assert by_model.final == {}
    assert by_model.rounds[-1].changed


def test_a_model_may_doubt_but_rules_keep_what_they_prove(diagnosis: Diagnosis) -> None:
    unsure = verdict("misclassified", "none", confidence=0.5)
    sure = verdict("misclassified", "none", confidence=0.7)
    kept = build_explanation(diagnosis, Scripted(unsure), model="m")
    assert [r.asked_by for r in kept.rounds] == ["start"]
    doubted = Scripted(sure)
    found = build_explanation(diagnosis, doubted, model="m")
    assert [r.asked_by for r in found.rounds][1:] in (["model"], ["model", "model"])
    assert len(found.segments) == len(kept.segments)  # all of them have a finding
    assert any(settled for _, settled in doubted.asked)


def test_a_suggested_grid_is_asked(diagnosis: Diagnosis) -> None:
    found = build_explanation(
        diagnosis, Scripted(verdict(suggested_windows=50), verdict()), model="m"
    )
    assert [r.grid for r in found.rounds][:2] == [100, 50]


def test_the_offline_judge_is_checked_too(
    diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OfflineJudge, "judge", lambda *_, **__: verdict(what="It takes 47 ms."))
    with pytest.raises(AssertionError, match="47"):
        build_explanation(diagnosis)


# ------------------------------------------------------------------------------------- texts


def test_a_diff_keeps_what_stays() -> None:
    assert code_diff("a\nb\nc", "a\nB\nc").splitlines()[2:] == [
        "@@ -1,3 +1,3 @@",
        " a",
        "-b",
        "+B",
        " c",
    ]


def test_shown_to_a_person(diagnosis: Diagnosis) -> None:
    found = build_explanation(diagnosis)
    text = str(found)
    assert text.count("The training process loads its own data") == 1
    assert "num_workers" in text and "Explained by the rules" in text
    assert max(map(len, text.splitlines())) <= 110


def hostile(found: Explanation, text: str) -> Explanation:
    segment = replace(found.segments[0], what=text, why=text, verify=text)
    return replace(found, segments=(segment,), answer=text, model=text, problems=(text,))


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "\x1b[2Jgone", "\u202eevil"])
def test_texts_do_no_harm(diagnosis: Diagnosis, text: str) -> None:
    found = hostile(build_explanation(diagnosis), text)
    page, shown = found._repr_html_(), str(found)
    assert "<script>" not in page
    assert not {"\x1b", "\u202e"} & {*page, *shown}


def test_problems_name_what_could_not_be_judged(diagnosis: Diagnosis) -> None:
    known = replace(diagnosis, abstained={"straggler": ("other ranks",)})
    assert explaining.build_explanation(known).problems == (
        "straggler could not be checked: the trace lacks other ranks",
    )
