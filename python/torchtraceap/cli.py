"""The command line. Start-up counts, so everything heavy is imported where it is used.

Standard output holds the result and nothing else; progress, notes and errors go to standard
error. Exit codes: 0 fine, 1 findings where the command gates, 2 unusable input or options, 130
interrupted.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchtraceap.report.tables import Table
    from torchtraceap.results import Diagnosis
    from torchtraceap.trace import Progress, Trace

__all__ = ["app", "main"]

FINE, FINDINGS, UNUSABLE, INTERRUPTED = 0, 1, 2, 130
COMMANDS = ("diagnose", "summary", "tree", "events", "convert", "report")
WINDOW_COUNTS = ("50", "100", "200")
# Files together larger than this show a progress bar: smaller ones are read before a person could
# look at one. A compressed byte counts for six, which is less than traces shrink by (10 to 35).
PROGRESS_BYTES = 50_000_000
COMPRESSED_WEIGHT = 6
DEFAULT_EVENT_ROWS = 40

app = typer.Typer(
    name="torchtraceap",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH", help="A trace file, a folder of ranks, or several files."),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON document instead of the report.")
]
Threads = Annotated[
    int, typer.Option("--threads", metavar="N", help="Parsing threads; 0 takes every core.")
]
NoColour = Annotated[bool, typer.Option("--no-color", help="Plain text even on a terminal.")]
WindowCount = Annotated[
    str, typer.Option("--windows", metavar="50|100|200", help="Windows that get a score.")
]
RankOption = Annotated[
    int | None, typer.Option("--rank", metavar="N", help="Only this rank of several.")
]


class UsageError(Exception):
    """An option or a combination of options that cannot be used."""


# ---------------------------------------------------------------------------------- commands


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True)
    ] = False,
) -> None:
    """Says where a PyTorch training run loses time, from the trace that torch.profiler wrote.

    `torchtraceap PATH` is short for `torchtraceap diagnose PATH`.

    Exit codes: 0 fine, 1 findings where the command gates, 2 unusable input or options.
    """


@app.command(short_help="What is wrong and what to change.")
def diagnose(
    paths: Paths,
    json: AsJson = False,
    html: Annotated[
        str, typer.Option("--html", metavar="FILE", help="Also write the report as an HTML page.")
    ] = "",
    windows: WindowCount = "100",
    gate: Annotated[
        bool, typer.Option("--gate", help="Exit with 1 while a finding is present.")
    ] = False,
    fail_on: Annotated[
        str,
        typer.Option(
            "--fail-on",
            metavar="WHAT",
            help="What the gate fails on, separated by commas: types of findings, `present` for "
            "any finding (the default of --gate), `unknown` for one of the eight main checks "
            "that could not be made. Implies --gate.",
        ),
    ] = "",
    threads: Threads = 0,
    no_color: NoColour = False,
) -> int:
    """What is wrong, on what evidence, what a fix saves and what to change."""
    count = _parse_windows(windows)
    wanted = _parse_fail_on(fail_on, gate)
    trace = _load(paths, threads)
    diagnosis = trace.diagnose(windows=count)
    reasons = _gate_reasons(diagnosis, wanted)
    if html:
        _write_html(diagnosis, html)
    if json:
        _print(diagnosis.to_json())
    else:
        _print_diagnosis(diagnosis, no_color)
    if reasons:
        _note(f"gate: {', '.join(reasons)}")
    return FINDINGS if reasons else FINE


@app.command(short_help="How the GPU's time splits up.")
def summary(
    paths: Paths,
    json: AsJson = False,
    linked_only: Annotated[
        bool, typer.Option("--linked-only", help="Leave out GPU events without a launch.")
    ] = False,
    threads: Threads = 0,
    no_color: NoColour = False,
) -> int:
    """What is in a trace, and how the GPU's time splits up: whole, by rank, device and step."""
    result = _load(paths, threads).summary(linked_only=linked_only)
    if json:
        _print(result.to_json())
        return FINE
    from torchtraceap.report.tables import summary_tables

    _print_tables(summary_tables(result), no_color)
    return FINE


