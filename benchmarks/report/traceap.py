"""Every table that torchtraceap has, from the file, or from a folder with a file per rank."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any


def prepare() -> None:
    import torchtraceap.analysis as analysis

    for module in iter_modules(analysis.__path__):
        import_module(f"{analysis.__name__}.{module.name}")


def run(path: str) -> Any:
    import torchtraceap as ttap

    trace = ttap.load(path)
    tables = [
        *(trace.ops(by=by) for by in ("name", "category", "args")),
        trace.modules(),
        *(trace.kernels(by=by) for by in ("name", "canonical")),
        trace.short_kernels(),
        trace.sequences(),
        *(trace.launches(by=by) for by in ("call", "kernel", "stream")),
        trace.roofline(),
        *(trace.memory(by=by) for by in ("direction", "allocator", "timeline")),
        *(trace.host(by=by) for by in ("thread", "op", "frame")),
        trace.steps(),
        trace.collectives(),
        *(trace.ranks_table(by=by) for by in ("rank", "op", "alltoall", "clock")),
        trace.critical_path(),
    ]
    return trace, tables, trace.summary()


def answers(built: Any) -> dict[str, int]:
    timeline = built[2].timeline
    return {"gpu_busy_ns": timeline.busy_ns, "gpu_span_ns": timeline.span_ns}
