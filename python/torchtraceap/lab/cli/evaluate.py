"""`evaluate`: how well windows with faults are found."""

from __future__ import annotations

from torchtraceap.cli.output import note, print_text
from torchtraceap.cli.parser import (
    FINE,
    WINDOW_COUNTS,
    Command,
    Options,
    Parser,
    add_jobs,
    add_json,
    count,
)
from torchtraceap.lab.cli import ENTRIES

SPLITS = ("train", "validation", "seen", "unseen", "real")


def add_splits(parser: Parser, what: str) -> None:
    """`what` is done with the traces of a split, such as "windows are scored"."""
    parser.add_argument(
        "--split",
        action="append",
        default=[],
        choices=SPLITS,
        metavar="NAME",
        help=f"whose {what}: {', '.join(SPLITS)}; several times [validation]",
    )
    parser.add_argument(
        "--why",
        metavar="TEXT",
        help="what a look at the labels of seen, unseen or real is for; it is written down",
    )


def _describe(parser: Parser) -> None:
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
    add_splits(parser, "windows are scored")
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
    import json

    from torchtraceap.core.writing import check_target
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


COMMANDS = {
    "evaluate": Command(
        ENTRIES["evaluate"].summary,
        _describe,
        _evaluate,
        (
            "evaluate data/ --scorer structural --scorer evidence",
            "evaluate data/ --split seen --split unseen --why release --report docs/benchmark.md",
        ),
    ),
}
