"""The commands that print a table, made from what each table says of itself."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtraceap.cli.catalog import summary_of
from torchtraceap.cli.input import load
from torchtraceap.cli.output import check_output, note, print_json, print_tables
from torchtraceap.cli.parser import (
    DEFAULT_ROWS,
    FINDINGS,
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
    add_spreadsheet,
    arguments,
    count,
    microseconds,
    option,
    percentage,
    trace_path,
    unknown_word,
)
from torchtraceap.core.progress import progress_stage
from torchtraceap.tables.catalog import TABLES, table_spec

if TYPE_CHECKING:
    from torchtraceap.core.table import ColumnTable
    from torchtraceap.trace.trace import Trace

__all__ = [
    "COMMANDS",
    "add_table_output",
    "check_table_output",
    "describe_table",
    "give_table",
    "make_table",
]


_FURTHER_EXAMPLES = {
    "events": "events trace.json.gz --name nccl --longest --limit 10",
    "ops": "ops trace.json.gz --by category",
    "kernels": "kernels trace.json.gz --short --sort count",
    "launches": "launches trace.json.gz --by stream",
    "roofline": "roofline trace.json.gz --device 'H100 SXM'",
    "memory": "memory trace.json.gz --by bandwidth",
    "collectives": "collectives runs/ --sort longest_wait_ns",
    "ranks": "ranks runs/ --by clock",
    "critical-path": "critical-path trace.json.gz --step 1",
}
_READERS: dict[str, Callable[[str], Any]] = {
    "text": str,
    "path": trace_path,
    "integer": int,
    "count": count,
    "microseconds": microseconds,
    "step": lambda text: int(text) if text.isdecimal() else text,
}


def add_views(parser: Parser, views: Sequence[str]) -> None:
    if views:
        parser.add_argument(
            "--by",
            choices=views,
            default=views[0],
            metavar="WHAT",
            help=f"{', '.join(views)} [{views[0]}]",
        )


def describe_table(name: str) -> Callable[[Parser], None]:
    """Return a function that adds the options of a table's command."""

    def describe(parser: Parser) -> None:
        spec = table_spec(name)
        add_paths(parser)
        add_table_output(parser)
        add_views(parser, spec.views)
        for each in spec.options:
            if each.kind in ("flag", "no_flag"):
                action = "store_true" if each.kind == "flag" else "store_false"
                parser.add_argument(each.flag, dest=each.keyword, action=action, help=each.help)
            else:
                parser.add_argument(
                    each.flag,
                    dest=each.keyword,
                    type=_READERS[each.kind],
                    default=each.default,
                    choices=each.choices,
                    metavar=each.metavar,
                    help=each.help,
                )
        if spec.per_rank:
            add_rank(parser)
        add_phase(parser)
        add_reading(parser)
        add_no_color(parser)

    return describe


def make_table(trace: Trace, name: str, options: Options) -> ColumnTable:
    """Return the table that the options of its command ask for."""
    spec = table_spec(name)
    chosen = {option.keyword: getattr(options, option.keyword) for option in spec.options}
    if spec.views:
        chosen["by"] = options.by
    if spec.per_rank:
        chosen["rank"] = options.rank
    with progress_stage("making the table"):
        return spec.make(trace, **chosen, **(spec.json_options if options.json else {}))


def _table_command(name: str) -> Command:
    """Return the command that prints one table, or writes it."""

    def run(options: Options) -> int:
        check_table_output(options, options.paths)
        trace = load(options.paths, options, options.phase)
        return give_table(make_table(trace, name, options), options)

    path = "runs/" if name in ("collectives", "ranks") else "trace.json.gz"
    own = _FURTHER_EXAMPLES.get(name, f"{name} {path} --limit 10 --all-columns")
    examples = (f"{name} {path}", own, f"{name} {path} --csv {name}.csv")
    return Command(summary_of(name), describe_table(name), run, examples)


