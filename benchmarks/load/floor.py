"""The floor: inflate and find the structural characters, one thread (benchmarks/cpp/floor.cpp)."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("TRACEAP_FLOOR", ROOT / "build/release/benchmarks/cpp/floor"))


@dataclass
class Indexed:
    seconds: list[float]


def available() -> str:
    return "" if PROGRAM.exists() else f"not built: {PROGRAM}"


def run(path: str) -> Indexed:
    done = subprocess.run([str(PROGRAM), path, "5"], capture_output=True, text=True, check=True)
    return Indexed(json.loads(done.stdout)["seconds"])


def answers(indexed: Indexed) -> dict[str, int]:
    return {}
