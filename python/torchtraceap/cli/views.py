"""The commands `summary`, `tree` and `convert`: the trace itself, in other forms."""

from __future__ import annotations

from torchtraceap.cli.catalog import summary_of
from torchtraceap.cli.input import load
from torchtraceap.cli.output import check_output, note, print_tables, print_text
from torchtraceap.cli.parser import (
    FINE,
    Command,
    Options,
    Parser,
    UsageError,
    add_json,
    add_no_color,
    add_paths,
    add_threads,
    count,
    trace_path,
)
from torchtraceap.cli.tables import check_table_output, describe_table, give_table, make_table


def _describe_summary(parser: Parser) -> None:
    add_paths(parser)
    add_json(parser)
    parser.add_argument(
        "--linked-only", action="store_true", help="leave out GPU events without a launch"
    )
    add_threads(parser)
    add_no_color(parser)


def _summary(options: Options) -> int:
    result = load(options.paths, options.threads).summary(linked_only=options.linked_only)
    if options.json:
        print_text(result.to_json())
        return FINE
    from torchtraceap.report.result_tables import summary_tables

    print_tables(summary_tables(result), options.no_color)
    return FINE


# ---------------------------------------------------------------------------------- tree


def _describe_tree(parser: Parser) -> None:
    describe_table(parser, "tree")
    parser.add_argument(
        "--max-lines", type=count, default=200, metavar="N", help="where the text stops [200]"
    )


def _is_table(options: Options) -> bool:
    files = options.json or options.csv or options.parquet
    return bool(files or options.all_columns or options.columns or options.sort)


def _tree(options: Options) -> int:
    check_table_output(options, options.paths)
    trace = load(options.paths, options.threads)
    if _is_table(options):
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


# ---------------------------------------------------------------------------------- convert


def _describe_convert(parser: Parser) -> None:
    parser.add_argument(
        "source", metavar="IN", type=trace_path, help="a trace file; - is standard input"
    )
    parser.add_argument("target", metavar="OUT", help="ends in .json, .json.gz or .parquet")
    add_threads(parser)


def _convert(options: Options) -> int:
    source, target = options.source, options.target
    lower = target.lower()
    if not lower.endswith((".json", ".json.gz", ".parquet")):
        raise UsageError(f"{target}: the name must end in .json, .json.gz or .parquet")
    check_output(target, [source])
    trace = load([source], options.threads)
    if len(trace.ranks) > 1:
        raise UsageError(f"{source}: holds {len(trace.ranks)} ranks, convert takes one")
    if lower.endswith(".parquet"):
        trace.events(with_args=True).to_parquet(target)
    else:
        from torchtraceap import _core
        from torchtraceap.core.writing import replacing

        with replacing(target) as staged:
            _core.write_trace(trace.ranks[0].table, staged)
    note(f"wrote {target}")
    return FINE


COMMANDS = {
    "summary": Command(
        summary_of("summary"),
        _describe_summary,
        _summary,
        ("summary trace.json.gz", "summary runs/ --json"),
    ),
    "tree": Command(
        summary_of("tree"),
        _describe_tree,
        _tree,
        ("tree trace.json.gz --step 1 --max-depth 4", "tree trace.json.gz --min-us 100"),
    ),
    "convert": Command(
        summary_of("convert"),
        _describe_convert,
        _convert,
        ("convert damaged.json.gz whole.json.gz", "convert trace.json.gz events.parquet"),
    ),
}