def add_table_output(parser: Parser) -> None:
    add_json(parser)
    parser.add_argument("--csv", metavar="FILE", help="write the table as CSV")
    add_spreadsheet(parser, "--csv")
    parser.add_argument("--parquet", metavar="FILE", help="write the table as Parquet")
    parser.add_argument(
        "--limit", type=count, metavar="N", help="at most so many rows; 40 for reading"
    )
    parser.add_argument("--sort", metavar="COLUMN[:asc|desc]", help="order the rows by a column")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--columns", metavar="NAME,...", help="these columns, in this order")
    chosen.add_argument("--all-columns", action="store_true", help="show every column")


def check_table_output(options: Options, inputs: Sequence[str], folder: str | None = None) -> None:
    if options.spreadsheet and not (options.csv or folder):
        raise UsageError("--spreadsheet goes with --csv FILE")
    for path in filter(None, (options.csv, options.parquet)):
        check_output(path, inputs)


def _column_name(text: str, table: ColumnTable) -> str:
    """Return the column that is meant, by its name or by its heading.

    Raises:
        UsageError: There is no such column.
    """
    from torchtraceap.core.formatting import column_headings

    name = text.strip()
    titles = dict(zip(column_headings(table.columns), table.columns, strict=True))
    plain = name.partition(" (")[0]  # without the unit
    for found in (name, titles.get(plain), name.replace(" ", "_")):
        if found in table:
            return str(found)
    choices = ", ".join(table.columns)
    raise UsageError(f"{unknown_word(name, table.columns)} (columns: {choices})")


def give_table(table: ColumnTable, options: Options) -> int:
    """Print a table or write it to files: rows in the order of `--sort`, columns of `--columns`."""
    if options.sort is not None:
        name, _, direction = options.sort.partition(":")
        if direction not in ("", "asc", "desc"):
            raise UsageError(f"--sort: {direction!r} is no direction (choices: asc, desc)")
        column = _column_name(name, table)
        table = table.sort(column, descending=direction == "desc" if direction else None)
    if options.columns is not None:
        names = [_column_name(name, table) for name in options.columns.split(",") if name.strip()]
        if not names:
            raise UsageError(f"--columns needs names (columns: {', '.join(table.columns)})")
        table = table.select(list(dict.fromkeys(names)))
    kept = table if options.limit is None else table.take(slice(0, options.limit))
    if options.csv:
        kept.to_csv(options.csv, spreadsheet=options.spreadsheet)
        note(f"wrote {options.csv}")
    if options.parquet:
        kept.to_parquet(options.parquet)
        note(f"wrote {options.parquet}")
    if options.json:
        print_json(kept)
    elif not (options.csv or options.parquet):
        from torchtraceap.report.tables import table_for_reading

        limit = DEFAULT_ROWS if options.limit is None else options.limit
        every = options.all_columns or options.columns is not None
        shown = table_for_reading(table, limit=limit, every_column=every)
        print_tables([shown], options.no_color)
    return FINE


def _add_diff_views(parser: Parser) -> None:
    from torchtraceap.tables.compare.diff import VIEWS

    add_views(parser, [view for view in VIEWS if view != "tree"])  # a page draws the tree


def _two_phases(text: str) -> tuple[str, str]:
    """Return the phases of A and of B."""
    from torchtraceap.core.results import PHASES

    phases = text.split(",")
    unknown = [phase for phase in phases if phase not in PHASES]
    if unknown or len(phases) > 2:
        raise ArgumentTypeError(f"one or two of {', '.join(PHASES)}, not {text!r}")
    return phases[0], phases[-1]


