"""The command line. Start-up counts, so everything heavy is imported where it is used.

Standard output holds the result and nothing else; progress, notes and errors go to standard
error. Exit codes: 0 fine, 1 findings where the command gates, 2 unusable input or options, 130
interrupted.

Note [argparse]: typer 0.29 brings pydantic along and takes 0.1 s to parse three options, a third
of a whole run on the demo trace.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchtraceap.report.tables import Table
    from torchtraceap.results import Diagnosis
    from torchtraceap.trace import Progress, Trace

__all__ = ["COMMANDS", "main"]

FINE, FINDINGS, UNUSABLE, INTERRUPTED = 0, 1, 2, 130
WINDOW_COUNTS = (50, 100, 200)
# Files together larger than this show a progress bar: smaller ones are read before a person could
# look at one. A compressed byte counts for six, which is less than traces shrink by (10 to 35).
PROGRESS_BYTES = 50_000_000
COMPRESSED_WEIGHT = 6
DEFAULT_EVENT_ROWS = 40

Options = argparse.Namespace


class UsageError(Exception):
    """An option or a combination of options that cannot be used."""


class Parser(argparse.ArgumentParser):
    """Raises instead of printing its usage and leaving."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


@dataclass(frozen=True, slots=True)
class Command:
    """One command: what it says of itself, its options, and what it does."""

    summary: str
    describe: Callable[[Parser], None]
    run: Callable[[Options], int]


# ---------------------------------------------------------------------------------- diagnose


def _describe_diagnose(parser: Parser) -> None:
    _add_paths(parser)
    _add_json(parser)
    parser.add_argument("--html", metavar="FILE", help="also write the report as an HTML page")
    _add_windows(parser)
    parser.add_argument(
        "--gate", action="store_true", help="exit with 1 while a finding is present"
    )
    parser.add_argument(
        "--fail-on",
        metavar="WHAT",
        help="what the gate fails on, separated by commas: types of findings, 'present' for any "
        "finding (what --gate does), 'unknown' for one of the eight main checks that could not "
        "be made; implies --gate",
    )
    _add_threads(parser)
    _add_no_color(parser)


def _diagnose(options: Options) -> int:
    wanted = _parse_fail_on(options.fail_on, options.gate)
    if options.html:
        _check_output(options.html, options.paths)
    trace = _load(options.paths, options.threads)
    diagnosis = trace.diagnose(windows=options.windows)
    reasons = _gate_reasons(diagnosis, wanted)
    if options.html:
        _write_html(diagnosis, options.html)
    if options.json:
        _print(diagnosis.to_json())
    else:
        _print_diagnosis(diagnosis, options.no_color)
    if reasons:
        _note(f"gate: {', '.join(reasons)}")
    return FINDINGS if reasons else FINE


# ---------------------------------------------------------------------------------- summary


def _describe_summary(parser: Parser) -> None:
    _add_paths(parser)
    _add_json(parser)
    parser.add_argument(
        "--linked-only", action="store_true", help="leave out GPU events without a launch"
    )
    _add_threads(parser)
    _add_no_color(parser)


def _summary(options: Options) -> int:
    result = _load(options.paths, options.threads).summary(linked_only=options.linked_only)
    if options.json:
        _print(result.to_json())
        return FINE
    from torchtraceap.report.tables import summary_tables

    _print_tables(summary_tables(result), options.no_color)
    return FINE


# ---------------------------------------------------------------------------------- tree


def _describe_tree(parser: Parser) -> None:
    _add_paths(parser)
    _add_json(parser)
    parser.add_argument("--step", metavar="STEP", help="only this step, by name or place")
    parser.add_argument(
        "--max-depth", type=_count, default=6, metavar="N", help="deepest level of calls [6]"
    )
    parser.add_argument(
        "--max-lines", type=_count, default=200, metavar="N", help="where the text stops [200]"
    )
    parser.add_argument(
        "--min-us", type=_microseconds, default=0, metavar="US", help="leave shorter calls out"
    )
    parser.add_argument("--no-kernels", action="store_true", help="leave GPU events out")
    _add_rank(parser)
    _add_threads(parser)


