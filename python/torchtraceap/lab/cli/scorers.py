"""Commands `train`, `evaluate` and `judge`: scorers from data sets, and how well they and judges of
segments do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from torchtraceap.cli import (
    FINE,
    WINDOW_COUNTS,
    Command,
    Options,
    Parser,
    UsageError,
    add_jobs,
    add_json,
    add_model,
    add_no_color,
    add_seed,
    add_windows,
    count,
    minutes,
    model_of,
    note,
    print_tables,
    print_text,
)
from torchtraceap.lab.cli import ENTRIES

if TYPE_CHECKING:
    from torchtraceap.diagnosis import Diagnosis
    from torchtraceap.explanation import Client, Judge
    from torchtraceap.lab.evaluation.judge_loop import LoopCounts
    from torchtraceap.report import TextTable

_SPLITS = ("train", "validation", "seen", "unseen", "real")


def _describe_train(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="which scorer: structural, fused or v2")
    parser.add_argument("dataset", metavar="DATASET", help="a folder of labeled traces")
    parser.add_argument("out", metavar="OUT", help="folder for weights, figures and logs")
    parser.add_argument("--config", metavar="TOML", help="settings in TOML; docs/scorers.md")
    add_seed(parser, "of everything that is drawn")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in OUT")
    parser.add_argument(
        "--minutes", type=minutes, metavar="M", help="stop after this time, to be resumed [none]"
    )


def _train(options: Options) -> int:
    from torchtraceap.lab.training import train

    trained = train(
        options.name,
        options.dataset,
        options.out,
        config=options.config,
        seed=options.seed,
        resume=options.resume,
        minutes=options.minutes,
    )
    if trained.weights is not None:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in trained.figures.items())
        note(f"wrote {trained.weights} ({figures})")
    if not trained.finished:
        note("time is up; --resume goes on")
    return FINE


def _add_splits(parser: Parser, what: str) -> None:
    """Add the options that choose splits; `what` is done with their traces, such as "windows are
    scored"."""
    parser.add_argument(
        "--split",
        action="append",
        default=[],
        choices=_SPLITS,
        metavar="NAME",
        help=f"whose {what}: {', '.join(_SPLITS)}; several times [validation]",
    )
    parser.add_argument(
        "--why",
        metavar="TEXT",
        help="what a look at the labels of seen, unseen or real is for; it is written down",
    )


def _describe_evaluate(parser: Parser) -> None:
    parser.add_argument("dataset", metavar="DATASET", help="a data set with labels")
    parser.add_argument(
        "--scorer",
        action="append",
        default=[],
        metavar="NAME",
        help="a scorer or a baseline; several times [all]",
    )
    parser.add_argument(
        "--scores",
        action="append",
        default=[],
        metavar="SCORES",
        help="what `score --json` printed, as a method more; several times",
    )
    _add_splits(parser, "windows are scored")
    parser.add_argument(
        "--windows",
        action="append",
        default=[],
        type=int,
        choices=WINDOW_COUNTS,
        metavar="N",
        help="windows of a trace: 50, 100 or 200; several times [all three]",
    )
    parser.add_argument(
        "--table", type=int, choices=(2, 3, 4, 5), metavar="N", help="only this one of the paper"
    )
    parser.add_argument(
        "--seeds", type=count, default=5, metavar="N", help="trainings of what is random [5]"
    )
    add_jobs(parser, "traces that are read at once")
    parser.add_argument(
        "--report", metavar="FILE", help="write tables and figures into this page of Markdown"
    )
    add_json(parser)


def _evaluate(options: Options) -> int:
    from torchtraceap.core import check_target
    from torchtraceap.lab.evaluation.run import Options as What
    from torchtraceap.lab.evaluation.run import evaluate
    from torchtraceap.lab.evaluation.tables import document, tables, texts, write_report

    if options.report:
        check_target(options.report)
    what = What(
        splits=tuple(dict.fromkeys(options.split)) or ("validation",),
        windows=tuple(sorted(set(options.windows))) or WINDOW_COUNTS,
        methods=tuple(dict.fromkeys(options.scorer)),
        scores=tuple(options.scores),
        seeds=options.seeds,
        why=options.why,
        jobs=options.jobs,
    )
    found = evaluate(options.dataset, what)
    if options.report:
        for path in write_report(found, options.report):
            note(f"wrote {path}")
    if options.json:
        print_text(json.dumps(document(found, options.table), indent=1))
    elif not options.report:
        print_text("\n".join(texts(tables(found, options.table))))
    return FINE


