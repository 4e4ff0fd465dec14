"""How good judges are: documents of scores, a model about parts of a trace, counts of the loop."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("sklearn")
pytest.importorskip("lightgbm")

from torchtraceap.cli import main
from torchtraceap.core.results import Windows
from torchtraceap.datasets.labels import TYPES
from torchtraceap.datasets.samples import load_samples
from torchtraceap.diagnosis.result import Diagnosis
from torchtraceap.errors import OptionError, TraceError
from torchtraceap.explanation.language_model import Message, ModelError, Reply, Usage
from torchtraceap.explanation.pack import Pack
from torchtraceap.explanation.segments import Segment, find_segments
from torchtraceap.explanation.verdict import Verdict
from torchtraceap.lab.evaluation import judge_loop as loop_module
from torchtraceap.lab.evaluation.judge_loop import count_loop
from torchtraceap.lab.evaluation.judge_parts import PARTS, parts_document, parts_of
from torchtraceap.lab.evaluation.judged_traces import (
    JudgeOf,
    LabeledTrace,
    labeled_traces,
    scores_document,
    true_segments,
    window_names,
)
from torchtraceap.lab.evaluation.methods import LANGUAGE_MODEL, NOT_HERE, read_scores
from torchtraceap.lab.evaluation.run import Options, TypeCell, evaluate

ROOT = Path(__file__).resolve().parents[3]
WINDOWS = 50


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small data set of the repository."""
    out = tmp_path_factory.mktemp("data") / "mini"
    source = ROOT / "examples/mini_dataset"
    shutil.copytree(source, out, ignore=shutil.ignore_patterns(".cache"))
    return out


@pytest.fixture(scope="module")
def traces(mini: Path) -> list[LabeledTrace]:
    return list(labeled_traces(mini, ["validation"], WINDOWS, asked="a test"))


class Scripted:
    """Says of each segment what a function says."""

    asked_by = "model"
    reads_tables = True

    def __init__(self, say: Any) -> None:
        self._say = say

    def judge(self, segment: Segment, pack: Pack, *, settled: bool) -> Verdict:
        found: str | Verdict = self._say(segment, settled)
        return found if isinstance(found, Verdict) else verdict(found)


def verdict(name: str, said: str = "anti_pattern", windows: int | None = None) -> Verdict:
    labels = () if name == "none" else (name,)
    return Verdict(said, labels, name, 0.9, (), "", "", name, windows)


def part(first: int, last: int, name: str) -> Any:
    """A segment with its verdict, in so far as names of windows need it."""
    segment = SimpleNamespace(first=first, last=last, further=())
    return SimpleNamespace(segment=segment, verdict=verdict(name))


def always(name: str) -> JudgeOf:
    return lambda diagnosis: Scripted(lambda segment, settled: name)


def perfect(traces: Sequence[LabeledTrace]) -> JudgeOf:
    """Knows the labels."""
    known = {id(labelled.diagnosis): labelled for labelled in traces}

    def judge_of(diagnosis: Diagnosis) -> Scripted:
        def say(segment: Segment, settled: bool) -> str:
            names = known[id(diagnosis)].type_names[segment.first : segment.last + 1]
            return Counter(filter(None, names)).most_common(1)[0][0] if any(names) else "none"

        return Scripted(say)

    return judge_of


def types_of(document: Mapping[str, Any], mini: Path, folder: Path) -> TypeCell:
    """What `evaluate --scores` says of a document's types."""
    path = folder / "scores.json"
    path.write_text(json.dumps(document))
    options = Options(windows=(WINDOWS,), methods=("chance",), scores=(str(path),), seeds=1)
    (row,) = [row for row in evaluate(mini, options).rows if row.name == document["name"]]
    return row.types[WINDOWS, "validation: pooled"]


# ----------------------------------------------------------------------------------- labels


def test_labels_are_those_of_samples(mini: Path, traces: list[LabeledTrace]) -> None:
    samples = load_samples(mini, splits=["validation"], windows=WINDOWS)
    assert [each.id for each in traces] == [sample.id for sample in samples]
    for labelled, sample in zip(traces, samples, strict=True):
        assert list(labelled.diagnosis.windows.bounds_ns) == sample.bounds_ns.tolist()
        assert (labelled.positive == sample.positive).all()
        assert (labelled.ignore == sample.ignore).all()
        assert labelled.already == set(sample.already)
        known = sample.cost.argmax(axis=1)[sample.positive]
        assert labelled.types[sample.positive].tolist() == known.tolist()
        assert (labelled.types[~sample.positive] == -1).all()


