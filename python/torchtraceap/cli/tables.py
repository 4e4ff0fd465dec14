"""The commands that print a table: each is a few options and one method of `Trace`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchtraceap.cli.input import load
from torchtraceap.cli.output import check_output, note, print_tables, print_text
from torchtraceap.cli.parsing import (
    DEFAULT_ROWS,
    FINE,
    Command,
    Options,
    Parser,
    add_json,
    add_no_color,
    add_paths,
    add_rank,
    add_threads,
    count,
    microseconds,
)

if TYPE_CHECKING:
    from torchtraceap.table import ColumnTable
    from torchtraceap.trace import Trace

__all__ = ["TABLE_COMMANDS", "TableCommand", "add_table_output", "check_table_output", "give_table"]

DIFF_VIEWS = ("op", "kernel", "cause", "finding")


@dataclass(frozen=True, slots=True)
class TableCommand:
    """A table: what it says of itself, how it is split up, its further options, how it is made."""

    summary: str
    build: Callable[[Trace, Options], ColumnTable]
    views: Sequence[str] = ()
    """Values of `--by`, the first is the default; none: no such option."""
    describe: Callable[[Parser], None] | None = None
    per_rank: bool = True
    """Takes `--rank`."""


def _describe_kernels(parser: Parser) -> None:
    parser.add_argument(
        "--short", action="store_true", help="only kernels below --below-us, by owner"
    )
    parser.add_argument(
        "--below-us",
        type=microseconds,
        default=10_000,
        metavar="US",
        help="what short means [10]",
    )


def _kernels(trace: Trace, options: Options) -> ColumnTable:
    if options.short:
        return trace.short_kernels(below_ns=options.below_us, rank=options.rank)
    return trace.kernels(by=options.by, rank=options.rank)


def _describe_sequences(parser: Parser) -> None:
    parser.add_argument(
        "--length", type=int, default=0, metavar="N", help="kernels in a sequence [all lengths]"
    )


def _describe_roofline(parser: Parser) -> None:
    parser.add_argument(
        "--device", metavar="NAME", help="a device of the database, such as A100-SXM4-80GB"
    )
    parser.add_argument(
        "--compat", choices=("tracelens",), help="the numbers that TraceLens would give"
    )


def _describe_critical_path(parser: Parser) -> None:
    parser.add_argument("--step", metavar="STEP", help="only this step, by name or place")
    parser.add_argument("--compat", choices=("hta",), help="the graph that HTA would build")


def _critical_path(trace: Trace, options: Options) -> ColumnTable:
    step = options.step
    chosen = int(step) if step and step.isdecimal() else step
    return trace.critical_path(step=chosen, by=options.by, compat=options.compat)


_TABLES = {
    "ops": TableCommand(
        "operators: own and subtree GPU time, host time, launches",
        lambda trace, options: trace.ops(by=options.by, rank=options.rank),
        ("name", "category", "args", "call"),
    ),
    "modules": TableCommand(
        "the nn.Module tree with GPU and host time, backward included",
        lambda trace, options: trace.modules(rank=options.rank),
    ),
    "kernels": TableCommand(
        "GPU events: counts, times, grid and block, owners",
        _kernels,
        ("name", "canonical", "event"),
        _describe_kernels,
    ),
    "sequences": TableCommand(
        "kernel sequences that repeat, and what fusing them would remove",
        lambda trace, options: trace.sequences(length=options.length, rank=options.rank),
        describe=_describe_sequences,
    ),
    "launches": TableCommand(
        "launch calls: cost on the host, delay, queue length",
        lambda trace, options: trace.launches(by=options.by, rank=options.rank),
        ("call", "kernel", "stream", "event", "queue"),
    ),
    "roofline": TableCommand(
        "FLOPs, bytes, achieved rates and how far they are from the device's peak",
        lambda trace, options: trace.roofline(
            device=options.device, by=options.by, compat=options.compat, rank=options.rank
        ),
        ("args", "family", "call"),
        _describe_roofline,
    ),
    "memory": TableCommand(
        "copies with their bandwidth, allocator calls, memory over time",
        lambda trace, options: trace.memory(by=options.by, rank=options.rank),
        ("direction", "copy", "bandwidth", "allocator", "timeline"),
    ),
    "host": TableCommand(
        "what the CPU threads did while the GPU waited",
        lambda trace, options: trace.host(by=options.by, rank=options.rank),
        ("thread", "op", "frame"),
    ),
    "steps": TableCommand(
        "steps: time, outliers, trend, what differs",
        lambda trace, options: trace.steps(rank=options.rank),
    ),
    "collectives": TableCommand(
        "collectives matched across ranks: bytes, transfer, waits, bandwidth",
        lambda trace, options: trace.collectives(),
        per_rank=False,
    ),
    "ranks": TableCommand(
        "ranks compared: who arrives last, how often, because of what",
        lambda trace, options: trace.ranks_table(by=options.by),
        ("rank", "op", "alltoall", "clock"),
        per_rank=False,
    ),
    "critical-path": TableCommand(
        "the longest chain of dependent work, and what it consists of",
        _critical_path,
        ("cause", "name", "event"),
        _describe_critical_path,
        per_rank=False,
    ),
}


def _table_command(table: TableCommand) -> Command:
    """A command that prints one table, or writes it."""

    def describe(parser: Parser) -> None:
        add_paths(parser)
        add_table_output(parser)
        if table.views:
            parser.add_argument(
                "--by",
                choices=table.views,
                default=table.views[0],
                metavar="WHAT",
                help=f"{', '.join(table.views)} [{table.views[0]}]",
            )
        if table.describe:
            table.describe(parser)
        if table.per_rank:
            add_rank(parser)
        add_threads(parser)
        add_no_color(parser)

    def run(options: Options) -> int:
        check_table_output(options, options.paths)
        return give_table(table.build(load(options.paths, options.threads), options), options)

    return Command(table.summary, describe, run)


def add_table_output(parser: Parser) -> None:
    add_json(parser)
    parser.add_argument("--csv", metavar="FILE", help="write the table as CSV")
    parser.add_argument("--parquet", metavar="FILE", help="write the table as Parquet")
    parser.add_argument(
        "--limit", type=count, metavar="N", help="at most so many rows; 40 for reading"
    )
    parser.add_argument("--all-columns", action="store_true", help="show every column")


def check_table_output(options: Options, inputs: Sequence[str]) -> None:
    for path in filter(None, (options.csv, options.parquet)):
        check_output(path, inputs)


def give_table(table: ColumnTable, options: Options) -> int:
    kept = table if options.limit is None else table.take(slice(0, options.limit))
    if options.csv:
        kept.to_csv(options.csv)
        note(f"wrote {options.csv}")
    if options.parquet:
        kept.to_parquet(options.parquet)
        note(f"wrote {options.parquet}")
    if options.json:
        print_text(kept.to_json())
    elif not (options.csv or options.parquet):
        from torchtraceap.report.tables import table_for_reading

        limit = DEFAULT_ROWS if options.limit is None else options.limit
        shown = table_for_reading(table, limit=limit, every_column=options.all_columns)
        print_tables([shown], options.no_color)
    return FINE


def _describe_diff(parser: Parser) -> None:
    parser.add_argument("before", metavar="A", help="a trace file or a folder of ranks")
    parser.add_argument("after", metavar="B", help="the one to compare with it")
    parser.add_argument(
        "--by",
        choices=DIFF_VIEWS,
        default=DIFF_VIEWS[0],
        metavar="WHAT",
        help=f"{', '.join(DIFF_VIEWS)} [{DIFF_VIEWS[0]}]",
    )
    parser.add_argument("--html", metavar="FILE", help="write both side by side as a page")
    add_table_output(parser)
    add_threads(parser)
    add_no_color(parser)


def _diff(options: Options) -> int:
    inputs = [options.before, options.after]
    check_table_output(options, inputs)
    from torchtraceap.analysis.diff import build_diff

    before, after = (load([path], options.threads) for path in inputs)
    if options.html:
        check_output(options.html, inputs)
        from torchtraceap.report.page.diff_page import write_diff_page

        write_diff_page(before, after, Path(options.html))
        note(f"wrote {options.html}")
        if not (options.json or options.csv or options.parquet):
            return FINE
    return give_table(build_diff(before, after, by=options.by), options)


def _describe_memory_timeline(parser: Parser) -> None:
    parser.add_argument(
        "source", metavar="FILE", help="what export_memory_timeline wrote: .json or .raw.json.gz"
    )
    add_table_output(parser)
    add_no_color(parser)


def _memory_timeline(options: Options) -> int:
    from torchtraceap.analysis.memory_timeline import read_memory_timeline

    check_table_output(options, [options.source])
    return give_table(read_memory_timeline(options.source), options)


TABLE_COMMANDS = {
    **{name: _table_command(table) for name, table in _TABLES.items()},
    "diff": Command(
        "what makes one trace slower than another, to the nanosecond", _describe_diff, _diff
    ),
    "memory-timeline": Command(
        "memory by category over time, from export_memory_timeline's file",
        _describe_memory_timeline,
        _memory_timeline,
    ),
}
