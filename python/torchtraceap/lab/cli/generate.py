"""`generate`: labelled traces."""

from __future__ import annotations

from torchtraceap.cli.output import note
from torchtraceap.cli.parser import (
    FINE,
    Command,
    Options,
    Parser,
    add_bases,
    add_jobs,
    add_seed,
    count,
)
from torchtraceap.lab.cli import ENTRIES


def _describe(parser: Parser) -> None:
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
    add_bases(parser, "a trace of one rank to put faults into; several times [predicted runs]")


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


COMMANDS = {
    "generate": Command(
        ENTRIES["generate"].summary,
        _describe,
        _generate,
        (
            "generate traces/ --count 1000 --seed 1 --jobs 2",
            "generate traces/ --count 40 --type high_memcpy --base trace.json.gz",
        ),
    ),
}