def test_a_test_split_needs_a_reason(mini: Path) -> None:
    with pytest.raises(OptionError, match="--why"):
        list(labeled_traces(mini, ["seen"], WINDOWS, asked="a test"))
    with pytest.raises(OptionError, match="no traces of the split"):
        list(labeled_traces(mini, ["nothing"], WINDOWS, asked="a test"))


# ------------------------------------------------------------------------------------ names


def test_true_segments_are_runs_of_one_type(traces: list[LabeledTrace]) -> None:
    for labelled in traces:
        segments = list(true_segments(labelled))
        inside = [i for s in segments for i in range(s.first, s.last + 1)]
        assert inside == np.flatnonzero(labelled.positive).tolist()
        for segment in segments:
            assert len(set(labelled.type_names[segment.first : segment.last + 1])) == 1
        for one, other in pairwise(segments):
            apart = other.first > one.last + 1
            assert apart or labelled.types[one.last] != labelled.types[other.first]


def test_a_segment_does_not_tell_the_truth(traces: list[LabeledTrace]) -> None:
    """Its type is the scorer's, whatever the label is."""
    for labelled in traces:
        other = replace(labelled, types=np.where(labelled.positive, 0, -1))
        wide = replace(labelled, types=np.where(labelled.positive, 1, -1))
        assert list(true_segments(other)) == list(true_segments(wide))


def test_a_perfect_judge_names_all(mini: Path, traces: list[LabeledTrace], tmp_path: Path) -> None:
    document = scores_document(traces, perfect(traces), "perfect judge")
    assert document["judged"]["failed"] == 0
    given = types_of(document, mini, tmp_path).given
    assert given["accuracy"] == given["macro_f1"] == 1.0
    assert given["windows"] == sum(int(each.positive.sum()) for each in traces) > 0
    scores = [entry["scores"] for entry in document["traces"]]
    assert scores == [each.diagnosis.windows.scores.tolist() for each in traces]


def test_one_name_for_all_is_right_where_it_is(
    mini: Path, traces: list[LabeledTrace], tmp_path: Path
) -> None:
    names = [name for each in traces for name in each.type_names if name]
    name, count = Counter(names).most_common(1)[0]
    document = scores_document(traces, always(name), "one name")
    assert types_of(document, mini, tmp_path).given["accuracy"] == pytest.approx(count / len(names))


def test_no_name_is_never_right(mini: Path, traces: list[LabeledTrace], tmp_path: Path) -> None:
    """A window without a name does not count for the first type, which may be right by chance."""
    knowing = perfect(traces)

    def judge_of(diagnosis: Diagnosis) -> Scripted:
        judge: Any = knowing(diagnosis)

        def say(segment: Segment, settled: bool) -> str:
            name: str = judge.judge(segment, None, settled=settled).primary
            return "none" if name == TYPES[0] else name

        return Scripted(say)

    names = [name for each in traces for name in each.type_names if name]
    silent = names.count(TYPES[0])
    assert 0 < silent < len(names)
    cell = types_of(scores_document(traces, judge_of, "silent of one"), mini, tmp_path)
    assert cell.given["accuracy"] == pytest.approx(1 - silent / len(names))
    assert cell.confusion[:, 0].sum() == 0


