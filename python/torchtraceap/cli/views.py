"""The commands `summary`, `tree`, `convert`, `merge`, `annotate`, `sql` and `replay`: the trace
itself in other forms, for people and for other tools."""

from __future__ import annotations

import json
from typing import Any

from torchtraceap.cli.catalog import summary_of
from torchtraceap.cli.input import load
from torchtraceap.cli.output import check_output, note, print_tables, print_text
from torchtraceap.cli.parser import (
    FINE,
    PATH_HELP,
    Command,
    Options,
    Parser,
    UsageError,
    add_json,
    add_no_color,
    add_paths,
    add_phase,
    add_rank,
    add_reading,
    arguments,
    count,
    option,
    trace_path,
)
from torchtraceap.cli.tables import (
    add_table_output,
    check_table_output,
    describe_table,
    give_table,
    make_table,
)
from torchtraceap.core.progress import progress_stage

_SOURCE = option("source", metavar="PATH", type=trace_path, help=PATH_HELP)


def _summary(options: Options) -> int:
    trace = load(options.paths, options, options.phase)
    result = trace.summary(linked_only=options.linked_only)
    if options.json:
        print_text(result.to_json())
        return FINE
    from torchtraceap.report.result_tables import summary_tables

    print_tables(summary_tables(result), options.no_color)
    return FINE


def _serving(options: Options) -> int:
    check_table_output(options, options.paths)
    trace = load(options.paths, options)
    by, files = options.by, options.csv or options.parquet
    chosen: dict[str, Any] = {
        "rank": options.rank, "phase": options.phase, "steady": options.steady,
    }  # fmt: skip
    with progress_stage("reading the iterations"):
        if by or files:
            return give_table(trace.serving_table(by=by or "phases", **chosen), options)
        result = trace.serving(**chosen, capture=options.capture, eager=options.eager)
    if options.json:
        print_text(result.to_json())
        return FINE
    from torchtraceap.report.result_tables import serving_tables

    time = result.time
    print_text(f"{time}\n{time.operators_line}" if time else "No iteration was found.")
    if result.steady:
        print_text(str(result.steady))
    print_tables(serving_tables(result), options.no_color)
    return FINE


def _describe_serving(parser: Parser) -> None:
    describe_table("serving")(parser)
    parser.set_defaults(by=None)  # without a view all of them are shown


def _tree(options: Options) -> int:
    check_table_output(options, options.paths)
    trace = load(options.paths, options, options.phase)
    files = options.json or options.csv or options.parquet
    if files or options.all_columns or options.columns or options.sort:
        return give_table(make_table(trace, "tree", options), options)
    text = trace.tree(options.rank).to_text(
        step=options.step,
        max_lines=max(1, options.max_lines),
        max_depth=options.max_depth,
        min_duration_ns=options.min_duration_ns,
        kernels=options.kernels,
    )
    print_text(text)
    return FINE


def _convert(options: Options) -> int:
    source, target = options.source, options.target
    lower = target.lower()
    if not lower.endswith((".json", ".json.gz", ".arrow", ".parquet")):
        raise UsageError(f"{target}: the name must end in .json, .json.gz, .arrow or .parquet")
    check_output(target, [source])
    trace = load([source], options)
    if len(trace.ranks) > 1:
        raise UsageError(f"{source}: holds {len(trace.ranks)} ranks, convert takes one")
    table = trace.ranks[0].table
    if lower.endswith(".arrow"):
        from torchtraceap.trace.packed_file import write_packed

        write_packed(table, target)
    elif lower.endswith(".parquet"):
        from torchtraceap.trace.column_file import write_columns

        write_columns(table, target, trace.events(with_args=True))
    else:
        from torchtraceap import _core
        from torchtraceap.core.writing import replacing

        with replacing(target) as staged:
            _core.write_trace(table, staged)
    note(f"wrote {target}")
    return FINE


def _merge(options: Options) -> int:
    from torchtraceap.tables.matching import merge_ranks

    check_output(options.target, options.paths)
    trace = load(options.paths, options)
    with progress_stage("writing the merged trace"):
        merge_ranks(trace, options.target)
    note(f"wrote {options.target}")
    return FINE


def _annotate(options: Options) -> int:
    from torchtraceap.report.annotate import annotate

    check_output(options.target, [options.source])
    trace = load([options.source], options)
    with progress_stage("writing the annotated trace"):
        annotate(trace, options.target, rank=options.rank)
    note(f"wrote {options.target}, to be opened in Perfetto")
    return FINE


def _add_query(parser: Parser) -> None:
    from torchtraceap.tables.sql import MAX_SECONDS, sql_tables

    tables = f"DuckDB's SQL; tables: {', '.join(sql_tables())}"
    parser.add_argument("query", metavar="QUERY", help=tables)
    parser.add_argument(
        "--seconds",
        type=float,
        default=MAX_SECONDS,
        metavar="S",
        help="the longest that the query may take [%(default)g]",
    )