@app.command(short_help="Host calls with their GPU events.")
def tree(
    paths: Paths,
    json: AsJson = False,
    step: Annotated[
        str, typer.Option("--step", metavar="STEP", help="Only this step, by name or place.")
    ] = "",
    max_depth: Annotated[
        int, typer.Option("--max-depth", metavar="N", help="Deepest level of calls.")
    ] = 6,
    max_lines: Annotated[
        int, typer.Option("--max-lines", metavar="N", help="Where to stop; not for --json.")
    ] = 200,
    min_us: Annotated[
        float, typer.Option("--min-us", metavar="US", help="Leave shorter host events out.")
    ] = 0.0,
    kernels: Annotated[
        bool, typer.Option("--kernels/--no-kernels", help="Show GPU events under their launch.")
    ] = True,
    rank: RankOption = None,
    threads: Threads = 0,
) -> int:
    """Host calls by thread with the GPU events that they launched."""
    if max_depth < 0 or max_lines < 1 or not 0 <= min_us < 1e12:
        raise UsageError("--max-depth, --max-lines and --min-us take positive numbers")
    trace = _load(paths, threads)
    place: str | int | None = int(step) if step.isdecimal() else step or None
    chosen: dict[str, Any] = {
        "step": place,
        "max_depth": max_depth,
        "min_duration_ns": round(min_us * 1000),
        "kernels": kernels,
    }
    if json:
        from torchtraceap.report.tables import tree_table

        _print_json_table(tree_table(trace.rank(rank), **chosen))
        return FINE
    from torchtraceap.report.words import harmless

    _print(harmless(trace.tree(rank).to_text(max_lines=max_lines, **chosen)))
    return FINE


@app.command(short_help="The events as a table or a file.")
def events(
    paths: Paths,
    json: AsJson = False,
    csv: Annotated[
        str, typer.Option("--csv", metavar="FILE", help="Write the events as CSV.")
    ] = "",
    parquet: Annotated[
        str, typer.Option("--parquet", metavar="FILE", help="Write the events as Parquet.")
    ] = "",
    name: Annotated[
        str, typer.Option("--name", metavar="TEXT", help="Only events whose name holds TEXT.")
    ] = "",
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="Only this kind, such as kernel.")
    ] = "",
    longest: Annotated[bool, typer.Option("--longest", help="Longest first, not by time.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            help=f"At most so many; on a terminal {DEFAULT_EVENT_ROWS} unless said otherwise.",
        ),
    ] = None,
    rank: RankOption = None,
    threads: Threads = 0,
    no_color: NoColour = False,
) -> int:
    """The events as a table: on the terminal, as JSON, CSV or Parquet."""
    if limit is not None and limit < 0:
        raise UsageError(f"--limit takes a number from 0, not {limit}")
    from torchtraceap.report import tables

    trace = _load(paths, threads)
    to_file = bool(csv or parquet)
    if limit is None and not json and not to_file:
        limit = DEFAULT_EVENT_ROWS
    chosen = tables.choose_events(
        trace, rank=rank, name=name, kind=kind, longest=longest, limit=limit
    )
    if csv:
        tables.write_csv(chosen, Path(csv))
        _note(f"wrote {csv}")
    if parquet:
        tables.write_parquet(chosen, Path(parquet))
        _note(f"wrote {parquet}")
    if json:
        _print_json_table(tables.events_table(chosen))
    elif not to_file:
        _print_tables([tables.events_for_reading(chosen)], no_color)
    return FINE


@app.command(short_help="Write a trace back, or as Parquet.")
def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="A trace file.")],
    target: Annotated[
        str, typer.Argument(metavar="OUT", help="Ends in .json, .json.gz or .parquet.")
    ],
    threads: Threads = 0,
) -> int:
    """Writes a trace back, repaired and with nothing lost: .json, .json.gz or .parquet."""
    lower = target.lower()
    if not lower.endswith((".json", ".json.gz", ".parquet")):
        raise UsageError(f"{target}: the name must end in .json, .json.gz or .parquet")
    if Path(target).exists() and Path(source).exists() and Path(target).samefile(source):
        raise UsageError(f"{target}: input and output are the same file")
    trace = _load([source], threads)
    if len(trace.ranks) > 1:
        raise UsageError(f"{source}: holds {len(trace.ranks)} ranks, convert takes one file")
    if lower.endswith(".parquet"):
        from torchtraceap.report import tables

        chosen = tables.choose_events(trace, with_args=True)
        tables.write_parquet(chosen, Path(target))
    else:
        from torchtraceap import _core

        _check_writable(target)
        _core.write_trace(trace.ranks[0].table, target)
    _note(f"wrote {target}")
    return FINE