def test_answers_that_fail_are_counted(traces: list[LabeledTrace]) -> None:
    asked = 0

    def judge_of(diagnosis: Diagnosis) -> Scripted:
        def say(segment: Segment, settled: bool) -> str:
            nonlocal asked
            asked += 1
            if asked % 2:
                raise TraceError("no answer")
            return "cpu_bound"

        return Scripted(say)

    judged = scores_document(traces, judge_of, "half")["judged"]
    assert judged == {"segments": asked, "failed": (asked + 1) // 2, "failure": "no answer"}

    def never(segment: Segment, settled: bool) -> str:
        raise ModelError("no such host")

    with pytest.raises(ModelError, match="no such host"):
        scores_document(traces, lambda diagnosis: Scripted(never), "never")


def test_a_window_has_the_name_of_its_shortest_segment() -> None:
    told = [part(0, 9, "cpu_bound"), part(2, 4, "graph_break"), part(3, 3, "none"),
            part(2, 2, "straggler"), part(4, 6, "high_memcpy")]  # fmt: skip
    named = window_names(12, [(each.segment, each.verdict.primary) for each in told])
    shown = dict(enumerate(named.names))
    assert {i: name for i, name in shown.items() if name != "cpu_bound"} == {
        2: "straggler", 3: "graph_break", 4: "graph_break", 5: "high_memcpy", 6: "high_memcpy",
        10: "", 11: "",
    }  # fmt: skip
    assert named.inside.tolist() == [True] * 10 + [False] * 2


def test_found_segments_are_told(traces: list[LabeledTrace]) -> None:
    document = scores_document(traces, always("cpu_bound"), "a judge", found=True)
    assert document["name"] == "a judge, as found"
    for labelled, entry in zip(traces, document["traces"], strict=True):
        inside = [0.0] * WINDOWS
        for segment in find_segments(labelled.diagnosis):
            inside[segment.first : segment.last + 1] = [1.0] * (segment.last - segment.first + 1)
        assert entry["scores"] == inside
        assert entry["types"] == ({"cpu_bound": inside} if any(inside) else {})


# ------------------------------------------------------------------------------------ parts


class FakeModel:
    """Answers in turn; the last answer stays."""

    name = "fake"

    def __init__(self, *answers: str | Reply) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[list[Message], Mapping[str, Any]]] = []

    def answer(self, messages: Sequence[Message], schema: Mapping[str, Any], title: str) -> Reply:
        self.asked.append((list(messages), schema))
        said = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return said if isinstance(said, Reply) else Reply(said, "stop")

    def converse(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Reply:
        raise ModelError("has no tools")

    def usage(self) -> Usage:
        return Usage(len(self.asked), 0, 0, None)


EMPTY = '{"windows": []}'


def said(*windows: tuple[int, float]) -> str:
    return json.dumps({"windows": [{"window": w, "confidence": c} for w, c in windows]})


@pytest.mark.parametrize("count", [3, 5, 50, 99, 100, 200])
def test_parts_are_all_windows(count: int) -> None:
    parts = parts_of(count)
    assert [i for start, end in parts for i in range(start, end)] == list(range(count))
    assert len(parts) == min(PARTS, count)


def test_answers_of_parts_are_scores(traces: list[LabeledTrace]) -> None:
    broken = said((11, 0.5))  # of ten windows
    model = FakeModel(
        said((1, 0.75), (10, 1)),
        "no JSON",
        f"```json\n{said((2, 0.5))}\n```",
        broken,
        broken,
        EMPTY,
    )
    document = parts_document(traces[:1], model)
    (entry,) = document["traces"]
    assert {i: s for i, s in enumerate(entry["scores"]) if s} == {0: 0.75, 9: 1.0, 11: 0.5}
    assert document["judged"] == {"parts": 5, "repaired": 2, "invalid": 1}
    assert len(model.asked) == 7 and entry["types"] == {}
    repair = model.asked[2][0]
    assert [message["role"] for message in repair] == ["system", "user", "assistant", "user"]
    assert repair[2]["content"] == "no JSON" and "can't be used" in repair[3]["content"]


def test_a_part_shows_numbers_alone(traces: list[LabeledTrace]) -> None:
    model = FakeModel(EMPTY)
    parts_document(traces, model)
    assert len(model.asked) == PARTS * len(traces)
    for (system, user), schema in model.asked:
        head, *lines = user["content"].splitlines()
        assert head.split(",")[0] == "window" and len(lines) == WINDOWS // PARTS
        assert all(len(line.split(",")) == len(head.split(",")) for line in lines)
        assert all(float(cell) >= 0 for line in lines for cell in line.split(","))
        assert "score" not in head and not any(kind in user["content"] for kind in TYPES)
        assert system == model.asked[0][0][0]
        line = schema["properties"]["windows"]["items"]
        assert line["properties"]["window"]["enum"] == list(range(1, 11))
        assert schema["additionalProperties"] is line["additionalProperties"] is False


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "[]",
        "{",
        '{"windows": 3}',
        '{"windows": [], "more": 1}',
        '{"windows": [{"window": 1}]}',
        said((0, 0.5)),
        said((1, 1.5)),
        said((1, -0.1)),
        said((1, float("nan"))),
        said((1, 0.5), (1, 0.6)),
        '{"windows": [{"window": true, "confidence": 0.5}]}',
        '{"windows": [{"window": 1.0, "confidence": 0.5}]}',
        '{"windows": [{"window": 1, "confidence": true}]}',
        '{"windows": [{"window": 1, "confidence": "high"}]}',
        "{" * 100_000,
        '{"windows":' + "[" * 60_000,
        Reply(EMPTY, "length"),
        Reply("", "refusal"),
    ],
)
def test_what_breaks_the_schema_is_no_window(
    traces: list[LabeledTrace], answer: str | Reply
) -> None:
    document = parts_document(traces[:1], FakeModel(answer))
    assert document["judged"] == {"parts": 5, "repaired": 5, "invalid": 5}
    assert not any(document["traces"][0]["scores"])


