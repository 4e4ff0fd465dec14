"""Files of a profiler as the ranks of a `Trace`, and PyTorch's execution traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtraceap.core import lazy_exports

if TYPE_CHECKING:
    from torchtraceap.trace.event_columns import Texts as Texts
    from torchtraceap.trace.event_columns import event_table as event_table
    from torchtraceap.trace.execution.reader import Access as Access
    from torchtraceap.trace.execution.reader import Arguments as Arguments
    from torchtraceap.trace.execution.reader import Node as Node
    from torchtraceap.trace.execution.reader import open_text as open_text
    from torchtraceap.trace.execution.reader import read_nodes as read_nodes
    from torchtraceap.trace.files import looks_like_trace_name as looks_like_trace_name
    from torchtraceap.trace.loader import load as load
    from torchtraceap.trace.ranks import Ranks as Ranks
    from torchtraceap.trace.ranks import RankTrace as RankTrace
    from torchtraceap.trace.ranks import parse_recorded as parse_recorded
    from torchtraceap.trace.trace import Trace as Trace
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            ".event_columns": ("Texts", "event_table"),
            ".execution.reader": ("Access", "Arguments", "Node", "open_text", "read_nodes"),
            ".files": ("looks_like_trace_name",),
            ".loader": ("load",),
            ".ranks": ("RankTrace", "Ranks", "parse_recorded"),
            ".trace": ("Trace",),
        },
    )
