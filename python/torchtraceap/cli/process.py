"""The process that is the command line: `main` runs the command that is named.

Start-up counts, so everything heavy is imported where it is used. Standard output holds the result
and nothing else; progress, notes and errors go to standard error. Ctrl-C and SIGTERM end the
process within a second, whatever it does at that moment, and a line on the terminal says what takes
long.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn, TextIO

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
    UNUSABLE,
    UsageError,
    chosen_command,
    nearest_word,
    parse,
    unknown_word,
)
from torchtraceap.core.progress import set_progress_listener

__all__ = ["main"]

_EXAMPLES = (
    ("trace.json.gz", "what is wrong, and what to change"),
    ("runs/ --html report.html", "a folder with a file per rank; also as a page"),
    ("ops trace.json.gz --by category", "a table"),
    ("diff before.json.gz after.json.gz", "what became slower"),
    ("diagnose trace.json.gz --gate", "for CI: exit code 1 while a finding is present"),
    ("- < trace.json.gz", "from standard input"),
)


def _main_help(every: bool = False) -> str:
    """Return the help on one screen; with `every`, each command with what it does."""
    from textwrap import wrap

    lines = [
        "usage: torchtraceap [COMMAND] PATH... [options]",
        "",
        "Says where a PyTorch training run loses time, on what evidence, and what to change, from",
        "the trace that torch.profiler wrote. Without a command, PATH is diagnosed.",
        "",
    ]
    for place, (heading, entries) in enumerate(command_groups().items()):
        listed = [f"  {name:<17}{entry.summary}" for name, entry in entries.items()]
        if place and not every:
            listed = [
                f"  {names}" for names in wrap("  ".join(entries), 86, break_on_hyphens=False)
            ]
        lines += [f"{heading}:", *listed, ""]
    lines += [
        "examples:",
        *(f"  torchtraceap {example:<36}{what}" for example, what in _EXAMPLES),
        "",
        "torchtraceap help all says what each command does, torchtraceap help COMMAND lists its",
        "options, with examples; -V or --version prints the version; torchtraceap completion",
        "--help sets up the shell.",
        "Exit codes: 0 fine, 1 findings where the command gates, 2 unusable input or options.",
    ]
    return "\n".join(lines)


def _run(given: list[str], is_process: bool) -> int:
    if not given:
        raise UsageError("give a trace: torchtraceap PATH (torchtraceap help says more)")
    if given[0] == "help" and not os.path.exists("help"):
        given = [*given[1:], "--help"]
    if given[0] in ("--help", "-h") or given == ["all", "--help"]:
        print_text(_main_help(given[0] == "all"))
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
        elif not os.path.exists(first):
            known = [*COMMANDS, "help"]
            if len(given) > 1 or nearest_word(first, known):
                words = unknown_word(first, known)
                raise UsageError(f"{words} (torchtraceap help all lists the commands)")
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
        code = interrupted_code()
    if arguments is None:
        _leave(code)
    return code


def _leave(code: int) -> NoReturn:
    """End the process at once: nothing is left to write, and to free a trace and every module one
    by one takes a tenth of the time of a diagnosis. Also, Python dies of an interrupt where it met
    code of `exec`, as data classes are made of."""
    if not was_interrupted():  # then a reader may keep us waiting
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
            return interrupted_code()
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


GRACE_MS = 200
"""Time for threads that unwind by themselves, including their cleanup."""
_MESSAGE = "torchtraceap: interrupted\n"
_watched = False
_interrupted = 0
"""The signal that came."""


def watch_interrupts() -> None:
    """End this process a moment after Ctrl-C if KeyboardInterrupt has not done so: one call of
    NumPy may take seconds, and so may freeing what a large trace takes. For a process that is the
    command line, not for one that calls `main`."""
    global _watched
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return  # as in the background of a script
    # Before anything large is imported: a library that starts makes errors of its own of it.
    for number in _signals():
        signal.signal(number, _interrupt)
    sys.unraisablehook = _unraisable
    from torchtraceap import _core

    if _interrupted:  # meanwhile, where nothing could be raised
        raise KeyboardInterrupt
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _core.watch_interrupts(reader, GRACE_MS, _MESSAGE)
    _watched = True


def _signals() -> list[int]:
    """Return the signals that end the process in an orderly way: not what is ignored from the
    start, as the end of the terminal is under nohup."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _interrupted
    _interrupted = number
    raise KeyboardInterrupt


def _unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """Ignore a KeyboardInterrupt where Python calls back, as when a module's lock is freed: it can
    raise nothing there. The watch then ends the process, and nobody needs a traceback."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)


def was_interrupted() -> bool:
    """Return True if Ctrl-C has come: an error may be what a library made of the
    KeyboardInterrupt."""
    return _interrupted != 0


def interrupted_code() -> int:
    """Return the exit code after a signal: 130 after Ctrl-C, 143 after SIGTERM, 129 after
    SIGHUP."""
    return 128 + (_interrupted or signal.SIGINT)


def ignore_interrupts() -> None:
    """Ignore signals from now on. The answer is out: what is left is the interpreter's own end, in
    which a signal would only replace the exit code."""
    for number in _signals():
        signal.signal(number, signal.SIG_IGN)


def say_interrupted() -> None:
    """Say it once, whoever is first: the main thread or what watches it."""
    if not _watched:
        sys.stderr.write(_MESSAGE)
        return
    from torchtraceap import _core

    _core.say_interrupted()


PATIENCE_S = 1.0
"""Seconds before a stage is shown."""
REFRESH_S = 0.2


def show_stages() -> None:
    """Show stages from now on, if standard error is a terminal."""
    set_progress_listener(_StageLine(sys.stderr).run if sys.stderr.isatty() else None)


class _StageLine:
    """The line: the stage that began last, and for how long it runs; gone when all are done."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._changed = threading.Condition()
        self._begun: dict[object, tuple[str, float]] = {}
        self._shown = False
        self._thread: threading.Thread | None = None

    @contextmanager
    def run(self, name: str) -> Iterator[None]:
        token = object()
        with self._changed:
            self._begun[token] = name, time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._show, daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                del self._begun[token]
                if self._shown and not self._begun:
                    self._write("")

    def _show(self) -> None:
        while True:
            with self._changed:
                self._changed.wait(REFRESH_S if self._begun else None)
                if self._begun:
                    name, start = next(reversed(self._begun.values()))
                    seconds = time.monotonic() - start
                    if seconds >= PATIENCE_S or self._shown:
                        self._write(f"{name}: {seconds:.0f} s")

    def _write(self, text: str) -> None:
        self._stream.write(f"\r{text}\x1b[K")
        self._stream.flush()
        self._shown = bool(text)