@app.command(short_help="Write the HTML page.")
def report(
    paths: Paths,
    html: Annotated[
        str, typer.Option("--html", metavar="FILE", help="Where to write the page.")
    ] = "",
    windows: WindowCount = "100",
    threads: Threads = 0,
) -> int:
    """Writes the diagnosis as one self-contained HTML page."""
    if not html:
        raise UsageError("report needs --html FILE")
    count = _parse_windows(windows)
    _write_html(_load(paths, threads).diagnose(windows=count), html)
    return FINE


# ---------------------------------------------------------------------------------- options


def _parse_windows(text: str) -> int:
    if text not in WINDOW_COUNTS:
        raise UsageError(f"--windows takes 50, 100 or 200, not {text}")
    return int(text)


def _parse_fail_on(text: str, gate: bool) -> tuple[str, ...]:
    """What the gate fails on; nothing where there is no gate."""
    wanted = tuple(word.strip() for word in text.split(",") if word.strip())
    if not wanted:
        if text:
            raise UsageError("--fail-on needs a type of finding, `present` or `unknown`")
        return ("present",) if gate else ()
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

    if threads < 0:
        raise UsageError(f"--threads takes a number from 0, not {threads}")
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
    _check_writable(path)
    page = diagnosis.to_html(path)
    _note(f"wrote {path} ({len(page) / 1e6:.1f} MB)")


def _check_writable(path: str) -> None:
    """Says early, and in one sentence, that a file cannot be written."""
    target = Path(path)
    if target.is_dir():
        raise UsageError(f"{path}: is a folder, a file name is needed")
    if not target.absolute().parent.is_dir():
        raise UsageError(f"{path}: the folder {target.absolute().parent} does not exist")
    if not os.access(target if target.exists() else target.absolute().parent, os.W_OK):
        raise UsageError(f"{path}: no permission to write")


# ---------------------------------------------------------------------------------- entry


def _with_command(arguments: Sequence[str]) -> list[str]:
    """Puts `diagnose` in front where only a path is given."""
    first = arguments[0]
    if first in COMMANDS or first in ("--help", "-h", "--version"):
        return list(arguments)
    is_word = first.isalpha() and len(arguments) > 1 and not os.path.exists(first)
    if is_word:
        words = _unknown_word(first, COMMANDS)
        raise UsageError(f"{words} (commands: {', '.join(COMMANDS)})")
    return ["diagnose", *arguments]


def _sentence(error: BaseException) -> str:
    """What went wrong, as one line."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    if isinstance(error, MemoryError):
        return "not enough memory for this trace"
    describe = getattr(error, "format_message", None)  # typer's usage errors
    text = describe() if callable(describe) else str(error)
    return " ".join(str(text).split()) or type(error).__name__


def _is_expected(error: BaseException) -> bool:
    """Errors that are the input's or the options' fault, not a defect of ours."""
    from torchtraceap.errors import TraceError

    kinds = (UsageError, TraceError, OSError, MemoryError, ImportError)
    return isinstance(error, kinds) or hasattr(error, "format_message")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    gc.disable()  # a short-lived process with few cycles; saves a pass over every object
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a narrow terminal encoding is no reason to fail
    try:
        return _run(given)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except BrokenPipeError:
        _drop_stdout()
        return FINE
    except Exception as error:
        if not _is_expected(error):
            _note(f"internal error, please report it: {type(error).__name__}: {_sentence(error)}")
            return UNUSABLE
        _note(_sentence(error))
        return UNUSABLE


def _run(given: list[str]) -> int:
    if not given:
        raise UsageError("give a trace: torchtraceap PATH (torchtraceap --help says more)")
    if given[0] == "--version":
        from torchtraceap._version import __version__

        _print(f"torchtraceap {__version__}")
        return FINE
    code = typer.main.get_command(app).main(
        args=_with_command(given), prog_name="torchtraceap", standalone_mode=False
    )
    if code == INTERRUPTED:  # newer versions of typer turn Ctrl-C into this code
        return _interrupted()
    return code if isinstance(code, int) else FINE


def _interrupted() -> int:
    sys.stderr.write("torchtraceap: interrupted\n")
    return INTERRUPTED
