"""Standard output holds the result and nothing else; notes go to standard error."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

from torchtraceap.cli.parser import UsageError, terminal_width
from torchtraceap.core.formatting import (
    RUNNER_MARK,
    RUNNER_MARK_IN_JSON,
    replace_controls,
    shown_lines,
)
from torchtraceap.core.progress import progress_stage

if TYPE_CHECKING:
    from torchtraceap.core.table import ColumnTable
    from torchtraceap.diagnosis.result import Diagnosis
    from torchtraceap.report.tables import TextTable


# One sign for one, so that what stands below each other still does. Those of the bar differ from
# each other and from the signs in it that are plain already.
_PLAIN = {"█": "#", "▓": "%", "▒": "x", "▚": "/", "░": ".", "·": "|", "→": ">", "…": "~",
          "–": "-", "—": "-", "−": "-", "×": "x", "µ": "u", "▁": "_", "▂": ".", "▃": "-", "▄": "=",
          "▅": "+", "▆": "*", "▇": "%"}  # fmt: skip


def accept_any_encoding() -> None:
    """Give a terminal that cannot show a sign one that is like it, or a question mark."""

    def plain_signs(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        text = error.object[error.start : error.end]
        return "".join(_PLAIN.get(sign, "?") for sign in text), error.end

    codecs.register_error("torchtraceap.plain", plain_signs)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="torchtraceap.plain")


def print_text(text: str) -> None:
    """Write to standard output what may hold text of a trace or of the user."""
    _write_plain(shown_lines(text))


def print_commands(lines: Sequence[str]) -> None:
    """Write commands for a runner of CI, whose values hold no line break and no other command."""
    _write_plain("\n".join(replace_controls(line) for line in lines))


def _write_plain(text: str) -> None:
    """Write text that is harmless already; bold headings must stay bold."""
    with standard_output() as stream:
        stream.write(text)
        stream.write("\n")


@contextlib.contextmanager
def standard_output() -> Iterator[TextIO]:
    """Take the result. A reader that went away is no error, a full disk is one."""
    try:
        try:
            yield sys.stdout
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()
    except OSError as error:
        from torchtraceap.core.writing import standard_output_error

        drop_stdout()
        raise standard_output_error(error) from None


def drop_stdout() -> None:
    """Let Python's own flush at the end go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def note(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody can be told
        sys.stderr.write(f"torchtraceap: {shown_lines(text)}\n")


def _wants_color(no_color: bool) -> bool:
    if no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty()


def print_diagnosis(diagnosis: Diagnosis, no_color: bool, verbose: bool = False) -> None:
    from torchtraceap.report import terminal

    if not _wants_color(no_color):
        given = sys.stdout.isatty() or "COLUMNS" in os.environ
        width = terminal_width(100) if given else terminal.DEFAULT_WIDTH
        return print_text(terminal.render_text(diagnosis, width=width, verbose=verbose))
    from rich.console import Console

    with standard_output():
        terminal.print_report(diagnosis, Console(width=terminal_width(100)), verbose=verbose)


def print_tables(tables: Sequence[TextTable], no_color: bool) -> None:
    from torchtraceap.report.tables import render_table

    color = _wants_color(no_color)
    width = terminal_width(100) if sys.stdout.isatty() or "COLUMNS" in os.environ else 0
    text = "\n\n".join(render_table(table, bold=color, width=width) for table in tables)
    _write_plain(text if color else shown_lines(text))


def print_json(table: ColumnTable) -> None:
    """Print a table as JSON, some rows at a time: a document of millions of rows never lies in
    memory whole."""
    with json_output() as stream:
        table.write_json(stream)
        stream.write("\n")


@contextlib.contextmanager
def json_output() -> Iterator[TextIO]:
    """Take JSON in pieces, in which no text is split, for standard output; see `shown_lines`."""
    with standard_output() as stream:
        yield cast("TextIO", _ShownJson(stream))


class _ShownJson:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, piece: str) -> int:
        return self._stream.write(RUNNER_MARK.sub(RUNNER_MARK_IN_JSON, piece))


def write_html(diagnosis: Diagnosis, path: str) -> None:
    with progress_stage("writing the page"):
        page = diagnosis.to_html(path)
    note(f"wrote {path} ({len(page) / 1e6:.1f} MB)")


def check_output(path: str, inputs: Sequence[str]) -> None:
    """Say early, and in one sentence, that a file cannot or must not be written."""
    from torchtraceap.core.writing import check_target
    from torchtraceap.trace.files import list_trace_files, looks_like_trace_name

    read = list_trace_files(inputs)
    check_target(path, read)
    folder = Path(path).resolve().parent
    for given in filter(os.path.isdir, inputs if looks_like_trace_name(path) else ()):
        folders = {Path(given).resolve(), *(f.resolve().parent for f in list_trace_files([given]))}
        if folder in folders:
            raise UsageError(
                f"{path}: would be read as one more rank of {given} next time; write it elsewhere"
            )
