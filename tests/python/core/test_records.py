"""Classes of `records.dataclass` are what the standard library makes."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any

import pytest

from torchtraceap.core import records

MAKERS = [
    pytest.param(dataclasses.dataclass, id="standard"),
    pytest.param(records.dataclass, id="ours"),
]
"""The standard library's own passes every test here: it says what is expected."""


class Plain:
    """No dataclass."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "plain"


@records.dataclass(frozen=True, slots=True)
class Point:
    """Of this module, so that it can be pickled."""

    x: int
    y: int = 2


def made(maker: Callable[..., Any]) -> Any:
    @maker(frozen=True, slots=True)
    class Thing(Plain):
        name: str
        cost: float = 1.5
        seen: list[int] = field(default_factory=list, repr=False)
        note: str = field(default="", compare=False)
        size: int = field(default=7, kw_only=True)

    return Thing


@pytest.mark.parametrize("maker", MAKERS)
def test_fields_and_defaults(maker: Callable[..., Any]) -> None:
    thing = made(maker)
    one = thing("a", 2.0)
    assert (one.name, one.cost, one.seen, one.note, one.size) == ("a", 2.0, [], "", 7)
    assert one.seen is not thing("a").seen
    assert [each.name for each in dataclasses.fields(thing)] == [
        "name",
        "cost",
        "seen",
        "note",
        "size",
    ]
    assert not hasattr(one, "__dict__")
    assert thing.__match_args__ == ("name", "cost", "seen", "note")
    assert list(inspect.signature(thing).parameters) == ["name", "cost", "seen", "note", "size"]
    assert dataclasses.replace(one, size=8).size == 8
    assert dataclasses.asdict(thing("b")) == {
        "name": "b",
        "cost": 1.5,
        "seen": [],
        "note": "",
        "size": 7,
    }
    for arguments in ((), ("a", 1.0, [], "", 8), ("a", 1.0, [], "", 8, 9)):
        with pytest.raises(TypeError, match="argument"):
            thing(*arguments)


@pytest.mark.parametrize("maker", MAKERS)
def test_values_compare_by_their_fields(maker: Callable[..., Any]) -> None:
    thing = made(maker)
    assert thing("a") == thing("a", note="not compared") != thing("b")
    assert thing("a") != ("a", 1.5, [], 7)
    assert made(maker)("a") != thing("a")  # of another class
    assert repr(thing("a")).endswith("Thing(name='a', cost=1.5, note='', size=7)")

    @maker(frozen=True, slots=True)
    class One:
        value: object

    assert len({One(1), One(1), One(2)}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(One([]))
    nan = float("nan")
    assert One(nan) == One(nan)  # as tuples of the same object are equal
    loop = [One(0)]
    loop[0] = One(loop)
    assert "..." in repr(loop[0])


@pytest.mark.parametrize("maker", MAKERS)
def test_nothing_can_be_set_or_deleted(maker: Callable[..., Any]) -> None:
    one = made(maker)("a")
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'name'"):
        one.name = "b"
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'name'"):
        del one.name
    with pytest.raises((AttributeError, TypeError)):  # TypeError: a defect of Python 3.11's own
        one.other = 1


@pytest.mark.parametrize("maker", MAKERS)
def test_own_methods_and_bases(maker: Callable[..., Any]) -> None:
    @maker(frozen=True, slots=True)
    class Base:
        """Said."""

        a: int
        b: int = 2

        def __post_init__(self) -> None:
            if self.a < 0:
                raise ValueError("below 0")

        def __repr__(self) -> str:
            return "own"

    @maker(frozen=True, slots=True)
    class Derived(Base):
        c: int = 3

    assert repr(Base(1)) == "own"
    assert Base.__doc__ == "Said."
    one = Derived(1, c=4)
    assert (one.a, one.b, one.c) == (1, 2, 4)
    assert one == Derived(1, 2, 4) != Derived(1, 2, 3)
    assert repr(one).endswith("Derived(a=1, b=2, c=4)")
    with pytest.raises(ValueError, match="below 0"):
        Derived(-1)


def test_values_are_copied_and_pickled() -> None:
    point = Point(1)
    for other in (copy.copy(point), copy.deepcopy(point), pickle.loads(pickle.dumps(point))):
        assert other == point
        assert type(other) is Point


def test_the_rest_is_left_to_the_standard_library() -> None:
    @records.dataclass(frozen=True, slots=True, order=True)
    class Ordered:
        value: int

    @records.dataclass
    class Open:
        value: int

    assert Ordered(1) < Ordered(2)
    one = Open(1)
    one.value = 2
    assert one == Open(2)
