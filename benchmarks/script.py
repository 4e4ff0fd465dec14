"""A competitor that is timed as a whole process: interpreter start, imports and all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable


def run(file: str, path: str) -> dict[str, int]:
    """Runs the script in a process of its own; returns the answers that it printed."""
    # -P: or `import hta` would find the competitor's own file.
    command = [sys.executable, "-P", file, path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(body: Callable[[str], dict[str, int]]) -> None:
    stdout = os.dup(1)
    os.dup2(2, 1)  # whatever the tool prints is not the answer
    os.write(stdout, json.dumps(body(sys.argv[1])).encode() + b"\n")
