"""Commands `plan` and `parallelism`: which GPUs for a run, how many, and how it is split."""

from __future__ import annotations

import argparse
import re
import sys
from contextlib import redirect_stdout
from math import inf
from typing import Any

from torchtraceap.cli import (
    FINE,
    UNUSABLE,
    Command,
    Options,
    Parser,
    UsageError,
    add_json,
    add_no_color,
    count,
    load,
    print_tables,
)
from torchtraceap.core import progress_stage
from torchtraceap.lab.cli import ENTRIES, print_document

__all__ = ["COMMANDS"]

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
_MAX_CONFIG_BYTES = 1 << 24


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _whole_numbers(text: str) -> list[int]:
    """Parse whole numbers with commas between them."""
    try:
        return [count(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"whole numbers are needed, not {text!r}") from None


def _describe_model(parser: Parser) -> None:
    """Add the sizes of a transformer, the network between machines and what is searched."""
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
    parser.add_argument(
        "--gpus-per-node", type=count, default=8, metavar="N", help="of a machine [8]"
    )
    parser.add_argument(
        "--node-gbits", type=float, metavar="RATE",
        help="Gbit/s one way between a machine and the others, all adapters together [800]",
    )  # fmt: skip
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
        metavar="STAGE,...",
        help="ZeRO's stages, 0 to 3 [0; of a plan 0,1,3]",
    )


def _model_sizes(options: Options) -> dict[str, Any]:
    """Return the sizes of the configuration, then those of the options."""
    sizes = _read_config(options.config) if options.config else {}
    given = {name: getattr(options, name) for name, _ in _SIZES}
    sizes.update({name: value for name, value in given.items() if value is not None})
    if options.gated:
        sizes["gated"] = True
    return sizes


def _read_config(path: str) -> dict[str, Any]:
    from torchtraceap.core import read_json

    return read_json(path, most=_MAX_CONFIG_BYTES)


# ------------------------------------------------------------------------------- plan


def _describe_plan(parser: Parser) -> None:
    parser.add_argument(
        "source", nargs="?", metavar="SOURCE",
        help="a workload, FILE.py:FUNCTION or package.module:FUNCTION (importing it runs the "
        "file); a recorded step; or a config.json. Without it the sizes below count",
    )  # fmt: skip
    parser.add_argument(
        "--device", action="append", required=True, metavar="NAME[=PRICE]", type=_priced,
        help="a GPU and what an hour of it costs; several times",
    )  # fmt: skip
    parser.add_argument(
        "--gpus", type=_whole_numbers, default=[1], metavar="N,...", help="how many of them [1]"
    )
    parser.add_argument("--tokens", type=_amount, metavar="N", help="of the run, such as 2T")
    parser.add_argument("--samples", type=_amount, metavar="N", help="of the run, such as 90M")
    parser.add_argument(
        "--batch", type=count, metavar="N",
        help="of sizes: sequences of a step over all GPUs; else the leading dimension of a rank's "
        "inputs",
    )  # fmt: skip
    parser.add_argument(
        "--strategy", action="append", default=[], metavar="WAY",
        help="of a workload on several GPUs, as for predict; several times [ddp and fsdp2]",
    )  # fmt: skip
    parser.add_argument("--dtype", metavar="TYPE", help="of the floating point numbers: bf16, ...")
    parser.add_argument(
        "--calibrate", action="append", default=[], metavar="TRACE",
        help="correct durations and host times by a trace from the device; several times",
    )  # fmt: skip
    parser.add_argument(
        "--sort", choices=("price", "time"), help="the best are cheap or fast [price if given]"
    )
    parser.add_argument(
        "--no-flash-attention", action="store_true", help="scores of attention go to memory"
    )
    _describe_model(parser)
    parser.add_argument("--limit", type=count, default=15, metavar="N", help="rows to show [15]")
    add_json(parser)
    add_no_color(parser)


_AMOUNT = re.compile(r"([0-9.]+(?:[eE][0-9]+)?)([KMBTkmbt]?)")
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def _amount(text: str) -> float:
    """Parse a number: 2e12, 2T, 1.5B, 90M."""
    found = _AMOUNT.fullmatch(text)
    try:
        value = float(found[1]) * _UNITS[found[2].lower()] if found else 0.0
    except ValueError:
        value = 0.0
    if not 0 < value < inf:
        raise argparse.ArgumentTypeError(
            f"a number such as 2e12, 2T or 90M is needed, not {text!r}"
        )
    return value


