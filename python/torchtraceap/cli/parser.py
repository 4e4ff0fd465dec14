"""The parts of commands: parsers, options that several share, values of options."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from torchtraceap.cli.input import stdin_path
from torchtraceap.core.records import dataclass

FINE, FINDINGS, UNUSABLE = 0, 1, 2
WINDOW_COUNTS = (50, 100, 200)
DEFAULT_ROWS = 40  # of a table for reading
Options = argparse.Namespace
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
          "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}  # fmt: skip
_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)
PATHS_HELP = "a trace file, a folder of ranks, or several files; - is standard input"
PATH_HELP = "a trace file or a folder of ranks; - is standard input"


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
    examples: Sequence[str] = ()
    """Arguments of `torchtraceap` that its help shows as examples."""
    actions: Mapping[str, Command] | None = None
    """Commands of its own, which the word behind it chooses."""
    runs: str = ""
    """The user's code that it runs. The help says so first: who does not trust that code should not
    call the command."""
    takes_program: bool = False
    """True if the words after ` -- ` are a program, a list in `options.program`."""


def command_of_actions(
    summary: str, actions: Mapping[str, Command], examples: Sequence[str] = (), runs: str = ""
) -> Command:
    """Return a command that does nothing by itself: the word behind it says what.

    `runs` is as in `Command`.
    """

    def describe(parser: Parser) -> None:
        parser.add_argument(
            "action", metavar="ACTION", choices=tuple(actions), help="one of the actions below"
        )

    def run(options: Options) -> int:
        raise UsageError(f"{options.action} is read before")  # see `chosen_command`

    return Command(summary, describe, run, examples, actions, runs)


def chosen_command(
    name: str, command: Command, given: Sequence[str]
) -> tuple[str, Command, list[str]]:
    """Return the command that runs, and the arguments that are left for it.

    Raises:
        UsageError: It has actions, and no known one is named.
    """
    rest = list(given)
    if not command.actions or (rest and rest[0] in ("--help", "-h")):
        return name, command, rest
    known = ", ".join(command.actions)
    if not rest or rest[0].startswith("-"):
        raise UsageError(f"{name} needs one of its actions: {known}")
    action = command.actions.get(rest[0])
    if action is None:
        raise UsageError(f"{name}: {unknown_word(rest[0], command.actions)} (actions: {known})")
    return f"{name} {rest[0]}", action, rest[1:]


def each_command(commands: Mapping[str, Command]) -> dict[str, Command]:
    """Return commands and their actions by their words, such as "bench run"."""
    found: dict[str, Command] = {}
    for name, command in commands.items():
        found[name] = command
        for word, action in (command.actions or {}).items():
            found[f"{name} {word}"] = action
    return found


def parse(name: str, command: Command, given: Sequence[str]) -> Options:
    """Parse the options of a command.

    Raises:
        UsageError: They can't be used.
    """
    words, program = list(given), None
    if command.takes_program and "--" in words:
        place = words.index("--")
        words, program = words[:place], words[place + 1 :]
    parser = make_parser(name, command)
    options, left = parser.parse_known_intermixed_args(words)
    if left:
        word, _, _ = left[0].partition("=")
        told = unknown_word(word, parser._option_string_actions)
        raise UsageError(f"{name}: {told} (torchtraceap help {name} lists what it takes)")
    if command.takes_program:
        options.program = program
    return options


def make_parser(name: str, command: Command) -> Parser:
    """Return the parser of a command, with examples below its options."""
    width = terminal_width(80) - 2
    parts = []
    if actions := command.actions:
        column = max(map(len, actions)) + 4
        listed = (
            _hanging(f"  {word:<{column - 2}}{action.summary}", column, width)
            for word, action in actions.items()
        )
        hint = f"torchtraceap help {name} ACTION lists the options of an action."
        parts.append("\n".join(["actions:", *listed, "", _hanging(hint, 0, width)]))
    if command.examples:
        parts.append("\n  torchtraceap ".join(["examples:", *command.examples]))
    summary = f"{command.summary[0].upper()}{command.summary[1:]}."
    parser = Parser(
        prog=f"torchtraceap {name}",
        description=_hanging(f"{command.runs} {summary}".strip(), 0, width),
        epilog="\n\n".join(parts) or None,
        # One is made for every option. Told no width, each asks `shutil`.
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=width),
        allow_abbrev=False,
    )
    command.describe(parser)
    return parser


def _hanging(text: str, indent: int, width: int) -> str:
    """Wrap a line; those below its first stand `indent` columns to the right."""
    import textwrap

    return textwrap.fill(
        text, max(width, indent + 20), subsequent_indent=" " * indent, break_on_hyphens=False
    )


def terminal_width(otherwise: int) -> int:
    """Return the columns of the terminal, as `shutil.get_terminal_size` says: that module is slow
    to import."""
    with suppress(KeyError, ValueError):
        given = int(os.environ["COLUMNS"])
        if given > 0:
            return given
    with suppress(ValueError, OSError):  # closed, or no terminal
        stream = sys.__stdout__
        return (stream and os.get_terminal_size(stream.fileno()).columns) or otherwise
    return otherwise


def option(*names: str, **settings: Any) -> Callable[[Parser], None]:
    """Return a function that adds an option, or an argument, as `add_argument` takes it."""

    def add(parser: Parser) -> None:
        parser.add_argument(*names, **settings)

    return add


def arguments(*parts: Callable[[Parser], None]) -> Callable[[Parser], None]:
    """Return a function that adds the arguments and options of a command, in their order."""

    def describe(parser: Parser) -> None:
        for part in parts:
            part(parser)

    return describe


def add_paths(parser: Parser, help_text: str = PATHS_HELP) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="+", type=trace_path, help=help_text)


def add_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")


def add_windows(parser: Parser, what: str = "windows that get a score") -> None:
    parser.add_argument(
        "--windows",
        type=int,
        choices=WINDOW_COUNTS,
        default=100,
        metavar="N",
        help=f"{what}: 50, 100 or 200 [100]",
    )


def add_rank(parser: Parser) -> None:
    parser.add_argument("--rank", type=int, metavar="N", help="only this rank of several")


def add_phase(parser: Parser) -> None:
    from torchtraceap.core.results import PHASES

    parser.add_argument(
        "--phase",
        choices=PHASES,
        metavar="PHASE",
        help=f"only iterations of a serving engine in this phase: {', '.join(PHASES)}",
    )


def add_reading(parser: Parser) -> None:
    """Add what every command takes that reads traces (`input.load`)."""
    parser.add_argument(
        "--steps",
        metavar="STEPS",
        help="only these steps: places such as 4, 3:6 or 0,3:6 (0 is the first), or names [all]",
    )
    parser.add_argument(
        "--threads", type=count, default=0, metavar="N", help="parsing threads [every core]"
    )


def add_seed(parser: Parser, of: str) -> None:
    """Add `--seed`; `of` says what the seed decides."""
    parser.add_argument("--seed", type=count, default=0, metavar="S", help=f"{of} [0]")


def add_jobs(parser: Parser, what: str) -> None:
    """Add `--jobs`; `what` says of what there are as many at once."""
    parser.add_argument("--jobs", type=count, default=1, metavar="J", help=f"{what} [1]")


def add_bases(parser: Parser, help_text: str) -> None:
    """Add recorded traces that faults are put into."""
    parser.add_argument("--base", action="append", default=[], metavar="TRACE", help=help_text)


def add_spreadsheet(parser: Parser, files: str) -> None:
    parser.add_argument(
        "--spreadsheet",
        action="store_true",
        help=f"with {files}: no cell is taken for a formula (an apostrophe stands before it)",
    )


def add_no_color(parser: Parser) -> None:
    parser.add_argument("--no-color", action="store_true", help="plain text even on a terminal")


def trace_path(text: str) -> str:
    """Return a path as it is given; `-` is what comes through standard input."""
    return stdin_path() if text == "-" else text


def count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"a number from 0 is needed, not {text}")
    return value


def positive(text: str) -> int:
    value = count(text)
    if not value:
        raise argparse.ArgumentTypeError("a number above 0 is needed")
    return value


def seconds(text: str) -> float:
    """Parse a number of seconds above 0."""
    value = float(text)
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"a number of seconds above 0 is needed, not {text}")
    return value


def fraction(text: str) -> float:
    """Parse a fraction above 0 and below 1, written as "2%" or "0.02"."""
    number = text.strip()
    value = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"a fraction such as 2% or 0.02 is needed, not {text}")
    return value


def microseconds(text: str) -> int:
    """Parse microseconds as whole nanoseconds."""
    value = float(text)
    if not 0 <= value < 1e12:
        raise argparse.ArgumentTypeError(f"a time from 0 is needed, not {text}")
    return round(value * 1000)


def minutes(text: str) -> float:
    """Parse a number of minutes above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of minutes above 0")
    return value


def percentage(text: str) -> float:
    """Parse percent, with or without the sign."""
    value = float(text.removesuffix("%").rstrip())
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"a percentage from 0 is needed, not {text}")
    return value


def size(text: str) -> float:
    """Parse bytes: 1048576, 256MB (decimal), 64MiB (binary)."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"a size such as 256MB or 64MiB is needed, not {text!r}")
    return whole_or_not(float(found[1]) * _UNITS[(found[2] or "").lower()])


def whole_or_not(value: float) -> float:
    """Return an int where it is one, so that it is written as it was given."""
    return int(value) if value.is_integer() else value


def nearest_word(word: str, known: Iterable[str]) -> str:
    """Return the known word that is most like one, or nothing where none is."""
    import difflib

    return next(iter(difflib.get_close_matches(word, list(known), n=1)), "")


def unknown_word(word: str, known: Iterable[str]) -> str:
    near = nearest_word(word, known)
    return f"there is no {word!r}" + (f", did you mean {near!r}?" if near else "")
