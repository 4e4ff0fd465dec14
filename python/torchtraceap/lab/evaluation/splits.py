"""Splits of a data set: nothing is in two of them, and looks at labels for tests are written down.

A line of the log is written before the labels are read, so that a look that failed is there too.
"""

from __future__ import annotations

import datetime
import json
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from torchtraceap._version import __version__
from torchtraceap.core import PathLike, write_text
from torchtraceap.datasets import Sample
from torchtraceap.errors import OptionError, SchemaError

__all__ = ["LOOKS", "TEST_SPLITS", "check_splits", "log_look"]

TEST_SPLITS = ("seen", "unseen", "real")
LOOKS = Path("docs/benchmark_looks.jsonl")
"""The log, from the root of the repository; elsewhere it lies beside the data set."""
_OF_RECORDED = ("real_graph", "event_space")
"""Sources of traces that recorded ones went into."""


def check_splits(samples: Sequence[Sample]) -> None:
    """Check that no group, run or twin is in two splits, and that traces with parts of real ones
    are for tests alone.

    Raises:
        SchemaError: One is; the message names it.
    """
    where: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for sample in samples:
        split = sample.split or "none"
        where["group", sample.group].add(split)
        where["run", sample.run].add(split)
        where["trace", sample.id].add(split)
        if sample.twin is not None:
            where["trace", sample.twin].add(split)
        if sample.source in _OF_RECORDED and split in ("train", "validation"):
            raise SchemaError(f"{sample.id}: is made from a real trace and in the split {split!r}")
    for (what, name), splits in where.items():
        if len(splits) > 1:
            raise SchemaError(
                f"the {what} {name!r} is in several splits: {', '.join(sorted(splits))}"
            )


def log_look(
    dataset: PathLike, splits: Sequence[str], methods: Sequence[str], why: str | None
) -> Path | None:
    """Append a line where a test split is among the splits; nothing happens otherwise.

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
    commit = None  # of the folder that is worked in, where it is a repository
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
        commit = done.stdout.strip()
    place = LOOKS if LOOKS.exists() else Path(dataset) / "looks.jsonl"
    line = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "commit": commit,
        "dataset": str(dataset),
        "splits": looked_at,
        "methods": list(methods),
        "why": why,
    }
    before = place.read_text("utf-8") if place.exists() else ""
    write_text(place, before + json.dumps(line) + "\n")
    return place
