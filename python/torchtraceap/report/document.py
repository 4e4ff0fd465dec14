"""A self-contained page from a template, a style sheet, the parts of a script, and tables as JSON.

Nothing from a trace becomes markup. Our own words are rendered by Jinja with autoescape; names,
paths and sentences that hold them travel as JSON or inside gzipped columns, and the page shows
them through `textContent` and `fillText` alone. A content security policy allows exactly the one
script and the one style sheet of the page, by hash, and no request of any kind.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap._version import __version__
from torchtraceap.core.aliases import Array
from torchtraceap.core.columns import in_order_of_use
from torchtraceap.core.formatting import (
    column_headings,
    format_count,
    format_ns,
    format_percent,
    keep_units_together,
    one_line,
)

if TYPE_CHECKING:
    import jinja2

    from torchtraceap.core.columns import Column, in_order_of_use
    from torchtraceap.core.table import ColumnTable

__all__ = ["compressed_json", "render_document", "script_json", "table_data"]

TEMPLATES = Path(__file__).with_name("templates")

# Characters that JSON inside a script element must not hold: "</script>", "<!--", and the two line
# separators that are legal in JSON and not in older JavaScript.
_ESCAPES = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


def script_json(value: Any) -> str:
    """Write JSON that is safe inside a script element."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).translate(_ESCAPES)


def compressed_json(value: Any) -> bytes:
    """Write gzipped JSON, for data that the script reads on demand."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return gzip.compress(text.encode("ascii"), compresslevel=6, mtime=0)


def render_document(
    template: str,
    scripts: Sequence[str],
    data: Mapping[str, Any],
    blobs: Mapping[str, bytes],
    **values: Any,
) -> str:
    """Render one page. Pure: the same input gives the same text.

    Args:
        template: Name of the template, which extends `page.html`.
        scripts: Parts of the script, in the order of their first use when it runs.
        data: The JSON for the script; all text from a trace that markup must not hold.
        blobs: Compressed data by the id of the element that carries it.
        values: Further values for the template.
    """
    style = _asset("report.css")
    text = "\n".join(_asset(f"script/{name}.js") for name in scripts)
    script = f'"use strict";\n(() => {{\n{text}}})();\n'  # a scope of its own
    hashes = [
        base64.b64encode(hashlib.sha256(part.encode("utf-8")).digest()).decode("ascii")
        for part in (script, style)
    ]
    policy = (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; "
        f"style-src 'sha256-{hashes[1]}'; base-uri 'none'; form-action 'none'"
    )
    return (
        _environment()
        .get_template(template)
        .render(
            version=__version__,
            policy=policy,
            style=style,
            script=script,
            data=script_json(data),
            blobs={name: base64.b64encode(blob).decode("ascii") for name, blob in blobs.items()},
            percent=lambda share: f"{max(0.0, share) * 100:.3f}".rstrip("0").rstrip("."),
            format_time=format_ns,
            format_percent=format_percent,
            unbroken=keep_units_together,
            format_count=format_count,
            **values,
        )
    )


@cache
def _asset(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


# ---------------------------------------------------------------------------------- tables

MAX_TEXT = 300  # characters of a name or a list in a cell
MAX_INDENT = 80
DIGITS = 6  # significant digits of a rate or a ratio; a cell shows three


def table_data(table: ColumnTable, *, most_rows: int, origin_ns: int = 0) -> dict[str, Any]:
    """Return a table for the page: its first rows, all columns that hold a value, its notes.

    Args:
        table: Any table; its rows stand in the order in which the page first shows them.
        most_rows: Rows to keep.
        origin_ns: Zero of the page's clock: instants become distances from it, which a double of
            JavaScript holds exactly.
    """
    kept = table if table.num_rows <= most_rows else table.take(slice(0, most_rows))
    names = [*table.shown, *(name for name in table.columns if name not in table.shown)]
    filled = [name for name in names if not _is_empty(kept.column(name))]
    titles = dict(zip(names, column_headings(names), strict=True))
    return {
        "columns": [
            {"name": name, "title": titles[name]} | _column(name, kept.column(name), origin_ns)
            for name in filled
        ],
        "shown": sum(name in table.shown for name in filled),
        "rows": kept.num_rows,
        "total": table.num_rows,
        "notes": [one_line(note, 600) for note in table.notes],
    }


def _is_empty(column: Column) -> bool:
    if not isinstance(column, np.ndarray):
        return bool((column.codes < 0).all())
    if column.dtype.kind == "f":
        return not np.isfinite(np.ma.getdata(column)).any()
    return bool(np.ma.getmaskarray(column).all())


def _column(name: str, column: Column, origin_ns: int) -> dict[str, Any]:
    """Return the unit of a column and its plain values: codes of texts, or numbers and None."""
    if not isinstance(column, np.ndarray):
        return _texts(column.codes, column.texts)
    if column.dtype.kind in "OU":
        values = ["" if value is None else str(value) for value in column.tolist()]
        texts, codes = np.unique(np.array(values), return_inverse=True)
        return _texts(codes, texts.tolist())
    unit = "number"
    if name in ("start_ns", "end_ns", "at_ns"):
        unit = "at"
    elif name.startswith("delta_"):
        unit = "delta"
    elif name == "bytes":
        unit = "bytes"
    else:
        ends = {"_ns": "ns", "_share": "share", "_bytes": "bytes", "_gb_per_s": "rate"}
        unit = next((unit for end, unit in ends.items() if name.endswith(end)), unit)
    return {"unit": unit, "values": _numbers(column, unit, origin_ns)}


def _texts(codes: Array, texts: Any) -> dict[str, Any]:
    there = codes >= 0
    used, place = in_order_of_use(codes[there])
    values = np.full(len(codes), -1)
    values[there] = place
    harmless = []
    for text in (texts[code] for code in used.tolist()):
        indent = min(len(text) - len(text.lstrip(" ")), MAX_INDENT)  # of an outline
        harmless.append(" " * indent + one_line(text, MAX_TEXT))
    return {
        "unit": "text",
        "texts": harmless,
        "values": values.tolist(),
    }


def _numbers(column: Array, unit: str, origin_ns: int) -> list[Any]:
    """Return plain values, None where absent, rounded to the precision that a cell can show."""
    values, absent = np.ma.getdata(column), np.ma.getmaskarray(column).copy()
    if values.dtype.kind == "b":
        return [None if gone else bool(v) for v, gone in zip(values, absent, strict=True)]
    if values.dtype.kind == "f":
        absent |= ~np.isfinite(values)
        values = np.where(absent, 0.0, values)
        size = np.abs(values)
        if unit in ("ns", "at", "bytes", "delta") and (size < 2**53).all():
            values = np.rint(values).astype(np.int64)
        else:
            exponent = np.floor(np.log10(np.where(size > 0, size, 1.0)))
            scale = 10.0 ** (DIGITS - 1 - np.clip(exponent, -280, 280))
            values = np.rint(values * scale) / scale
    if unit == "at":
        values = values - origin_ns
    plain: list[Any] = values.tolist()
    if absent.any():
        return [None if gone else v for v, gone in zip(plain, absent.tolist(), strict=True)]
    return plain
