"""The trace that tools read, with each table and the diagnosis built once."""

from __future__ import annotations

from threading import RLock
from typing import Any

from torchtraceap.core.table import ColumnTable
from torchtraceap.diagnosis.diagnose import build_diagnosis
from torchtraceap.diagnosis.result import Diagnosis
from torchtraceap.tables.catalog import table_spec
from torchtraceap.trace.ranks import Ranks

__all__ = ["ToolData"]


class ToolData:
    """The data that tools read.

    Args:
        trace: The trace.
        baseline: One to compare it with, if there is one.
        diagnosis: The trace's diagnosis, if it is known already.
    """

    def __init__(
        self, trace: Ranks, baseline: Ranks | None = None, *, diagnosis: Diagnosis | None = None
    ) -> None:
        self.trace = trace
        self.baseline = baseline
        self._diagnosis = diagnosis
        self._lock = RLock()
        self._tables: dict[tuple[object, ...], ColumnTable] = {}

    @property
    def diagnosis(self) -> Diagnosis:
        """Made at the first use."""
        if self._diagnosis is None:
            self._diagnosis = build_diagnosis(self.trace)
        return self._diagnosis

    def table(self, name: str, *, rank: int | None = None, **options: Any) -> ColumnTable:
        """A table of the trace by the name of its command, made once for equal options."""
        key = (name, rank, *sorted(options.items()))
        if key not in self._tables:
            self._tables[key] = table_spec(name).make(self.trace, rank=rank, **options)
        return self._tables[key]
