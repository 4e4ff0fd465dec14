"""Words for rows: the thread, the step and the phase that a row belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.columns import TextCodes
from torchtraceap.errors import OptionError
from torchtraceap.ranks import RankTrace

__all__ = ["check_choice", "phases_of", "steps_of", "thread_names", "threads_of"]

Rows = npt.NDArray[Any]


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raises OptionError unless `value` is one of `choices`."""
    if value not in choices:
        raise OptionError(f"{name} must be one of {', '.join(choices)}, not {value!r}")


def thread_names(part: RankTrace) -> list[str]:
    """A name for each track: what the trace calls the thread, with its number; distinct."""
    labels: list[str] = []
    used: dict[str, int] = {}
    for track in part.table.tracks:
        number = f"thread {track.tid}"
        said = track.thread_name.strip()
        label = number if not said else said if track.tid in said else f"{said} ({track.tid})"
        seen = used.get(label, 0)
        used[label] = seen + 1
        labels.append(label if not seen else f"{label} of process {track.pid}")
    return labels


def threads_of(part: RankTrace, rows: Rows) -> TextCodes:
    """The thread of each row."""
    return TextCodes(part.table.track[rows].astype(np.int32), thread_names(part))


def steps_of(part: RankTrace, rows: Rows) -> TextCodes:
    """The step that each row belongs to, GPU events by their launch; absent outside of all."""
    index = part.tree.step[rows].astype(np.int32)  # NO_ROW becomes -1
    return TextCodes(index, [step.name for step in part.tree.steps])


def phases_of(part: RankTrace, rows: Rows) -> TextCodes:
    """The part of a training step that each row belongs to."""
    return TextCodes(part.tree.phase[rows].astype(np.int32), _core.phase_names())
