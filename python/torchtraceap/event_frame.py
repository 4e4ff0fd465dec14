"""The events of ranks as a table for NumPy, pandas and Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from torchtraceap import _core
from torchtraceap.aliases import Array
from torchtraceap.columns import TextCodes, recode, unique_texts
from torchtraceap.errors import OptionError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["EventFrame"]

_NO_ID_COLUMNS = ("stream", "correlation", "external_id")
_EVENT_COLUMNS = (
    "ts_ns",
    "dur_ns",
    "name",
    "category",
    "kind",
    "phase",
    "flags",
    "track",
    "pid",
    "tid",
    "device",
    "stream",
    "correlation",
    "external_id",
)


class EventFrame:
    """The events of one rank, or of several with a column `rank`, as a table.

    `frame["ts_ns"]` and the other numbers of a single rank are read-only views of the core's
    columns: absent integers are `_core.NO_ID` there, null in pandas and Arrow.
    """

    def __init__(
        self, tables: Sequence[tuple[_core.EventTable, int | None]], *, with_rank: bool = False
    ) -> None:
        self._tables = list(tables)
        self._with_rank = with_rank
        self._strings: list[list[str]] | None = None
        self._arrow: _core.ArrowTable | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Their names."""
        return (("rank",) if self._with_rank else ()) + _EVENT_COLUMNS

    def __len__(self) -> int:
        """The number of events."""
        return sum(len(table) for table, _ in self._tables)

    def __repr__(self) -> str:
        return f"EventFrame(events={len(self)}, files={len(self._tables)})"

    def __getitem__(self, name: str) -> Array:
        """A column, `[n]`; text columns come as object arrays of str."""
        if name not in self.columns:
            raise KeyError(name)
        parts = [self._column(i, name) for i in range(len(self._tables))]
        arrays = [part.to_numpy() if isinstance(part, TextCodes) else part for part in parts]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    def arg(self, key: str) -> list[str | None]:
        """One key of `args` for every event: strings unescaped, other values as JSON text."""
        return [value for table, _ in self._tables for value in table.text_column(key)]

    def int_arg(self, key: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """One key of `args` as integers `[n]`, with a mask that is True where there is one."""
        parts = [table.int_column(key) for table, _ in self._tables]
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    def to_pandas(self, rows: Array | slice | None = None) -> pd.DataFrame:
        """A DataFrame: text columns categorical, integers that may be absent nullable.

        Args:
            rows: Row numbers, a mask or a slice; only for a single rank.
        """
        import pandas as pd

        if rows is not None and len(self._tables) > 1:
            raise OptionError("rows: give a rank first, row numbers are per rank")
        frames = [self._frame(i, slice(None) if rows is None else rows) for i in self._indices()]
        if len(frames) == 1:
            return frames[0]
        joined = {name: _join([frame[name] for frame in frames]) for name in self.columns}
        return pd.DataFrame(joined)

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        """A fresh `arrow_array_stream` capsule, one batch per file."""
        return self._arrow_table().stream()

    def __arrow_c_schema__(self) -> Any:
        return self._arrow_table().schema()

    def _repr_html_(self) -> str:
        if len(self._tables) > 1:
            return f"<p>{len(self)} events of {len(self._tables)} files</p>"
        html: str = self.to_pandas(slice(0, 20)).to_html(border=0)
        return f"{html}<p>{len(self)} events</p>"

    def _arrow_table(self) -> _core.ArrowTable:
        if self._arrow is None:
            self._arrow = _core.arrow_events(self._tables, with_rank=self._with_rank)
        return self._arrow

    def _indices(self) -> range:
        return range(len(self._tables))

    def _column(self, index: int, name: str) -> Array | TextCodes:
        table, rank = self._tables[index]
        if name == "rank":
            missing = _core.NO_ID if rank is None else rank
            return np.full(len(table), missing, dtype=np.int64)
        if name in ("name", "category"):
            return TextCodes(getattr(table, name).view(np.int32), self._texts(index))
        if name == "kind":
            return TextCodes(table.kind.view(np.int8), _core.kind_names())
        if name == "phase":
            return _letters(table.phase)
        if name in ("pid", "tid"):
            return recode(table.track, [getattr(track, name) for track in table.tracks])
        column: Array = getattr(table, name)
        return column

    def _texts(self, index: int) -> list[str]:
        if self._strings is None:
            self._strings = [table.strings for table, _ in self._tables]
        return self._strings[index]

    def _frame(self, index: int, rows: Array | slice) -> pd.DataFrame:
        import pandas as pd

        data: dict[str, Any] = {}
        for name in self.columns:
            column = self._column(index, name)
            if isinstance(column, TextCodes):
                data[name] = unique_texts(TextCodes(column.codes[rows], column.texts)).to_pandas()
            elif name in _NO_ID_COLUMNS or name in ("rank", "device"):
                values = column[rows]
                absent = -1 if name == "device" else _core.NO_ID
                data[name] = pd.arrays.IntegerArray(values.copy(), values == absent)
            else:
                data[name] = column[rows]
        return pd.DataFrame(data)


def _letters(codes: Array) -> TextCodes:
    """A column of character codes, with the letters that occur."""
    used = np.flatnonzero(np.bincount(codes, minlength=1))
    mapping = np.zeros(256, dtype=np.int32)
    mapping[used] = np.arange(len(used))
    return TextCodes(mapping[codes], [chr(code) for code in used])


def _join(parts: Sequence[pd.Series[Any]]) -> Any:
    import pandas as pd

    if isinstance(parts[0].dtype, pd.CategoricalDtype):
        return pd.api.types.union_categoricals(list(parts))
    return pd.concat(list(parts), ignore_index=True)
