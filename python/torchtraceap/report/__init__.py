"""Reports for people: terminal, Jupyter and a page of HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtraceap.core import lazy_exports
from torchtraceap.core.rendering import add_renderer, lazy_renderer

if TYPE_CHECKING:
    from torchtraceap.report.diff_page import write_diff_page as write_diff_page
    from torchtraceap.report.document import compressed_json as compressed_json
    from torchtraceap.report.document import render_document as render_document
    from torchtraceap.report.document import table_data as table_data
    from torchtraceap.report.result_tables import MAX_ROWS as MAX_ROWS
    from torchtraceap.report.result_tables import MAX_TEXT as MAX_TEXT
    from torchtraceap.report.result_tables import tables_of as tables_of
    from torchtraceap.report.tables import TextTable as TextTable
    from torchtraceap.report.tables import table_for_reading as table_for_reading
    from torchtraceap.report.view import Segment as Segment
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            ".diff_page": ("write_diff_page",),
            ".document": ("compressed_json", "render_document", "table_data"),
            ".result_tables": ("MAX_ROWS", "MAX_TEXT", "tables_of"),
            ".tables": ("TextTable", "table_for_reading"),
            ".view": ("Segment",),
        },
    )

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
"""Class, way, module and function. Packages above this one add theirs with `add_renderer`."""

_TABLES = {
    "core.table.ColumnTable": "column_tables",
    "core.results.Summary": "summary_tables",
    "core.results.Finding": "finding_tables",
    "tables.serving.serving.Serving": "serving_tables",
    "trace.ranks.Ranks": "trace_tables",
    "trace.ranks.RankTrace": "rank_tables",
    "simulation.simulate.Simulation": "simulation_result_tables",
    "ops.durations.estimate.Estimates": "estimate_tables",
    "ops.durations.calibration.KindTimes": "kind_time_tables",
    "ops.durations.calibration.Calibration": "calibration_tables",
    "trace.execution.ExecutionTrace": "execution_trace_tables",
    "record.session.Recording": "recording_tables",
    "record.trace_handler.TraceHandler": "trace_handler_tables",
}
"""Class, and the function of `result_tables` that gives its tables; other results are shown by
their fields."""


def register() -> None:
    """Register the renderers of results; each is imported on its first use."""
    for kind, way, module, function in _RENDERERS:
        add_renderer(kind, way, lazy_renderer(f"torchtraceap.report.{module}", function))
    for kind, function in _TABLES.items():
        describe = lazy_renderer("torchtraceap.report.result_tables", function)
        add_renderer(f"torchtraceap.{kind}", "tables", describe)
