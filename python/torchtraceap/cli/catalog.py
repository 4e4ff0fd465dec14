"""The commands by group, each with the module that holds it. Help and start-up load none of them.

Every module named here has a `COMMANDS`: its commands by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from torchtraceap.core.records import dataclass
from torchtraceap.tables.catalog import TABLES

if TYPE_CHECKING:
    from torchtraceap.cli.parser import Command

__all__ = ["COMMANDS", "Commands", "Entry", "command_groups", "summary_of"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of `torchtraceap help all`, and where the command is."""

    summary: str
    module: str


_TRACE = {
    "diagnose": Entry(
        "what is wrong, on what evidence, what a fix saves and what to change",
        "torchtraceap.cli.diagnose",
    ),
    "report": Entry(
        "write the diagnosis as one HTML page, or the tables of TraceLens",
        "torchtraceap.cli.diagnose",
    ),
    "summary": Entry(
        "what is in a trace, and how the GPU's time splits up by rank, device and step",
        "torchtraceap.cli.views",
    ),
    "explain": Entry(
        "suspicious parts of a trace in words: what happens, why, what to change",
        "torchtraceap.cli.explain",
    ),
    "explain-idle": Entry(
        "the chain of work that an idle GPU waits for", "torchtraceap.cli.simulate"
    ),
    "simulate": Entry(
        "what a step would take if findings were fixed, replayed from its dependencies",
        "torchtraceap.cli.simulate",
    ),
    "score": Entry(
        "how likely each window of a trace holds lost time; many traces in one process",
        "torchtraceap.cli.diagnose",
    ),
    **{
        name: Entry(
            table.summary,
            f"torchtraceap.cli.{'views' if name in ('tree', 'serving') else 'tables'}",
        )
        for name, table in TABLES.items()
    },
    "memory-timeline": Entry(
        "memory by category over time, from export_memory_timeline's file",
        "torchtraceap.cli.tables",
    ),
    "sql": Entry("one query over all tables of a trace, with DuckDB", "torchtraceap.cli.views"),
    "replay": Entry(
        "an operator of the trace as a script of its own, and its time on this machine",
        "torchtraceap.cli.views",
    ),
    "annotate": Entry(
        "the trace for Perfetto, with findings, idle causes and counters as tracks",
        "torchtraceap.cli.views",
    ),
    "convert": Entry(
        "write a trace back, repaired and with nothing lost, or as Parquet",
        "torchtraceap.cli.views",
    ),
    "mcp": Entry(
        "read-only tools over a trace for language models, by MCP on stdio",
        "torchtraceap.cli.explain",
    ),
}
_COMPARE = {
    "diff": Entry(
        "what makes one trace slower than another, to the nanosecond", "torchtraceap.cli.tables"
    ),
    "merge": Entry(
        "all ranks in one file for Perfetto, their clocks aligned", "torchtraceap.cli.views"
    ),
}
_MANY_RUNS = {
    "corpus": Entry(
        "many runs as one folder of tables: built in parallel, kept up to date, asked in SQL",
        "torchtraceap.cli.corpus",
    ),
    "serve": Entry(
        "pages over a corpus or a folder of traces, for a browser on this machine",
        "torchtraceap.cli.corpus",
    ),
}
_NEXT_TO_TRAINING = {
    "check": Entry(
        "whether a trace holds to a contract: limits on counts, bytes, shares and times",
        "torchtraceap.cli.check",
    ),
    "estimate": Entry(
        "how long a kernel, copy or collective takes on a GPU, without a trace",
        "torchtraceap.cli.estimate",
    ),
    "doctor": Entry(
        "what is installed, what a recording here can show, and a bundle for a bug report",
        "torchtraceap.cli.doctor",
    ),
    "completion": Entry(
        "what makes bash, zsh or fish complete commands, options and their values",
        "torchtraceap.cli.completion",
    ),
}
_EVERY_DAY = ("diagnose", "report", "summary", "explain", "simulate", "steps", "ops", "kernels")
_PRODUCT = {**_TRACE, **_COMPARE, **_MANY_RUNS, **_NEXT_TO_TRAINING}


def _lab() -> Mapping[str, Entry]:
    """Return the commands of the lab. It is found by name, since the product does not import it."""
    entries: Mapping[str, Entry] = import_module("torchtraceap.lab.cli").ENTRIES
    return entries


def command_groups() -> dict[str, Mapping[str, Entry]]:
    """Return the entries of all commands by the heading under which the help lists them: the
    commands of every day first."""
    return {
        "every day": {name: _TRACE[name] for name in _EVERY_DAY},
        "compare": _COMPARE,
        "next to training": _NEXT_TO_TRAINING,
        "many runs": _MANY_RUNS,
        "more views of a trace": {n: e for n, e in _TRACE.items() if n not in _EVERY_DAY},
        "lab: predict, generate, train, measure": _lab(),
    }


def summary_of(name: str) -> str:
    """Return the summary of a command in one line."""
    return _PRODUCT[name].summary


class Commands(Mapping[str, "Command"]):
    """The commands by name. A module is imported when a command of it is asked for."""

    def __getitem__(self, name: str) -> Command:
        entry = _PRODUCT.get(name) or _lab()[name]
        command: Command = import_module(entry.module).COMMANDS[name]
        return command

    def __iter__(self) -> Iterator[str]:
        return iter([*_PRODUCT, *_lab()])

    def __len__(self) -> int:
        return len(_PRODUCT) + len(_lab())


COMMANDS: Mapping[str, Command] = Commands()
