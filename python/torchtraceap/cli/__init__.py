"""The command line. Start-up counts, so everything heavy is imported where it is used.

Standard output holds the result and nothing else; progress, notes and errors go to standard
error. Exit codes: 0 fine, 1 findings where the command gates, 2 unusable input or options, 130
interrupted.

Note [argparse]: typer 0.29 brings pydantic along and takes 0.1 s to parse three options, a third
of a whole run on the demo trace.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from torchtraceap.cli.catalog import COMMANDS, command_groups
from torchtraceap.cli.output import (
    accept_any_encoding,
    drop_stdout,
    note,
    print_text,
    standard_output,
)
from torchtraceap.cli.parser import (
    FINE,
    INTERRUPTED,
    UNUSABLE,
    UsageError,
    chosen_command,
    parse,
    unknown_word,
)
from torchtraceap.cli.process import (
    ignore_interrupts,
    say_interrupted,
    show_stages,
    was_interrupted,
    watch_interrupts,
)

__all__ = ["COMMANDS", "main"]

_EXAMPLES = (
    ("trace.json.gz", "what is wrong, and what to change"),
    ("runs/ --html report.html", "a folder with a file per rank; also as a page"),
    ("ops trace.json.gz --by category", "a table"),
    ("diff before.json.gz after.json.gz", "what became slower"),
    ("diagnose trace.json.gz --gate", "for CI: exit code 1 while a finding is present"),
    ("- < trace.json.gz", "from standard input"),
)


def _main_help() -> str:
    lines = [
        "usage: torchtraceap [COMMAND] PATH... [options]",
        "",
        "Says where a PyTorch training run loses time, on what evidence, and what to change, from",
        "the trace that torch.profiler wrote. Without a command, PATH is diagnosed.",
        "",
    ]
    for heading, entries in command_groups().items():
        listed = (f"  {name:<17}{entry.summary}" for name, entry in entries.items())
        lines += [f"{heading}:", *listed, ""]
    lines += [
        "examples:",
        *(f"  torchtraceap {example:<36}{what}" for example, what in _EXAMPLES),
        "",
        "torchtraceap COMMAND --help lists the options of a command, with examples; -V or",
        "--version prints the version; torchtraceap completion --help sets up the shell.",
        "Exit codes: 0 fine, 1 findings where the command gates, 2 unusable input or options.",
    ]
    return "\n".join(lines)


def _run(given: list[str], is_process: bool) -> int:
    if not given:
        raise UsageError("give a trace: torchtraceap PATH (torchtraceap --help says more)")
    if given[0] in ("--help", "-h"):
        print_text(_main_help())
        return FINE
    if given[0] in ("--version", "-V"):
        from torchtraceap._version import __version__

        print_text(f"torchtraceap {__version__}")
        return FINE
    if is_process:
        _set_up_process()
    name, rest = "diagnose", given  # where only a path is given
    first = given[0]
    if first[:1].isalpha() and first.replace("-", "").isalpha():
        if first in COMMANDS:
            name, rest = first, given[1:]
        elif len(given) > 1 and not os.path.exists(first):
            words = unknown_word(first, COMMANDS)
            raise UsageError(f"{words} (commands: {', '.join(COMMANDS)})")
    name, command, rest = chosen_command(name, COMMANDS[name], rest)
    with standard_output():  # takes the help
        options = parse(name, command, rest)
    return command.run(options)


def _set_up_process() -> None:
    """Set up a process that is the command line, in ways that a library must not."""
    # Nothing here multiplies large matrices, and the threads that OpenBLAS would start for that
    # spin for a while: as much processor time as all of our own imports.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    watch_interrupts()
    from torchtraceap import _core

    show_stages()
    _core.prepare_heap()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    # Nobody reads what goes to a stream that was closed before the start, as by `>&-`. Its number
    # must not go to the next file that is opened.
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_WRONLY if number else os.O_RDONLY)
            setattr(sys, name, os.fdopen(nothing, "w" if number else "r"))
    gc.disable()  # a short-lived process with few cycles; saves a pass over every object
    accept_any_encoding()
    try:
        code = _answer(arguments)
        if arguments is None:
            ignore_interrupts()
    except KeyboardInterrupt:  # at work, or while what the command held was freed
        say_interrupted()
        code = INTERRUPTED
    if arguments is None:
        _leave(code)
    return code


def _leave(code: int) -> NoReturn:
    """End the process at once: nothing is left to write, and to free a trace and every module one
    by one takes a tenth of the time of a diagnosis. Also, Python dies of an interrupt where it met
    code of `exec`, as data classes are made of."""
    if code != INTERRUPTED:  # then a reader may keep us waiting
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with suppress(OSError, ValueError):
                stream.flush()
    os._exit(code)


def _answer(arguments: Sequence[str] | None) -> int:
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments), arguments is None)
    except SystemExit as left:  # argparse, after --help
        return left.code if isinstance(left.code, int) else FINE
    except BrokenPipeError:
        drop_stdout()
        return FINE
    except Exception as error:
        if was_interrupted():
            say_interrupted()
            return INTERRUPTED
        from torchtraceap.errors import TraceError

        # The input's or the options' fault, not a defect of ours.
        expected = (UsageError, TraceError, OSError, MemoryError, ImportError)
        kind, text = type(error).__name__, str(error)
        if isinstance(error, MemoryError):
            text = "not enough memory for this trace"
        elif isinstance(error, OSError) and error.strerror:
            text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        ours = "" if isinstance(error, expected) else f"internal error, {kind}: "
        note(ours + (" ".join(text.split()) or kind))
        return UNUSABLE
