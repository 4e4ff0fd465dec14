"""Reports for people: terminal, Jupyter and a page of HTML."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torchtraceap.rendering import add_renderer

__all__ = ["register"]

_RENDERERS = (
    ("torchtraceap.results.Diagnosis", "page", "page", "render_html"),
    ("torchtraceap.results.Diagnosis", "text", "terminal", "render_text"),
    ("torchtraceap.results.Diagnosis", "headline", "view", "headline_of"),
    ("torchtraceap.results.Diagnosis", "html", "notebook", "diagnosis_html"),
    ("torchtraceap.results.Finding", "html", "notebook", "finding_html"),
    ("torchtraceap.results.Summary", "html", "notebook", "summary_html"),
    ("torchtraceap.ranks.Ranks", "html", "notebook", "trace_html"),
    ("torchtraceap.simulation.simulate.Simulation", "html", "notebook", "simulation_html"),
    ("torchtraceap.llm.explanation.Explanation", "text", "explanation", "explanation_text"),
    ("torchtraceap.llm.explanation.Explanation", "html", "explanation", "explanation_html"),
    ("torchtraceap.tree.TreeView", "text", "any_result", "tree_text"),
    ("torchtraceap.tree.TreeView", "html", "notebook", "tree_html"),
    ("builtins.object", "text", "any_result", "result_text"),
    ("builtins.object", "html", "notebook", "result_html"),
)
"""Class, way, module and function; what is not here is shown by its tables
(`any_result.tables_of`)."""


def register() -> None:
    """Lets results show themselves; what draws them is imported when one is asked for."""
    for kind, way, module, function in _RENDERERS:
        add_renderer(kind, way, _later(f"torchtraceap.report.{module}", function))


def _later(module: str, function: str) -> Callable[[Any], str]:
    def draw(result: Any) -> str:
        text: str = getattr(import_module(module), function)(result)
        return text

    return draw