def _diff(options: Options) -> int:
    inputs = [options.before, options.after]
    check_table_output(options, inputs, folder=options.tracelens_csv)
    if options.html:
        check_output(options.html, inputs)
    from torchtraceap.tables.compare.diff import build_diff

    phases = options.phase or (None, None)
    before, after = (
        load([path], options, phase) for path, phase in zip(inputs, phases, strict=True)
    )
    with progress_stage("comparing the traces"):
        table = build_diff(before, after, by=options.by)
    reason, facts = "", table.facts
    if options.gate is not None:
        before_ns, difference_ns = facts["before_step_ns"], facts["difference_ns"]
        if facts["why_not"]:
            reason = str(facts["why_not"])
        elif difference_ns * 100 > options.gate * before_ns:
            share = f"{difference_ns / before_ns * 100:.1f} % slower" if before_ns else "slower"
            what = "profiled range" if facts["basis"] == "profiled range" else "median step"
            reason = f"the {what} is {share}, more than {options.gate:g} %"
    if options.html:
        from torchtraceap.report.diff_page import write_diff_page

        with progress_stage("writing the page"):
            write_diff_page(before, after, Path(options.html))
        note(f"wrote {options.html}")
    if options.tracelens_csv:
        _compare_as_tracelens(before, after, options)
    written = options.html or options.tracelens_csv
    if not written or options.json or options.csv or options.parquet:
        give_table(table, options)
    if reason:
        note(f"gate: {reason}")
    return FINDINGS if reason else FINE


def _compare_as_tracelens(before: Trace, after: Trace, options: Options) -> None:
    from torchtraceap.compat.tracelens import write_diff_stats, write_tracelens_comparison

    if len(before.ranks) > 1 or len(after.ranks) > 1:
        raise UsageError("--tracelens-csv compares two files: name one rank of A and one of B")
    names = [Path(path).name.split(".")[0] for path in (options.before, options.after)]
    if names[0] == names[1] or "" in names:
        names = ["baseline", "variant"]
    folder = options.tracelens_csv
    written = write_tracelens_comparison(
        [before.rank(), after.rank()], names, folder, spreadsheet=options.spreadsheet
    )
    written += write_diff_stats(before, after, folder, spreadsheet=options.spreadsheet)
    note(f"wrote {len(written)} tables into {folder}")


def _memory_timeline(options: Options) -> int:
    from torchtraceap.tables.gpu.memory_timeline import read_memory_timeline

    check_table_output(options, [options.source])
    return give_table(read_memory_timeline(options.source), options)


COMMANDS = {
    **{name: _table_command(name) for name in TABLES if name not in ("tree", "serving")},
    "diff": Command(
        summary_of("diff"),
        arguments(
            option("before", metavar="A", type=trace_path, help=PATH_HELP),
            option("after", metavar="B", type=trace_path, help="the one to compare with it"),
            _add_diff_views,
            option(
                "--phase",
                type=_two_phases,
                metavar="PHASE[,PHASE]",
                help="only iterations of a serving engine in this phase, or A's and B's",
            ),
            option("--html", metavar="FILE", help="write both side by side as a page"),
            option(
                "--gate",
                type=percentage,
                metavar="PERCENT",
                help="exit with 1 if the median step of B is slower than that of A by more than "
                "this, or if the two are not comparable because records are missing",
            ),
            option(
                "--tracelens-csv",
                metavar="DIR",
                help="write the comparison of TraceLens, of two files, under its names",
            ),
            add_table_output,
            add_reading,
            add_no_color,
        ),
        _diff,
        (
            "diff before.json.gz after.json.gz --by cause",
            "diff before.json.gz after.json.gz --html diff.html",
            "diff main.json.gz change.json.gz --gate 5",
            "diff main.json.gz change.json.gz --tracelens-csv tables",
        ),
    ),
    "memory-timeline": Command(
        summary_of("memory-timeline"),
        arguments(
            option(
                "source",
                metavar="FILE",
                help="what export_memory_timeline wrote: .json or .raw.json.gz",
            ),
            add_table_output,
            add_no_color,
        ),
        _memory_timeline,
        ("memory-timeline memory.json", "memory-timeline memory.raw.json.gz --csv memory.csv"),
    ),
}
