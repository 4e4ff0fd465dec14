"""Commands `bench list`, `run` and `batch-size`, and options that actions of `bench` share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchtraceap.cli import (
    FINDINGS,
    FINE,
    Command,
    Options,
    Parser,
    UsageError,
    add_json,
    add_no_color,
    fraction,
    note,
    positive,
    print_tables,
    seconds,
    size,
)
from torchtraceap.lab.cli import print_document

if TYPE_CHECKING:
    from torchtraceap.lab.bench.runs.batch_size import BatchSearch
    from torchtraceap.lab.bench.runs.config import Protocol, WorkloadConfig
    from torchtraceap.lab.bench.runs.run_store import Store, StoredRun

__all__ = [
    "RUN_ACTIONS",
    "SCHEMA",
    "add_alpha",
    "add_effect",
    "add_protocol",
    "add_run_timeout",
    "add_store",
    "duration",
    "open_store",
    "print_runs",
]

SCHEMA = "torchtraceap.bench/1"
_STDERR_LINES = 5
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def add_store(parser: Parser) -> None:
    """Add the option that names the store, which the actions of `bench` share."""
    parser.add_argument(
        "--store", metavar="DIR", help="where runs are kept [$TORCHTRACEAP_BENCH, else ttap_bench]"
    )


def open_store(options: Options) -> Store:
    """Open the store of `--store`."""
    from torchtraceap.lab.bench.runs.run_store import Store

    return Store(options.store)


def add_effect(parser: Parser, what: str) -> None:
    """Add the option for the minimal effect; `what` says what it does."""
    parser.add_argument(
        "--minimal-effect", type=fraction, default=0.02, metavar="P", help=f"{what} [2%%]"
    )


def add_alpha(parser: Parser, what: str) -> None:
    """Add the option for the error probability; `what` says of what."""
    parser.add_argument("--alpha", type=fraction, default=0.01, metavar="P", help=f"{what} [0.01]")


def add_run_timeout(parser: Parser) -> None:
    """Add the option for the time limit of one run of a program."""
    parser.add_argument(
        "--timeout", type=seconds, metavar="S", help="so long one run may take [forever]"
    )


def add_checkout_options(parser: Parser) -> None:
    """Add the options for what a checkout of each commit needs before the program runs."""
    parser.add_argument(
        "--setup", metavar="COMMAND",
        help="run once in each checkout before the program, such as a build; without a shell",
    )  # fmt: skip
    parser.add_argument(
        "--pythonpath", action="append", default=[], metavar="FOLDER",
        help="of each checkout, put first in PYTHONPATH; several times",
    )  # fmt: skip


def duration(text: str) -> float:
    """Parse a time above 0, such as 90s, 10m or 1h, as seconds."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text[len(number) :]
    try:
        value = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"a time such as 90s, 10m or 1h is needed, not {text!r}")
    return value


def add_protocol(parser: Parser, helps: Sequence[str]) -> None:
    """Add the options that say how often a workload is measured: processes, steps and warm-up."""
    defaults = (("--processes", 3), ("--steps", 20), ("--warmup", 3))
    for (flag, default), said in zip(defaults, helps, strict=True):
        parser.add_argument(
            flag, type=positive, default=default, metavar="N", help=f"{said} [{default}]"
        )


# ------------------------------------------------------------------------- list


def _add_kinds(parser: Parser) -> None:
    parser.add_argument("--domain", metavar="D", help="those of a domain, such as vision")
    parser.add_argument("--task", metavar="T", help="those of a task, such as classification")


def _describe_list(parser: Parser) -> None:
    _add_kinds(parser)
    add_json(parser)
    add_no_color(parser)


def _list(options: Options) -> int:
    from torchtraceap.lab.workloads.registry import workloads

    known = [
        entry
        for entry in workloads()
        if options.domain in (None, entry.domain) and options.task in (None, entry.task)
    ]
    if options.json:
        print_document({"schema": SCHEMA, "workloads": [entry.to_dict() for entry in known]})
        return FINE
    from torchtraceap.report import TextTable

    rows = [
        (
            each.name,
            each.domain,
            each.task,
            "yes" if each.available else f"needs {', '.join(each.missing)}",
            each.exercises,
        )
        for each in known
    ]
    columns = ("name", "domain", "task", "available", "exercises")
    missing = sum(not entry.available for entry in known)
    said = f"{len(known)} workloads, {missing} of which miss a library"
    print_tables([TextTable("", columns, rows, said)], options.no_color)
    return FINE


