"""The log of every look at labels of test splits.

A line is written before the labels are read, so that a look that failed is there as well.
"""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from torchtraceap._version import __version__
from torchtraceap.core.aliases import PathLike
from torchtraceap.core.writing import write_text
from torchtraceap.errors import OptionError

__all__ = ["LOOKS", "TEST_SPLITS", "log_look"]

TEST_SPLITS = ("seen", "unseen", "real")
LOOKS = Path("docs/benchmark_looks.jsonl")
"""From the root of the repository; elsewhere the log lies beside the data set."""


def log_look(
    dataset: PathLike, splits: Sequence[str], methods: Sequence[str], why: str | None
) -> Path | None:
    """Appends a line where a test split is among the splits; nothing happens otherwise.

    Returns:
        The log, or None.

    Raises:
        OptionError: A test split without a reason.
        OutputError: It can't be written.
    """
    looked_at = [split for split in splits if split in TEST_SPLITS]
    if not looked_at:
        return None
    if not (why or "").strip():
        raise OptionError(
            f"the split {looked_at[0]!r} is for tests: say by --why what the look is for; it is "
            "written down"
        )
    place = LOOKS if LOOKS.exists() else Path(dataset) / "looks.jsonl"
    line = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "commit": _commit(),
        "dataset": str(dataset),
        "splits": looked_at,
        "methods": list(methods),
        "why": why,
    }
    before = place.read_text("utf-8") if place.exists() else ""
    write_text(place, before + json.dumps(line) + "\n")
    return place


def _commit() -> str | None:
    """Of the folder that is worked in, where it is a repository."""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
        return done.stdout.strip()
    return None
