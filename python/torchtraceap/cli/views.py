"""`summary`, `tree`, `events` and `convert`: the trace itself, in other forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchtraceap.cli.input import load
from torchtraceap.cli.output import check_output, note, print_json_table, print_tables, print_text
from torchtraceap.cli.parsing import (
    DEFAULT_ROWS,
    FINE,
    Command,
    Options,
    Parser,
    UsageError,
    add_json,
    add_no_color,
    add_paths,
    add_rank,
    add_threads,
    count,
    microseconds,
)


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
    from torchtraceap.report.tables import summary_tables

    print_tables(summary_tables(result), options.no_color)
    return FINE


# ---------------------------------------------------------------------------------- tree


def _describe_tree(parser: Parser) -> None:
    add_paths(parser)
    add_json(parser)
    parser.add_argument("--step", metavar="STEP", help="only this step, by name or place")
    parser.add_argument(
        "--max-depth", type=count, default=6, metavar="N", help="deepest level of calls [6]"
    )
    parser.add_argument(
        "--max-lines", type=count, default=200, metavar="N", help="where the text stops [200]"
    )
    parser.add_argument(
        "--min-us", type=microseconds, default=0, metavar="US", help="leave shorter calls out"
    )
    parser.add_argument("--no-kernels", action="store_true", help="leave GPU events out")
    add_rank(parser)
    add_threads(parser)


def _tree(options: Options) -> int:
    trace = load(options.paths, options.threads)
    step = options.step
    chosen: dict[str, Any] = {
        "step": int(step) if step and step.isdecimal() else step,
        "max_depth": options.max_depth,
        "min_duration_ns": options.min_us,
        "kernels": not options.no_kernels,
    }
    if options.json:
        from torchtraceap.report.tables import tree_table

        print_json_table(tree_table(trace.rank(options.rank), **chosen))
        return FINE
    from torchtraceap.report.words import harmless

    view = trace.tree(options.rank)
    print_text(harmless(view.to_text(max_lines=max(1, options.max_lines), **chosen)))
    return FINE


# ---------------------------------------------------------------------------------- events


def _describe_events(parser: Parser) -> None:
    add_paths(parser)
    add_json(parser)
    parser.add_argument("--csv", metavar="FILE", help="write the events as CSV")
    parser.add_argument("--parquet", metavar="FILE", help="write the events as Parquet")
    parser.add_argument(
        "--name", default="", metavar="TEXT", help="only events whose name holds TEXT"
    )
    parser.add_argument(
        "--kind", default="", metavar="KIND", help="only this kind, such as kernel or cpu_op"
    )
    parser.add_argument("--longest", action="store_true", help="longest first, not by time")
    parser.add_argument(
        "--limit",
        type=count,
        metavar="N",
        help=f"at most so many; the table for reading stops at {DEFAULT_ROWS} by itself",
    )
    add_rank(parser)
    add_threads(parser)
    add_no_color(parser)


def _events(options: Options) -> int:
    from torchtraceap.report import tables

    for path in filter(None, (options.csv, options.parquet)):
        check_output(path, options.paths)
    trace = load(options.paths, options.threads)
    to_file = bool(options.csv or options.parquet)
    limit = options.limit
    if limit is None and not options.json and not to_file:
        limit = DEFAULT_ROWS
    chosen = tables.choose_events(
        trace,
        rank=options.rank,
        name=options.name,
        kind=options.kind,
        longest=options.longest,
        limit=limit,
    )
    if options.csv:
        tables.write_csv(chosen, Path(options.csv))
        note(f"wrote {options.csv}")
    if options.parquet:
        tables.write_parquet(chosen, Path(options.parquet))
        note(f"wrote {options.parquet}")
    if options.json:
        print_json_table(tables.events_table(chosen))
    elif not to_file:
        print_tables([tables.events_for_reading(chosen)], options.no_color)
    return FINE


# ---------------------------------------------------------------------------------- convert


def _describe_convert(parser: Parser) -> None:
    parser.add_argument("source", metavar="IN", help="a trace file")
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
        raise UsageError(f"{source}: holds {len(trace.ranks)} ranks, convert takes one file")
    if lower.endswith(".parquet"):
        from torchtraceap.report import tables

        tables.write_parquet(tables.choose_events(trace, with_args=True), Path(target))
    else:
        from torchtraceap import _core

        _core.write_trace(trace.ranks[0].table, target)
    note(f"wrote {target}")
    return FINE


VIEW_COMMANDS = {
    "summary": Command(
        "what is in a trace, and how the GPU's time splits up: whole, by rank, device and step",
        _describe_summary,
        _summary,
    ),
    "tree": Command(
        "host calls by thread with the GPU events that they launched", _describe_tree, _tree
    ),
    "events": Command("the events as a table, as JSON, CSV or Parquet", _describe_events, _events),
    "convert": Command(
        "write a trace back, repaired and with nothing lost, or as Parquet",
        _describe_convert,
        _convert,
    ),
}