# ------------------------------------------------------------------------- run


def _add_configuration(parser: Parser) -> None:
    from torchtraceap.lab.workloads.registry import SIZES
    from torchtraceap.lab.workloads.steps import PRECISIONS

    parser.add_argument("--device", default="cpu", metavar="D", help="cpu, cuda or cuda:1 [cpu]")
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="fp32", help=f"{', '.join(PRECISIONS)} [fp32]"
    )
    parser.add_argument("--compile", action="store_true", help="through torch.compile")
    parser.add_argument(
        "--size",
        choices=SIZES,
        default="tiny",
        help="of the suite's models: tiny for a CPU, full for a GPU [tiny]",
    )
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="of an operator on the CPU [as torch does]"
    )
    parser.add_argument(
        "--timeout", type=seconds, default=600.0, metavar="S", help="of each process [600]"
    )


_PROTOCOL_HELP = ("fresh ones, each alone", "measured in each process", "steps before them")


def _describe_run(parser: Parser) -> None:
    from torchtraceap.lab.bench.runs.config import BOTH
    from torchtraceap.lab.workloads.steps import MODES

    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="*",
        help="of the suite or of a package, FILE.py:FUNCTION, package.module:FUNCTION, "
        "torchbench:MODEL",
    )
    parser.add_argument("--all", action="store_true", help="every workload that is listed")
    _add_kinds(parser)
    parser.add_argument("--plan", metavar="TOML", help="configurations from a file instead")
    parser.add_argument(
        "--mode", choices=(*MODES, BOTH), default="train", help="train, eval or both [train]"
    )
    parser.add_argument("--batch", type=positive, metavar="N", help="samples in a step")
    _add_configuration(parser)
    add_protocol(parser, _PROTOCOL_HELP)
    add_store(parser)
    parser.add_argument(
        "--resume",
        action="store_true",
        help="pass over what the store has of the same configuration and environment",
    )
    parser.add_argument("--no-trace", action="store_true", help="record no trace of each")
    add_json(parser)
    add_no_color(parser)


def _run(options: Options) -> int:
    from torchtraceap.errors import OptionError
    from torchtraceap.lab.bench.runs.run import check_device, run_all

    store, asked = open_store(options), _configurations(options)
    protocol = _protocol(options, processes=options.processes, trace=not options.no_trace)
    for device in sorted({each.device for each in asked}):
        check_device(device)
    outcomes = []
    for outcome in run_all(asked, protocol, store, resume=options.resume):
        outcomes.append(outcome)
        said = f"{len(outcomes)}/{len(asked)} {outcome.label}: {outcome.status}"
        note(f"{said}: {outcome.reason}" if outcome.reason else said)
        if outcome.failed and outcome.status != "timed out":
            for line in outcome.stderr.splitlines()[-_STDERR_LINES:-1]:
                note(f"  {line}")
    unfit = [each for each in outcomes if each.unfit]
    if unfit and len(unfit) == len(outcomes):
        raise OptionError(f"nothing could be run: {unfit[0].reason}")
    runs = [store.load(each.run) for each in outcomes if each.run]
    if options.json:
        print_document(
            {
                "schema": SCHEMA,
                "outcomes": [each.to_dict() for each in outcomes],
                "runs": [run.to_dict() for run in runs],
            }
        )
    elif runs:
        print_runs(runs, options)
    return FINDINGS if any(each.failed for each in outcomes) else FINE


def _configurations(options: Options) -> list[WorkloadConfig]:
    from torchtraceap.lab.bench.runs.config import (
        WorkloadConfig,
        expand_modes,
        read_plan,
        select_names,
    )

    if options.plan is not None:
        if options.names or options.all or options.domain or options.task:
            raise UsageError("--plan says itself which workloads are run")
        return read_plan(options.plan)
    names = select_names(
        options.names, everything=options.all, domain=options.domain, task=options.task
    )
    return [
        each
        for name in names
        for each in expand_modes(
            WorkloadConfig(name, batch=options.batch, **_configuration(options)), options.mode
        )
    ]


def _configuration(options: Options) -> dict[str, Any]:
    return {
        "device": options.device,
        "precision": options.precision,
        "compiled": options.compile,
        "size": options.size,
        "threads": options.threads,
    }