def _tree(options: Options) -> int:
    trace = _load(options.paths, options.threads)
    step = options.step
    chosen: dict[str, Any] = {
        "step": int(step) if step and step.isdecimal() else step,
        "max_depth": options.max_depth,
        "min_duration_ns": options.min_us,
        "kernels": not options.no_kernels,
    }
    if options.json:
        from torchtraceap.report.tables import tree_table

        _print_json_table(tree_table(trace.rank(options.rank), **chosen))
        return FINE
    from torchtraceap.report.words import harmless

    view = trace.tree(options.rank)
    _print(harmless(view.to_text(max_lines=max(1, options.max_lines), **chosen)))
    return FINE


# ---------------------------------------------------------------------------------- events


def _describe_events(parser: Parser) -> None:
    _add_paths(parser)
    _add_json(parser)
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
        type=_count,
        metavar="N",
        help=f"at most so many; the table for reading stops at {DEFAULT_EVENT_ROWS} by itself",
    )
    _add_rank(parser)
    _add_threads(parser)
    _add_no_color(parser)


def _events(options: Options) -> int:
    from torchtraceap.report import tables

    for path in filter(None, (options.csv, options.parquet)):
        _check_output(path, options.paths)
    trace = _load(options.paths, options.threads)
    to_file = bool(options.csv or options.parquet)
    limit = options.limit
    if limit is None and not options.json and not to_file:
        limit = DEFAULT_EVENT_ROWS
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
        _note(f"wrote {options.csv}")
    if options.parquet:
        tables.write_parquet(chosen, Path(options.parquet))
        _note(f"wrote {options.parquet}")
    if options.json:
        _print_json_table(tables.events_table(chosen))
    elif not to_file:
        _print_tables([tables.events_for_reading(chosen)], options.no_color)
    return FINE


# ---------------------------------------------------------------------------------- convert


def _describe_convert(parser: Parser) -> None:
    parser.add_argument("source", metavar="IN", help="a trace file")
    parser.add_argument("target", metavar="OUT", help="ends in .json, .json.gz or .parquet")
    _add_threads(parser)


def _convert(options: Options) -> int:
    source, target = options.source, options.target
    lower = target.lower()
    if not lower.endswith((".json", ".json.gz", ".parquet")):
        raise UsageError(f"{target}: the name must end in .json, .json.gz or .parquet")
    _check_output(target, [source])
    trace = _load([source], options.threads)
    if len(trace.ranks) > 1:
        raise UsageError(f"{source}: holds {len(trace.ranks)} ranks, convert takes one file")
    if lower.endswith(".parquet"):
        from torchtraceap.report import tables

        tables.write_parquet(tables.choose_events(trace, with_args=True), Path(target))
    else:
        from torchtraceap import _core

        _core.write_trace(trace.ranks[0].table, target)
    _note(f"wrote {target}")
    return FINE


# ---------------------------------------------------------------------------------- report


def _describe_report(parser: Parser) -> None:
    _add_paths(parser)
    parser.add_argument("--html", metavar="FILE", required=True, help="where to write the page")
    _add_windows(parser)
    _add_threads(parser)


def _report(options: Options) -> int:
    _check_output(options.html, options.paths)
    trace = _load(options.paths, options.threads)
    _write_html(trace.diagnose(windows=options.windows), options.html)
    return FINE


COMMANDS = {
    "diagnose": Command(
        "what is wrong, on what evidence, what a fix saves and what to change",
        _describe_diagnose,
        _diagnose,
    ),
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
    "report": Command(
        "write the diagnosis as one self-contained HTML page", _describe_report, _report
    ),
}


# ---------------------------------------------------------------------------------- options


def _add_paths(parser: Parser) -> None:
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", help="a trace file, a folder of ranks, or several files"
    )


def _add_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")


def _add_windows(parser: Parser) -> None:
    parser.add_argument(
        "--windows",
        type=int,
        choices=WINDOW_COUNTS,
        default=100,
        metavar="N",
        help="windows that get a score: 50, 100 or 200 [100]",
    )


def _add_rank(parser: Parser) -> None:
    parser.add_argument("--rank", type=int, metavar="N", help="only this rank of several")


