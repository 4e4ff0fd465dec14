"""A process that cleans up after this one, however it ends.

Note [Cleaner]: a process that is killed removes nothing, and one that has 200 ms left little. So
another process, in a session of its own, waits at a pipe of which this process has the only other
end. When the pipe closes, it kills every program that still carries this process's mark in its
environment, whatever process group or session it has moved to, and then removes folders and git
worktrees. Normally nothing is left for it. It is plain Python without any package, so that it is
there within a few ten milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchtraceap.core import staging

__all__ = ["MARK", "cleaning", "marked", "working_folder"]

MARK = "TORCHTRACEAP_OWNER"
"""Name of the variable that marks the programs of one process."""

_PROGRAM = r"""
import json, os, shutil, signal, subprocess, sys, time

mark = (sys.argv[1] + "=" + sys.argv[2]).encode()


def marked():
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open("/proc/" + name + "/environ", "rb") as file:
                if mark in file.read().split(b"\0") and int(name) != os.getpid():
                    yield int(name)
        except (OSError, ValueError):
            pass


for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
    signal.signal(number, signal.SIG_IGN)
left = []
for line in sys.stdin:
    said = json.loads(line)
    if said["do"] == "keep":
        left.append(said["what"])
    elif said["what"] in left:
        left.remove(said["what"])
for _ in range(50):  # a program may start another one meanwhile
    found = list(marked()) if os.path.isdir("/proc") else []
    for process in found:
        try:
            os.kill(process, signal.SIGKILL)
        except OSError:
            pass
    if not found:
        break
    time.sleep(0.02)
for what in reversed(left):
    if what["kind"] == "worktree":
        subprocess.run(
            ["git", "-C", what["repository"], "worktree", "remove", "--force", "--force",
             what["path"]],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
    shutil.rmtree(what["path"], ignore_errors=True)
    if what["kind"] == "worktree":  # a checkout that was cut short is no worktree for git yet
        subprocess.run(
            ["git", "-C", what["repository"], "worktree", "prune", "--expire", "now"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
"""


class Cleaner:
    """The other process, and what it would remove."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.mark = secrets.token_hex(16)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, MARK, self.mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            cwd="/",
            start_new_session=True,
        )

    def keep_folder(self, path: Path) -> None:
        """Say that a folder is to go."""
        self._say("keep", {"kind": "folder", "path": str(path)})

    def drop_folder(self, path: Path) -> None:
        """Say that it has gone."""
        self._say("drop", {"kind": "folder", "path": str(path)})

    def keep_worktree(self, repository: Path, path: Path) -> None:
        """Say that a worktree of a repository is to go."""
        self._say("keep", {"kind": "worktree", "repository": str(repository), "path": str(path)})

    def drop_worktree(self, repository: Path, path: Path) -> None:
        """Say that it has gone."""
        self._say("drop", {"kind": "worktree", "repository": str(repository), "path": str(path)})

    def close(self) -> None:
        """Let the other process end: it finishes what is left."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._process.wait()

    def _say(self, do: str, what: dict[str, str]) -> None:
        line = json.dumps({"do": do, "what": what}) + "\n"
        with contextlib.suppress(OSError):  # somebody has killed it
            assert self._process.stdin is not None
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()


_active: list[Cleaner] = []


@contextlib.contextmanager
def cleaning(environment: Mapping[str, str] = os.environ) -> Iterator[Cleaner]:
    """Run a cleaner: programs that are started meanwhile don't outlive this process.

    Args:
        environment: Variables for git, which it may have to call.
    """
    cleaner = Cleaner(environment)
    _active.append(cleaner)
    try:
        yield cleaner
    finally:
        _active.remove(cleaner)
        cleaner.close()


def marked() -> dict[str, str]:
    """Return the variable that a program needs so that it does not outlive this process; empty
    where nobody would look for it."""
    return {MARK: _active[-1].mark} if _active else {}


@contextlib.contextmanager
def working_folder() -> Iterator[Path]:
    """Make a folder for files that programs write, gone at the end, and if a cleaner runs, also
    after the end of this process."""
    with staging(None) as folder:
        cleaner = _active[-1] if _active else None
        if cleaner is not None:
            cleaner.keep_folder(folder)
        yield folder
    if cleaner is not None:
        cleaner.drop_folder(folder)
