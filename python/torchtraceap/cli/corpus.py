"""The command `corpus`: many runs in one folder of tables."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from torchtraceap.cli.catalog import summary_of
from torchtraceap.cli.output import note, print_text
from torchtraceap.cli.parser import (
    FINDINGS,
    FINE,
    Command,
    Options,
    Parser,
    UsageError,
    add_json,
    add_no_color,
    arguments,
    command_of_actions,
    count,
    option,
    seconds,
    size,
)
from torchtraceap.cli.tables import add_table_output, check_table_output, give_table

if TYPE_CHECKING:
    from torchtraceap.corpus import Built, Engine

_CORPUS = option("corpus", metavar="OUT", help="the folder of the corpus")


def _share(text: str) -> float:
    value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 < value <= 1:
        raise ValueError(text)
    return value


def _add_engine(parser: Parser) -> None:
    parser.add_argument(
        "--jobs", type=count, default=0, metavar="N", help="processes [one for each core]"
    )
    parser.add_argument("--ray", default="", metavar="ADDRESS", help="a cluster of Ray instead")
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=600.0,
        metavar="SECONDS",
        help="the longest that a run may take [600]",
    )
    parser.add_argument(
        "--max-memory",
        type=size,
        default=0,
        metavar="SIZE",
        help="memory of a process, such as 2GB [three quarters of all, over the processes]",
    )
    add_json(parser)


def _engine(options: Options) -> Engine:
    from torchtraceap.corpus import Engine

    return Engine(options.jobs, options.ray, options.timeout, int(options.max_memory))


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{done} of {total} runs" + ("\n" if done == total else ""))


def _build(options: Options) -> int:
    if len(options.paths) < 2:
        raise UsageError("corpus build needs traces, and behind them the folder to write")
    from torchtraceap.corpus import Selection, build

    *sources, folder = options.paths
    selection = Selection(
        tuple(sources),
        tuple(options.tag),
        options.since,
        options.sample,
        int(options.max_file),
        options.tag_table,
    )
    built = build(selection, folder, engine=_engine(options), progress=_progress)
    return _give_built(built, folder, options)


def _update(options: Options, retry: bool = False) -> int:
    from torchtraceap.corpus import update

    built = update(options.corpus, engine=_engine(options), retry=retry, progress=_progress)
    return _give_built(built, options.corpus, options)


def _give_built(built: Built, folder: str, options: Options) -> int:
    if options.json:
        print_text(json.dumps({"schema": "torchtraceap.corpus_build/1", **built.to_dict()}))
    else:
        left_out = f", {built.left_out} left out" if built.left_out else ""
        print_text(
            f"{folder}: {built.runs} runs of {built.files} files, {built.failed} failed; "
            f"{built.new} analyzed now{left_out}"
        )
        if built.failed:
            note(f'torchtraceap corpus query {folder} "from failures" says why')
    return FINE


def _status(options: Options) -> int:
    from torchtraceap.corpus import status

    return _give_facts(status(options.corpus), options)


def _give_facts(facts: dict[str, Any], options: Options) -> int:
    if options.json:
        print_text(json.dumps(facts))
    else:
        print_text("\n".join(f"{k.replace('_', ' '):12} {v}" for k, v in facts.items()))
    return FINE


def _compact(options: Options) -> int:
    from torchtraceap.corpus import compact

    before, after = compact(options.corpus)
    print_text(f"{options.corpus}: {before} files of tables are {after} now")
    return FINE


def _verify(options: Options) -> int:
    from torchtraceap.corpus import verify

    wrong = verify(options.corpus)
    print_text("\n".join(wrong) if wrong else f"{options.corpus}: all files are whole")
    return FINDINGS if wrong else FINE


def _query(options: Options) -> int:
    from torchtraceap.corpus import run_corpus_sql

    check_table_output(options, [])
    return give_table(run_corpus_sql(options.corpus, options.query), options)


def _report(options: Options) -> int:
    from torchtraceap.core.writing import write_text
    from torchtraceap.corpus.report import build_report, report_html, report_markdown

    between = tuple(options.between) if options.between else None
    found = build_report(options.corpus, gpu_hours=options.gpu_hours, between=between)
    if options.html:
        write_text(options.html, report_html(found))
        note(f"wrote {options.html}")
    if options.json:
        print_text(json.dumps(found))
    elif options.markdown or not options.html:
        print_text(report_markdown(found))
    return FINE


def _similar(options: Options) -> int:
    from torchtraceap.corpus.report import similar_runs

    check_table_output(options, [])
    return give_table(similar_runs(options.corpus, options.run), options)


def _serve(options: Options) -> int:
    import secrets

    from torchtraceap.corpus.pages import Pages, PageServer

    token = options.token or secrets.token_urlsafe(24)
    pages = Pages(options.folder)
    try:
        with PageServer(pages, options.port, token) as server:
            print_text(f"http://127.0.0.1:{server.server_address[1]}/?token={token}")
            server.serve_forever()
    finally:
        pages.close()
    return FINE


_ACTIONS = {
    "build": Command(
        "analyze traces in parallel, what is new alone, into a folder of tables",
        arguments(
            option(
                "paths",
                metavar="TRACES... OUT",
                nargs="+",
                help="files, folders, globs and addresses such as s3://...; last the folder "
                "of the corpus",
            ),
            option(
                "--tag",
                action="append",
                default=[],
                metavar="NAME=PATTERN",
                help="a value from the path of a run, by a regular expression; team, model, job, "
                "host, time and gpu_hours have columns of their own",
            ),
            option(
                "--tag-table",
                default="",
                metavar="FILE",
                help="a CSV file whose column path names traces or folders, and whose others are "
                "tags of these",
            ),
            option(
                "--since",
                default="",
                metavar="DATE",
                help="leave older files out: a date, or days such as 7d",
            ),
            option(
                "--sample",
                type=_share,
                default=1.0,
                metavar="P",
                help="analyze this share of the runs, chosen by their content [1]",
            ),
            option(
                "--max-file",
                type=size,
                default=0,
                metavar="SIZE",
                help="runs with a larger file are failures [no limit]",
            ),
            _add_engine,
        ),
        _build,
        (
            "corpus build /data/traces fleet --tag 'team=/traces/(?P<team>[^/]+)/'",
            "corpus build s3://bucket/traces fleet --since 7d --sample 10%",
        ),
    ),
    "update": Command(
        "analyze what is new in the places of which it was built",
        arguments(_CORPUS, _add_engine),
        _update,
        ("corpus update fleet",),
    ),
    "status": Command(
        "how many runs it holds, and which files it lacks",
        arguments(_CORPUS, add_json),
        _status,
        ("corpus status fleet",),
    ),
    "retry": Command(
        "analyze again what failed",
        arguments(_CORPUS, _add_engine),
        lambda options: _update(options, retry=True),
        ("corpus retry fleet --timeout 3600",),
    ),
    "compact": Command(
        "merge small files and remove rows that were replaced",
        arguments(_CORPUS),
        _compact,
        ("corpus compact fleet",),
    ),
    "verify": Command(
        "read every file: exits with 1 if one is damaged or missing",
        arguments(_CORPUS),
        _verify,
        ("corpus verify fleet",),
    ),
    "query": Command(
        "one query over all tables, with DuckDB",
        arguments(
            _CORPUS,
            option("query", metavar="SQL", help="one statement that selects"),
            add_table_output,
            add_no_color,
        ),
        _query,
        ('corpus query fleet "select type, sum(lost_gpu_hours) from costs group by type"',),
    ),
    "report": Command(
        "what the fleet loses, on what, since when, whose",
        arguments(
            _CORPUS,
            option(
                "--gpu-hours",
                default="",
                metavar="COLUMN",
                help="a column or tag with the GPU hours of a job, which its runs share",
            ),
            option(
                "--between",
                nargs=3,
                metavar=("COLUMN", "BEFORE", "AFTER"),
                help="compare the steps of runs with one value of a column or tag with those of "
                "another, by model",
            ),
            option("--html", metavar="FILE", help="write it as a page"),
            option("--markdown", action="store_true", help="print it as Markdown, the default"),
            add_json,
        ),
        _report,
        (
            "corpus report fleet --html fleet.html",
            "corpus report fleet --gpu-hours billed --between release 2.9 2.10",
        ),
    ),
    "similar": Command(
        "the runs most like one, and which of them is faster",
        arguments(
            _CORPUS,
            option("run", metavar="RUN", help="a run by its key, or by the path of its trace"),
            add_table_output,
            add_no_color,
        ),
        _similar,
        ("corpus similar fleet /data/traces/run1/rank0.json.gz",),
    ),
}
COMMANDS = {
    "corpus": command_of_actions(summary_of("corpus"), _ACTIONS, _ACTIONS["build"].examples),
    "serve": Command(
        summary_of("serve"),
        arguments(
            option("folder", metavar="DIR", help="a corpus, or a folder of traces"),
            option("--port", type=count, default=0, metavar="P", help="the port [a free one]"),
            option(
                "--token", default="", metavar="T", help="what requests have to show [a random one]"
            ),
        ),
        _serve,
        ("serve fleet", "serve /data/traces --port 8080"),
    ),
}