def _add_threads(parser: Parser) -> None:
    parser.add_argument(
        "--threads", type=_count, default=0, metavar="N", help="parsing threads [every core]"
    )


def _add_no_color(parser: Parser) -> None:
    parser.add_argument("--no-color", action="store_true", help="plain text even on a terminal")


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"a number from 0 is needed, not {text}")
    return value


def _microseconds(text: str) -> int:
    """Microseconds as whole nanoseconds."""
    value = float(text)
    if not 0 <= value < 1e12:
        raise argparse.ArgumentTypeError(f"a time from 0 is needed, not {text}")
    return round(value * 1000)


def _parse_fail_on(text: str | None, gate: bool) -> tuple[str, ...]:
    """What the gate fails on; nothing where there is no gate."""
    if text is None:
        return ("present",) if gate else ()
    wanted = tuple(word.strip() for word in text.split(",") if word.strip())
    if not wanted:
        raise UsageError("--fail-on needs a type of finding, 'present' or 'unknown'")
    from torchtraceap.knowledge import load_knowledge

    known = {"present", "unknown", *load_knowledge()}
    for word in wanted:
        if word not in known:
            raise UsageError(f"--fail-on: {_unknown_word(word, known)}")
    return wanted


def _gate_reasons(diagnosis: Diagnosis, wanted: Sequence[str]) -> list[str]:
    """Why the gate fails, in words; empty where it passes."""
    present = [finding.type for finding in diagnosis.findings]
    hits = present if "present" in wanted else [name for name in present if name in wanted]
    reasons = [f"{name} is present" for name in hits]
    if "unknown" in wanted:
        verdicts = diagnosis.verdicts.items()
        reasons += [f"{name} could not be checked" for name, v in verdicts if v == "unknown"]
    return reasons


def _unknown_word(word: str, known: Iterable[str]) -> str:
    import difflib

    near = difflib.get_close_matches(word, list(known), n=1)
    return f"there is no {word!r}" + (f", did you mean {near[0]!r}?" if near else "")


# ---------------------------------------------------------------------------------- input


def _load(paths: Sequence[str], threads: int) -> Trace:
    from torchtraceap.trace import load

    given: Any = paths[0] if len(paths) == 1 else list(paths)
    size = sum(_size_of(path) for path in paths)
    if size < PROGRESS_BYTES or not sys.stderr.isatty():
        # A callback all the same: it lets Ctrl-C through while the core reads.
        return load(given, threads=threads, progress=lambda done, total: None)
    return _load_with_bar(given, threads)


def _load_with_bar(given: Any, threads: int) -> Trace:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from torchtraceap.trace import load

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        report_progress: Progress = update
        return load(given, threads=threads, progress=report_progress)


def _size_of(path: str) -> int:
    """Weighed bytes of a file, or of the files of a folder; 0 for what cannot be looked at."""
    try:
        if os.path.isdir(path):
            return sum(_size_of(entry.path) for entry in os.scandir(path) if entry.is_file())
        weight = 1 if path.lower().endswith(".json") else COMPRESSED_WEIGHT
        return os.stat(path).st_size * weight
    except OSError:
        return 0


# ---------------------------------------------------------------------------------- output


