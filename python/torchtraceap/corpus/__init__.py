"""Many runs as one thing: a folder of tables that is built in parallel, resumed, and asked in SQL.

`sources.py` finds files and groups them to runs, `analyse.py` makes rows of a run, `executors.py`
runs that in processes or on a cluster, `store.py` keeps the rows as Parquet, `builder.py` ties
these together. `query.py` asks what is there in SQL, `report.py` in views, and `pages.py` shows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtraceap.core import lazy_exports

if TYPE_CHECKING:
    from torchtraceap.corpus.builder import Built as Built
    from torchtraceap.corpus.builder import Engine as Engine
    from torchtraceap.corpus.builder import Selection as Selection
    from torchtraceap.corpus.builder import build as build
    from torchtraceap.corpus.builder import compact as compact
    from torchtraceap.corpus.builder import status as status
    from torchtraceap.corpus.builder import update as update
    from torchtraceap.corpus.builder import verify as verify
    from torchtraceap.corpus.query import run_corpus_sql as run_corpus_sql
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            ".builder": (
                "Built",
                "Engine",
                "Selection",
                "build",
                "compact",
                "status",
                "update",
                "verify",
            ),
            ".query": ("run_corpus_sql",),
        },
    )