def _protocol(options: Options, **more: Any) -> Protocol:
    from torchtraceap.lab.bench.runs.config import Protocol

    return Protocol(steps=options.steps, warmup=options.warmup, timeout_s=options.timeout, **more)


def print_runs(runs: Sequence[StoredRun], options: Options) -> None:
    """Print a table of runs."""
    from torchtraceap.lab.bench.runs.tables import runs_table
    from torchtraceap.report import table_for_reading

    print_tables([table_for_reading(runs_table(runs))], options.no_color)


# ------------------------------------------------------------------------- batch-size


def _describe_batch_size(parser: Parser) -> None:
    from torchtraceap.lab.workloads.steps import MODES

    parser.add_argument("name", metavar="NAME", help="a workload, as run takes it")
    parser.add_argument("--mode", choices=MODES, default="train", help="train or eval [train]")
    parser.add_argument(
        "--memory-ceiling",
        type=size,
        metavar="SIZE",
        help="what a process may take, such as 8GiB: reserved on a GPU, else resident",
    )
    parser.add_argument("--start", type=positive, default=1, metavar="N", help="the first size [1]")
    _add_configuration(parser)
    add_protocol(parser, _PROTOCOL_HELP)
    add_store(parser)
    parser.add_argument("--no-keep", action="store_true", help="only search, and keep no run")
    add_json(parser)
    add_no_color(parser)


def _batch_size(options: Options) -> int:
    import tempfile
    from dataclasses import replace
    from pathlib import Path

    from torchtraceap.lab.bench.runs.batch_size import measure_batches, search_batch
    from torchtraceap.lab.bench.runs.config import WorkloadConfig
    from torchtraceap.lab.bench.runs.run import check_device, measure
    from torchtraceap.lab.bench.runs.run_store import need_parquet

    asked = WorkloadConfig(options.name, mode=options.mode, **_configuration(options))
    protocol = _protocol(options, processes=options.processes)
    ceiling = None if options.memory_ceiling is None else int(options.memory_ceiling)
    check_device(asked.device)
    if not options.no_keep:
        need_parquet()
    kept = None
    with tempfile.TemporaryDirectory(prefix="ttap-batch-") as name:
        folder = Path(name)
        found = search_batch(
            measure_batches(asked, protocol, folder),
            start=options.start,
            memory_ceiling_bytes=ceiling,
        )
        if not options.no_keep:
            run = measure(replace(asked, batch=found.batch), protocol, folder)
            metrics = {**run.metrics, "batch_search": found.to_dict()}
            kept = open_store(options).save(replace(run, metrics=metrics))
    if options.json:
        run_document = kept.to_dict() if kept else None
        print_document({"schema": SCHEMA, "search": found.to_dict(), "run": run_document})
    else:
        _print_search(found, options)
        if kept is not None:
            note(f"kept as run {kept.id}")
    return FINE


def _print_search(found: BatchSearch, options: Options) -> None:
    from torchtraceap.core import format_bytes, format_ns
    from torchtraceap.report import TextTable

    rows = [
        (point.batch, format_ns(round(point.step_ns)), f"{point.samples_per_s:.4g}",
         format_bytes(point.memory_bytes), "<" if point.batch == found.batch else "")
        for point in found.points
    ]  # fmt: skip
    said = [
        f"batch {found.batch}: {found.why}",
        f"a step takes about {format_ns(round(found.fixed_ns))} and "
        f"{format_ns(round(found.sample_ns))} for each sample; at best "
        f"{found.best_samples_per_s:.4g} samples/s",
    ]
    if found.stopped_at is not None:
        said.append(f"a batch of {found.stopped_at} does not fit")
    columns = ("batch", "step", "samples/s", "memory", "")
    print_tables([TextTable("", columns, rows, "\n".join(said))], options.no_color)


RUN_ACTIONS: dict[str, Command] = {
    "list": Command(
        "workloads that there are, and what each exercises",
        _describe_list,
        _list,
        ("bench list", "bench list --domain vision --json"),
    ),
    "run": Command(
        "measure workloads in fresh processes and keep samples, trace and environment",
        _describe_run,
        _run,
        (
            "bench run resnet --mode both",
            "bench run --all --device cuda --size full --precision bf16 --resume",
            "bench run train.py:workload --compile --batch 64",
        ),
    ),
    "batch-size": Command(
        "the smallest batch that reaches nearly all samples per second",
        _describe_batch_size,
        _batch_size,
        ("bench batch-size resnet --memory-ceiling 8GiB",),
    ),
}