def test_a_model_that_can_not_be_asked_has_no_scores(traces: list[LabeledTrace]) -> None:
    class Gone(FakeModel):
        def answer(self, *asked: Any) -> Reply:
            raise ModelError("no such host")

    with pytest.raises(ModelError, match="no such host"):
        parts_document(traces, Gone(EMPTY))


def test_scores_of_parts_fill_their_row(
    mini: Path, traces: list[LabeledTrace], tmp_path: Path
) -> None:
    """A model that knows the labels has an area of 1."""
    answers = []
    for labelled in traces:
        for start, end in parts_of(WINDOWS):
            lost = np.flatnonzero(labelled.positive[start:end]) + 1
            answers.append(said(*((window, 0.9) for window in lost.tolist())))
    document = parts_document(traces, FakeModel(*answers))
    path = tmp_path / "parts.json"
    path.write_text(json.dumps(document))
    assert read_scores(path).name == LANGUAGE_MODEL
    assert LANGUAGE_MODEL in {name for name, _, _ in NOT_HERE}
    options = Options(windows=(WINDOWS,), methods=("chance",), scores=(str(path),), seeds=1)
    (row,) = [row for row in evaluate(mini, options).rows if row.name == LANGUAGE_MODEL]
    assert row.labels == "none"
    assert row.cells[WINDOWS, "validation: pooled"].values["auc"].value == 1.0
    assert not row.types


# ------------------------------------------------------------------------------------- loop


def test_a_judge_without_doubts_changes_nothing(traces: list[LabeledTrace]) -> None:
    counts = count_loop(traces, perfect(traces), "perfect judge")
    assert counts.segments == sum(len(find_segments(each.diagnosis)) for each in traces) > 0
    assert counts.doubted == counts.dropped == counts.renamed == 0 and counts.grids == ()
    scorer, *others = (told.to_dict() for told in counts.told)
    assert all({**told, "way": ""} == {**others[0], "way": ""} for told in others)
    assert others[0]["type_accuracy"] == 1.0 and others[0]["unnamed"] == 0
    flagged = [each.diagnosis.windows.scores >= 0.5 for each in traces]
    right = [int((each.positive & own).sum()) for each, own in zip(traces, flagged, strict=True)]
    assert scorer["right"] == sum(right)


def test_counts_of_doubts_add_up(traces: list[LabeledTrace]) -> None:
    def doubts(segment: Segment, settled: bool) -> Verdict:
        return verdict("none") if settled else verdict(segment.type, "misclassified")

    counts = count_loop(traces, lambda diagnosis: Scripted(doubts), "doubter")
    assert counts.doubted == counts.segments and counts.asked_by == "model"
    told = {each.way: each for each in counts.told}
    assert told["dropped at once"].windows == 0 and told["dropped at once"].precision is None
    assert told["judged"].right >= told["loop"].right
    assert 0 <= counts.dropped_right <= counts.dropped <= counts.doubted
    assert counts.dropped_windows_right <= counts.dropped_windows
    lost = counts.dropped_windows - counts.dropped_windows_right
    assert told["judged"].right - told["loop"].right == lost
    assert counts.renamed <= counts.doubted - counts.dropped
    assert {grid.windows for grid in counts.grids} <= {100, 200}
    first = next(grid for grid in counts.grids if grid.windows == 100)
    assert first.asked == counts.doubted
    assert counts.to_dict()["schema"] == "torchtraceap.judged/1"
    json.dumps(counts.to_dict(), allow_nan=False)


def made_trace() -> LabeledTrace:
    """Ten windows: 0 to 3 positive of the first type, 4 neither, 9 flagged by the scorer."""
    windows = Windows(
        tuple(range(0, 110, 10)),
        np.array([0.9] * 2 + [0.0] * 7 + [0.8]),
        {TYPES[0]: np.array([0.9, 0.1] + [0.0] * 8), TYPES[1]: np.array([0.1, 0.9] + [0.0] * 8)},
    )
    place = np.arange(10)
    types = np.where(place < 4, 0, -1)
    diagnosis: Any = SimpleNamespace(windows=windows)
    return LabeledTrace("made", diagnosis, place < 4, place == 4, types, frozenset({"cpu_bound"}))


