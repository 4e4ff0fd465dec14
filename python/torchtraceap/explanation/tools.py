"""Read-only tools over one loaded trace, for language models and MCP clients.

`TOOLS` is the one definition: `questions` offers them to a model, `mcp_server` to a client. The
JSON schema of an argument and the check of what was sent come from one `Parameter`. A call reads
what is in memory and gives an object of bounded size (`tool_results`): lists are cut and say by how
much. It writes nothing and opens neither a path that was given nor a socket, and it never raises:
what can't be done is an error in words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from torchtraceap.core.formatting import plain_line
from torchtraceap.core.knowledge import load_knowledge
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Result
from torchtraceap.errors import OptionError, TraceError
from torchtraceap.explanation import tool_results
from torchtraceap.explanation.numbers import CALLER_CHOICE
from torchtraceap.explanation.tool_results import MOST_ROWS, ToolData, fit_result
from torchtraceap.simulation.edits.base import edit_names
from torchtraceap.tables.compare.diff import VIEWS

__all__ = [
    "COLUMNS",
    "CONTAINS",
    "LIMIT",
    "MOST_CHARACTERS",
    "OFFSET",
    "OF_RANK",
    "RANK",
    "SORT",
    "TABLE_RESULT",
    "Parameter",
    "Tool",
    "ToolAnswer",
    "Toolbox",
    "available_tools",
    "error_answer",
]

Json = dict[str, Any]

MOST_CHARACTERS = 200
"""Most characters of a text argument."""
_MOST_SHOWN = 60
_PRINTABLE = 10**18
WINDOW_COUNTS = (50, 100, 200)
MOST_COLUMNS = 40
MOST_EDITS = 4
"""Most edits in one call, each of which is replayed."""
_MOST_ERROR = 1_000
_MOST_RANK = 1_000_000
_LONGEST_MS = 1e9
_ROWS = 15


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a tool. Unless it is `required`, it may be left out, or be null."""

    name: str
    help: str
    kind: str = "string"
    """Type of JSON Schema: "integer", "number", "boolean", "string" or "array" (of texts)."""
    low: float = 0
    """Least value of a number."""
    high: float = 0
    """Largest value of a number; most texts of an array; most characters of a text, if not
    `MOST_CHARACTERS`."""
    choices: Sequence[str] | Sequence[int] = ()
    """Allowed values; empty for any of the kind."""
    default: Any = None
    required: bool = False

    def schema(self) -> Json:
        """Return the JSON Schema of the argument."""
        text: Json = {"type": "string", "maxLength": self._longest}
        found: Json = {"type": self.kind}
        if self.choices:
            found["enum"] = list(self.choices)
        elif self.kind == "array":
            found |= {"items": text, "minItems": 1, "maxItems": self.high}
        elif self.kind == "string":
            found = text
        elif self.kind != "boolean":
            found |= {"minimum": self.low, "maximum": self.high}
        found["description"] = self.help
        return found if self.default is None else {**found, "default": self.default}

    @property
    def _longest(self) -> int:
        """Most characters of a text."""
        return int(self.high) if self.kind == "string" and self.high else MOST_CHARACTERS

    def read(self, value: object) -> Any:
        """Return the value as the tool takes it.

        Raises:
            OptionError: It has another type or lies outside; the text says what was expected.
        """
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if self.choices:
            expected = f"one of {', '.join(map(str, self.choices))}"
            for choice in self.choices:  # 1 is no True, and 100.0 is 100
                if choice == value and (is_number or isinstance(value, str)):
                    return choice
        elif self.kind == "array":
            expected = f"a list of 1 to {self.high} texts of at most {MOST_CHARACTERS} characters"
            if isinstance(value, (list, tuple)) and 1 <= len(value) <= self.high:
                wrong = [text for text in value if not _is_short_text(text)]
                if not wrong:
                    return tuple(value)
                value = wrong[0]
        elif self.kind == "string":
            expected = f"a text of at most {self._longest} characters"
            if isinstance(value, str) and len(value) <= self._longest:
                return value
        elif self.kind == "boolean":
            expected = "true or false"
            if isinstance(value, bool):
                return value
        else:
            is_whole = self.kind == "integer"
            low, high = (f"{end:{'d' if is_whole else 'g'}}" for end in (self.low, self.high))
            expected = f"a {'whole ' if is_whole else ''}number from {low} to {high}"
            if is_whole and isinstance(value, float) and value.is_integer():
                value = int(value)  # 10.0 is an integer of JSON Schema
            if is_number and not (is_whole and isinstance(value, float)):
                number: Any = value
                if self.low <= number <= self.high:  # NaN is within no bounds
                    return number if is_whole else float(number)
        raise OptionError(f"{self.name}: expected {expected}, not {_describe_value(value)}")


