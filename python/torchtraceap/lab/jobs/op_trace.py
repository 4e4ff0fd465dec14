"""Operators of a training job with pipeline and data parallelism, one row per operator and rank.

The format is the one in which ByteDance published production traces (Lin et al., "Understanding
Stragglers in Large Model Training Using What-if Analysis", OSDI 2025): CSV or Parquet with the
columns of `REQUIRED` and, where known, those of `OPTIONAL`. docs/many_ranks.md describes them.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from torchtraceap.core import Array, PathLike, TextCodes, dataclass
from torchtraceap.errors import MissingDependencyError, MissingFileError, ParseError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["OperatorTrace", "operator_trace", "read_operator_trace"]

REQUIRED = ("dp_rank", "stage", "step", "optype", "start_ts", "duration")
OPTIONAL = ("rank", "seq_id", "mc", "gmc")
MAX_ROWS = 50_000_000
MAX_INDEX = 10_000_000
"""Largest rank, stage, step or model chunk that a file may name."""
MAX_SECONDS = 4e9
"""Times beyond this are not in seconds (they would be nanoseconds or worse)."""
NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class OperatorTrace:
    """Operators by (step, replica, stage), in order of start within each.

    All arrays have one entry per operator.
    """

    step: Array
    """int64: number of the training step."""
    dp_rank: Array
    """int64: data-parallel replica."""
    stage: Array
    """int64: pipeline stage."""
    rank: Array
    """int64: number of the worker; dp_rank and stage determine it."""
    op_type: TextCodes
    """The type, such as `forward-compute` or `backward-send`."""
    start_ns: Array
    """int64: from the earliest start of the trace."""
    duration_ns: Array
    """int64, >= 0."""
    chunk: Array
    """int64: model chunk within its stage (interleaved schedules have several); -1 unknown."""
    place: Array
    """int64: model chunk within the model, from the input on; -1 unknown."""

    def __len__(self) -> int:
        return len(self.step)

    @property
    def end_ns(self) -> Array:
        """int64 `[operators]`: end of each operator."""
        ends: Array = self.start_ns + self.duration_ns
        return ends

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return int(self.stage.max()) + 1


def read_operator_trace(path: PathLike) -> OperatorTrace:
    """Read a CSV file (also gzip or zstd) or a Parquet file.

    Raises:
        MissingFileError: There is no such file.
        MissingDependencyError: Parquet without pyarrow.
        ParseError: The file is no such table, or a value in it makes no sense; says which.
    """
    file = Path(path)
    if not file.is_file():
        raise MissingFileError(f"{file}: no such file")
    frame = _read_parquet(file) if file.suffix == ".parquet" else _read_csv(file)
    try:
        return operator_trace(frame)
    except ParseError as error:
        raise ParseError(f"{file}: {error}") from None


def _read_csv(file: Path) -> pd.DataFrame:
    try:
        import pandas as pd
    except ImportError:
        raise MissingDependencyError(
            "a CSV table of operators needs pandas: pip install 'torchtraceap[pandas]'"
        ) from None
    wanted = {*REQUIRED, *OPTIONAL}
    try:
        return pd.read_csv(
            file, usecols=lambda name: name in wanted, nrows=MAX_ROWS + 1, low_memory=False
        )
    except (ValueError, EOFError, OSError, zlib.error) as error:
        raise ParseError(f"{file}: not a CSV table of operators ({error})") from None


def _read_parquet(file: Path) -> pd.DataFrame:
    try:
        import pandas as pd  # noqa: F401  (pyarrow needs it for a DataFrame)
        from pyarrow import parquet
    except ImportError:
        raise MissingDependencyError(
            "a Parquet table of operators needs pyarrow and pandas: "
            "pip install 'torchtraceap[arrow,pandas]'"
        ) from None
    try:
        data = parquet.ParquetFile(file)
        if data.metadata.num_rows > MAX_ROWS:
            raise ParseError(f"{file}: more than {MAX_ROWS:,} operators")
        names = [name for name in data.schema_arrow.names if name in {*REQUIRED, *OPTIONAL}]
        frame: pd.DataFrame = data.read(columns=names).to_pandas()
    except (ValueError, OSError) as error:
        raise ParseError(f"{file}: not a Parquet table of operators ({error})") from None
    return frame


def operator_trace(frame: pd.DataFrame) -> OperatorTrace:
    """Return the operators of a DataFrame with the columns of `REQUIRED` and `OPTIONAL`.

    Raises:
        ParseError: A column is missing, or a value makes no sense; says which.
    """
    import pandas as pd

    missing = [name for name in REQUIRED if name not in frame.columns]
    if missing:
        raise ParseError(f"a table of operators needs the columns {', '.join(missing)}")
    if not 0 < len(frame) <= MAX_ROWS:
        raise ParseError(f"{len(frame):,} operators; between 1 and {MAX_ROWS:,} can be read")
    step, dp_rank, stage = (_indices(frame, name) for name in ("step", "dp_rank", "stage"))
    start_ns = _times(frame, "start_ts")
    duration_ns = _times(frame, "duration")
    if (duration_ns < 0).any():
        raise ParseError(f"duration is negative in row {int((duration_ns < 0).argmax()) + 1}")
    sequence = _indices(frame, "seq_id", absent=-1)
    chunk = _indices(frame, "mc", absent=-1)
    order = np.lexsort((sequence, start_ns, stage, dp_rank, step))
    rank = dp_rank * (int(stage.max()) + 1) + stage
    if "rank" in frame.columns:
        rank = _indices(frame, "rank", absent=-1)
    if frame["optype"].isna().any():
        row = int(frame["optype"].isna().argmax()) + 1
        raise ParseError(f"optype is missing in row {row}")
    codes, texts = pd.factorize(frame["optype"].astype(str).to_numpy(dtype=object))
    return OperatorTrace(
        step=step[order],
        dp_rank=dp_rank[order],
        stage=stage[order],
        rank=rank[order],
        op_type=TextCodes(codes.astype(np.int32), list(map(str, texts))).take(order),
        start_ns=start_ns[order] - start_ns.min(),
        duration_ns=duration_ns[order],
        chunk=chunk[order],
        place=_indices(frame, "gmc", absent=-1)[order],
    )


def _indices(frame: pd.DataFrame, name: str, *, absent: int | None = None) -> Array:
    """Return whole numbers; `absent`, if given, replaces missing and negative values."""
    if name not in frame.columns:
        return np.full(len(frame), absent, dtype=np.int64)
    numbers = _numbers(frame, name)
    unknown = ~np.isfinite(numbers) | (numbers < 0)
    wrong = np.isfinite(numbers) & ((numbers != np.floor(numbers)) | (numbers > MAX_INDEX))
    if absent is None:
        wrong |= unknown
    if wrong.any():
        row = int(wrong.argmax())
        raise ParseError(
            f"{name} must be a whole number of 0 to {MAX_INDEX:,}; row {row + 1} has {numbers[row]}"
        )
    filled: Array = np.where(unknown, -1 if absent is None else absent, numbers).astype(np.int64)
    return filled


def _times(frame: pd.DataFrame, name: str) -> Array:
    """Convert seconds to int64 nanoseconds."""
    seconds = _numbers(frame, name)
    wrong = ~(np.abs(seconds) <= MAX_SECONDS)
    if wrong.any():
        row = int(wrong.argmax())
        raise ParseError(f"{name} must be a time in seconds; row {row + 1} has {seconds[row]}")
    nanoseconds: Array = np.rint(seconds * NS_PER_S).astype(np.int64)
    return nanoseconds


def _numbers(frame: pd.DataFrame, name: str) -> Array:
    import pandas as pd

    try:
        column = pd.to_numeric(frame[name])
    except (ValueError, TypeError) as error:
        raise ParseError(f"{name} must be a number ({error})") from None
    numbers: Array = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return numbers
