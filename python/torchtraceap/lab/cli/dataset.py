"""`dataset`: labelled traces as tables of Parquet."""

from __future__ import annotations

import os

from torchtraceap.cli.output import note, print_text
from torchtraceap.cli.parser import (
    FINE,
    Command,
    Options,
    Parser,
    UsageError,
    add_bases,
    add_jobs,
    add_json,
    add_seed,
    count,
)
from torchtraceap.lab.cli import ENTRIES

_ACTIONS = {"build": (), "info": (), "export": ("ID", "TRACE"), "add": ("TRACE",)}
"""What each takes behind the folder."""


def _describe(parser: Parser) -> None:
    parser.add_argument("action", metavar="ACTION", choices=_ACTIONS, help=", ".join(_ACTIONS))
    parser.add_argument("out", metavar="OUT", help="the folder of the data set")
    parser.add_argument(
        "rest",
        metavar="WHAT",
        nargs="*",
        help="export: the id of a trace and the file to write; add: a trace of one rank, or a "
        "folder that generate or collect made",
    )
    parser.add_argument(
        "--count",
        type=count,
        metavar="N",
        help="build: how many traces of predicted runs, at least [640]",
    )
    add_seed(parser, "build: the same seed gives the same tables, whatever --jobs is")
    parser.add_argument(
        "--mini", action="store_true", help="build: 32 traces, each type once, for tests"
    )
    parser.add_argument(
        "--resume", action="store_true", help="build: go on where an interrupted build stopped"
    )
    add_jobs(parser, "build: processes that generate")
    add_bases(
        parser,
        "build: a recorded trace of one rank to put faults into, for tests; several times",
    )
    parser.add_argument("--labels", metavar="JSON", help="add: a file with the cost intervals")
    parser.add_argument(
        "--split", metavar="NAME", help="add: the split that the trace is in [none]"
    )
    add_json(parser)


def _run(options: Options) -> int:
    needed = _ACTIONS[options.action]
    if len(options.rest) != len(needed):
        words = " ".join(["dataset", options.action, "OUT", *needed])
        raise UsageError(f"{options.action} is called so: torchtraceap {words}")
    return {"build": _build, "info": _info, "export": _export, "add": _add}[options.action](options)


def _build(options: Options) -> int:
    from torchtraceap.lab.building.build import COUNT, build

    folder = build(
        options.out,
        count=COUNT if options.count is None else options.count,
        seed=options.seed,
        bases=options.base,
        mini=options.mini,
        resume=options.resume,
        jobs=options.jobs,
    )
    note(f"wrote the data set {folder}; its README.md says what is in it")
    return FINE


def _info(options: Options) -> int:
    import json

    from torchtraceap.datasets.reader import DataSet
    from torchtraceap.datasets.statistics import statistics

    dataset = DataSet(options.out)
    found = {"schema": "torchtraceap.dataset/1", **dataset.about, **statistics(dataset)}
    if options.json:
        print_text(json.dumps(found, indent=1))
        return FINE
    cpus = found["cpu_traces"]
    lines = [
        f"{found['traces']} traces of {found['runs']} runs and {found['bases']} bases, "
        f"{found['bytes'] / 1e6:.1f} MB",
        *(
            f"  {split:12}{of['traces']:6} traces, {of['faulty']} with a fault, {of['bases']} bases"
            for split, of in found["splits"].items()
        ),
        *([f"{cpus} traces more are of CPUs, and count in their split alone"] if cpus else []),
        "traces with a fault, by type:",
        *(f"  {name:30}{sum(of['traces'].values()):6}" for name, of in found["types"].items()),
    ]
    print_text("\n".join(lines))
    return FINE


def _export(options: Options) -> int:
    from torchtraceap.lab.building.add import export

    note(f"wrote {export(options.out, *options.rest)}")
    return FINE


def _add(options: Options) -> int:
    from torchtraceap.lab.building.add import add, add_labelled

    (trace,) = options.rest
    if options.labels is not None:
        name = add(options.out, trace, options.labels, split=options.split)
        note(f"added the trace {name} to {options.out}")
    elif os.path.isdir(trace):
        number = add_labelled(options.out, trace, split=options.split)
        note(f"added {number} traces to {options.out}")
    else:
        raise UsageError("add needs --labels JSON: where the trace loses time, and by what")
    return FINE


COMMANDS = {
    "dataset": Command(
        ENTRIES["dataset"].summary,
        _describe,
        _run,
        (
            "dataset build dataset/ --seed 1 --jobs 2",
            "dataset info dataset/ --json",
            "dataset export dataset/ 0000-00 trace.json.gz",
            "dataset add dataset/ trace.json.gz --labels labels.json",
        ),
    ),
}