def _is_short_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MOST_CHARACTERS


def _describe_value(value: object) -> str:
    """Describe an argument that was sent, cut; of large ones only the kind."""
    if isinstance(value, str):
        return ascii(value if len(value) <= _MOST_SHOWN else value[:_MOST_SHOWN] + "...")
    if value is None or isinstance(value, (bool, float)):
        return str(value)
    if isinstance(value, int):
        return str(value) if abs(value) < _PRINTABLE else "a number that is far too large"
    return "an object" if isinstance(value, Mapping) else "a list"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that may be called."""

    name: str
    description: str
    parameters: Sequence[Parameter]
    run: Callable[[Any, Json], Json]
    """Takes the toolbox and every argument."""
    returns: Mapping[str, str] = field(default_factory=dict)
    """Members of the result with their kinds, of `_RESULTS`; a result may lack some."""
    needs_baseline: bool = False
    runs_code: bool = False
    """It runs a program of the user, or reads what only a program can."""

    def schema(self) -> Json:
        """Return the JSON Schema of the arguments."""
        return {
            "type": "object",
            "properties": {parameter.name: parameter.schema() for parameter in self.parameters},
            "required": [parameter.name for parameter in self.parameters if parameter.required],
            "additionalProperties": False,
        }

    def output_schema(self) -> Json:
        """Return the JSON Schema of the result."""
        return {
            "type": "object",
            "properties": {name: _RESULTS[kind] for name, kind in self.returns.items()},
            "$defs": _DEFINITIONS,
        }

    def read_arguments(self, given: object) -> Json:
        """Return every argument by name; what was left out has its default.

        Raises:
            OptionError: Something else was given; the text says what was expected.
        """
        if not isinstance(given, Mapping):
            raise OptionError(f"the arguments are a JSON object, not {_describe_value(given)}")
        known = {parameter.name: parameter for parameter in self.parameters}
        unknown = next((name for name in given if name not in known), None)
        if unknown is not None:
            there = ", ".join(known) or "none"
            raise OptionError(
                f"there is no argument {_describe_value(unknown)}; there are: {there}"
            )
        found: Json = {}
        for name, parameter in known.items():
            value = given.get(name)
            if value is None and parameter.required:
                raise OptionError(f"{name} is needed: {parameter.help}")
            found[name] = parameter.default if value is None else parameter.read(value)
        return found


_TEXT: Json = {"type": "string"}
_DEFINITIONS: Json = {
    "quantity": {
        "description": "A number, exact, and as a person reads it.",
        "type": "object",
        "properties": {
            "ns": {"type": "integer", "description": "nanoseconds"},
            "bytes": {"type": "integer"},
            "share": {"type": "number", "description": "a fraction"},
            "value": {"type": "number", "description": "in the unit of the member's name"},
            "text": _TEXT,
            "exact": {**_TEXT, "description": "digits that a double would lose"},
        },
        "required": ["text"],
    },
    "list": {
        "type": "object",
        "properties": {
            "rows": {"type": "array"},
            "shown": {"type": "integer"},
            "left_out": {"type": "integer", "description": "rows behind those shown"},
            "offset": {"type": "integer"},
            "next_offset": {
                "type": ["integer", "null"],
                "description": "the argument offset of a call that has the rest",
            },
        },
        "required": ["rows", "shown", "left_out"],
    },
}
_RESULTS: Mapping[str, Json] = {
    "quantity": {"anyOf": [{"$ref": "#/$defs/quantity"}, {"type": "null"}]},
    "list": {"$ref": "#/$defs/list"},
    "texts": {"type": "array", "items": _TEXT},
    "text": {"type": ["string", "null"]},
    "count": {"type": "integer"},
    "number": {"type": "number"},
    "truth": {"type": "boolean"},
    "object": {"type": ["object", "null"]},
}
"""JSON Schemas of members of results, by kind."""


@dataclass(frozen=True, slots=True)
class ToolAnswer(Result):
    """The result of a call."""

    is_error: bool
    value: Json
    """The result, or `{"error": text}`."""


class Toolbox(ToolData):
    """The tools with the trace that they read.

    Args:
        trace: The trace.
        baseline: One to compare it with, if there is one.
        diagnosis: The trace's diagnosis, if it is known already.
    """

    offered: Sequence[Tool] = ()
    """Tools beside `TOOLS`."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Tools that may be called."""
        return (*available_tools(has_baseline=self.baseline is not None), *self.offered)

    def call(self, name: str, arguments: object) -> ToolAnswer:
        """Call a tool. Whatever goes wrong is in the answer.

        Args:
            name: The name of the tool.
            arguments: An object with its arguments; anything else is an error.
        """
        tool = next((tool for tool in self.tools if tool.name == name), None)
        if tool is None:
            known = ", ".join(tool.name for tool in self.tools)
            return error_answer(f"there is no tool of that name; there are: {known}")
        try:
            given = tool.read_arguments(arguments)
            with self._lock:  # a client may call several at once
                return ToolAnswer(False, fit_result(tool.run(self, given)))
        except TraceError as error:
            return error_answer(str(error))
        except Exception as error:  # a defect of ours must not end a conversation
            return error_answer(f"internal error, {type(error).__name__}")


