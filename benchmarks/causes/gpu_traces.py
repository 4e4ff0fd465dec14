"""Pairs of GPU traces that differ by something known: `torchtraceap generate`'s faults and twins.

Half of the types of faults were looked at when rules were made, the other half was not. Faults that
need several ranks are left out. What a developer would call the cause is a regular expression of
each type, over the first contributor's name and path.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchtraceap.errors import OptionError
from torchtraceap.lab.generation.generate import generate

__all__ = ["TYPES", "Planted", "planted"]

_COPY = r"memory copy|memcpy|aten::(copy_|to|_to_copy)|Memcpy"
_WAIT = r"ynchroni|aten::(item|_local_scalar_dense|is_nonzero|nonzero)|Memcpy|memory copy"
TYPES = {
    "single_process_data_loading": ("development", r"data loading|DataLoader"),
    "high_memcpy": ("development", _COPY),
    "host_sync_in_loop": ("development", _WAIT),
    "graph_break": ("development", r"[Cc]ompil|[Dd]ynamo|break|guard|aten::item"),
    "cpu_bound": ("development", r"host wait|launch"),
    "no_memory_pin": ("held out", _COPY),
    "pageable_readback": ("held out", rf"{_COPY}|{_WAIT}"),
    "explicit_synchronize": ("held out", r"ynchroni"),
    "allocator_thrash": ("held out", r"alloc|Malloc|Free"),
    "host_silence": ("held out", r"host wait|silen|no recorded"),
}
"""Type: half, what is right."""
BASE = Path(__file__).parents[2] / "examples" / "traces" / "resnet50_num_workers_4.json.gz"
COUNT = 8
"""Traces of each type; half of them have the fault (or are decoys, which are left out)."""


@dataclass(frozen=True)
class Planted:
    program: str
    kind: str
    half: str
    before: Path
    after: Path
    right: str


def planted(folder: Path, wanted: str) -> Iterator[Planted]:
    """Pairs of every type of a half, or of "all"."""
    for number, (name, (half, _)) in enumerate(TYPES.items()):
        if wanted not in (half, "all"):
            continue
        for place, bases in ((folder / name, ()), (folder / f"{name} real", [str(BASE)])):
            yield from _pairs(place, bases, name, 40 + number)


def _pairs(place: Path, bases: Sequence[str], name: str, seed: int) -> Iterator[Planted]:
    half, right = TYPES[name]
    try:
        labels = generate(place, COUNT, seed, types=[name], bases=bases)
    except OptionError:  # a fault of this type fits no draw of this seed, or not this base
        return
    for label in map(json.loads, labels.read_text("utf-8").splitlines()):
        if label["type"] == name and label["twin"] and label["rank"] in (0, None):
            yield Planted(
                f"{label['task']} {label['id']}",
                name,
                half,
                place / f"{label['twin']}.json.gz",
                place / f"{label['id']}.json.gz",
                right,
            )
