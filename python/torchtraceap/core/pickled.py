"""`parse_pickle`: the plain values of a pickle that another program wrote, without running it.

A pickle is a program, and `pickle.load` runs whatever it calls. Here its operations are only read:
those that make numbers, texts, lists, tuples and dicts build these, and any other is an error. A
`collections.defaultdict(list)` is the one object that is known, as a dict.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

from torchtraceap.core.formatting import short_repr
from torchtraceap.errors import SchemaError

__all__ = ["parse_pickle"]

_MARK, _DEFAULTDICT, _LIST = object(), object(), object()
_KNOWN = {
    "collections defaultdict": _DEFAULTDICT,
    "builtins list": _LIST,
    "__builtin__ list": _LIST,
}
_KEYS = (int, str, float, type(None))
"""Types of keys of dicts: a tuple of tuples could take for ever to hash."""
_VALUES = frozenset(
    ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
     "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8")
)  # fmt: skip


def parse_pickle(data: bytes, source: str) -> Any:
    """Return what a pickle of plain values holds.

    Args:
        data: The pickle, of any protocol; at most as long as the reader is willing to take.
        source: Its name, for errors.

    Raises:
        SchemaError: It is damaged, or holds something else.
    """
    machine = _Machine()
    place = 0
    try:
        for opcode, argument, position in pickletools.genops(data):
            place = position or 0
            if opcode.name == "STOP":
                return machine.pop()
            machine.run(opcode.name, argument)
    except _UnknownError as error:
        raise SchemaError(
            f"{source}: at byte {place} the pickle asks for {error}; it may hold numbers, texts, "
            "lists and dicts only"
        ) from None
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError):
        pass  # `genops` and the machine raise these for bytes that no pickler writes
    raise SchemaError(f"{source}: is no pickle, or a damaged one (byte {place})")


class _UnknownError(Exception):
    """Raised for an operation or an object that is no plain value; the message names it."""


class _Machine:
    """The stack of values and the memo of a pickle."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._operations: dict[str, Callable[[Any], None]] = {
            "PROTO": _nothing, "FRAME": _nothing,
            "MARK": lambda _: self._stack.append(_MARK),
            "NONE": lambda _: self._stack.append(None),
            "NEWTRUE": lambda _: self._stack.append(True),
            "NEWFALSE": lambda _: self._stack.append(False),
            "EMPTY_DICT": lambda _: self._stack.append({}),
            "EMPTY_LIST": lambda _: self._stack.append([]),
            "EMPTY_TUPLE": lambda _: self._stack.append(()),
            "LIST": lambda _: self._stack.append(self._marked()),
            "TUPLE": lambda _: self._stack.append(tuple(self._marked())),
            "TUPLE1": lambda _: self._tuple(1),
            "TUPLE2": lambda _: self._tuple(2),
            "TUPLE3": lambda _: self._tuple(3),
            "DICT": lambda _: self._stack.append(_pairs({}, self._marked())),
            "APPEND": lambda _: self._append([self.pop()]),
            "APPENDS": lambda _: self._append(self._marked()),
            "SETITEM": lambda _: self._set([self.pop(), self.pop()][::-1]),
            "SETITEMS": lambda _: self._set(self._marked()),
            "MEMOIZE": lambda _: self._memorize(len(self._memo)),
            "PUT": self._memorize, "BINPUT": self._memorize, "LONG_BINPUT": self._memorize,
            "GET": self._recall, "BINGET": self._recall, "LONG_BINGET": self._recall,
            "GLOBAL": self._global,
            "STACK_GLOBAL": lambda _: self._global(" ".join([self.pop(), self.pop()][::-1])),
            "REDUCE": lambda _: self._reduce(),
        }  # fmt: skip

    def run(self, name: str, argument: Any) -> None:
        """Run one operation."""
        if name in _VALUES:
            self._stack.append(argument)
        elif operation := self._operations.get(name):
            operation(argument)
        else:
            raise _UnknownError(name)

    def pop(self) -> Any:
        """Take the last value."""
        value = self._stack.pop()
        if value is _MARK:
            raise ValueError("a mark is no value")
        return value

    def _marked(self) -> list[Any]:
        """Take what lies above the last mark, and the mark."""
        values = []
        while (value := self._stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def _tuple(self, size: int) -> None:
        self._stack.append(tuple(self.pop() for _ in range(size))[::-1])

    def _append(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise TypeError("no list")
        target.extend(values)

    def _set(self, values: list[Any]) -> None:
        _pairs(self._stack[-1], values)

    def _memorize(self, place: int) -> None:
        self._memo[place] = self._stack[-1]

    def _recall(self, place: int) -> None:
        self._stack.append(self._memo[place])

    def _global(self, name: str) -> None:
        if name not in _KNOWN:
            raise _UnknownError(short_repr(name.replace(" ", ".")))
        self._stack.append(_KNOWN[name])

    def _reduce(self) -> None:
        arguments, called = self.pop(), self.pop()
        if called is not _DEFAULTDICT or not isinstance(arguments, tuple):
            raise _UnknownError("a call")
        if arguments not in ((), (_LIST,)):
            raise _UnknownError("a call")
        self._stack.append({})


def _nothing(argument: Any) -> None:
    """Skip an operation that changes nothing."""


def _pairs(target: Any, values: list[Any]) -> dict[Any, Any]:
    """Put keys and values, in turn, into a dict."""
    if not isinstance(target, dict) or len(values) % 2:
        raise TypeError("no dict")
    for key, value in zip(values[::2], values[1::2], strict=True):
        if not isinstance(key, _KEYS):
            raise _UnknownError(f"a key that is no number or text ({type(key).__name__})")
        target[key] = value
    return target
