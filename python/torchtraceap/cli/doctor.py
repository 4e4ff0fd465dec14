"""The command `doctor`: what is installed, what a recording on this machine can show, whether the
networks load, and a bundle for a bug report in which no name of the user's stands."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtraceap._version import __version__
from torchtraceap.cli.catalog import summary_of
from torchtraceap.cli.input import load
from torchtraceap.cli.output import note, print_text
from torchtraceap.cli.parser import (
    FINE,
    Command,
    Options,
    UsageError,
    add_json,
    arguments,
    option,
    trace_path,
)

if TYPE_CHECKING:
    from torchtraceap.trace.trace import Trace

SCHEMA = "torchtraceap.doctor/1"
_MOST_KERNELS = 200
_PARAMETERS = Path("/proc/driver/nvidia/params")
_DEVICES = ("/dev/kfd", "/dev/nvidiactl")
"""Files that a process must be able to open to use a GPU of AMD or NVIDIA."""


def _doctor(options: Options) -> int:
    if options.trace and not options.bundle:
        raise UsageError("--trace goes with --bundle FILE")
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "versions": {
            "torchtraceap": __version__,
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "libc": " ".join(platform.libc_ver()),
        },
        "packages": _packages(),
        "scorers": _scorers(),
        "recording": _recording(),
    }
    if options.bundle:
        from torchtraceap.core.writing import write_text

        trace = load([options.trace]) if options.trace else None
        document |= {"trace": _trace_part(trace) if trace else None}
        inputs = [part.path for part in trace.ranks] if trace else []
        write_text(options.bundle, json.dumps(document, indent=1), inputs=inputs)
        note(f"wrote {options.bundle}; read it before you send it")
    print_text(json.dumps(document) if options.json else "\n".join(_lines(document)))
    return FINE


def _packages() -> dict[str, str | None]:
    """Return the versions of what torchtraceap can use, None for what is not installed."""
    try:
        wanted = importlib.metadata.requires("torchtraceap") or []
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        wanted = []
    skipped = re.compile(r"extra == .(?:test|lint|peers|fuzz|local-model).")
    names = {"numpy", "rich", "jinja2", "torch"}
    for requirement in wanted:
        if not skipped.search(requirement):
            names.add(re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0].lower())
    found: dict[str, str | None] = {}
    for name in sorted(names):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def _scorers() -> dict[str, str]:
    """Return "loads" for each scorer, or why it does not."""
    from torchtraceap.diagnosis.scoring import SCORERS, load_scorer
    from torchtraceap.errors import TraceError

    said = {}
    for name in SCORERS:
        try:
            load_scorer(name)
            said[name] = "loads"
        except (TraceError, OSError, ImportError) as error:
            said[name] = str(error)
    return said


def _recording() -> dict[str, Any]:
    """Return what a short recording on this machine holds, and what keeps it from holding more."""
    hints = list(_missing_permissions())
    try:  # a broken installation or driver raises all kinds
        import torch
        from torch.profiler import ProfilerActivity, profile, supported_activities

        usable = torch.cuda.is_available()
        activities = supported_activities()
        with _quiet(), profile(activities=list(activities)) as recorded:
            value = torch.ones(64, 64, device="cuda" if usable else "cpu")
            (value @ value).sum().item()
        events = recorded.events() or []
        gpu = torch.cuda.get_device_name() if usable else None
    except Exception as error:
        hints.append(f"PyTorch does not record: {error}")
        return {"gpu": None, "operators": 0, "kernels": 0, "hints": hints}
    kernels = sum(1 for event in events if event.device_type.name != "CPU")
    if not usable:
        hints.append("no GPU that PyTorch can use: a recording holds the host's work only")
    elif ProfilerActivity.CUDA not in activities:
        hints.append("this PyTorch is built without a profiler of GPUs (CUPTI or roctracer)")
    elif not kernels:
        hints.append("no kernels recorded: another profiler (nsys, ncu, DCGM) may hold the GPU")
    return {
        "gpu": gpu,
        "operators": len(events) - kernels,
        "kernels": kernels,
        "hints": hints,
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the profiler's native code writes to standard error off the terminal."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _missing_permissions() -> Iterator[str]:
    for device in _DEVICES:
        if os.path.exists(device) and not os.access(device, os.R_OK | os.W_OK):
            yield f"this user may not open {device}: ask for its group"
    try:
        restricted = "RmProfilingAdminOnly: 1" in _PARAMETERS.read_text()
    except OSError:
        return
    if restricted:
        yield (
            "hardware counters are for administrators only (RmProfilingAdminOnly); kernels and "
            "copies are recorded all the same"
        )


def _trace_part(trace: Trace) -> dict[str, Any]:
    """Return counts, times and types of a trace, its names redacted."""
    from torchtraceap.explanation.redaction import Redaction

    diagnosis = trace.diagnose()
    shown = Redaction().shown
    kernels = trace.kernels()
    columns = [kernels[key].tolist() for key in ("name", "count", "sum_ns")]
    return {
        "events": diagnosis.summary.events.total,
        "ranks": len(trace.ranks),
        "diagnostics": {entry.code: entry.count for entry in trace.diagnostics},
        "quality": [[note.code, note.count] for note in diagnosis.summary.quality.notes],
        "time_ns": dict(diagnosis.time_ns),
        "verdicts": dict(diagnosis.verdicts),
        "findings": [[f.type, f.cost_ns, f.confidence] for f in diagnosis.findings],
        "kernels": [
            [shown(name), count, time]
            for name, count, time in list(zip(*columns, strict=True))[:_MOST_KERNELS]
        ],
    }


def _lines(document: dict[str, Any]) -> Iterator[str]:
    yield from (f"{name:<13}{version}" for name, version in document["versions"].items())
    yield ""
    present = {name: found for name, found in document["packages"].items() if found}
    yield from (f"{name:<29}{found}" for name, found in present.items())
    absent = [name for name in document["packages"] if name not in present]
    if absent:
        yield f"not installed: {', '.join(absent)}"
    yield ""
    yield from (f"scorer {name:<12}{said}" for name, said in document["scorers"].items())
    yield ""
    recorded = document["recording"]
    gpu = recorded["gpu"] or "this machine without a GPU"
    yield (
        f"A recording of a matrix product on {gpu} holds {recorded['operators']} host events and "
        f"{recorded['kernels']} GPU events."
    )
    yield from (f"- {hint}" for hint in recorded["hints"])
    yield ""
    yield "A bundle for a bug report: torchtraceap doctor --bundle bug.json --trace PATH"


COMMANDS = {
    "doctor": Command(
        summary_of("doctor"),
        arguments(
            option(
                "--bundle",
                metavar="FILE",
                help="also write a JSON file for a bug report: no paths, names replaced",
            ),
            option(
                "--trace",
                type=trace_path,
                metavar="PATH",
                help="with --bundle: add counts, times and findings of this trace",
            ),
            add_json,
        ),
        _doctor,
        ("doctor", "doctor --bundle bug.json --trace trace.json.gz"),
    )
}