def error_answer(text: str) -> ToolAnswer:
    """Return an error in words."""
    return ToolAnswer(True, {"error": plain_line(text, _MOST_ERROR)})


def available_tools(*, has_baseline: bool) -> tuple[Tool, ...]:
    """Return the tools; those that compare only where there is something to compare."""
    return tuple(tool for tool in TOOLS if has_baseline or not tool.needs_baseline)


# ------------------------------------------------------------------------- definitions

LIMIT = Parameter("limit", "At most so many rows.", "integer", 1, MOST_ROWS, default=_ROWS)
OFFSET = Parameter(
    "offset",
    "Of the first row: next_offset of the call before has the rest.",
    "integer",
    0,
    2**53,
    default=0,
)
RANK = Parameter("rank", "Only this rank of several; by default all.", "integer", 0, _MOST_RANK)
OF_RANK = Parameter(
    "rank", "Of several ranks this one; by default the first.", "integer", 0, _MOST_RANK
)
CONTAINS = Parameter("contains", "Only rows of which a text holds this, in any case.")
COLUMNS = Parameter(
    "columns", "Those to show, of those that the result lists.", "array", high=MOST_COLUMNS
)


SORT = Parameter("sort", "A column, largest first, or COLUMN:asc for the smallest.")


TABLE_RESULT = {"table": "list", "columns": "texts", "notes": "texts"}