def test_counts_of_a_made_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    first = [
        part(0, 1, TYPES[0]),  # right, and nobody doubts it
        part(2, 4, TYPES[1]),  # renamed to the right type
        part(5, 5, "none"),  # dropped, rightly
        part(3, 3, "none"),  # dropped, though the one before tells its window
        part(6, 6, "cpu_bound"),  # was there before
        part(7, 8, TYPES[0]),  # told, wrongly, and renamed
    ]
    final = {0: first[0], 1: part(2, 4, TYPES[0]), 4: first[4], 5: part(7, 8, TYPES[2])}
    grids = {
        1: ([50, 100, 25], [0.9, 0.4, 0.6]),
        2: ([50, 100, 25], [0.9, 0.1, 0.2]),
        3: ([50, 100], [0.1, 0.2]),
        5: ([50, 100], [0.9, 0.8]),
    }
    doubts = {
        place: SimpleNamespace(grids=asked, scores=scores)
        for place, (asked, scores) in grids.items()
    }
    judging = SimpleNamespace(first=first, doubts=doubts, final=final, problems=("odd",))
    monkeypatch.setattr(loop_module, "judge_segments", lambda diagnosis, judge: judging)
    counts = count_loop([made_trace()], always("none"), "made")
    assert (counts.segments, counts.doubted, counts.dropped, counts.dropped_right) == (6, 4, 2, 1)
    assert (counts.dropped_windows, counts.dropped_windows_right) == (1, 1)
    assert (counts.renamed, counts.renamed_right, counts.renamed_wrong) == (2, 1, 0)
    assert [(g.windows, g.asked, g.against) for g in counts.grids] == [(25, 2, 1), (100, 4, 3)]
    told = {each.way: each for each in counts.told}
    assert (told["scorer"].windows, told["scorer"].right, told["scorer"].named_right) == (3, 2, 1)
    judged = told["judged"]  # 0 to 3, 5, 7, 8; not 4, which is neither, nor 6, which was there
    assert (judged.windows, judged.right, judged.typed, judged.named_right) == (7, 4, 4, 2)
    assert (judged.unlabelled, judged.unnamed, judged.positive) == (1, 0, 4)
    assert (told["dropped at once"].windows, told["dropped at once"].right) == (2, 2)
    after = told["loop"]
    assert (after.windows, after.right, after.named_right) == (6, 4, 4)
    assert after.precision == pytest.approx(4 / 6) and after.recall == after.type_accuracy == 1.0
    assert counts.problems == ("made: odd",)


def test_a_name_is_neither_right_nor_wrong_where_the_type_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = replace(made_trace(), types=np.full(10, -1))
    judging = SimpleNamespace(
        first=[part(0, 1, "none"), part(6, 6, TYPES[0])],
        doubts={place: SimpleNamespace(grids=[50], scores=[0.9]) for place in (0, 1)},
        final={0: part(0, 1, TYPES[0]), 1: part(6, 6, "none")},
        problems=(),
    )
    monkeypatch.setattr(loop_module, "judge_segments", lambda diagnosis, judge: judging)
    counts = count_loop([trace], always("none"), "made")
    assert (counts.renamed, counts.renamed_right, counts.renamed_wrong) == (2, 1, 0)
    assert counts.told[-1].right == 2 and counts.told[-1].typed == 0


# ---------------------------------------------------------------------------------- command


@pytest.mark.slow  # generates traces and diagnoses them
def test_the_command(mini: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["judge", str(mini), "--windows", str(WINDOWS)]
    out = tmp_path / "judge.json"
    assert main([*words, "--way", "types", "--out", str(out)]) == 0
    assert "segments: " in capsys.readouterr().err
    assert main([*words, "--way", "found", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "offline judge, as found"
    asked = ["evaluate", str(mini), "--scorer", "chance", "--scores", str(out), "--seeds", "1"]
    assert main([*asked, "--windows", str(WINDOWS), "--table", "4"]) == 0
    assert "offline judge" in capsys.readouterr().out
    assert main([*words, "--way", "loop"]) == 0
    assert "offline judge: " in capsys.readouterr().out
    assert main([*words, "--way", "loop", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "torchtraceap.judged/1"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--way", "parts", "--json"], "asks a language model"),
        (["--way", "types"], "give --out SCORES or --json"),
        (["--way", "loop", "--out", "x.json"], "takes no --out"),
        (["--way", "loop", "--split", "seen"], "--why"),
    ],
)
def test_what_can_not_be_judged_is_said(
    mini: Path, more: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["judge", str(mini), *more]) == 2
    said = capsys.readouterr()
    assert words in said.err and not said.out and said.err.count("\n") == 1
