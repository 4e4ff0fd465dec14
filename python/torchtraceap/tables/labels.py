"""Words for rows: the thread, the step and the phase that a row belongs to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.core.columns import TextCodes, encode_texts
from torchtraceap.errors import OptionError
from torchtraceap.tables.grouping import Groups
from torchtraceap.trace.ranks import RankTrace

__all__ = [
    "check_choice",
    "names_without_addresses",
    "phases_of",
    "steps_of",
    "thread_names",
    "threads_of",
]

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


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def names_without_addresses(part: RankTrace, rows: Rows) -> TextCodes:
    """Names of rows; `<built-in method to of Tensor object at 0x7f...>` is one for all tensors."""
    groups, texts = Groups(part.table.name[rows]), part.table.strings
    used = part.table.name[rows[groups.first]]
    return encode_texts(_ADDRESS.sub("", texts[code]) for code in used.tolist()).take(groups.index)
