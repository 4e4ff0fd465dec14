"""Read-only tools over one loaded trace, for language models and MCP clients.

`TOOLS` is the one definition: `asking` offers them to a model, `mcp_server` to a client. A call
reads what is in memory, takes checked arguments (`parameters`) and gives an object of bounded size
(`tool_results`): lists are cut and say by how much. It writes nothing and opens neither a path that
was given nor a socket, and it never raises: what can't be done is an error in words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torchtraceap.core.knowledge import load_knowledge
from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Result
from torchtraceap.errors import TraceError
from torchtraceap.explanation import tool_results
from torchtraceap.explanation.parameters import (
    Choice,
    Integer,
    Number,
    Parameter,
    Text,
    Texts,
    read_arguments,
    schema_of,
)
from torchtraceap.explanation.tool_data import ToolData
from torchtraceap.explanation.tool_results import MOST_ROWS, clean_name, fit_result
from torchtraceap.simulation.edits.base import edit_names
from torchtraceap.tables.compare.diff import VIEWS

if TYPE_CHECKING:
    pass

__all__ = ["Tool", "ToolAnswer", "Toolbox", "available_tools"]

Json = dict[str, Any]

WINDOW_COUNTS = (50, 100, 200)
MOST_EDITS = 4
"""Most edits in one call, each of which is replayed."""
_MOST_ERROR = 1_000
_MOST_RANK = 1_000_000
_LONGEST_MS = 1e9
_ROWS = 15


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that may be called."""

    name: str
    description: str
    parameters: Sequence[Parameter]
    run: Callable[[Toolbox, Json], Json]
    needs_baseline: bool = False

    def schema(self) -> Json:
        """Return the JSON Schema of the arguments."""
        return schema_of(self.parameters)


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

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Tools that may be called."""
        return available_tools(has_baseline=self.baseline is not None)

    def call(self, name: str, arguments: object) -> ToolAnswer:
        """Call a tool. Whatever goes wrong is in the answer.

        Args:
            name: The name of the tool.
            arguments: An object with its arguments; anything else is an error.
        """
        tool = next((tool for tool in self.tools if tool.name == name), None)
        if tool is None:
            known = ", ".join(tool.name for tool in self.tools)
            return _error(f"there is no tool of that name; there are: {known}")
        try:
            given = read_arguments(tool.parameters, arguments)
            with self._lock:  # a client may call several at once
                return ToolAnswer(False, fit_result(tool.run(self, given)))
        except TraceError as error:
            return _error(str(error))
        except Exception as error:  # a defect of ours must not end a conversation
            return _error(f"internal error, {type(error).__name__}")


def _error(text: str) -> ToolAnswer:
    return ToolAnswer(True, {"error": clean_name(text, _MOST_ERROR)})


def available_tools(*, has_baseline: bool) -> tuple[Tool, ...]:
    """The tools that there are; those that compare only where there is something to compare."""
    return tuple(tool for tool in TOOLS if has_baseline or not tool.needs_baseline)


# ------------------------------------------------------------------------- definitions

_LIMIT = Integer("limit", "At most so many rows.", 1, MOST_ROWS, _ROWS)
_RANK = Integer("rank", "Only this rank of several; by default all.", 0, _MOST_RANK)
_OF_RANK = Integer("rank", "Of several ranks this one; by default the first.", 0, _MOST_RANK)
_CONTAINS = Text("contains", "Only rows whose name holds this text, in any case.")


def _sort(*columns: str) -> Choice:
    return Choice("sort", "The column whose largest values come first.", columns, columns[0])


TOOLS: tuple[Tool, ...] = (
    Tool(
        "summary",
        "What was recorded and where the GPU time goes: devices, ranks, counts of events, busy, "
        "idle, compute, communication and copy time, the time of a step.",
        (),
        tool_results.summary,
    ),
    Tool(
        "diagnosis",
        "What is wrong: the anti-patterns found, with the time that each costs, what its fix "
        "saves and what to change; idle GPU time by cause; the plan of fixes; what could not be "
        "checked. With a type: that finding in detail, with its events and code.",
        (
            Choice("type", "Only this type of finding, in detail.", tuple(load_knowledge())),
            _LIMIT,
        ),
        tool_results.diagnosis,
    ),
    Tool(
        "ops",
        "Operators such as aten::mm: GPU time of their own and with what they call, calls, "
        "launches, own time on the host. GPU time of an operator counts once, so rows sum up.",
        (
            Choice("by", "A row for each name or each category.", ("name", "category"), "name"),
            _sort("exclusive_gpu_ns", "self_host_ns", "launches", "count"),
            _CONTAINS,
            _LIMIT,
            _RANK,
        ),
        tool_results.ops,
    ),
    Tool(
        "kernels",
        "GPU events (kernels, copies, memsets): how often, how long in all, on average and at "
        "most, and the operator that launches them.",
        (
            Choice(
                "by",
                "Short names without template arguments and numbers, or names as recorded.",
                ("canonical", "name"),
                "canonical",
            ),
            _sort("sum_ns", "count", "mean_ns", "max_ns"),
            _CONTAINS,
            _LIMIT,
            _RANK,
        ),
        tool_results.kernels,
    ),
    Tool(
        "window",
        "A part of the profiled time: one of N windows of equal length, or a range of time. Its "
        "features with the median of the trace's windows and its percentile rank among them, the "
        "most unusual first, and the GPU events in it by name.",
        (
            Integer("number", "Of the window, from 0.", 0, WINDOW_COUNTS[-1] - 1),
            Choice("count", "Into how many windows time is cut.", WINDOW_COUNTS, 100),
            Number(
                "start_ms",
                "In place of a number: where a range begins, from the start of the profiled time.",
                0,
                _LONGEST_MS,
            ),
            Number("end_ms", "Where the range ends, counted the same way.", 0, _LONGEST_MS),
            _LIMIT,
            _OF_RANK,
        ),
        tool_results.window,
    ),
    Tool(
        "step",
        "Training steps (iterations). Without a number: every step with its duration and idle "
        "time. With one: how the GPU's time in that step splits up, idle time by cause, and what "
        "makes it slower than the other steps.",
        (
            Integer("number", "Of the step, as the list of steps gives it.", 0, 2**31),
            Choice(
                "sort",
                "Of the list: longest first, or by number.",
                ("duration_ns", "number"),
                "duration_ns",
            ),
            _LIMIT,
            _OF_RANK,
        ),
        tool_results.step,
    ),
    Tool(
        "diff",
        "What makes this trace slower or faster than the baseline: rows whose differences sum to "
        "the difference of the median steps.",
        (
            Choice(
                "by",
                "Operators, kernels, calls around them, causes, or findings.",
                tuple(view for view in VIEWS if view != "tree"),
                "op",
            ),
            _LIMIT,
        ),
        tool_results.diff,
        needs_baseline=True,
    ),
    Tool(
        "simulate",
        "What a step would take if something were fixed: the run is replayed from its "
        f"dependencies with each edit. Edits: {', '.join(edit_names())}.",
        (Texts("edits", "Such as loader_workers=4 or cuda_graph.", MOST_EDITS, required=True),),
        tool_results.simulate,
    ),
)
"""All tools, in the order in which they are listed."""
