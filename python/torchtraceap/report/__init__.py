"""Reports for people: terminal, Jupyter and a page of HTML."""

from __future__ import annotations

from torchtraceap.core.rendering import add_renderer, lazy_renderer

__all__ = ["register"]

_RENDERERS = (
    ("torchtraceap.diagnosis.result.Diagnosis", "page", "page", "render_html"),
    ("torchtraceap.diagnosis.result.Diagnosis", "text", "terminal", "render_text"),
    ("torchtraceap.diagnosis.result.Diagnosis", "headline", "view", "headline_of"),
    ("torchtraceap.diagnosis.result.Diagnosis", "html", "notebook", "diagnosis_html"),
    ("torchtraceap.core.results.Finding", "html", "notebook", "finding_html"),
    ("torchtraceap.core.results.Summary", "html", "notebook", "summary_html"),
    ("torchtraceap.trace.ranks.Ranks", "html", "notebook", "trace_html"),
    ("torchtraceap.simulation.simulate.Simulation", "html", "notebook", "simulation_html"),
    ("torchtraceap.explanation.explanation.Explanation", "text", "explanation", "explanation_text"),
    ("torchtraceap.explanation.explanation.Explanation", "html", "explanation", "explanation_html"),
    ("torchtraceap.tables.tree.TreeView", "text", "result_tables", "tree_text"),
    ("torchtraceap.tables.tree.TreeView", "html", "notebook", "tree_html"),
    ("builtins.object", "text", "result_tables", "result_text"),
    ("builtins.object", "html", "notebook", "result_html"),
)
"""Class, way, module and function; what is not here is shown by its tables
(`result_tables.tables_of`)."""


def register() -> None:
    """Lets results show themselves; what draws them is imported when one is asked for."""
    for kind, way, module, function in _RENDERERS:
        add_renderer(kind, way, lazy_renderer(f"torchtraceap.report.{module}", function))
