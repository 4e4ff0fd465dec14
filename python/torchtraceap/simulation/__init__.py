"""Replay a trace from its dependencies, edit it, replay again (docs/simulation.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtraceap.core import lazy_exports

if TYPE_CHECKING:
    from torchtraceap.simulation.edited_trace import event_text as event_text
    from torchtraceap.simulation.edits.view import views as views
    from torchtraceap.simulation.graph_builder import MEETING as MEETING
    from torchtraceap.simulation.graph_builder import STREAM as STREAM
    from torchtraceap.simulation.graph_builder import THREAD as THREAD
    from torchtraceap.simulation.graph_builder import Built as Built
    from torchtraceap.simulation.graph_builder import GraphBuilder as GraphBuilder
    from torchtraceap.simulation.run import SimulatedRun as SimulatedRun
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            ".edited_trace": ("event_text",),
            ".edits.view": ("views",),
            ".graph_builder": ("Built", "GraphBuilder", "MEETING", "STREAM", "THREAD"),
            ".run": ("SimulatedRun",),
        },
    )
