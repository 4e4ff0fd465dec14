"""The tables of TraceLens under their names, as CSV files or as one workbook."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtraceap.errors import MissingDependencyError
from torchtraceap.ranks import Ranks, RankTrace
from torchtraceap.tracelens.launchers import CompatTree
from torchtraceap.tracelens.perf_sheets import ModelledOps, family_sheets, unified_perf_summary
from torchtraceap.tracelens.sheets import Sheet, csv_text
from torchtraceap.tracelens.summaries import (
    Kernels,
    coll_analysis,
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

if TYPE_CHECKING:
    from torchtraceap.aliases import PathLike

__all__ = ["tracelens_sheets", "write_tracelens_csvs", "write_tracelens_xlsx"]


def tracelens_sheets(part: RankTrace, *, detect_recompute: bool = False) -> dict[str, Sheet]:
    """Every sheet of TraceLens's report of one rank, columns in their order.

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
        ops = ModelledOps(tree)
        sheets["ops_summary_by_category"] = ops_summary_by_category(launchers)
        sheets["ops_summary"] = ops_summary(launchers)
        sheets["ops_unique_args"] = ops_unique_args(launchers)
        sheets["unified_perf_summary"] = unified_perf_summary(ops, launchers.categories_of)
        sheets |= dict(family_sheets(ops))
    sheets["kernel_summary"] = kernel_summary(kernels, total)
    sheets["short_kernel_histogram"] = short_kernel_histogram(kernels)
    sheets["short_kernels_summary"] = short_kernels_summary(kernels, total)
    collectives = coll_analysis(tree)
    return sheets | ({"coll_analysis": collectives} if collectives else {})


def write_tracelens_csvs(
    trace: Ranks | RankTrace, folder: PathLike, *, detect_recompute: bool = False
) -> list[Path]:
    """Writes one CSV per sheet; of several ranks each gets a folder `rank<N>` of its own.

    Args:
        trace: A trace, or one rank of it.
        folder: Is made if it does not exist.
        detect_recompute: See `tracelens_sheets`.

    Returns:
        The files, in order.
    """
    written = []
    for part, place in _places(trace, Path(folder)):
        place.mkdir(parents=True, exist_ok=True)
        for name, sheet in tracelens_sheets(part, detect_recompute=detect_recompute).items():
            path = place / f"{name}.csv"
            text = csv_text(sheet).encode("utf-8", errors="replace")
            path.write_bytes(text)
            written.append(path)
    return written


def _places(trace: Ranks | RankTrace, folder: Path) -> list[tuple[RankTrace, Path]]:
    ranks = [trace] if isinstance(trace, RankTrace) else list(trace.ranks)
    if len(ranks) == 1:
        return [(ranks[0], folder)]
    return [
        (part, folder / f"rank{i if part.rank is None else part.rank}")
        for i, part in enumerate(ranks)
    ]


def write_tracelens_xlsx(
    trace: Ranks | RankTrace, path: PathLike, *, detect_recompute: bool = False
) -> Path:
    """Writes the sheets as a workbook; of several ranks `<name>_rank<N>.xlsx` each.

    Args:
        trace: A trace, or one rank of it.
        path: Of the workbook.
        detect_recompute: See `tracelens_sheets`.

    Returns:
        The path of the first workbook.

    Raises:
        MissingDependencyError: openpyxl is not installed.
    """
    try:
        from openpyxl import Workbook
    except ImportError:
        raise MissingDependencyError(
            "a workbook needs openpyxl: pip install 'torchtraceap[xlsx]'"
        ) from None
    first = Path(path)
    places = _places(trace, first.parent)
    paths = [
        first if len(places) == 1 else first.with_stem(f"{first.stem}_{place.name}")
        for _, place in places
    ]
    for (part, _), target in zip(places, paths, strict=True):
        book = Workbook(write_only=True)
        for name, sheet in tracelens_sheets(part, detect_recompute=detect_recompute).items():
            _add_sheet(book, name, sheet)
        book.save(target)
    return paths[0]


_LONGEST_CELL = 32_767
_LONGEST_TITLE = 31


def _add_sheet(book: Any, name: str, sheet: Sheet) -> None:
    page = book.create_sheet(name[:_LONGEST_TITLE])
    page.append(list(sheet))
    for row in zip(*sheet.values(), strict=True):
        page.append([_cell(value) for value in row])


def _cell(value: Any) -> Any:
    """What a workbook takes: no NaN, no control characters, no text beyond its limit."""
    if isinstance(value, str):
        text = "".join(c if c >= " " or c in "\t\n" else "\ufffd" for c in value)
        # A text is never a formula, whatever a name in the trace begins with.
        return text[:_LONGEST_CELL] if not text.startswith("=") else f"'{text}"[:_LONGEST_CELL]
    return None if value is None or value != value else value
