"""Edits by name: the package's own, each a file in `edits/`, and a user's.

@register("batch_size", value="N")      # batch_size=64; a class of the Edit protocol
class BatchSize: ...
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeVar

from torchtraceap.core.records import dataclass
from torchtraceap.errors import OptionError
from torchtraceap.simulation import edits
from torchtraceap.simulation.edits.base import Edit

__all__ = [
    "default_edits",
    "edit_names",
    "edits_by_finding",
    "make_edit",
    "register",
    "share_work",
]

_Make = TypeVar("_Make", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class _Entry:
    make: Callable[..., Edit]
    value: str
    required: bool
    default: bool | str
    fixes: tuple[str, ...]
    instead: tuple[str, ...]
    parts: tuple[str, ...]


_EDITS: dict[str, _Entry] = {}


def register(
    name: str,
    *,
    value: str = "",
    required: bool = False,
    default: bool | str = False,
    fixes: tuple[str, ...] = (),
    instead: tuple[str, ...] = (),
    parts: tuple[str, ...] = (),
) -> Callable[[_Make], _Make]:
    """Adds an edit, in place of an earlier one of that name: `@register("half")` on its class.

    Args:
        name: As on the command line.
        value: What stands behind the `=`, such as "N", for the help; the class takes that text, or
            None. Empty: the edit takes none.
        required: Without a value the name makes no sense.
        default: Tried if no edit is named, with this value if it is a text.
        fixes: Types of findings whose fix it stands for, with a value as in "worker_starvation=8".
        instead: The same where another edit is the one proposed and this one is tried if that
            does not apply.
        parts: What it changes, where other edits change the same work for the same reason: a word
            that those have too, or the values of which each alone does a part ("HtoD", "DtoH").
    """

    def add(make: _Make) -> _Make:
        _EDITS[name] = _Entry(make, value, required, default, fixes, instead, parts)
        return make

    return add


@cache
def _load() -> None:
    """Modules of `edits/` register what they hold; a user's edit of the same name stays."""
    own = dict(_EDITS)
    for module in iter_modules(edits.__path__):
        import_module(f"{edits.__name__}.{module.name}")
    _EDITS.update(own)


def _entries() -> dict[str, _Entry]:
    _load()
    return _EDITS


def edit_names() -> list[str]:
    """Names with their values, such as "loader_workers[=N]"."""

    def shown(name: str, entry: _Entry) -> str:
        if not entry.value:
            return name
        return f"{name}={entry.value}" if entry.required else f"{name}[={entry.value}]"

    return [shown(name, entry) for name, entry in _entries().items()]


def default_edits() -> tuple[str, ...]:
    """What is tried if nothing is named: every fix that needs no decision of the user."""
    chosen = ((name, entry.default) for name, entry in _entries().items())
    return tuple(
        f"{name}={default}" if isinstance(default, str) else name
        for name, default in chosen
        if default is not False
    )


def edits_by_finding() -> dict[str, tuple[str, ...]]:
    """The edits that stand for the fix of a finding, by its type; the first is the one proposed."""
    entries = _entries().items()
    fixes = [(name, fix) for name, entry in entries for fix in entry.fixes]
    fixes += [(name, fix) for name, entry in entries for fix in entry.instead]
    found: dict[str, tuple[str, ...]] = {}
    for name, fix in fixes:
        finding, equals, value = fix.partition("=")
        found[finding] = (*found.get(finding, ()), name + equals + value)
    return found


def share_work(one: str, other: str) -> bool:
    """Do two edits, by their texts, change the same work for the same reason? A plan has one of
    them: on top of each other their ratios would multiply."""
    return not _parts(one).isdisjoint(_parts(other))


def _parts(text: str) -> frozenset[str]:
    name, _, value = text.strip().partition("=")
    entry = _entries().get(name)
    if entry is None or not entry.parts:
        return frozenset([name])
    chosen = [part for part in entry.parts if part.lower() == value.lower()]
    return frozenset(f"{name}={part}" for part in chosen) if chosen else _all_parts(name, entry)


def _all_parts(name: str, entry: _Entry) -> frozenset[str]:
    """Parts that are values are the edit's own; others may be shared."""
    values = entry.value.split("|")
    return frozenset(f"{name}={p}" if p in values else p for p in entry.parts)


def make_edit(text: str) -> Edit:
    """The edit that a text such as "loader_workers=4" names.

    Raises:
        OptionError: No edit has that name, or the value makes no sense.
    """
    name, has_value, value = text.strip().partition("=")
    entry = _entries().get(name)
    if entry is None:
        raise OptionError(f"no edit is called {name!r}; there are: {', '.join(edit_names())}")
    if has_value and not entry.value:
        raise OptionError(f"{name} takes no value, but {value!r} was given")
    if entry.required and not value:
        raise OptionError(f"{name} needs a value: {name}={entry.value}")
    return entry.make(value or None) if entry.value else entry.make()
