"""Values that every room speaks of: results, tables, arrays, units, files that appear whole; and
`lazy_exports`, by which a room imports its public names on first use (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any


def lazy_exports(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package.

    A package assigns them in the `else` of an `if TYPE_CHECKING` whose imports say the same to type
    checkers. A name must not be that of a module of the package: importing the module would put it
    in the place of the name.

    Args:
        package: Its `__name__`.
        names: The names by module; a module that begins with a dot is of the package.
    """
    modules = {name: module for module, group in names.items() for name in group}

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name], package), name)

    exported = sorted(modules)
    return find, lambda: exported, exported


if TYPE_CHECKING:
    from torchtraceap.core.aliases import Array as Array
    from torchtraceap.core.aliases import PathLike as PathLike
    from torchtraceap.core.codes import ALLOCATOR_CALLS as ALLOCATOR_CALLS
    from torchtraceap.core.codes import API_KINDS as API_KINDS
    from torchtraceap.core.codes import COPY_CALLS as COPY_CALLS
    from torchtraceap.core.codes import LAUNCHES as LAUNCHES
    from torchtraceap.core.codes import SYNCHRONISATIONS as SYNCHRONISATIONS
    from torchtraceap.core.codes import ApiClass as ApiClass
    from torchtraceap.core.codes import EventKind as EventKind
    from torchtraceap.core.columns import Column as Column
    from torchtraceap.core.columns import TextCodes as TextCodes
    from torchtraceap.core.columns import encode_json as encode_json
    from torchtraceap.core.columns import encode_texts as encode_texts
    from torchtraceap.core.dtypes import BOOL as BOOL
    from torchtraceap.core.dtypes import FP32 as FP32
    from torchtraceap.core.dtypes import FP64 as FP64
    from torchtraceap.core.dtypes import INT32 as INT32
    from torchtraceap.core.dtypes import INT64 as INT64
    from torchtraceap.core.dtypes import DType as DType
    from torchtraceap.core.dtypes import dtype_of_code as dtype_of_code
    from torchtraceap.core.dtypes import parse_dtype as parse_dtype
    from torchtraceap.core.formatting import escape_markdown as escape_markdown
    from torchtraceap.core.formatting import format_bytes as format_bytes
    from torchtraceap.core.formatting import format_count as format_count
    from torchtraceap.core.formatting import format_ns as format_ns
    from torchtraceap.core.formatting import format_part as format_part
    from torchtraceap.core.formatting import format_percent as format_percent
    from torchtraceap.core.formatting import format_share as format_share
    from torchtraceap.core.formatting import one_line as one_line
    from torchtraceap.core.formatting import plain_line as plain_line
    from torchtraceap.core.formatting import pluralize as pluralize
    from torchtraceap.core.formatting import replace_controls as replace_controls
    from torchtraceap.core.intervals import covered_ns as covered_ns
    from torchtraceap.core.intervals import difference as difference
    from torchtraceap.core.intervals import overlaps as overlaps
    from torchtraceap.core.intervals import union as union
    from torchtraceap.core.knowledge import load_knowledge as load_knowledge
    from torchtraceap.core.progress import progress_stage as progress_stage
    from torchtraceap.core.records import dataclass as dataclass
    from torchtraceap.core.rendering import Renderable as Renderable
    from torchtraceap.core.rendering import add_renderer as add_renderer
    from torchtraceap.core.rendering import lazy_renderer as lazy_renderer
    from torchtraceap.core.results import GPU_PARTS as GPU_PARTS
    from torchtraceap.core.results import Finding as Finding
    from torchtraceap.core.results import Json as Json
    from torchtraceap.core.results import PredictedTime as PredictedTime
    from torchtraceap.core.results import Result as Result
    from torchtraceap.core.results import Timeline as Timeline
    from torchtraceap.core.stored import check_fields as check_fields
    from torchtraceap.core.stored import parse_value as parse_value
    from torchtraceap.core.stored import read_json as read_json
    from torchtraceap.core.stored import read_json_lines as read_json_lines
    from torchtraceap.core.stored import read_stored as read_stored
    from torchtraceap.core.stored import read_toml as read_toml
    from torchtraceap.core.stored import text_lines as text_lines
    from torchtraceap.core.sums import median as median
    from torchtraceap.core.table import ColumnTable as ColumnTable
    from torchtraceap.core.writing import cache_folder as cache_folder
    from torchtraceap.core.writing import check_target as check_target
    from torchtraceap.core.writing import claim_folder as claim_folder
    from torchtraceap.core.writing import drop_scratch as drop_scratch
    from torchtraceap.core.writing import is_abandoned as is_abandoned
    from torchtraceap.core.writing import naming as naming
    from torchtraceap.core.writing import replacing as replacing
    from torchtraceap.core.writing import replacing_stream as replacing_stream
    from torchtraceap.core.writing import staging as staging
    from torchtraceap.core.writing import write_files as write_files
    from torchtraceap.core.writing import write_paths as write_paths
    from torchtraceap.core.writing import write_text as write_text
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            ".aliases": ("Array", "PathLike"),
            ".codes": (
                "ALLOCATOR_CALLS",
                "API_KINDS",
                "ApiClass",
                "COPY_CALLS",
                "EventKind",
                "LAUNCHES",
                "SYNCHRONISATIONS",
            ),
            ".columns": ("Column", "TextCodes", "encode_json", "encode_texts"),
            ".dtypes": (
                "BOOL",
                "DType",
                "FP32",
                "FP64",
                "INT32",
                "INT64",
                "dtype_of_code",
                "parse_dtype",
            ),
            ".formatting": (
                "escape_markdown",
                "format_bytes",
                "format_count",
                "format_ns",
                "format_part",
                "format_percent",
                "format_share",
                "one_line",
                "plain_line",
                "pluralize",
                "replace_controls",
            ),
            ".intervals": ("covered_ns", "difference", "overlaps", "union"),
            ".knowledge": ("load_knowledge",),
            ".progress": ("progress_stage",),
            ".records": ("dataclass",),
            ".rendering": ("Renderable", "add_renderer", "lazy_renderer"),
            ".results": ("Finding", "GPU_PARTS", "Json", "PredictedTime", "Result", "Timeline"),
            ".stored": (
                "check_fields",
                "parse_value",
                "read_json",
                "read_json_lines",
                "read_stored",
                "read_toml",
                "text_lines",
            ),
            ".sums": ("median",),
            ".table": ("ColumnTable",),
            ".writing": (
                "cache_folder",
                "check_target",
                "claim_folder",
                "drop_scratch",
                "is_abandoned",
                "naming",
                "replacing",
                "replacing_stream",
                "staging",
                "write_files",
                "write_paths",
                "write_text",
            ),
        },
    )
