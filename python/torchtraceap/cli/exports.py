"""The commands `merge`, `annotate`, `sql` and `replay`, which export a trace to other tools."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from torchtraceap.cli.catalog import summary_of
from torchtraceap.cli.input import load
from torchtraceap.cli.output import check_output, note, print_text
from torchtraceap.cli.parser import (
    FINE,
    PATH_HELP,
    Command,
    Options,
    Parser,
    UsageError,
    add_no_color,
    add_paths,
    add_rank,
    add_threads,
    trace_path,
)
from torchtraceap.cli.tables import add_table_output, check_table_output, give_table
from torchtraceap.core.progress import progress_stage

if TYPE_CHECKING:
    from torchtraceap.compat.replay import ReplayResult
    from torchtraceap.trace.trace import Trace


def _describe_merge(parser: Parser) -> None:
    add_paths(parser)
    parser.add_argument("target", metavar="OUT", help="ends in .json or .json.gz")
    add_threads(parser)


def _merge(options: Options) -> int:
    from torchtraceap.tables.matching import merge_ranks

    check_output(options.target, options.paths)
    trace = load(options.paths, options.threads)
    with progress_stage("writing the merged trace"):
        merge_ranks(trace, options.target)
    note(f"wrote {options.target}")
    return FINE


def _describe_annotate(parser: Parser) -> None:
    parser.add_argument("source", metavar="PATH", type=trace_path, help=PATH_HELP)
    parser.add_argument("target", metavar="OUT", help="ends in .json, .json.gz or .pftrace")
    add_rank(parser)
    add_threads(parser)


def _annotate(options: Options) -> int:
    from torchtraceap.report.annotate import annotate

    check_output(options.target, [options.source])
    trace = load([options.source], options.threads)
    with progress_stage("writing the annotated trace"):
        annotate(trace, options.target, rank=options.rank)
    note(f"wrote {options.target}, to be opened in Perfetto")
    return FINE


def _describe_sql(parser: Parser) -> None:
    from torchtraceap.tables.sql import sql_tables

    parser.add_argument("source", metavar="PATH", type=trace_path, help=PATH_HELP)
    parser.add_argument(
        "query", metavar="QUERY", help=f"DuckDB's SQL; tables: {', '.join(sql_tables())}"
    )
    add_table_output(parser)
    add_threads(parser)
    add_no_color(parser)


def _sql(options: Options) -> int:
    from torchtraceap.tables.sql import run_sql

    check_table_output(options, [options.source])
    trace = load([options.source], options.threads)
    with progress_stage("running the query"):
        table = run_sql(trace, options.query)
    return give_table(table, options)


def _describe_replay(parser: Parser) -> None:
    parser.add_argument("source", metavar="PATH", type=trace_path, help=PATH_HELP)
    parser.add_argument("--row", type=int, metavar="N", help="the operator's row in the trace")
    parser.add_argument("--op", metavar="NAME", help="the longest call of an operator")
    parser.add_argument("--script", metavar="FILE", help="write the reproducer there")
    parser.add_argument("--run", action="store_true", help="run it here and time it (needs torch)")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="where to run it [cpu]")
    add_rank(parser)
    add_table_output(parser)
    add_threads(parser)
    add_no_color(parser)


def _replay(options: Options) -> int:
    check_table_output(options, [options.source])
    if options.script:
        check_output(options.script, [options.source])
    trace = load([options.source], options.threads)
    if options.row is None and options.op is None:
        if options.run or options.script:
            raise UsageError("--run and --script need --row or --op")
        from torchtraceap.compat.replay import find_replayable

        return give_table(find_replayable(trace), options)
    return _replay_one(trace, options)


def _replay_one(trace: Trace, options: Options) -> int:
    from torchtraceap.compat import replay

    row, op, rank = options.row, options.op, options.rank
    if options.script or not options.run:
        script = replay.replay_script(trace, row, op=op, rank=rank)
        if options.script:
            from torchtraceap.core.writing import write_text

            write_text(options.script, script)
            note(f"wrote {options.script}")
        else:
            print_text(script)
    if options.run:
        result = replay.replay(trace, row, op=op, rank=rank, device=options.device)
        print_text(json.dumps(result.to_dict()) if options.json else _replay_text(result))
    return FINE


def _replay_text(result: ReplayResult) -> str:
    from torchtraceap.core.formatting import format_ns

    here = f"{format_ns(round(result.time_ns))} on {result.device}"
    spread = f"half of {result.samples} samples within {format_ns(round(result.iqr_ns))}"
    recorded = f"{format_ns(result.measured_in_trace_ns)} in the trace ({result.measured})"
    lines = [f"{result.overload}, row {result.row}: {here} ({spread}), {recorded}"]
    return "\n".join([*lines, *result.notes])


COMMANDS = {
    "merge": Command(
        summary_of("merge"),
        _describe_merge,
        _merge,
        ("merge runs/ merged.json.gz",),
    ),
    "annotate": Command(
        summary_of("annotate"),
        _describe_annotate,
        _annotate,
        ("annotate trace.json.gz annotated.json.gz", "annotate runs/ annotated.pftrace --rank 2"),
    ),
    "sql": Command(
        summary_of("sql"),
        _describe_sql,
        _sql,
        ("sql trace.json.gz 'select name, count from ops order by count desc limit 5'",),
    ),
    "replay": Command(
        summary_of("replay"),
        _describe_replay,
        _replay,
        (
            "replay trace.json.gz",
            "replay trace.json.gz --op aten::mm --run --device cuda",
            "replay trace.json.gz --row 1234 --script reproduce.py",
        ),
    ),
}