def _sql(options: Options) -> int:
    from torchtraceap.tables.sql import run_sql

    check_table_output(options, [options.source])
    trace = load([options.source], options, options.phase)
    with progress_stage("running the query"):
        table = run_sql(trace, options.query, seconds=options.seconds)
    return give_table(table, options)


def _replay(options: Options) -> int:
    from torchtraceap.compat import replay
    from torchtraceap.core.formatting import format_ns
    from torchtraceap.core.writing import write_text

    row, op, rank = options.row, options.op, options.rank
    check_table_output(options, [options.source])
    if options.script:
        check_output(options.script, [options.source])
    trace = load([options.source], options)
    if row is None and op is None:
        if options.run or options.script:
            raise UsageError("--run and --script need --row or --op")
        return give_table(replay.find_replayable(trace), options)
    if options.script or not options.run:
        script = replay.replay_script(trace, row, op=op, rank=rank)
        if options.script:
            write_text(options.script, script)
            note(f"wrote {options.script}")
        else:
            print_text(script)
    if options.run:
        result = replay.replay(trace, row, op=op, rank=rank, device=options.device)
        here = f"{format_ns(round(result.time_ns))} on {result.device}"
        spread = f"half of {result.samples} samples within {format_ns(round(result.iqr_ns))}"
        recorded = f"{format_ns(result.measured_in_trace_ns)} in the trace ({result.measured})"
        said = f"{result.overload}, row {result.row}: {here} ({spread}), {recorded}"
        lines = "\n".join([said, *result.notes])
        print_text(json.dumps(result.to_dict()) if options.json else lines)
    return FINE


COMMANDS = {
    "summary": Command(
        summary_of("summary"),
        arguments(
            add_paths,
            add_json,
            option(
                "--linked-only", action="store_true", help="leave out GPU events without a launch"
            ),
            add_phase,
            add_reading,
            add_no_color,
        ),
        _summary,
        ("summary trace.json.gz", "summary runs/ --json"),
    ),
    "serving": Command(
        summary_of("serving"),
        arguments(
            _describe_serving,
            option(
                "--capture",
                type=trace_path,
                metavar="PATH",
                help="trace or annotations of the capture of CUDA graphs, or a folder with such: "
                "it tells the operators behind replayed kernels [capture_traces/ next to it]",
            ),
            option(
                "--eager",
                type=trace_path,
                metavar="TRACE",
                help="trace of the same model without graphs: it tells them as well",
            ),
        ),
        _serving,
        (
            "serving trace.json.gz",
            "serving trace.json.gz --capture capture_traces/ --json",
            "serving trace.json.gz --by layers --csv layers.csv",
        ),
    ),
    "tree": Command(
        summary_of("tree"),
        arguments(
            describe_table("tree"),
            option(
                "--max-lines",
                type=count,
                default=200,
                metavar="N",
                help="where the text stops [200]",
            ),
        ),
        _tree,
        ("tree trace.json.gz --step 1 --max-depth 4", "tree trace.json.gz --min-us 100"),
    ),
    "convert": Command(
        summary_of("convert"),
        arguments(
            option(
                "source", metavar="IN", type=trace_path, help="a trace file; - is standard input"
            ),
            option("target", metavar="OUT", help="ends in .json, .json.gz, .arrow or .parquet"),
            add_reading,
        ),
        _convert,
        ("convert damaged.json.gz whole.json.gz", "convert trace.json.gz trace.arrow"),
    ),
    "merge": Command(
        summary_of("merge"),
        arguments(
            add_paths,
            option("target", metavar="OUT", help="ends in .json or .json.gz"),
            add_reading,
        ),
        _merge,
        ("merge runs/ merged.json.gz",),
    ),
    "annotate": Command(
        summary_of("annotate"),
        arguments(
            _SOURCE,
            option("target", metavar="OUT", help="ends in .json, .json.gz or .pftrace"),
            add_rank,
            add_reading,
        ),
        _annotate,
        ("annotate trace.json.gz annotated.json.gz", "annotate runs/ annotated.pftrace --rank 2"),
    ),
    "sql": Command(
        summary_of("sql"),
        arguments(_SOURCE, _add_query, add_table_output, add_phase, add_reading, add_no_color),
        _sql,
        ("sql trace.json.gz 'select name, count from ops order by count desc limit 5'",),
    ),
    "replay": Command(
        summary_of("replay"),
        arguments(
            _SOURCE,
            option("--row", type=int, metavar="N", help="the operator's row in the trace"),
            option("--op", metavar="NAME", help="the longest call of an operator"),
            option("--script", metavar="FILE", help="write the reproducer there"),
            option("--run", action="store_true", help="run it here and time it (needs torch)"),
            option("--device", default="cpu", metavar="NAME", help="where to run it [cpu]"),
            add_rank,
            add_table_output,
            add_reading,
            add_no_color,
        ),
        _replay,
        (
            "replay trace.json.gz",
            "replay trace.json.gz --op aten::mm --run --device cuda",
            "replay trace.json.gz --row 1234 --script reproduce.py",
        ),
    ),
}