def _print(text: str) -> None:
    """Writes to standard output. A reader that went away is no error: the rest is dropped."""
    try:
        sys.stdout.write(text)
        sys.stdout.write("\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()


def _drop_stdout() -> None:
    """Lets Python's own flush at the end go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _note(text: str) -> None:
    from torchtraceap.report.words import harmless

    sys.stderr.write(f"torchtraceap: {harmless(text)}\n")


def _colour_wanted(no_color: bool) -> bool:
    if no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty()


def _width() -> int:
    import shutil

    return shutil.get_terminal_size((100, 40)).columns


def _print_diagnosis(diagnosis: Diagnosis, no_color: bool) -> None:
    from torchtraceap.report import terminal

    if not _colour_wanted(no_color):
        width = _width() if sys.stdout.isatty() else terminal.DEFAULT_WIDTH
        return _print(terminal.render_text(diagnosis, width=width))
    from rich.console import Console

    terminal.print_report(diagnosis, Console(width=_width()))


def _print_tables(tables: Sequence[Table], no_color: bool) -> None:
    from torchtraceap.report.tables import render_table

    colour = _colour_wanted(no_color)
    width = _width() if sys.stdout.isatty() else 0
    _print("\n\n".join(render_table(table, bold=colour, width=width) for table in tables))


def _print_json_table(table: Table) -> None:
    """Row by row: a document of millions of rows never lies in memory whole."""
    try:
        table.write_json(sys.stdout)
        sys.stdout.write("\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()


def _write_html(diagnosis: Diagnosis, path: str) -> None:
    page = diagnosis.to_html(path)
    _note(f"wrote {path} ({len(page) / 1e6:.1f} MB)")


def _check_output(path: str, inputs: Sequence[str]) -> None:
    """Says early, and in one sentence, that a file cannot or must not be written."""
    target = Path(path)
    if target.exists() and any(target.samefile(name) for name in inputs if os.path.exists(name)):
        raise UsageError(f"{path}: input and output are the same file")
    if target.is_dir():
        raise UsageError(f"{path}: is a folder, a file name is needed")
    if not target.absolute().parent.is_dir():
        raise UsageError(f"{path}: the folder {target.absolute().parent} does not exist")
    if not os.access(target if target.exists() else target.absolute().parent, os.W_OK):
        raise UsageError(f"{path}: no permission to write")


# ---------------------------------------------------------------------------------- entry


def _main_help() -> str:
    lines = [
        "usage: torchtraceap [COMMAND] PATH... [options]",
        "",
        "Says where a PyTorch training run loses time, on what evidence, and what to change, from",
        "the trace that torch.profiler wrote. Without a command, PATH is diagnosed.",
        "",
        "commands:",
        *(f"  {name:<10}{command.summary}" for name, command in COMMANDS.items()),
        "",
        "torchtraceap COMMAND --help lists the options of a command; torchtraceap --version.",
        "Exit codes: 0 fine, 1 findings where the command gates, 2 unusable input or options.",
    ]
    return "\n".join(lines)


def _split_command(given: Sequence[str]) -> tuple[str, list[str]]:
    """The command and its arguments; `diagnose` where only a path is given."""
    first = given[0]
    if first in COMMANDS:
        return first, list(given[1:])
    if first.isalpha() and len(given) > 1 and not os.path.exists(first):
        words = _unknown_word(first, COMMANDS)
        raise UsageError(f"{words} (commands: {', '.join(COMMANDS)})")
    return "diagnose", list(given)


def _run(given: list[str]) -> int:
    if not given:
        raise UsageError("give a trace: torchtraceap PATH (torchtraceap --help says more)")
    if given[0] in ("--help", "-h"):
        _print(_main_help())
        return FINE
    if given[0] == "--version":
        from torchtraceap._version import __version__

        _print(f"torchtraceap {__version__}")
        return FINE
    name, rest = _split_command(given)
    command = COMMANDS[name]
    parser = Parser(
        prog=f"torchtraceap {name}",
        description=f"{command.summary[0].upper()}{command.summary[1:]}.",
        allow_abbrev=False,
    )
    command.describe(parser)
    return command.run(parser.parse_intermixed_args(rest))


def _sentence(error: BaseException) -> str:
    """What went wrong, as one line."""
    if isinstance(error, MemoryError):
        return "not enough memory for this trace"
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _is_expected(error: BaseException) -> bool:
    """Errors that are the input's or the options' fault, not a defect of ours."""
    from torchtraceap.errors import TraceError

    return isinstance(error, (UsageError, TraceError, OSError, MemoryError, ImportError))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    gc.disable()  # a short-lived process with few cycles; saves a pass over every object
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a narrow terminal encoding is no reason to fail
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except SystemExit as left:  # argparse, after --help
        return left.code if isinstance(left.code, int) else FINE
    except KeyboardInterrupt:
        sys.stderr.write("torchtraceap: interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:
        _drop_stdout()
        return FINE
    except Exception as error:
        ours = "" if _is_expected(error) else f"internal error, {type(error).__name__}: "
        _note(ours + _sentence(error))
        return UNUSABLE
