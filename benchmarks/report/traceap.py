"""Every table that the page shows, from the file, or from a folder with a file per rank."""

from __future__ import annotations

from typing import Any


def prepare() -> None:
    from torchtraceap.tables.catalog import TABLES, table_spec

    for name in TABLES:
        table_spec(name)


def run(path: str) -> Any:
    import torchtraceap as ttap
    from torchtraceap.tables.catalog import TABLES, table_spec

    trace = ttap.load(path)
    tables = [
        spec.make(trace, **view.options) for spec in map(table_spec, TABLES) for view in spec.page
    ]
    return trace, tables, trace.summary()


def answers(built: Any) -> dict[str, int]:
    timeline = built[2].timeline
    return {"gpu_busy_ns": timeline.busy_ns, "gpu_span_ns": timeline.span_ns}
