"""The report for a terminal: one screen, worst first, with the checks that could not be made.

Lines are built as styled pieces. Plain text joins them; on a terminal rich paints them, so that
a pipe never pays for importing it and never sees an escape sequence.
"""

from __future__ import annotations

import difflib
import os
import shlex
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torchtraceap.core.formatting import (
    display_width,
    format_count,
    format_ns,
    format_percent,
    keep_units_together,
    one_line,
    replace_controls,
)
from torchtraceap.report.view import FindingView, ReportView, Segment, build_view

if TYPE_CHECKING:
    from rich.console import Console

    from torchtraceap.diagnosis.result import Diagnosis

__all__ = ["MAX_LINES", "print_report", "render_text", "report_lines"]

MAX_LINES = 40  # one screen
MIN_WIDTH, MAX_WIDTH, DEFAULT_WIDTH = 50, 120, 100
LABEL = 10  # columns of the labels on the left

# Glyphs tell the parts of the bar apart without color; idle parts take the light ones in order.
GLYPHS = {
    "compute": "█",
    "communication": "▓",
    "memcpy": "▒",
    "device_memcpy": "▚",
    "host_forward": "█",
    "host_backward": "▓",
    "host_optimizer": "▒",
    "host_other": "▚",
}
IDLE_GLYPHS = "░·-~:=+,_'"
COLOURS = {
    "compute": "green",
    "communication": "magenta",
    "memcpy": "yellow",
    "device_memcpy": "bright_white",
    "host_forward": "green",
    "host_backward": "magenta",
    "host_optimizer": "yellow",
    "host_other": "bright_white",
    "host_gap": "bright_cyan",
    "data_loading": "red",
    "host_wait": "bright_red",
    "synchronization": "bright_magenta",
    "memory_copy": "bright_yellow",
    "communication_wait": "bright_blue",
    "compilation": "blue",
    "allocator": "cyan",
    "launch_latency": "bright_cyan",
    "profiler": "white",
    "unknown": "bright_black",
    "within_graph": "cyan",
}


class Piece(NamedTuple):
    """Text in one style; styles are rich's, "" is plain."""

    text: str
    style: str = ""


Line = list[Piece]


class _Detail(NamedTuple):
    """The number of findings and of their lines in a report."""

    full: int
    has_code: bool
    """The change of the first finding is shown as code."""
    text_lines: int
    short: int


# Tried in order until the report fits a screen.
_DETAILS = (
    *(_Detail(full, True, text_lines, 8) for full in (3, 2) for text_lines in (3, 2)),
    *(_Detail(1, has_code, text_lines, 8) for has_code in (True, False) for text_lines in (3, 2)),
    _Detail(1, False, 2, 4),
    _Detail(1, False, 1, 2),
)


def render_text(diagnosis: Diagnosis, *, width: int = DEFAULT_WIDTH, verbose: bool = False) -> str:
    """Render the report as plain text, without color; `verbose` as in `report_lines`."""
    lines = report_lines(build_view(diagnosis), width=width, verbose=verbose)
    return "\n".join("".join(piece.text for piece in line).rstrip() for line in lines)


def print_report(diagnosis: Diagnosis, console: Console, *, verbose: bool = False) -> None:
    """Print the report in color, as wide as the console; `verbose` as in `report_lines`."""
    from rich.text import Text

    for line in report_lines(build_view(diagnosis), width=console.width, verbose=verbose):
        text = Text.assemble(*((piece.text, piece.style) for piece in line))
        console.print(text, soft_wrap=True, highlight=False, markup=False, emoji=False)


def report_lines(
    view: ReportView, *, width: int = DEFAULT_WIDTH, verbose: bool = False
) -> list[Line]:
    """Return the report as styled lines, at most MAX_LINES where the width allows.

    With `verbose`, they add how well unseen steps are simulated and each repair of the recording.
    """
    columns = max(MIN_WIDTH, min(width, MAX_WIDTH))
    lines: list[Line] = []
    for detail in _DETAILS:
        lines = list(_report(view, columns, detail, verbose))
        if len(lines) <= MAX_LINES:
            break
    return [[Piece(replace_controls(piece.text), piece.style) for piece in line] for line in lines]


