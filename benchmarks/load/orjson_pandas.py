"""By hand: orjson and pandas."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import do_it_yourself


def run(path: str) -> dict[str, Any]:
    return do_it_yourself.build(do_it_yourself.read(path, orjson.loads))


def answers(built: dict[str, Any]) -> dict[str, int]:
    return do_it_yourself.answers(built)
