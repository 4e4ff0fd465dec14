"""Reports for people: terminal, Jupyter and a page of HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtraceap.rendering import add_renderer

if TYPE_CHECKING:
    from torchtraceap.results import Diagnosis, Summary
    from torchtraceap.table import ColumnTable

__all__ = ["register"]


def register() -> None:
    """Lets results show themselves; what draws them is imported when one is asked for."""
    from torchtraceap.results import Diagnosis, Summary
    from torchtraceap.table import ColumnTable

    add_renderer(Diagnosis, "page", _diagnosis_page)
    add_renderer(Diagnosis, "text", _diagnosis_text)
    add_renderer(Diagnosis, "headline", _diagnosis_headline)
    add_renderer(Diagnosis, "html", _diagnosis_html)
    add_renderer(Summary, "html", _summary_html)
    add_renderer(ColumnTable, "html", _table_html)


def _diagnosis_page(diagnosis: Diagnosis) -> str:
    from torchtraceap.report.page import render_html

    return render_html(diagnosis)


def _diagnosis_text(diagnosis: Diagnosis) -> str:
    from torchtraceap.report.terminal import render_text

    return render_text(diagnosis)


def _diagnosis_headline(diagnosis: Diagnosis) -> str:
    from torchtraceap.report.view import headline_of

    return headline_of(diagnosis)


def _diagnosis_html(diagnosis: Diagnosis) -> str:
    from torchtraceap.report.notebook import diagnosis_html

    return diagnosis_html(diagnosis)


def _summary_html(summary: Summary) -> str:
    from torchtraceap.report.notebook import summary_html

    return summary_html(summary)


def _table_html(table: ColumnTable) -> str:
    from torchtraceap.report.notebook import table_html

    return table_html(table)