def _report(view: ReportView, width: int, detail: _Detail, verbose: bool) -> Iterator[Line]:
    yield from _header(view, width)
    yield from _bar(view.segments, width)
    if view.operators:
        parts = (f"{part.label} {format_percent(part.share)}" for part in view.operators)
        yield from _labelled("operators", ", ".join(parts), width, 3)
        yield []
    if view.replay and (verbose or not view.is_simulated):
        yield from ([Piece(text, "dim")] for text in _wrap(view.replay, width, 3))
        yield []
    yield from _findings(view, width, detail)
    if view.unchecked:
        by_reason: dict[str, list[str]] = {}
        for check in sorted(view.unchecked, key=lambda check: not check.paper):
            by_reason.setdefault(one_line(check.note, 200), []).append(check.title)
        reasons = (f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
        yield from _labelled("unknown", "; ".join(reasons), width, 4)
    if view.passed:
        names = ", ".join(check.title for check in view.passed)
        lines = 3 if view.findings else 6  # findings need the room
        yield from _labelled("fine", f"{len(view.passed)} checks: {names}", width, lines)
    shown = [note for note in view.notes if verbose or not note.is_harmless]
    for note in shown if verbose else shown[:1]:
        more = f" (and {len(shown) - 1} more notes: summary)" if len(shown) > 1 else ""
        text = f"{format_count(note.count)} × {one_line(note.message, 300)}"
        yield from _labelled("data", text + more * (not verbose), width, 2)
    harmless = sum(note.count for note in view.notes if note.is_harmless)
    if harmless and not verbose:
        plural = "repair" if harmless == 1 else "repairs"
        yield [Piece(f"recording: {format_count(harmless)} harmless {plural}", "dim")]
    yield from _commands(view, width)


def _header(view: ReportView, width: int) -> Iterator[Line]:
    about = " · ".join((view.title, *view.facts))
    for text in _wrap(one_line(about, 3 * width), width, 2):
        yield [Piece(text, "dim")]
    yield []
    style = "bold red" if view.findings else "bold green" if view.is_healthy else "bold"
    yield from _sides(view.headline, view.sureness, width, style, "")
    for text in _wrap(view.explanation, width, 2):
        yield [Piece(text)]
    for text in _wrap(view.serving, width, 2):
        yield [Piece(text, "bold")]
    for text in _wrap(view.operators_line, width, 2):
        yield [Piece(text)]
    if view.recording:
        for text in _wrap(f"recording: {view.recording}", width, 3):
            yield [Piece(text, "bold")]
    if view.rank_range:
        yield [Piece(one_line(view.rank_range, width))]
    yield []


def _sides(left: str, right: str, width: int, left_style: str, right_style: str) -> Iterator[Line]:
    """Put two texts on the left and the right. A left one that is too long goes on below itself,
    or where little room is left beside the right one, above it."""
    room = width - display_width(right) - 2
    number = left[: len(left) - len(left.lstrip("0123456789 "))]  # of a finding: stands out
    lines = _wrap(left.removeprefix(number), max(room, width // 2) - len(number), 4)
    lines = [
        (number if not place else " " * len(number)) + line for place, line in enumerate(lines)
    ]
    if room >= width // 2 or room >= display_width(left):
        gap = width - display_width(lines[0]) - display_width(right)
        yield [Piece(lines[0], left_style), Piece(" " * gap), Piece(right, right_style)]
        yield from ([Piece(text, left_style)] for text in lines[1:])
        return
    inner = width - len(number)
    for place, text in enumerate(_wrap(left.removeprefix(number), inner, 3)):
        yield [Piece((number if not place else " " * len(number)) + text, left_style)]
    yield [Piece(" " * max(0, width - display_width(right))), Piece(right, right_style)]


def _wrap(text: str, width: int, max_lines: int) -> list[str]:
    lines = textwrap.wrap(
        keep_units_together(text),
        width,
        max_lines=max_lines,
        placeholder=" …",
        break_on_hyphens=False,
    )
    return [line.replace("\u00a0", " ") for line in lines]


def split_columns(shares: Sequence[float], width: int) -> list[int]:
    """Divide `width` columns among the positive shares of a bar, at least one for each."""
    total = sum(shares)
    spare = width - len(shares)
    exact = [share / total * spare for share in shares]
    columns = [1 + int(value) for value in exact]
    by_rest = sorted(range(len(shares)), key=lambda i: int(exact[i]) - exact[i])
    for index in by_rest[: width - sum(columns)]:
        columns[index] += 1
    return columns


def _bar(segments: Sequence[Segment], width: int) -> Iterator[Line]:
    parts = [part for part in segments if part.share >= 0.001]
    if not parts:
        return
    others = iter(IDLE_GLYPHS + "?" * len(parts))
    glyphs = [GLYPHS.get(part.key) or next(others) for part in parts]
    columns = split_columns([part.share for part in parts], width)
    styles = [COLOURS.get(part.key, "") for part in parts]
    yield [
        Piece(glyph * count, style)
        for glyph, count, style in zip(glyphs, columns, styles, strict=True)
    ]
    line: Line = []
    used = 0
    for part, glyph, style in zip(parts, glyphs, styles, strict=True):
        idle = "idle: " if part.is_idle else ""
        label = f" {idle}{part.label} {format_percent(part.share)}"
        if used and used + len(label) + 4 > width:
            yield line
            line, used = [], 0
        if used:
            line.append(Piece("   "))
        line += [Piece(glyph, style), Piece(label)]
        used += len(label) + 4
    yield line
    yield []


def _findings(view: ReportView, width: int, detail: _Detail) -> Iterator[Line]:
    full = [entry for entry in view.findings if not entry.is_told_above][: detail.full]
    for entry in full:
        yield from _finding(entry, width, detail)
    shown = {entry.number for entry in full}
    rest = [entry for entry in view.findings if entry.number not in shown]
    for entry in rest[: detail.short]:
        saves = entry.saves.removeprefix("saves ").removeprefix("saved by ")
        if entry.is_told_above and not saves.startswith("the same fix"):
            saves = "the same time as above"
        yield from _sides(f"{entry.number}  {entry.finding.title}", saves, width, "bold", "")
    if len(rest) > detail.short:
        yield [Piece(f"and {len(rest) - detail.short} more: see --html or --json", "dim")]
    if view.together:
        yield from ([Piece(text)] for text in _wrap(view.together, width, 5))
    if view.findings:
        yield []


def _finding(entry: FindingView, width: int, detail: _Detail) -> Iterator[Line]:
    finding = entry.finding
    yield from _sides(f"{entry.number}  {finding.title}", entry.saves, width, "bold", "bold red")
    inner = width - 3
    why = one_line(finding.why, 4 * inner)
    yield from ([Piece(f"   {text}")] for text in _wrap(why, inner, detail.text_lines))
    if finding.evidence:
        first, more = finding.evidence[0], finding.evidence_count - 1
        others = f", and {format_count(more)} more" if more > 0 else ""
        tail = f" ({format_ns(first.duration_ns)}){others}"
        if inner >= 70:
            tail += f"; {entry.sureness}"
        name = one_line(first.name, max(8, inner - 9 - len(tail)))
        yield [Piece("   "), Piece("seen in  ", "dim"), Piece(name + tail)]
    for number, text in enumerate(_wrap(entry.fix, inner - 9, detail.text_lines)):
        label = "change   " if number == 0 else " " * 9
        yield [Piece("   "), Piece(label, "dim"), Piece(text)]
    lines = list(_diff(entry)) if entry.number == 1 and detail.has_code else []
    if all(display_width(text) < width - LABEL for _, text in lines):
        for sign, text in lines:
            style = {"-": "red", "+": "cyan"}.get(sign, "dim")
            yield [Piece(" " * (LABEL - 1) + sign + text, style)]
    yield []


_KNOWN_HEADS: tuple[list[str], ...] = ([], ["import"], ["from"])
"""First words of lines above a change that nobody has to be shown."""


def _diff(entry: FindingView) -> Iterator[tuple[str, str]]:
    """Yield the fix as lines of code, whole: what it removes behind a "-", what it adds behind a
    "+", and what stays behind a blank, without the imports above it that stay."""
    before, after = (
        textwrap.dedent(code).splitlines() for code in (entry.code_before, entry.code_after)
    )
    while before and before[:1] == after[:1] and before[0].split()[:1] in _KNOWN_HEADS:
        before, after = before[1:], after[1:]
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, from_, to, begin, end in matcher.get_opcodes():
        if tag == "equal":
            yield from ((" ", text) for text in before[from_:to])
            continue
        yield from (("-", text) for text in before[from_:to])
        yield from (("+", text) for text in after[begin:end])


def _labelled(label: str, text: str, width: int, max_lines: int) -> Iterator[Line]:
    wrapped = _wrap(text, width - LABEL, max_lines)
    for number, part in enumerate(wrapped):
        yield [Piece((label if number == 0 else "").ljust(LABEL), "dim"), Piece(part)]


def _commands(view: ReportView, width: int) -> Iterator[Line]:
    """Return the commands to type next; a path that does not fit is left to the reader."""
    # The command that starts this program from the current folder.
    program, called = "torchtraceap", sys.argv[0]
    folder, name = os.path.split(called)
    # shutil.which does the same, and is slow to import.
    paths = (os.path.join(path, "torchtraceap") for path in os.get_exec_path())
    on_path = next((path for path in paths if os.access(path, os.X_OK)), "")
    if name == "__main__.py" and os.path.basename(folder) == "torchtraceap" and not on_path:
        program = "python -m torchtraceap"
    elif name == "torchtraceap" and folder:
        is_same = bool(on_path) and os.path.samefile(on_path, called)
        program = program if is_same else shlex.quote(called)
    page = f"{program} {{}} --html report.html"
    gate = f"{program} diagnose {{}} --gate"
    path = one_line(view.path_argument, 300)
    if LABEL + display_width(path) + len(page) > width:
        path = "PATH"
    note = "   (exit code 1 while a finding is present)"
    fits = LABEL + display_width(path) + len(gate) + len(note) <= width
    yield [Piece("page".ljust(LABEL), "dim"), Piece(page.format(path))]
    yield [Piece("gate".ljust(LABEL), "dim"), Piece(gate.format(path)), Piece(note * fits, "dim")]
