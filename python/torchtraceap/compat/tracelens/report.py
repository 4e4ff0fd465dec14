"""The tables of TraceLens under their names, as CSV files or as one workbook."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from torchtraceap.compat.tracelens.collectives import (
    collective_sheets,
    collectives_of,
    summary_long,
)
from torchtraceap.compat.tracelens.inference import inference_sheets
from torchtraceap.compat.tracelens.launchers import CompatTree
from torchtraceap.compat.tracelens.perf_sheets import (
    ModeledOps,
    family_sheets,
    unified_perf_summary,
)
from torchtraceap.compat.tracelens.sheets import Sheet, write_csv
from torchtraceap.compat.tracelens.summaries import (
    Kernels,
    gpu_timeline,
    kernel_summary,
    launchers_of,
    ops_summary,
    ops_summary_by_category,
    ops_unique_args,
    short_kernel_histogram,
    short_kernels_summary,
    total_us,
)
from torchtraceap.core.writing import replacing_stream, write_files
from torchtraceap.errors import MissingDependencyError
from torchtraceap.trace.ranks import Ranks, RankTrace

if TYPE_CHECKING:
    from torchtraceap.core.aliases import PathLike

__all__ = [
    "tracelens_sheets",
    "write_inference_csvs",
    "write_tracelens_csvs",
    "write_tracelens_xlsx",
]

_LONGEST_CELL = 32_767
_LONGEST_TITLE = 31


def tracelens_sheets(part: RankTrace, *, detect_recompute: bool = False) -> dict[str, Sheet]:
    """Return every sheet of TraceLens's report of one rank, columns in their order.

    `ex_UID` and `UID_first` are row numbers here: `trace.event(row)` gives the event.

    Args:
        part: The rank.
        detect_recompute: Split by what activation checkpointing recomputes; needs Python frames.
    """
    tree = CompatTree(part, detect_recompute=detect_recompute)
    timeline = gpu_timeline(tree)
    launchers = launchers_of(tree)
    kernels = Kernels(tree, launchers)
    total = total_us(timeline)
    sheets: dict[str, Sheet] = {"gpu_timeline": timeline}
    if len(tree.op_rows):
        ops = ModeledOps(tree)
        sheets["ops_summary_by_category"] = ops_summary_by_category(launchers)
        sheets["ops_summary"] = ops_summary(launchers)
        sheets["ops_unique_args"] = ops_unique_args(launchers)
        sheets["unified_perf_summary"] = unified_perf_summary(ops, launchers)
        sheets |= dict(family_sheets(ops))
    sheets["kernel_summary"] = kernel_summary(kernels, total)
    sheets["short_kernel_histogram"] = short_kernel_histogram(kernels)
    sheets["short_kernels_summary"] = short_kernels_summary(kernels, total)
    collectives = summary_long(collectives_of([part]))
    return sheets | ({"coll_analysis": collectives} if collectives["rank"] else {})


def write_tracelens_csvs(
    trace: Ranks | RankTrace,
    folder: PathLike,
    *,
    detect_recompute: bool = False,
    spreadsheet: bool = False,
) -> list[Path]:
    """Write one CSV per sheet; of several ranks each gets a folder `rank<N>` of its own.

    The report of the collectives of several ranks stands beside these folders.

    Args:
        trace: A trace, or one rank of it.
        folder: Is made if it does not exist.
        detect_recompute: See `tracelens_sheets`.
        spreadsheet: No cell is taken for a formula; see `ColumnTable.to_csv`.

    Returns:
        The files, in order.

    Raises:
        OptionError: One would replace a file that was read.
        OutputError: One can't be written; none is then replaced.
    """
    parts = _parts(trace)
    sheets_of = partial(tracelens_sheets, detect_recompute=detect_recompute)
    return _write_sheets(parts, sheets_of, _of_all(parts), folder, spreadsheet)


def write_inference_csvs(
    trace: Ranks | RankTrace,
    folder: PathLike,
    *,
    capture: PathLike | None = None,
    spreadsheet: bool = False,
) -> list[Path]:
    """Write one CSV per sheet of the inference report, as `write_tracelens_csvs` does.

    Args:
        trace: A trace of a serving engine, or one rank of it.
        folder: Is made if it does not exist.
        capture: A trace of the capture of its CUDA graphs, or a folder with such; by default what
            lies beside the trace.
        spreadsheet: No cell is taken for a formula; see `ColumnTable.to_csv`.

    Returns:
        The files, in order.

    Raises:
        OptionError: One would replace a file that was read, or `capture` holds no trace.
        OutputError: One can't be written; none is then replaced.
    """
    sheets_of = partial(inference_sheets, capture=capture)
    return _write_sheets(_parts(trace), sheets_of, (), folder, spreadsheet)


def _write_sheets(
    parts: Sequence[tuple[RankTrace, str]],
    sheets_of: Callable[[RankTrace], dict[str, Sheet]],
    of_all: Iterable[dict[str, Sheet]],
    folder: PathLike,
    spreadsheet: bool,
) -> list[Path]:
    reports = chain(
        ((place, sheets_of(part)) for part, place in parts), (("", sheets) for sheets in of_all)
    )
    files = (
        (str(Path(place, f"{name}.csv")), partial(write_csv, sheet, spreadsheet=spreadsheet))
        for place, sheets in reports
        for name, sheet in sheets.items()
    )
    return write_files(folder, files, inputs=[part.path for part, _ in parts])


def _of_all(parts: Sequence[tuple[RankTrace, str]]) -> Iterator[dict[str, Sheet]]:
    """The report of the collectives of several ranks, if there are any."""
    sheets = collective_sheets([part for part, _ in parts]) if len(parts) > 1 else {}
    if sheets:
        yield sheets


def _parts(trace: Ranks | RankTrace) -> list[tuple[RankTrace, str]]:
    """Ranks, and the folder of each where there are several."""
    ranks = [trace] if isinstance(trace, RankTrace) else list(trace.ranks)
    if len(ranks) == 1:
        return [(ranks[0], "")]
    return [(part, f"rank{i if part.rank is None else part.rank}") for i, part in enumerate(ranks)]


def write_tracelens_xlsx(
    trace: Ranks | RankTrace, path: PathLike, *, detect_recompute: bool = False
) -> Path:
    """Write the sheets as a workbook; of several ranks `<name>_rank<N>.xlsx` each.

    The collectives of several ranks are in `<name>_nccl.xlsx`.

    Args:
        trace: A trace, or one rank of it.
        path: The path of the workbook.
        detect_recompute: See `tracelens_sheets`.

    Returns:
        The path of the first workbook.

    Raises:
        MissingDependencyError: openpyxl is not installed.
        OptionError, OutputError: See `write_tracelens_csvs`.
    """
    try:
        from openpyxl import Workbook
    except ImportError:
        raise MissingDependencyError(
            "a workbook needs openpyxl: pip install 'torchtraceap[xlsx]'"
        ) from None

    def write(part: RankTrace, stream: BinaryIO) -> None:
        sheets = tracelens_sheets(part, detect_recompute=detect_recompute)
        _write_book(Workbook, sheets, stream)

    def named(place: str) -> str:
        return f"{first.stem}_{place}{first.suffix}"

    first, parts = Path(path), _parts(trace)
    inputs = [part.path for part, _ in parts]
    if len(parts) == 1:
        with replacing_stream(path, inputs=inputs) as stream:
            write(parts[0][0], stream)
        return first
    files = chain(
        ((named(place), partial(write, part)) for part, place in parts),
        ((named("nccl"), partial(_write_book, Workbook, sheets)) for sheets in _of_all(parts)),
    )
    return write_files(first.parent, files, inputs=inputs)[0]


def _write_book(workbook: Any, sheets: dict[str, Sheet], stream: BinaryIO) -> None:
    """Write a workbook.

    Raises:
        OSError: It can't be written. Files that openpyxl had open would complain once more, on
            standard error, whenever they are collected.
    """
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        error = _try_book(workbook, sheets, stream)
        if error is not None:
            gc.collect()
    finally:
        sys.unraisablehook = hook
    if error is not None:
        raise error


def _try_book(workbook: Any, sheets: dict[str, Sheet], stream: BinaryIO) -> OSError | None:
    """Write a workbook of which nothing is left at the end, and return its error."""
    try:
        book = workbook(write_only=True)
        for name, sheet in sheets.items():
            page = book.create_sheet(name[:_LONGEST_TITLE])
            page.append([_cell(page, title) for title in sheet])
            for row in zip(*sheet.values(), strict=True):
                page.append([_cell(page, value) for value in row])
        book.save(stream)
    except OSError as error:
        return OSError(error.errno, error.strerror)
    return None


def _cell(page: Any, value: Any) -> Any:
    """Return a value that a workbook takes: no NaN, no control characters, no text beyond its
    limit."""
    if not isinstance(value, str):
        return None if value is None or value != value else value
    text = "".join(c if c >= " " or c in "\t\n" else "\ufffd" for c in value)[:_LONGEST_CELL]
    if not text.startswith(("=", "#")):
        return text
    from openpyxl.cell import WriteOnlyCell

    cell = WriteOnlyCell(page, text)
    cell.data_type = "s"  # not a formula, not an error such as #N/A: the text that it is
    return cell
