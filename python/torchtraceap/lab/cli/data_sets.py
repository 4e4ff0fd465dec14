"""Commands `collect`, `generate` and `dataset`: labeled traces, and data sets of them."""

from __future__ import annotations

import os
import re

from torchtraceap.cli import (
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
    minutes,
    note,
    print_text,
)
from torchtraceap.lab.cli import ENTRIES

_SHARD = re.compile(r"([1-9]\d*)/([1-9]\d*)")
_DATASET_ACTIONS = {"build": (), "info": (), "export": ("ID", "TRACE"), "add": ("TRACE",)}
"""The arguments of each action behind the folder."""


def _describe_collect(parser: Parser) -> None:
    parser.add_argument(
        "out", metavar="OUT", nargs="?", help="folder for the traces and labels.jsonl"
    )
    parser.add_argument(
        "--manifest", metavar="TOML", help="workloads and forms [those that are shipped]"
    )
    parser.add_argument(
        "--shard", metavar="I/N", default="1/1", help="only every N-th pair, from the I-th on"
    )
    parser.add_argument(
        "--minutes",
        type=minutes,
        default=10.0,
        metavar="M",
        help="so long this call may take; the next one goes on [10]",
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="cuda for traces of a GPU; those of a cpu try the way out, and are marked so [cpu]",
    )
    add_seed(parser, "of weights, data and orders")
    parser.add_argument("--list", action="store_true", help="print the pairs, and record nothing")


def _collect(options: Options) -> int:
    from torchtraceap.lab.collection.collect import collect
    from torchtraceap.lab.collection.manifest import read_manifest, shard

    parts = _SHARD.fullmatch(options.shard)
    if parts is None:
        raise UsageError(f"--shard: a part such as 2/8 is needed, not {options.shard!r}")
    entries = shard(read_manifest(options.manifest), int(parts[1]), int(parts[2]))
    if options.list:
        lines = [
            f"{entry.index:4} {entry.split:7} {entry.workload.task:15} {entry.workload.name:20} "
            f"{entry.fault.type:28} {entry.fault.name}"
            f"{' (decoy)' if entry.fault.look_alike else ' (test)' if entry.fault.test else ''}"
            for entry in entries
        ]
        print_text("\n".join(lines))
        return FINE
    if options.out is None:
        raise UsageError("give a folder: torchtraceap collect OUT")
    found = collect(
        options.out, entries, minutes=options.minutes, device=options.device, seed=options.seed
    )
    note(
        f"wrote {found.labels}: {found.accepted} pairs with a fault, {found.benign} whose fault "
        f"costs too little, {found.decoys} decoys; left out {len(found.left_out)}, "
        f"to do {found.to_do}"
    )
    for entry, reason in found.left_out.items():
        note(f"left out: {entry}: {reason}")
    return FINE


def _describe_generate(parser: Parser) -> None:
    parser.add_argument("out", metavar="OUT", help="folder for the traces and labels.jsonl")
    parser.add_argument(
        "--count",
        type=count,
        required=True,
        metavar="N",
        help="how many traces; each with a fault has a twin without it, which counts",
    )
    add_seed(parser, "the same seed gives the same bytes, whatever --jobs is")
    parser.add_argument(
        "--type",
        action="append",
        default=[],
        metavar="TYPE",
        help="only such faults, and decoys that look like them; several times [all]",
    )
    parser.add_argument(
        "--task",
        action="append",
        default=[],
        metavar="TASK",
        help="only workloads of this task; several times; with --base the task of that [all]",
    )
    add_jobs(parser, "processes that generate")
    add_bases(parser, "a single-rank trace to put faults into; several times [predicted runs]")


def _generate(options: Options) -> int:
    from torchtraceap.lab.generation.generate import generate

    labels = generate(
        options.out,
        options.count,
        options.seed,
        types=options.type,
        tasks=options.task,
        bases=options.base,
        jobs=options.jobs,
    )
    note(f"wrote {options.count} traces and {labels}")
    return FINE


def _describe_dataset(parser: Parser) -> None:
    parser.add_argument(
        "action", metavar="ACTION", choices=_DATASET_ACTIONS, help=", ".join(_DATASET_ACTIONS)
    )
    parser.add_argument("out", metavar="OUT", help="the folder of the data set")
    parser.add_argument(
        "rest",
        metavar="WHAT",
        nargs="*",
        help="export: the id of a trace and the file to write; add: a single-rank trace, or a "
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
        "build: a recorded single-rank trace to put faults into, for tests; several times",
    )
    parser.add_argument("--labels", metavar="JSON", help="add: a file with the cost intervals")
    parser.add_argument(
        "--split", metavar="NAME", help="add: the split that the trace is in [none]"
    )
    add_json(parser)


def _dataset(options: Options) -> int:
    needed = _DATASET_ACTIONS[options.action]
    if len(options.rest) != len(needed):
        words = " ".join(["dataset", options.action, "OUT", *needed])
        raise UsageError(f"{options.action} is called so: torchtraceap {words}")
    if options.action == "info":
        _print_info(options)
    elif options.action == "build":
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
    elif options.action == "export":
        from torchtraceap.lab.building.add import export

        note(f"wrote {export(options.out, *options.rest)}")
    else:
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


def _print_info(options: Options) -> None:
    import json

    from torchtraceap.datasets import DataSet, statistics

    dataset = DataSet(options.out)
    found = {"schema": "torchtraceap.dataset/1", **dataset.about, **statistics(dataset)}
    if options.json:
        print_text(json.dumps(found, indent=1))
        return
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


COMMANDS = {
    "collect": Command(
        ENTRIES["collect"].summary,
        _describe_collect,
        _collect,
        (
            "collect traces/ --device cuda --minutes 10",
            "collect traces/ --manifest own.toml --shard 2/8",
            "collect --list",
        ),
    ),
    "generate": Command(
        ENTRIES["generate"].summary,
        _describe_generate,
        _generate,
        (
            "generate traces/ --count 1000 --seed 1 --jobs 2",
            "generate traces/ --count 40 --type high_memcpy --base trace.json.gz",
        ),
    ),
    "dataset": Command(
        ENTRIES["dataset"].summary,
        _describe_dataset,
        _dataset,
        (
            "dataset build dataset/ --seed 1 --jobs 2",
            "dataset info dataset/ --json",
            "dataset export dataset/ 0000-00 trace.json.gz",
            "dataset add dataset/ trace.json.gz --labels labels.json",
        ),
    ),
}
