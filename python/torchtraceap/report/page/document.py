"""A self-contained page from a template, a style sheet and the parts of a script.

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

from torchtraceap._version import __version__
from torchtraceap.core import formatting
from torchtraceap.core.formatting import format_count, format_ns

if TYPE_CHECKING:
    import jinja2

__all__ = ["compressed_json", "render_document", "script_json"]

TEMPLATES = Path(__file__).with_name("templates")

# What JSON inside a script element must not hold: "</script>", "<!--", and the two line
# separators that are legal in JSON and not in older JavaScript.
_ESCAPES = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).translate(_ESCAPES)


def compressed_json(value: Any) -> bytes:
    """JSON, gzipped: what the script reads only when it is asked for."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return gzip.compress(text.encode("ascii"), compresslevel=6, mtime=0)


def render_document(
    template: str,
    scripts: Sequence[str],
    data: Mapping[str, Any],
    blobs: Mapping[str, bytes],
    **values: Any,
) -> str:
    """One page. Pure: the same input gives the same text.

    Args:
        template: Name of the template, which extends `page.html`.
        scripts: Parts of the script, in the order of their first use when it runs.
        data: What the script reads first; all text from a trace that markup must not hold.
        blobs: Compressed data by the id of the element that carries it.
        values: What else the template asks for.
    """
    style, script = _asset("report.css"), _script(tuple(scripts))
    return (
        _environment()
        .get_template(template)
        .render(
            version=__version__,
            policy=_policy(script, style),
            style=style,
            script=script,
            data=script_json(data),
            blobs={name: base64.b64encode(blob).decode("ascii") for name, blob in blobs.items()},
            percent=lambda share: f"{max(0.0, share) * 100:.3f}".rstrip("0").rstrip("."),
            format_time=format_ns,
            format_percent=formatting.format_percent,
            unbroken=formatting.keep_units_together,
            format_count=format_count,
            **values,
        )
    )


@cache
def _asset(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


@cache
def _script(parts: tuple[str, ...]) -> str:
    """The parts of the script as one, in a scope of its own."""
    text = "\n".join(_asset(f"script/{name}.js") for name in parts)
    return f'"use strict";\n(() => {{\n{text}}})();\n'


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


def _policy(script: str, style: str) -> str:
    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")

    return (
        f"default-src 'none'; script-src 'sha256-{digest(script)}'; "
        f"style-src 'sha256-{digest(style)}'; base-uri 'none'; form-action 'none'"
    )