TOOLS: tuple[Tool, ...] = (
    Tool(
        "summary",
        "What was recorded and where the GPU time goes: devices, ranks, counts of events, busy, "
        "idle, compute, communication and copy time, the time of a step.",
        (),
        tool_results.summary,
        {
            "files": "count",
            "ranks": "count",
            "devices": "list",
            "events": "object",
            "timeline": "object",
            "step_time": "object",
            "steps": "count",
            "steps_inferred": "truth",
            "diagnostics": "list",
        },
    ),
    Tool(
        "diagnosis",
        "What is wrong: the anti-patterns found, with the time that each costs, what its fix "
        "saves and what to change; idle GPU time by cause; the plan of fixes; what could not be "
        "checked. With a type: that finding in detail, with its events and code.",
        (
            Parameter(
                "type", "Only this type of finding, in detail.", choices=tuple(load_knowledge())
            ),
            LIMIT,
            OFFSET,
        ),
        tool_results.diagnosis,
        {
            "profiled": "quantity",
            "gpu_busy": "quantity",
            "bound_by": "text",
            "findings": "list",
            "idle": "list",
            "plan": "list",
            "not_checked": "texts",
            "absent": "count",
            "type": "text",
            "title": "text",
            "verdict": "text",
            "signs": "texts",
            "missing_signals": "texts",
            "cost": "quantity",
            "cost_of_profiled": "quantity",
            "confidence": "number",
            "advice": "text",
            "facts": "object",
            "saving": "object",
            "code": "text",
            "evidence": "list",
        },
    ),
    Tool(
        "ops",
        "Operators such as aten::mm: GPU time of their own and with what they call, calls, "
        "launches, own time on the host. GPU time of an operator counts once, so rows sum up.",
        (
            Parameter(
                "by",
                "A row for each name, category, name with its arguments, or call.",
                choices=("name", "category", "args", "call"),
                default="name",
            ),
            SORT,
            CONTAINS,
            COLUMNS,
            LIMIT,
            OFFSET,
            RANK,
        ),
        tool_results.ops,
        TABLE_RESULT,
    ),
    Tool(
        "kernels",
        "GPU events (kernels, copies, memsets): how often, how long in total, on average and at "
        "most, and the operator that launches them.",
        (
            Parameter(
                "by",
                "Short names without template arguments and numbers, names as recorded, operators "
                "with what overlaps them, or every event.",
                choices=("canonical", "name", "overlap", "event"),
                default="canonical",
            ),
            SORT,
            CONTAINS,
            COLUMNS,
            LIMIT,
            OFFSET,
            RANK,
        ),
        tool_results.kernels,
        TABLE_RESULT,
    ),
    Tool(
        "window",
        "A part of the profiled time: one of N windows of equal length, or a range of time. Its "
        "features with the median of the trace's windows and its percentile rank among them, the "
        "most unusual first, and the GPU events in it by name.",
        (
            Parameter("number", "Of the window, from 0.", "integer", 0, WINDOW_COUNTS[-1] - 1),
            Parameter(
                "count",
                "Into how many windows time is cut.",
                "integer",
                choices=WINDOW_COUNTS,
                default=100,
            ),
            Parameter(
                "start_ms",
                "In place of a number: where a range begins, from the start of the profiled time.",
                "number",
                0,
                _LONGEST_MS,
            ),
            Parameter(
                "end_ms", "Where the range ends, counted the same way.", "number", 0, _LONGEST_MS
            ),
            LIMIT,
            OFFSET,
            OF_RANK,
        ),
        tool_results.window,
        {
            "number": "count",
            "start": "quantity",
            "length": "quantity",
            "windows": "count",
            "features": "list",
            "gpu_events": "list",
            CALLER_CHOICE: "object",
        },
    ),
    Tool(
        "step",
        "Training steps (iterations). Without a number: every step with its duration and idle "
        "time. With one: how the GPU's time in that step splits up, idle time by cause, and what "
        "makes it slower than the other steps.",
        (
            Parameter("number", "Of the step, as the list of steps gives it.", "integer", 0, 2**31),
            Parameter(
                "sort",
                "Of the list: longest first, or by number.",
                choices=("duration_ns", "number"),
                default="duration_ns",
            ),
            LIMIT,
            OFFSET,
            OF_RANK,
        ),
        tool_results.step,
        {
            "steps": "list",
            "number": "count",
            "name": "text",
            "duration": "quantity",
            "busy": "quantity",
            "idle": "quantity",
            "compute": "quantity",
            "communication": "quantity",
            "memcpy": "quantity",
            "exposed_communication": "quantity",
            "exposed_memcpy": "quantity",
            "median_step": "quantity",
            "whole": "truth",
            "outlier": "truth",
            "idle_by_cause": "list",
            "longer_than_usual": "list",
            "notes": "texts",
        },
    ),
    Tool(
        "diff",
        "What makes this trace slower or faster than the baseline: rows whose differences sum to "
        "the difference of the median steps.",
        (
            Parameter(
                "by",
                "Operators, kernels, calls around them, causes, or findings.",
                choices=tuple(view for view in VIEWS if view != "tree"),
                default="op",
            ),
            LIMIT,
            OFFSET,
        ),
        tool_results.diff,
        {
            "difference": "quantity",
            "before_step": "quantity",
            "after_step": "quantity",
            "table": "list",
            "notes": "texts",
        },
        needs_baseline=True,
    ),
    Tool(
        "simulate",
        "What a step would take if something were fixed: the run is replayed from its "
        f"dependencies with each edit. Edits: {', '.join(edit_names())}.",
        (
            Parameter(
                "edits",
                "Such as loader_workers=4 or cuda_graph.",
                "array",
                high=MOST_EDITS,
                required=True,
            ),
        ),
        tool_results.simulate,
        {
            "of": "text",
            "measured": "quantity",
            "replayed_without_edits": "quantity",
            "noise": "quantity",
            "supports_prediction": "truth",
            "edits": "list",
            "notes": "texts",
        },
    ),
)
"""Tools that a language model is offered, in the order in which they are listed."""
