#!/usr/bin/env python3
"""Runs a build and says how far it is: `with_progress.py LOG -- COMMAND...`.

All output goes into LOG. Of it a terminal sees one line with the steps that are done, a file a line
every tenth of the way. A build that fails shows what CMake or the compiler said, or else its last
lines, and its exit code is passed on.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

STEP = re.compile(rb"^\s*\[(\d+)/(\d+)\]")
ERROR = re.compile(r"CMake Error|\berror:|ERROR:")
LAST_LINES = 40


def main(log: Path, command: list[str]) -> int:
    log.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    shown = _Shown()
    with (
        log.open("wb") as file,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as build,
    ):
        assert build.stdout is not None
        for line in build.stdout:
            file.write(line)
            if step := STEP.match(line):
                shown.step(int(step[1]), int(step[2]))
    shown.end()
    if build.returncode:
        sys.stderr.write(
            f"{failure(log.read_text('utf-8', 'replace'))}\n==> failed; {log} has all\n"
        )
    else:
        sys.stderr.write(f"    done in {time.monotonic() - start:.0f} s\n")
    return build.returncode


class _Shown:
    """The line with the steps."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._tenth = 0

    def step(self, done: int, total: int) -> None:
        text = f"    step {done} of {total}"
        if self._terminal:
            sys.stderr.write(f"\r{text}\x1b[K")
        elif done * 10 // total > self._tenth:
            self._tenth = done * 10 // total
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def end(self) -> None:
        if self._terminal:
            sys.stderr.write("\r\x1b[K")


def failure(log: str) -> str:
    """What a log says of a failed build: from the first error on, or else the end."""
    lines = log.splitlines()
    first = next((n for n, line in enumerate(lines) if ERROR.search(line)), -LAST_LINES)
    return "\n".join(lines[first:][:LAST_LINES])


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[2] != "--":
        sys.exit("usage: with_progress.py LOG -- COMMAND...")
    sys.exit(main(Path(sys.argv[1]), sys.argv[3:]))
