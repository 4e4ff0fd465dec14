"""Arguments of tools: their JSON schema, and the check of what a model or a client sent.

Both come from one description, so a value that the schema allows is one that the tool takes, and
nothing else is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torchtraceap.core.records import dataclass
from torchtraceap.errors import OptionError

__all__ = [
    "MOST_CHARACTERS",
    "Choice",
    "Integer",
    "Number",
    "Parameter",
    "Text",
    "Texts",
    "read_arguments",
    "schema_of",
]

Json = dict[str, Any]

MOST_CHARACTERS = 200
"""Most characters of a text argument."""
_MOST_SHOWN = 60
_PRINTABLE = 10**18


class Parameter(Protocol):
    """One argument of a tool. What is not `required` may be left out, or be null."""

    @property
    def name(self) -> str: ...

    @property
    def required(self) -> bool: ...

    @property
    def default(self) -> Any:
        """Value of an argument that is left out."""

    def schema(self) -> Json:
        """Return the JSON Schema of the argument."""

    def read(self, value: object) -> Any:
        """The value as the tool takes it.

        Raises:
            OptionError: It is none; the text says what was expected.
        """


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number between bounds, which belong to it."""

    name: str
    help: str
    low: int
    high: int
    default: int | None = None
    required: bool = False

    def schema(self) -> Json:
        bounds = {"minimum": self.low, "maximum": self.high}
        return _with_default({"type": "integer", **bounds, "description": self.help}, self.default)

    def read(self, value: object) -> int:
        if isinstance(value, float) and value.is_integer():  # 10.0 is an integer of JSON Schema
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not _within(value, self):
            raise _unexpected_value(self, f"a whole number from {self.low} to {self.high}", value)
        return value


@dataclass(frozen=True, slots=True)
class Number:
    """A number between bounds, which belong to it."""

    name: str
    help: str
    low: float
    high: float
    default: float | None = None
    required: bool = False

    def schema(self) -> Json:
        bounds = {"minimum": self.low, "maximum": self.high}
        return _with_default({"type": "number", **bounds, "description": self.help}, self.default)

    def read(self, value: object) -> float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not _within(value, self):  # NaN is within no bounds
            raise _unexpected_value(self, f"a number from {self.low:g} to {self.high:g}", value)
        return float(value)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some words, or of some numbers."""

    name: str
    help: str
    choices: Sequence[str] | Sequence[int]
    default: str | int | None = None
    required: bool = False

    def schema(self) -> Json:
        kind = "string" if isinstance(self.choices[0], str) else "integer"
        given = {"type": kind, "enum": list(self.choices), "description": self.help}
        return _with_default(given, self.default)

    def read(self, value: object) -> Any:
        same = (choice for choice in self.choices if _same(choice, value))
        found = next(same, None)
        if found is None:
            raise _unexpected_value(self, f"one of {', '.join(map(str, self.choices))}", value)
        return found


@dataclass(frozen=True, slots=True)
class Text:
    """A text of at most `MOST_CHARACTERS`."""

    name: str
    help: str
    default: str | None = None
    required: bool = False

    def schema(self) -> Json:
        given = {"type": "string", "maxLength": MOST_CHARACTERS, "description": self.help}
        return _with_default(given, self.default)

    def read(self, value: object) -> str:
        if not isinstance(value, str) or len(value) > MOST_CHARACTERS:
            raise _unexpected_value(self, f"a text of at most {MOST_CHARACTERS} characters", value)
        return value


@dataclass(frozen=True, slots=True)
class Texts:
    """One to `most` texts of at most `MOST_CHARACTERS`."""

    name: str
    help: str
    most: int
    default: None = None
    required: bool = False

    def schema(self) -> Json:
        each = {"type": "string", "maxLength": MOST_CHARACTERS}
        bounds = {"minItems": 1, "maxItems": self.most}
        return {"type": "array", "items": each, **bounds, "description": self.help}

    def read(self, value: object) -> tuple[str, ...]:
        expected = f"a list of 1 to {self.most} texts of at most {MOST_CHARACTERS} characters"
        if not isinstance(value, (list, tuple)) or not 1 <= len(value) <= self.most:
            raise _unexpected_value(self, expected, value)
        for text in value:
            if not isinstance(text, str) or len(text) > MOST_CHARACTERS:
                raise _unexpected_value(self, expected, text)
        return tuple(value)


def schema_of(parameters: Sequence[Parameter]) -> Json:
    """The JSON schema of an object that has these and nothing else."""
    return {
        "type": "object",
        "properties": {parameter.name: parameter.schema() for parameter in parameters},
        "required": [parameter.name for parameter in parameters if parameter.required],
        "additionalProperties": False,
    }


def read_arguments(parameters: Sequence[Parameter], given: object) -> Json:
    """Every argument by name; what was left out has its default.

    Raises:
        OptionError: Something else was given; the text says what was expected.
    """
    if not isinstance(given, Mapping):
        raise OptionError(f"the arguments are a JSON object, not {_describe_value(given)}")
    known = {parameter.name: parameter for parameter in parameters}
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        there = ", ".join(known) or "none"
        raise OptionError(f"there is no argument {_describe_value(unknown)}; there are: {there}")
    return {name: _read(parameter, given.get(name)) for name, parameter in known.items()}


def _read(parameter: Parameter, value: object) -> Any:
    if value is not None:
        return parameter.read(value)
    if parameter.required:
        raise OptionError(f"{parameter.name} is needed: {parameter.schema()['description']}")
    return parameter.default


def _with_default(schema: Json, default: object) -> Json:
    return schema if default is None else {**schema, "default": default}


def _within(value: Any, parameter: Integer | Number) -> bool:
    return bool(parameter.low <= value <= parameter.high)


def _same(choice: str | int, value: object) -> bool:
    """1 is no True, and 100.0 is 100."""
    return choice == value and isinstance(value, (str, int, float)) and not isinstance(value, bool)


def _unexpected_value(parameter: Parameter, expected: str, value: object) -> OptionError:
    return OptionError(f"{parameter.name}: expected {expected}, not {_describe_value(value)}")


def _describe_value(value: object) -> str:
    """Describe an argument that was sent, cut; of large ones only the kind."""
    if isinstance(value, str):
        return ascii(value if len(value) <= _MOST_SHOWN else value[:_MOST_SHOWN] + "...")
    if value is None or isinstance(value, (bool, float)):
        return str(value)
    if isinstance(value, int):
        return str(value) if abs(value) < _PRINTABLE else "a number that is far too large"
    return "an object" if isinstance(value, Mapping) else "a list"
