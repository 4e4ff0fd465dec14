"""Standard output holds the result and nothing else; notes go to standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchtraceap.cli.parsing import UsageError

if TYPE_CHECKING:
    from torchtraceap.report.tables import TextTable
    from torchtraceap.results import Diagnosis
    from torchtraceap.table import ColumnTable


def print_text(text: str) -> None:
    """Writes to standard output. A reader that went away is no error: the rest is dropped."""
    try:
        sys.stdout.write(text)
        sys.stdout.write("\n")
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()


def drop_stdout() -> None:
    """Lets Python's own flush at the end go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def note(text: str) -> None:
    from torchtraceap.report.words import harmless

    sys.stderr.write(f"torchtraceap: {harmless(text)}\n")


def _colour_wanted(no_color: bool) -> bool:
    if no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty()


def _width() -> int:
    import shutil

    return shutil.get_terminal_size((100, 40)).columns


def print_diagnosis(diagnosis: Diagnosis, no_color: bool) -> None:
    from torchtraceap.report import terminal

    if not _colour_wanted(no_color):
        width = _width() if sys.stdout.isatty() else terminal.DEFAULT_WIDTH
        return print_text(terminal.render_text(diagnosis, width=width))
    from rich.console import Console

    terminal.print_report(diagnosis, Console(width=_width()))


def print_tables(tables: Sequence[TextTable], no_color: bool) -> None:
    from torchtraceap.report.tables import render_table

    colour = _colour_wanted(no_color)
    width = _width() if sys.stdout.isatty() else 0
    print_text("\n\n".join(render_table(table, bold=colour, width=width) for table in tables))


def print_json(table: ColumnTable) -> None:
    """Some rows at a time: a document of millions of rows never lies in memory whole."""
    try:
        table.write_json(sys.stdout)
        sys.stdout.write("\n")
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()


def write_html(diagnosis: Diagnosis, path: str) -> None:
    page = diagnosis.to_html(path)
    note(f"wrote {path} ({len(page) / 1e6:.1f} MB)")


def check_output(path: str, inputs: Sequence[str]) -> None:
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
