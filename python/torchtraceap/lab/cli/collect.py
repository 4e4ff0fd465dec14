"""`collect`: labelled traces of real runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchtraceap.cli.output import note, print_text
from torchtraceap.cli.parser import FINE, Command, Options, Parser, UsageError, add_seed, minutes
from torchtraceap.lab.cli import ENTRIES

if TYPE_CHECKING:
    from torchtraceap.lab.collection.manifest import PlannedPair

_DEVICES = ("cpu", "cuda")
_MINUTES = 10.0
_SHARD = re.compile(r"([1-9]\d*)/([1-9]\d*)")


def _describe(parser: Parser) -> None:
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
        default=_MINUTES,
        metavar="M",
        help="so long this call may take; the next one goes on [10]",
    )
    parser.add_argument(
        "--device",
        choices=_DEVICES,
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
        print_text("\n".join(_lines(entries)))
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


def _lines(entries: Sequence[PlannedPair]) -> list[str]:
    """One for each pair."""
    return [
        f"{entry.index:4} {entry.split:7} {entry.workload.task:15} {entry.workload.name:20} "
        f"{entry.fault.type:28} {entry.fault.name}"
        f"{' (decoy)' if entry.fault.look_alike else ' (test)' if entry.fault.test else ''}"
        for entry in entries
    ]


COMMANDS = {
    "collect": Command(
        ENTRIES["collect"].summary,
        _describe,
        _collect,
        (
            "collect traces/ --device cuda --minutes 10",
            "collect traces/ --manifest own.toml --shard 2/8",
            "collect --list",
        ),
    ),
}
