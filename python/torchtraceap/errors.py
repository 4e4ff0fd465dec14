"""Errors that this library raises on purpose. Everything else that escapes is a defect.

A single bad event is never an error: it is counted in the diagnostics (docs/errors.md).
"""

from __future__ import annotations

__all__ = [
    "AmbiguousDeviceError",
    "MissingColumnError",
    "MissingDependencyError",
    "MissingFileError",
    "OptionError",
    "OutputError",
    "ParseError",
    "SchemaError",
    "SeveralRunsError",
    "TraceError",
]


class TraceError(Exception):
    """Base of every error of this library; the command line turns it into one sentence."""


class ParseError(TraceError, ValueError):
    """The input as a whole is not a trace: not one event could be read."""


class MissingFileError(ParseError, FileNotFoundError):
    """A path that was given does not exist."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else "no such file"


class SeveralRunsError(ParseError):
    """Files that were given for one job are of several runs: `runs` has the paths of each."""

    def __init__(self, message: str, runs: list[list[str]]) -> None:
        super().__init__(message, runs)
        self.runs = runs

    def __str__(self) -> str:
        return str(self.args[0])


class SchemaError(TraceError, ValueError):
    """Objects that do not belong together, such as a tree and the table of another trace."""


class OptionError(TraceError, ValueError):
    """An option has a value outside its range."""


class MissingColumnError(OptionError, KeyError):
    """A table has no column of that name; the message lists those that it has."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else "no such column"


class AmbiguousDeviceError(OptionError):
    """Several devices are called so; the message lists them."""


class OutputError(TraceError, OSError):
    """A file can't or must not be written; the message names it, and what was there is intact."""


class MissingDependencyError(TraceError, ImportError):
    """An optional package is needed for this; the message says how to install it."""
