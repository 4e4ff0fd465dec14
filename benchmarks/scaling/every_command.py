"""Command lines of every command of torchtraceap, as it lists them itself: none is forgotten."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from torchtraceap.cli import COMMANDS
from torchtraceap.tables.catalog import TABLES, table_spec

__all__ = ["GOES_ON", "every_command"]

SPECIAL = {
    "diagnose": ("PATH", "PATH --json", "PATH --html OUT/page.html"),
    "report": ("PATH --tracelens-csv OUT/sheets",),
    "simulate": ("PATH", "PATH --plan", "FILE --edit remove_host_sync --trace OUT/fixed.json"),
    "explain-idle": ("PATH",),
    "estimate": (
        "gemm --m 4096 --n 4096 --k 4096 --dtype bf16 --device 'H100 SXM' --calibrate PATH",
    ),
    "summary": ("PATH",),
    "convert": ("FILE OUT/c.json", "FILE OUT/c.json.gz", "FILE OUT/c.parquet"),
    "diff": ("PATH PATH --by op --json", "PATH PATH --html OUT/diff.html"),
    "memory-timeline": ("TIMELINE --json",),
    "merge": ("PATH OUT/m.json",),
    "annotate": ("PATH OUT/a.json.gz", "PATH OUT/a.pftrace"),
    "sql": (
        "PATH 'select count(*) from ops'",
        "PATH 'select name, count(*) from events group by name order by 2'",
    ),
    "replay": ("PATH --json",),
    "completion": ("bash",),
    "predict": (
        "WORKLOAD --device H100-SXM --trace OUT/p.json.gz",
        "WORKLOAD --device H100-SXM --world-size 8 --strategy fsdp2",
    ),
    "generate": ("OUT/set --count 12 --seed 1",),
    "shard": ("TABLES --device 'H100 SXM' --ranks 8",),
    "plan": (
        "WORKLOAD --device H100-SXM=2.5 --device L4=0.6 --samples 1M",
        "--layers 96 --hidden 12288 --heads 96 --sequence 2048 --device 'A100 SXM 80GB=2' "
        "--gpus 256,512 --batch 1536 --tokens 300B",
    ),
    "parallelism": (
        "--layers 96 --hidden 12288 --heads 96 --sequence 2048 --device 'A100 SXM 80GB' --gpus 512 "
        "--batch 1536",
    ),
}
"""Of commands that do not simply take PATH and --json."""
GOES_ON = frozenset(("generate",))
"""Commands that keep what they have written when they are stopped, and go on from there."""
MORE_OF_TABLES = {"tree": ("PATH",), "events": ("PATH --csv OUT/e.csv", "PATH --parquet OUT/e")}
DIFFERENCES = ("kernel", "cause", "finding")


def every_command(all_views: bool = False) -> Iterator[list[str]]:
    """Each with PATH for a trace, FILE for one file of it, TIMELINE for a memory timeline, WORKLOAD
    for a model, TABLES for embedding tables, OUT for a folder to write to; of tables all views or
    the first."""
    for name in COMMANDS:
        lines = SPECIAL.get(name)
        if name in TABLES:
            lines = (*_of_table(name, all_views), *MORE_OF_TABLES.get(name, ()))
        elif name == "diff" and all_views:
            lines = (*SPECIAL[name], *(f"PATH PATH --by {by} --json" for by in DIFFERENCES))
        for line in lines or ("PATH --json",):
            yield [name, *shlex.split(line)]


def _of_table(name: str, all_views: bool) -> Iterator[str]:
    spec = table_spec(name)
    views = spec.views if all_views else spec.views[:1]
    yield from (f"PATH --by {view} --json" for view in views)
    if not views:
        yield "PATH --json"
    for option in spec.options:
        if option.flag == "--compat":
            yield from (f"PATH --compat {choice} --json" for choice in option.choices or ())