def _priced(text: str) -> tuple[str, float | None]:
    """Parse NAME or NAME=PRICE."""
    name, equals, price = text.rpartition("=")
    try:
        return (name, float(price)) if equals else (text, None)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a price is a number, not {price!r}") from None


def _plan(options: Options) -> int:
    from torchtraceap.lab.planning import plan
    from torchtraceap.lab.planning.text import plan_tables

    sizes = _model_sizes(options)
    if (options.source is None) == (not sizes):
        raise UsageError("plan needs a SOURCE, or the sizes of a model")
    more: dict[str, Any] = {}
    if options.zero is not None:
        more["zero"] = options.zero
    if options.node_gbits is not None:
        more["node_bandwidth"] = options.node_gbits * 1e9 / 8
    with progress_stage("planning"), redirect_stdout(sys.stderr):  # a workload may print
        found = plan(
            options.source if options.source is not None else sizes,
            devices=dict(options.device),
            gpus=options.gpus,
            tokens=options.tokens,
            samples=options.samples,
            batch=options.batch,
            strategies=options.strategy,
            sort=options.sort,
            dtype=options.dtype,
            calibrate=[load([path]) for path in options.calibrate],
            micro_batches=options.micro_batch,
            recompute=options.recompute.split(","),
            flash_attention=not options.no_flash_attention,
            gpus_per_node=options.gpus_per_node,
            **more,
        )
    if options.json:
        print_document(found.to_dict())
    else:
        print_tables(plan_tables(found, limit=options.limit), options.no_color)
    return FINE if found.options else UNUSABLE


# ------------------------------------------------------------------------------- parallelism


def _describe_parallelism(parser: Parser) -> None:
    _describe_model(parser)
    parser.add_argument("--device", metavar="NAME", help="a GPU, such as 'A100 SXM 80GB'")
    parser.add_argument("--gpus", type=count, metavar="N", help="how many of them")
    parser.add_argument("--batch", type=count, metavar="N", help="sequences of a step")
    parser.add_argument(
        "--flash-attention", action="store_true", help="scores of attention stay on the chip"
    )
    parser.add_argument("--limit", type=count, default=15, metavar="N", help="rows to show [15]")
    add_json(parser)
    add_no_color(parser)


def _parallelism(options: Options) -> int:
    missing = [name for name in ("device", "gpus", "batch") if getattr(options, name) is None]
    if missing:
        raise UsageError(f"parallelism needs {', '.join(map(_flag, missing))}")
    from torchtraceap.lab.jobs.parallelism import choose_parallelism, parallelism_tables

    cluster = {
        "device": options.device,
        "gpus": options.gpus,
        "gpus_per_node": options.gpus_per_node,
    }
    if options.node_gbits is not None:
        cluster["node_bandwidth"] = options.node_gbits * 1e9 / 8
    found = choose_parallelism(
        _model_sizes(options),
        cluster,
        global_batch=options.batch,
        micro_batches=options.micro_batch,
        recompute=options.recompute.split(","),
        zero=options.zero or [0],
        flash_attention=options.flash_attention,
    )
    document = found.to_dict()
    if options.json:
        print_document(document)
    else:
        print_tables(parallelism_tables(document, limit=options.limit), options.no_color)
    return FINE if found.strategies else UNUSABLE


COMMANDS = {
    "plan": Command(
        ENTRIES["plan"].summary,
        _describe_plan,
        _plan,
        runs="Runs the file or module that SOURCE names.",
        examples=(
            "plan --config config.json --sequence 8192 --batch 512 --tokens 2T --gpus 64,256 "
            "--device 'H100 SXM=2.5' --device 'A100 SXM 80GB=1.6'",
            "plan model.py:workload --device H100-SXM=2.5 --device L4=0.6 --gpus 1,8 --samples 90M",
        ),
    ),
    "parallelism": Command(
        ENTRIES["parallelism"].summary,
        _describe_parallelism,
        _parallelism,
        examples=(
            "parallelism --layers 24 --hidden 2048 --heads 16 --sequence 2048 --gpus 64 "
            "--device 'A100 SXM 80GB' --batch 512",
            "parallelism --config config.json --sequence 4096 --gpus 16 --device 'H100 SXM' "
            "--batch 256 --flash-attention",
        ),
    ),
}
