"""The terminal report: one screen, worst first, nothing from a trace can command the terminal."""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import report_samples as samples
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torchtraceap._core", reason="torchtraceap._core is not built")

import torchtraceap as ttap
from torchtraceap.core.formatting import display_width, format_percent, one_line, replace_controls
from torchtraceap.core.knowledge import load_knowledge
from torchtraceap.report.terminal import MAX_LINES, render_text, split_columns
from torchtraceap.report.view import build_view


def diagnose(maker: samples.TraceMaker, folder: Path) -> ttap.Diagnosis:
    return ttap.diagnose(maker.write(folder / "trace.json"))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> ttap.Diagnosis:
    return diagnose(samples.slow_loader(), tmp_path_factory.mktemp("slow"))


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 300])
def test_it_fits_the_width(slow: ttap.Diagnosis, width: int) -> None:
    lines = render_text(slow, width=width).splitlines()
    assert max(map(display_width, lines)) <= max(50, min(width, 120))
    if width >= 80:
        assert len(lines) <= MAX_LINES


@pytest.mark.parametrize("width", [60, 80, 100])
def test_titles_and_the_headline_are_whole(slow: ttap.Diagnosis, width: int) -> None:
    long = dataclasses.replace(slow.findings[0], title=" ".join(f"word{n}x" for n in range(14)))
    told = dataclasses.replace(slow, findings=(slow.findings[0], long))
    lines = [re.sub(r"(?<=[^\s\d]) {2,}.*", "", line).strip()
             for line in render_text(told, width=width).splitlines()]  # fmt: skip
    text = " ".join(" ".join(lines).split())
    assert [title for title in (f.title for f in told.findings) if title not in text] == []


def test_the_change_of_the_first_finding_is_whole(slow: ttap.Diagnosis) -> None:
    lines = render_text(slow).splitlines()
    first = slow.findings[0]
    removed = [line[10:] for line in lines if line.startswith(" " * 9 + "-")]
    added = [line[10:] for line in lines if line.startswith(" " * 9 + "+")]
    kept = [line[10:] for line in lines if line.startswith(" " * 10) and line[10:] in first.code]
    assert (
        set(removed) <= set(first.code_before.splitlines()) and set(added) & set(removed) == set()
    )
    assert set(first.code.splitlines()) - {*added, *kept} <= {
        line
        for line in first.code.splitlines()
        if not line or line.split()[0] in ("import", "from")
    }
    # A line that does not fit is never cut: the change is left out.
    wide = dataclasses.replace(first, code=f"{first.code}\n{'x' * 120}")
    assert "xxx" not in render_text(dataclasses.replace(slow, findings=(wide,)))


def test_harmless_repairs_are_one_line(tmp_path: Path) -> None:
    path = samples.slow_loader().write(tmp_path / "trace.json")
    text = path.read_text()
    events = text.replace('"ph": "X"', '"ph": X').replace('"ph":"X"', '"ph":X')
    assert events != text
    path.write_text(events[: events.rindex("]")] + "]} left over")
    found = ttap.diagnose(path)
    harmless = [note for note in found.summary.diagnostics if note.is_harmless]
    assert {note.code for note in harmless} == {"bare_word", "text_after_end"}
    count = sum(note.count for note in harmless)
    lines = render_text(found).splitlines()
    assert [line for line in lines if "repair" in line] == [
        f"recording: {count:,} harmless repairs"
    ]
    assert not any(line.startswith("data ") for line in lines)
    every = render_text(found, verbose=True)
    assert [note.message for note in harmless if note.message[:40] not in every] == []


def test_the_order_is_verdict_bar_findings_unchecked_fine_gate(slow: ttap.Diagnosis) -> None:
    text = str(slow)
    assert text == render_text(slow)
    title = slow.findings[0].title
    places = [
        text.index(part)
        for part in (
            f"{title}: ",
            "Step 100 ms (mean of 3 steps, 1 left out)",
            "█",
            f"1  {title}",
            "gate ",
        )
    ]
    assert places == sorted(places)
    assert "per step (simulated, " in text
    assert "change   " in text
    assert samples.LOADER[:40] in text
    for name, signals in slow.abstained.items():
        assert load_knowledge()[name].name in text.replace("\n          ", " ")
        assert signals
    assert "score" not in text.lower()


def test_the_parts_of_the_bar_sum_to_the_profiled_time(slow: ttap.Diagnosis) -> None:
    view = build_view(slow)
    assert sum(segment.share for segment in view.segments) == pytest.approx(1.0)
    assert sum(segment.time_ns for segment in view.segments) == slow.profiled_ns


