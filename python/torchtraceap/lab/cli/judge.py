"""`judge`: how well a judge of segments does on labelled traces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torchtraceap.cli.explain import add_model, model_of
from torchtraceap.cli.output import note, print_tables, print_text
from torchtraceap.cli.parser import (
    FINE,
    Command,
    Options,
    Parser,
    UsageError,
    add_json,
    add_no_color,
    add_windows,
)
from torchtraceap.lab.cli import ENTRIES
from torchtraceap.lab.cli.evaluate import add_splits

if TYPE_CHECKING:
    from torchtraceap.diagnosis.result import Diagnosis
    from torchtraceap.explanation.client import Client
    from torchtraceap.explanation.explain import Judge
    from torchtraceap.lab.evaluation.judge_loop import LoopCounts
    from torchtraceap.lab.evaluation.judged_traces import LabeledTrace
    from torchtraceap.report.tables import TextTable

WAYS = ("types", "found", "parts", "loop")


class _Judges:
    """The judges of a run: offline, or one language model for all traces."""

    def __init__(self, options: Options) -> None:
        self.model: Client | None = None
        self._redacted = options.llm_names == "redacted"
        settings = model_of(options)
        if settings is not None:
            from torchtraceap.explanation.client import Client

            self.model = Client(settings)

    @property
    def name(self) -> str:
        """As tables call them."""
        return f"language model {self.model.name}" if self.model else "offline judge"

    def of(self, diagnosis: Diagnosis) -> Judge:
        """Who judges the segments of a diagnosis."""
        if self.model is None:
            from torchtraceap.explanation.offline_judge import OfflineJudge

            return OfflineJudge(diagnosis)
        from torchtraceap.explanation.llm_judge import ModelJudge

        return ModelJudge(self.model, redaction=self._redacted)


def _describe(parser: Parser) -> None:
    parser.add_argument("dataset", metavar="DATASET", help="a data set with labels")
    parser.add_argument(
        "--way",
        choices=WAYS,
        required=True,
        metavar="WAY",
        help="types: names for windows that are known to lose time; found: names for segments that "
        "are found; parts: windows that a language model finds alone; loop: what doubts change",
    )
    add_splits(parser, "traces are judged")
    add_windows(parser)
    parser.add_argument(
        "--out",
        metavar="SCORES",
        help="types, found, parts: write the document that `evaluate --scores` takes",
    )
    add_model(parser)
    add_json(parser)
    add_no_color(parser)


def _judge(options: Options) -> int:
    _check_options(options)
    if options.way == "loop":
        _print_loop(_loop(options), options)
        return FINE
    document = _scores(options)
    if options.json:
        print_text(json.dumps(document, separators=(",", ":"), allow_nan=False))
    if options.out:
        from torchtraceap.core.writing import write_text

        write_text(options.out, json.dumps(document, separators=(",", ":"), allow_nan=False))
        note(f"wrote {options.out}: {_counted(document['judged'])}")
    return FINE


def _check_options(options: Options) -> None:
    if options.way == "loop":
        if options.out:
            raise UsageError("--way loop makes no scores, so it takes no --out; --json prints it")
        return
    if not (options.out or options.json):
        raise UsageError(
            f"--way {options.way} makes scores for `evaluate --scores`: give --out SCORES or --json"
        )
    if options.out:
        from torchtraceap.core.writing import check_target

        check_target(options.out)


def _traces(options: Options, asked: str) -> Iterator[LabeledTrace]:
    from torchtraceap.lab.evaluation.judged_traces import labeled_traces

    splits = tuple(dict.fromkeys(options.split)) or ("validation",)
    return labeled_traces(options.dataset, splits, options.windows, asked=asked, why=options.why)


def _scores(options: Options) -> dict[str, Any]:
    """The document of a way that makes one."""
    if options.way == "parts":
        from torchtraceap.lab.evaluation.judge_parts import parts_document
        from torchtraceap.lab.evaluation.methods import LANGUAGE_MODEL

        model = _Judges(options).model
        if model is None:
            raise UsageError("--way parts asks a language model: name one by --llm-base-url")
        return parts_document(_traces(options, LANGUAGE_MODEL), model)
    from torchtraceap.lab.evaluation.judged_traces import scores_document

    judges = _Judges(options)
    traces = _traces(options, judges.name)
    return scores_document(traces, judges.of, judges.name, found=options.way == "found")


def _counted(judged: dict[str, Any]) -> str:
    """Such as "segments: 12, failed: 0"."""
    return ", ".join(f"{name}: {value}" for name, value in judged.items() if value is not None)


def _loop(options: Options) -> LoopCounts:
    from torchtraceap.lab.evaluation.judge_loop import count_loop

    judges = _Judges(options)
    return count_loop(_traces(options, judges.name), judges.of, judges.name)


def _print_loop(counts: LoopCounts, options: Options) -> None:
    if options.json:
        print_text(counts.to_json())
        return
    for problem in counts.problems:
        note(problem)
    print_tables(_tables(counts), options.no_color)


def _tables(counts: LoopCounts) -> list[TextTable]:
    from torchtraceap.lab.evaluation.tables import percent
    from torchtraceap.report.tables import TextTable

    def share(value: float | None) -> str:
        return percent(float("nan") if value is None else value)

    told = [
        (each.way, each.windows, each.right, share(each.precision), share(each.recall),
         share(each.type_accuracy), each.unnamed, each.unlabelled)
        for each in counts.told
    ]  # fmt: skip
    asked = [(each.windows, each.asked, each.against) for each in counts.grids]
    return [
        TextTable(
            f"Windows told of {counts.traces} traces, {counts.windows} windows each, in percent",
            (
                "way",
                "windows",
                "right",
                "precision",
                "recall",
                "named right",
                "unnamed",
                "unlabelled",
            ),
            told,
            _loop_note(counts),
        ),
        TextTable("Grids asked again", ("windows", "segments", "against"), asked),
    ]


def _loop_note(counts: LoopCounts) -> str:
    return (
        f"{counts.judge}: {counts.segments} segments, {counts.doubted} doubted, {counts.dropped} "
        f"dropped ({counts.dropped_right} of them rightly; of {counts.dropped_windows} windows "
        f"{counts.dropped_windows_right}), {counts.renamed} renamed ({counts.renamed_right} to the "
        f"right type, {counts.renamed_wrong} away from it)."
    )


COMMANDS = {
    "judge": Command(
        ENTRIES["judge"].summary,
        _describe,
        _judge,
        (
            "judge data/ --way types --out judge.json",
            "judge data/ --way loop",
        ),
    ),
}
