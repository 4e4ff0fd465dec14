"""The report as one self-contained HTML page.

Nothing from a trace becomes markup. Our own words are rendered by Jinja with autoescape; names,
paths and sentences that hold them travel as JSON or inside the gzipped columns, and the page shows
them through `textContent` and `fillText` alone. A content security policy allows exactly the one
script and the one style sheet of the page, by hash, and no request of any kind.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtraceap._version import __version__
from torchtraceap.report import words
from torchtraceap.report.page import MAX_STEPS, PageSource, pack_rank, page_data, strip
from torchtraceap.report.timeline_data import MAX_BLOB_BYTES
from torchtraceap.report.view import ReportView, Segment, build_view
from torchtraceap.units import format_ns

if TYPE_CHECKING:
    from jinja2 import Template

    from torchtraceap.results import Diagnosis

__all__ = ["render_html", "script_json"]

TEMPLATES = Path(__file__).with_name("templates")
# In the order of their first use when the script runs.
SCRIPT_PARTS = (
    "basics",
    "decode",
    "colours",
    "view",
    "drawing",
    "overview",
    "pointer",
    "focus",
    "tables",
    "start",
)

# What JSON inside a script element must not hold: "</script>", "<!--", and the two line
# separators that are legal in JSON and not in older JavaScript.
_ESCAPES = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).translate(_ESCAPES)


def render_html(diagnosis: Diagnosis) -> str:
    """The whole page. Pure: the same diagnosis gives the same text."""
    view = build_view(diagnosis)
    source = PageSource.build(diagnosis, view)
    per_rank = MAX_BLOB_BYTES // len(source.shown)
    blobs = [pack_rank(source, index, per_rank) for index in source.shown]
    style, script = _asset("report.css"), _script()
    return _template().render(
        view=view,
        version=__version__,
        policy=_policy(script, style),
        style=style,
        script=script,
        data=script_json(page_data(source, blobs)),
        blobs=[base64.b64encode(blob.data).decode("ascii") for blob in blobs],
        bar=list(_bar(view.segments)),
        figures=_figures(view),
        diffs=[_code_diff(entry.code_before, entry.code_after) for entry in view.findings],
        strips=[strip(source, number) for number in range(len(view.findings))],
        idle_ns=sum(segment.time_ns for segment in view.idle),
        ranks=len(source.shown),
        scorer=words.one_line(diagnosis.scorer, 60),
        steps_cut=MAX_STEPS if len(view.steps) > MAX_STEPS else 0,
        percent=lambda share: f"{max(0.0, share) * 100:.3f}".rstrip("0").rstrip("."),
        format_time=format_ns,
        format_percent=words.format_percent,
        format_count=words.format_count,
    )


@cache
def _asset(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    """The parts of the script as one, in a scope of its own."""
    parts = "\n".join(_asset(f"script/{name}.js") for name in SCRIPT_PARTS)
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


@cache
def _template() -> Template:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(_asset("report.html"))


def _policy(script: str, style: str) -> str:
    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")

    return (
        f"default-src 'none'; script-src 'sha256-{digest(script)}'; "
        f"style-src 'sha256-{digest(style)}'; base-uri 'none'; form-action 'none'"
    )


@dataclass(frozen=True, slots=True)
class _BarPart:
    segment: Segment
    left: float


def _bar(segments: Sequence[Segment]) -> Iterator[_BarPart]:
    left = 0.0
    for segment in segments:
        yield _BarPart(segment, left)
        left += segment.share


def _figures(view: ReportView) -> list[tuple[str, str, str]]:
    """The few large numbers under the verdict: name, value, what it is of."""
    figures = []
    if view.step_ns is not None:
        figures.append(("Step", format_ns(round(view.step_ns)), view.step_note))
    profiled = format_ns(view.profiled_ns)
    figures.append(("Profiled", profiled, "per rank, on average" if view.ranks > 1 else "in all"))
    if view.has_gpu:
        busy = format_ns(round(view.busy_share * view.profiled_ns))
        figures.append(("GPU busy", words.format_percent(view.busy_share), busy))
    if view.findings:
        first = view.findings[0]
        note = "at most, by the first finding alone"
        figures.append(("To be saved", first.saves_short, note))
    return figures


def _code_diff(before: str, after: str) -> list[tuple[str, str]]:
    """Lines of both pieces of code as (element, text): del, ins, or span for those they share."""
    old, new = before.splitlines(), after.splitlines()
    lines: list[tuple[str, str]] = []
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            lines += [("span", line) for line in new[j1:j2]]
            continue
        lines += [("del", line) for line in old[i1:i2]]
        lines += [("ins", line) for line in new[j1:j2]]
    return lines