def test_commands_work_as_they_stand(
    slow: ttap.Diagnosis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "a folder" / "torchtraceap"
    program.parent.mkdir()
    program.write_text("")
    program.chmod(0o755)
    module = str(tmp_path / "torchtraceap" / "__main__.py")
    for called, path, expected in (
        (str(program), "/nowhere", f"'{program}' diagnose"),
        (str(program), str(program.parent), "torchtraceap diagnose"),
        (module, "/nowhere", "python -m torchtraceap diagnose"),
        (module, str(program.parent), "torchtraceap diagnose"),
        ("pytest", "/nowhere", "torchtraceap diagnose"),
    ):
        monkeypatch.setattr(sys, "argv", [called])
        monkeypatch.setenv("PATH", path)
        lines = render_text(slow, width=200).splitlines()
        (gate,) = [line for line in lines if line.startswith("gate")]
        assert gate.split("gate", 1)[1].strip().startswith(expected)


def test_many_findings_still_fit_a_screen(slow: ttap.Diagnosis) -> None:
    many = dataclasses.replace(slow, findings=slow.findings[:1] * 20)
    lines = render_text(many).splitlines()
    assert len(lines) <= MAX_LINES
    assert any("more: see --html" in line for line in lines)


def test_a_healthy_trace_is_called_healthy(tmp_path: Path) -> None:
    diagnosis = diagnose(samples.healthy(), tmp_path)
    assert not diagnosis.findings
    text = render_text(diagnosis)
    assert "\nHealthy: the GPU is busy 100 % of the time" in text
    assert "bound by GPU compute" in text


def test_a_trace_without_gpu_work_says_so(tmp_path: Path) -> None:
    text = render_text(diagnose(samples.host_only(), tmp_path))
    assert "no GPU work" in text
    assert "█" not in text


def waiting_rank(all_reduce_us: float) -> samples.TraceMaker:
    """One of four ranks; in each step an all-reduce of 4 MiB takes so long."""
    maker = samples.TraceMaker(rank=0, world_size=4)
    message = {"Collective name": "allreduce", "In msg nelems": 1 << 20,
               "Out msg nelems": 1 << 20, "dtype": "Float"}  # fmt: skip
    at = 1_000_000.0
    for step in range(3):
        length = 40_000 + all_reduce_us
        maker.host("user_annotation", f"ProfilerStep#{step + 5}", at, length)
        for i in range(20):
            launch = at + 100 + i * 20
            maker.host("cpu_op", "aten::mm", launch - 5, 15)
            # Half of the products behind the all-reduce need its result.
            start = at + 1_000 + i * 1_900 + (all_reduce_us if i >= 10 else 0)
            maker.gpu("kernel", "gemm", start, 1_890, launch=launch)
        launch, start = at + 305, at + 1_000 + 10 * 1_900
        maker.gpu("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", start,
                  all_reduce_us - 20, launch=launch, **message)  # fmt: skip
        at += length
    return maker


def test_a_rank_that_waits_for_others_asks_for_their_traces(tmp_path: Path) -> None:
    found = ttap.diagnose(waiting_rank(2_000_000).write(tmp_path / "waits.json"))
    view = build_view(found)
    assert view.headline.endswith(
        "; collectives wait for another rank: the other ranks' traces would tell who is late"
    )
    assert found.waiting_ns == 3 * (2_000_000 - 20 - 1_000 - 2 * 4_194.304) * 1_000
    assert found.abstained["straggler"] == (
        "the other ranks' traces, which would tell who is late",
    )
    # 4 MiB in 9 ms: a slow network moves them.
    slow = ttap.diagnose(waiting_rank(9_000).write(tmp_path / "slow.json"))
    assert slow.waiting_ns == 0
    assert "another rank" not in build_view(slow).headline
    assert slow.abstained["straggler"] == ("traces of the other ranks",)


def test_ranks_are_compared(tmp_path: Path) -> None:
    for rank in range(2):
        samples.slow_loader(rank=rank, world_size=2).write(tmp_path / f"rank{rank}.json")
    text = render_text(ttap.diagnose(tmp_path))
    assert "2 ranks: GPU busy 60 % on each" in text
    assert "Step 100 ms (mean of 6 steps on 2 ranks, 2 left out)" in text


def test_no_line_breaks_between_a_figure_and_its_unit(slow: ttap.Diagnosis) -> None:
    units = ("%", "ns", "µs", "ms", "s ", "s.", "s)", "s,")
    for width in range(50, 121):
        lines = [line.strip() for line in render_text(slow, width=width).splitlines()]
        assert not [line for line in lines if line.startswith(units)]


def test_names_cannot_command_the_terminal(tmp_path: Path) -> None:
    text = render_text(diagnose(samples.hostile(), tmp_path))
    bad = {c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf")}
    assert not bad
    assert samples.HOSTILE[1] in text  # the device: markup means nothing to a terminal


def test_findings_without_saving_or_evidence_are_shown(slow: ttap.Diagnosis) -> None:
    bare = dataclasses.replace(
        slow.findings[0],
        saving=None,
        evidence=(),
        evidence_count=0,
        intervals=np.zeros((0, 2), np.int64),
        interval_ranks=(),
    )
    text = render_text(dataclasses.replace(slow, findings=(bare,)))
    assert "saving not estimated" in text


@given(shares=st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=13), width=st.integers(40, 120))
def test_bar_columns_fill_the_width(shares: list[float], width: int) -> None:
    columns = split_columns(shares, width)
    assert sum(columns) == width
    assert min(columns) >= 1
    order = sorted(range(len(shares)), key=lambda i: shares[i])
    assert all(columns[a] <= columns[b] + 1 for a, b in itertools.pairwise(order))


@given(text=st.text(max_size=300), limit=st.integers(1, 60))
def test_one_line_is_short_and_harmless(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert display_width(line) <= limit
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in line)


@given(text=st.text(max_size=300))
def test_harmless_keeps_lines(text: str) -> None:
    clean = replace_controls(text)
    assert clean.count("\n") == text.count("\n")
    assert len(clean) == len(text)
    assert not any(unicodedata.category(c) == "Cc" for c in clean if c != "\n")


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0.0 %"),
        (0.0004, "< 0.1 %"),
        (0.0345, "3.5 %"),
        (0.34, "34 %"),
        (0.9999, "99.9 %"),
        (1, "100 %"),
    ],
)
def test_percentages(share: float, text: str) -> None:
    assert format_percent(share) == text
