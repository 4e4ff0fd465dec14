"""torchtraceap: the command `torchtraceap diagnose TRACE --json`, from start to exit."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

COMMAND = shutil.which("torchtraceap", path=str(Path(sys.executable).parent)) or "torchtraceap"


def call(command: str, path: str) -> Any:
    done = subprocess.run([COMMAND, command, path, "--json"], capture_output=True, check=False)
    if done.returncode not in (0, 1):  # 1: there are findings
        raise RuntimeError(done.stderr.decode())
    return json.loads(done.stdout)


def run(path: str) -> tuple[str, Any]:
    return path, call("diagnose", path)


def answers(built: tuple[str, Any]) -> dict[str, int]:
    path, diagnosis = built
    summary = call("summary", path)  # not measured: the numbers that the others report
    return {
        "gpu_events": summary["events"]["gpu"],
        "gpu_busy_ns": summary["timeline"]["busy_ns"],
        "gpu_span_ns": summary["timeline"]["span_ns"],
        "steps": len(summary["steps"]),
        "types_present": sum(v == "present" for v in diagnosis["verdicts"].values()),
    }