class _Judges:
    """The judges of a run: offline, or one language model for all traces."""

    def __init__(self, options: Options) -> None:
        self.model: Client | None = None
        self._redacted = options.llm_names == "redacted"
        settings = model_of(options)
        if settings is not None:
            from torchtraceap.explanation import Client

            self.model = Client(settings)

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"language model {self.model.name}" if self.model else "offline judge"

    def of(self, diagnosis: Diagnosis) -> Judge:
        """Return the judge of the segments of a diagnosis."""
        if self.model is None:
            from torchtraceap.explanation import OfflineJudge

            return OfflineJudge(diagnosis)
        from torchtraceap.explanation import ModelJudge

        return ModelJudge(self.model, redaction=self._redacted)


def _describe_judge(parser: Parser) -> None:
    parser.add_argument("dataset", metavar="DATASET", help="a data set with labels")
    parser.add_argument(
        "--way",
        choices=("types", "found", "parts", "loop"),
        required=True,
        metavar="WAY",
        help="types: names for windows that are known to lose time; found: names for segments that "
        "are found; parts: windows that a language model finds alone; loop: what doubts change",
    )
    _add_splits(parser, "traces are judged")
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
    from torchtraceap.core import check_target, write_text
    from torchtraceap.lab.evaluation.judged_traces import labeled_traces

    if options.way == "loop":
        if options.out:
            raise UsageError("--way loop makes no scores, so it takes no --out; --json prints it")
    elif not (options.out or options.json):
        raise UsageError(
            f"--way {options.way} makes scores for `evaluate --scores`: give --out SCORES or --json"
        )
    if options.out:
        check_target(options.out)
    judges = _Judges(options)
    asked = judges.name
    if options.way == "parts":
        from torchtraceap.lab.evaluation.methods import LANGUAGE_MODEL

        asked = LANGUAGE_MODEL
        if judges.model is None:
            raise UsageError("--way parts asks a language model: name one by --llm-base-url")
    traces = labeled_traces(
        options.dataset,
        tuple(dict.fromkeys(options.split)) or ("validation",),
        options.windows,
        asked=asked,
        why=options.why,
    )
    if options.way == "loop":
        from torchtraceap.lab.evaluation.judge_loop import count_loop

        counts = count_loop(traces, judges.of, judges.name)
        if options.json:
            print_text(counts.to_json())
            return FINE
        for problem in counts.problems:
            note(problem)
        print_tables(_loop_tables(counts), options.no_color)
        return FINE
    if judges.model is not None and options.way == "parts":
        from torchtraceap.lab.evaluation.judge_parts import parts_document

        document = parts_document(traces, judges.model)
    else:
        from torchtraceap.lab.evaluation.judged_traces import scores_document

        document = scores_document(traces, judges.of, judges.name, found=options.way == "found")
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    if options.json:
        print_text(text)
    if options.out:
        write_text(options.out, text)
        judged = document["judged"].items()
        counted = ", ".join(f"{name}: {value}" for name, value in judged if value is not None)
        note(f"wrote {options.out}: {counted}")
    return FINE


def _loop_tables(counts: LoopCounts) -> list[TextTable]:
    from torchtraceap.lab.evaluation.tables import percent
    from torchtraceap.report import TextTable

    def share(value: float | None) -> str:
        return percent(float("nan") if value is None else value)

    told = [
        (each.way, each.windows, each.right, share(each.precision), share(each.recall),
         share(each.type_accuracy), each.unnamed, each.unlabelled)
        for each in counts.told
    ]  # fmt: skip
    said = (
        f"{counts.judge}: {counts.segments} segments, {counts.doubted} doubted, {counts.dropped} "
        f"dropped ({counts.dropped_right} of them rightly; of {counts.dropped_windows} windows "
        f"{counts.dropped_windows_right}), {counts.renamed} renamed ({counts.renamed_right} to the "
        f"right type, {counts.renamed_wrong} away from it)."
    )
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
                "unlabeled",
            ),
            told,
            said,
        ),
        TextTable("Grids asked again", ("windows", "segments", "against"), asked),
    ]


COMMANDS = {
    "train": Command(
        ENTRIES["train"].summary,
        _describe_train,
        _train,
        (
            "train v2 dataset/ out/ --seed 1",
            "train v2 dataset/ out/ --config settings.toml --resume --minutes 10",
        ),
    ),
    "evaluate": Command(
        ENTRIES["evaluate"].summary,
        _describe_evaluate,
        _evaluate,
        (
            "evaluate data/ --scorer structural --scorer evidence",
            "evaluate data/ --split seen --split unseen --why release --report page.md",
        ),
    ),
    "judge": Command(
        ENTRIES["judge"].summary,
        _describe_judge,
        _judge,
        (
            "judge data/ --way types --out judge.json",
            "judge data/ --way loop",
        ),
    ),
}
