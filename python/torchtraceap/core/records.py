"""A `dataclass` like that of the standard library, made in a quarter of the time.

Note [Start-up]: a command loads some ninety frozen dataclasses, and the standard library compiles
six methods for each: a tenth of the time of a whole diagnosis. Here `__init__` alone is compiled;
the others are the same for every class and ask it for the names of its fields.

What isn't frozen with slots, or wants more than that, is left to the standard library, and so is
everything but the methods: `fields`, `replace` and `asdict` take these classes as they take theirs.
Only a class made here, or without fields, may be a base of one made here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]


def _dataclass(cls: type | None = None, /, **options: bool) -> Any:
    if cls is None:
        return lambda decorated: _dataclass(decorated, **options)
    keywords = options.get("kw_only", False)
    if options | {"kw_only": keywords} != {"frozen": True, "slots": True, "kw_only": keywords}:
        return dataclasses.dataclass(**options)(cls)
    own = set(vars(cls))
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # else `inspect` is asked for a signature, which takes longest
    cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=keywords)(cls)
    known = dataclasses.fields(cls)
    compared = [field.name for field in known if field.compare]
    methods = {
        "__init__": _made_init(cls, known),
        "__repr__": _repr,
        "__eq__": _eq,
        "__hash__": _hash,
        "__getstate__": _getstate,
        "__setstate__": _setstate,
        "__setattr__": _setattr,
        "__delattr__": _delattr,
    }
    for name, method in methods.items():
        if name not in own:
            setattr(cls, name, method)
    cls._compared = staticmethod(_getter(compared))  # type: ignore[attr-defined]
    return cls


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _made_init(cls: type, known: tuple[dataclasses.Field[Any], ...]) -> Callable[..., None]:
    """Compile `__init__` with the fields in their order, keyword-only ones last."""
    values: dict[str, Any] = {"_set": object.__setattr__}
    positional, by_keyword, body = list[str](), list[str](), list[str]()
    for place, field in enumerate(known):
        value = field.name
        if field.default is not dataclasses.MISSING:
            values[f"_default{place}"] = field.default
            parameter = f"{field.name}=_default{place}"
        elif field.default_factory is not dataclasses.MISSING:
            values[f"_factory{place}"] = field.default_factory
            parameter = f"{field.name}=_factory{place}"
            value = f"_factory{place}() if {value} is _factory{place} else {value}"
        else:
            parameter = field.name
        (by_keyword if field.kw_only else positional).append(parameter)
        body.append(f" _set(self, {field.name!r}, {value})\n")
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()\n")
    star = ["*"] if by_keyword else []
    parameters = ", ".join(["self", *positional, *star, *by_keyword])
    exec(f"def __init__({parameters}):\n{''.join(body) or ' pass'}", values)
    init: Callable[..., None] = values["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    init.__annotations__ = {field.name: field.type for field in known} | {"return": None}
    return init


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _eq(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self._compared(self) == self._compared(other)


def _hash(self: Any) -> int:
    return hash(self._compared(self))


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


def _setattr(self: Any, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


if TYPE_CHECKING:
    from dataclasses import dataclass  # what type checkers know of it holds here too
else:
    dataclass = _dataclass
