"""`group_traces`: the labelled traces of a group of the plan."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

from torchtraceap.errors import OptionError
from torchtraceap.lab.building.plan import (
    DECOY,
    FORMS_FOR_TESTS,
    NETWORKS_FOR_TESTS,
    Group,
    type_order,
)
from torchtraceap.lab.generation.bases import Base, Bases, RecordedBases
from torchtraceap.lab.generation.decoys import DECOYS
from torchtraceap.lab.generation.faults import FAULTS
from torchtraceap.lab.generation.generate import labelled
from torchtraceap.lab.generation.placement import Form
from torchtraceap.trace.ranks import RankTrace

__all__ = ["group_traces"]

Label = dict[str, Any]
_TURNS, _MOST_TURNS = 4, 24
"""Bases that are drawn for a group, until one fits; where nothing but its own types will do."""
_RARE = ("nccl_blocks_main_stream",)
"""Types for which another base is drawn where they do not fit: they fit one of two, at most."""
_ALL_RANKS = 0.3
"""Of groups that may have it, those with runs of which all ranks are recorded."""
_LICENCE = "CC-BY-4.0"


def group_traces(group: Group, seed: int) -> Iterator[tuple[Label, RankTrace]]:
    """Traces and their labels, whose ids begin with the group's number.

    Args:
        group: Of the plan.
        seed: The same gives the same traces.

    Raises:
        OptionError: No fault fits the base.
        ParseError: A recorded base can't be read.
    """
    turns = 1 if group.base else _MOST_TURNS if group.types else _TURNS
    for turn in range(turns):
        try:
            found = list(_made(group, _number(seed, group, turn), is_last=turn == turns - 1))
        except OptionError:
            if turn == turns - 1:
                raise
            continue
        yield from ((_of_group(label, group), part) for label, part in found)
        return


def _made(group: Group, seed: int, *, is_last: bool) -> Iterator[tuple[Label, RankTrace]]:
    """Of one base."""
    bases = _bases(group, seed)
    if group.way != "event_space":
        return _drawn(group, bases, seed, is_strict=not is_last)
    from torchtraceap.lab.building.injected import injected

    return injected(bases.of(0, 0), group.size, seed)


def _drawn(
    group: Group, bases: Bases, seed: int, *, is_strict: bool
) -> Iterator[tuple[Label, RankTrace]]:
    # All ranks of a run would take the place of the next type.
    has_all_ranks = not group.types and random.Random(f"{seed}/ranks").random() < _ALL_RANKS

    def forms(number: int, ranks: int) -> Sequence[Form]:
        rng = random.Random(f"{seed}/{number}/forms")
        return _forms(group, rng, number, is_strict=is_strict)

    def ranks(base: Base, most: int) -> int:
        fitting = [count for count in base.spreads if count <= most]
        return fitting[0] if has_all_ranks and fitting else 1

    return labelled(bases, seed, 0, group.size, forms=forms, ranks=ranks)


def _forms(group: Group, rng: random.Random, number: int, *, is_strict: bool) -> list[Form]:
    """Those that a pair may have, the wanted one first; of a rare type alone if it is strict."""
    is_decoy, types = type_order(group, rng, number)
    known = [form for form in FAULTS if group.is_test or form.name not in FORMS_FOR_TESTS]
    faults, decoys = ([*forms] for forms in (known, DECOYS))
    rng.shuffle(faults)
    rng.shuffle(decoys)
    if group.types:
        wanted = group.types[number]
        return decoys if wanted == DECOY else [form for form in faults if form.type == wanted]
    faults.sort(key=lambda form: types.index(form.type))
    if is_strict and not is_decoy and types[0] in _RARE:
        return 2 * [form for form in faults if form.type == types[0]]
    return [*decoys, *faults] if is_decoy else [*faults, *decoys]


def _bases(group: Group, seed: int) -> Bases:
    if group.base is not None:
        return RecordedBases([group.base], None)
    from torchtraceap.lab.generation.predicted_bases import PredictedBases
    from torchtraceap.lab.generation.workloads import families_of

    task = str(group.task)
    families = [name for name in families_of(task) if _is_allowed(name, group)]
    many = group.is_collective
    return PredictedBases(seed, [task], of_many=many, by_copies=many, families=families)


def _is_allowed(family: str, group: Group) -> bool:
    """Of tasks that are trained on, networks are for training or for tests."""
    return group.split == "unseen" or (family in NETWORKS_FOR_TESTS) == group.is_new


def _number(seed: int, group: Group, turn: int) -> int:
    text = f"{seed}/{group.number}/{group.split}/{turn}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "little")


def _of_group(label: Label, group: Group) -> Label:
    """Ids that no other group has, and the split of the plan."""
    renamed = {key: _named(label[key], group) for key in ("id", "twin", "run")}
    licence = _LICENCE if group.base is None else None
    return {**label, **renamed, "split": group.split, "licence": licence}


def _named(own: str | None, group: Group) -> str | None:
    if own is None:
        return None
    run, _, rank = own.partition("/rank")
    return f"{group.number:04d}-{int(run):02d}" + (f"-rank{rank}" if rank else "")
