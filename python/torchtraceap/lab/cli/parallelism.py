"""The command `parallelism`, which finds the fastest way to split a training job over GPUs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from torchtraceap.cli.output import print_tables, print_text
from torchtraceap.cli.parser import (
    FINE,
    UNUSABLE,
    Command,
    Options,
    Parser,
    UsageError,
    add_json,
    add_no_color,
    count,
)
from torchtraceap.lab.cli import ENTRIES

_SIZES = (
    ("layers", "layers of the model"),
    ("hidden", "hidden size"),
    ("heads", "attention heads"),
    ("sequence", "tokens of a sequence"),
    ("vocabulary", "size of the vocabulary [51200]"),
    ("feed_forward", "inner size of the feed-forward network [4 times the hidden size]"),
    ("head_size", "elements of a head [hidden size over heads]"),
    ("key_value_heads", "heads of keys and values [as many as heads]"),
)
MAX_CONFIG_BYTES = 1 << 24


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _whole_numbers(text: str) -> list[int]:
    """Parse whole numbers with commas between them."""
    try:
        return [count(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"whole numbers are needed, not {text!r}") from None


def _describe(parser: Parser) -> None:
    for name, help_text in _SIZES:
        parser.add_argument(_flag(name), type=count, metavar="N", help=help_text)
    parser.add_argument(
        "--gated", action="store_true", help="the feed-forward network has a third matrix (SwiGLU)"
    )
    parser.add_argument(
        "--config",
        metavar="JSON",
        help="a config.json with the model's sizes; options go before it",
    )
    parser.add_argument("--device", metavar="NAME", help="a GPU, such as 'A100 SXM 80GB'")
    parser.add_argument("--gpus", type=count, metavar="N", help="how many of them")
    parser.add_argument(
        "--gpus-per-node", type=count, default=8, metavar="N", help="of one machine [8]"
    )
    parser.add_argument(
        "--node-gbits", type=float, metavar="RATE",
        help="Gbit/s one way between a machine and the others, all adapters together [800]",
    )  # fmt: skip
    parser.add_argument("--batch", type=count, metavar="N", help="sequences of a step")
    parser.add_argument(
        "--micro-batch", type=_whole_numbers, default=[], metavar="N,...",
        help="micro-batches to try [powers of two to 64]",
    )  # fmt: skip
    parser.add_argument(
        "--recompute", default="none,selective,full", metavar="WAY,...",
        help="what may be computed again: none, selective, full [all]",
    )  # fmt: skip
    parser.add_argument(
        "--zero",
        type=_whole_numbers,
        default=[0],
        metavar="STAGE,...",
        help="ZeRO's stages, 0 to 3 [0]",
    )
    parser.add_argument(
        "--flash-attention", action="store_true", help="scores of attention stay on the chip"
    )
    parser.add_argument("--limit", type=count, default=15, metavar="N", help="rows to show [15]")
    add_json(parser)
    add_no_color(parser)


def _model(options: Options) -> dict[str, Any]:
    """Return sizes by name: those of the file, then those of the options."""
    sizes: dict[str, Any] = {}
    if options.config:
        sizes = _read(options.config)
    given = {name: getattr(options, name) for name, _ in _SIZES}
    sizes.update({name: value for name, value in given.items() if value is not None})
    if options.gated:
        sizes["gated"] = True
    return sizes


def _read(path: str) -> dict[str, Any]:
    file = Path(path)
    try:
        if file.stat().st_size > MAX_CONFIG_BYTES:
            raise UsageError(f"{path}: too large for a configuration")
        told = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "it is not JSON"
        raise UsageError(f"{path}: {reason}") from None
    if not isinstance(told, dict):
        raise UsageError(f"{path}: an object with the model's sizes is needed")
    return told


def _choose(options: Options) -> int:
    missing = [name for name in ("device", "gpus", "batch") if getattr(options, name) is None]
    if missing:
        raise UsageError(f"parallelism needs {', '.join(map(_flag, missing))}")
    from torchtraceap.lab.jobs.parallelism import choose_parallelism

    cluster = {
        "device": options.device,
        "gpus": options.gpus,
        "gpus_per_node": options.gpus_per_node,
    }
    if options.node_gbits is not None:
        cluster["node_bandwidth"] = options.node_gbits * 1e9 / 8
    found = choose_parallelism(
        _model(options),
        cluster,
        global_batch=options.batch,
        micro_batches=options.micro_batch,
        recompute=options.recompute.split(","),
        zero=options.zero,
        flash_attention=options.flash_attention,
    )
    document = found.to_dict()
    if options.json:
        print_text(json.dumps(document, separators=(",", ":"), allow_nan=False))
    else:
        from torchtraceap.lab.jobs.text import parallelism_tables

        print_tables(parallelism_tables(document, limit=options.limit), options.no_color)
    return FINE if found.strategies else UNUSABLE


COMMANDS = {
    "parallelism": Command(
        ENTRIES["parallelism"].summary,
        _describe,
        _choose,
        (
            "parallelism --layers 24 --hidden 2048 --heads 16 --sequence 2048 --gpus 64 "
            "--device 'A100 SXM 80GB' --batch 512",
            "parallelism --config config.json --sequence 4096 --gpus 16 --device 'H100 SXM' "
            "--batch 256 --flash-attention",
        ),
    ),
}
