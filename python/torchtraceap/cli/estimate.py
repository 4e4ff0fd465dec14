"""The command `estimate`: the time of a kernel, copy or collective, without a trace."""

from __future__ import annotations

import argparse
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from torchtraceap.cli.catalog import summary_of
from torchtraceap.cli.output import note, print_tables, print_text
from torchtraceap.cli.parser import (
    FINE,
    Command,
    Options,
    UsageError,
    add_json,
    add_no_color,
    arguments,
    option,
    size,
    unknown_word,
    whole_or_not,
)

if TYPE_CHECKING:
    from torchtraceap.ops.durations import Estimate

SCHEMA = "torchtraceap.estimate/1"
_IS_KERNEL = re.compile(r"[nr]ccl(?:Dev)?Kernel_")


def _number(text: str) -> float:
    try:
        return whole_or_not(float(text.replace("_", "")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"a number is needed, not {text!r}") from None


def _embedding_table(text: str) -> tuple[float, float, float]:
    """Parse ROWSxCOLUMNSxLOOKUPS of an embedding table."""
    parts = text.lower().split("x")
    if len(parts) != 3:
        raise argparse.ArgumentTypeError(
            f"a table is ROWSxCOLUMNSxLOOKUPS, such as 1000000x128x20, not {text!r}"
        )
    rows, columns, lookups = (_number(part) for part in parts)
    return rows, columns, lookups


class _Question(NamedTuple):
    """A kind of question: the function that answers it, and the options that are its arguments."""

    function: str
    """Name of a function of `ops.durations`."""
    needed: tuple[str, ...]
    optional: tuple[str, ...] = ()


_COLLECTIVE = _Question("collective_ns", ("bytes", "ranks"), ("nodes", "dtype"))
_QUESTIONS: dict[str, _Question] = {
    **dict.fromkeys(
        (
            "all_reduce",
            "all_gather",
            "reduce_scatter",
            "all_to_all",
            "broadcast",
            "reduce",
            "send_recv",
        ),
        _COLLECTIVE,
    ),
    "gemm": _Question("gemm_ns", ("m", "n", "k", "dtype"), ("batch",)),
    "attention": _Question(
        "attention_ns", ("batch", "heads", "queries", "head_size", "dtype"), ("keys", "causal")
    ),
    "elementwise": _Question("elementwise_ns", ("op", "elements", "dtype")),
    "softmax": _Question("softmax_ns", ("rows", "columns", "dtype")),
    "layer_norm": _Question("layer_norm_ns", ("rows", "columns", "dtype")),
    "copy": _Question("copy_ns", ("bytes", "direction"), ("pinned",)),
    "embedding_bag": _Question("embedding_bag_ns", ("table", "batch"), ("backward", "dtype")),
}
_OWN = ("what", "device", "calibrate", "json", "no_color")


def _question(options: Options) -> _Question:
    """Return the kind of question, once all options that it needs are given and no others."""
    question = _QUESTIONS.get(_canonical(options.what))
    if question is None and _IS_KERNEL.search(options.what):
        question = _COLLECTIVE
    if question is None:
        raise UsageError(f"{unknown_word(options.what, _QUESTIONS)} ({', '.join(_QUESTIONS)})")
    given = set(_given_options(options))
    missing = [name for name in ("device", *question.needed) if name not in given]
    if missing:
        raise UsageError(f"estimate {options.what} needs {_flags(missing)}")
    extra = sorted(given - {*_OWN, *question.needed, *question.optional})
    if extra:
        raise UsageError(f"estimate {options.what} takes no {_flags(extra)}")
    return question


def _canonical(what: str) -> str:
    """Return the name of a question: `allreduce`, `reduce-scatter`, `LayerNorm` are what they look
    like."""

    def plain(name: str) -> str:
        return re.sub(r"[^a-z]", "", name.lower())

    return next((name for name in _QUESTIONS if plain(name) == plain(what)), what)


def _given_options(options: Options) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(options).items()
        if value is not None and value is not False
    }


def _flags(names: list[str]) -> str:
    return ", ".join("--" + name.replace("_", "-") for name in names)


def _ask(question: _Question, options: Options, **more: Any) -> Estimate:
    """Call the function of a question with the options that are given."""
    from torchtraceap.ops import durations
    from torchtraceap.ops.durations.estimate import element_bytes

    names = {"device", *question.needed, *question.optional}
    given = {name: value for name, value in _given_options(options).items() if name in names}
    if "bytes" in given:
        given["size"] = given.pop("bytes")
    if question.function == "collective_ns":
        given["kind"] = _canonical(options.what)
    elif question.function == "attention_ns":
        given.setdefault("keys", options.queries)
    elif question.function == "copy_ns":
        given.setdefault("pinned", None)
    elif question.function == "embedding_bag_ns":
        width = element_bytes(durations.dtype_label(given.pop("dtype", "fp32")))
        given["tables"] = [
            durations.EmbeddingTable(rows, columns, lookups, element_bytes=width)
            for rows, columns, lookups in given.pop("table")
        ]
    # Options come without types, so the answer does: an `Estimate`, as the questions are strict.
    found: Estimate = getattr(durations, question.function)(**given, strict=True, **more)
    return found


def _estimate(options: Options) -> int:
    question = _question(options)
    from torchtraceap.ops.durations import UnknownDurationError
    from torchtraceap.ops.durations.estimate import resolve_device

    try:
        found = _ask(question, options)
    except UnknownDurationError as reason:
        raise UsageError(f"no estimate: {reason}") from None
    if options.calibrate:
        from torchtraceap.cli.input import load
        from torchtraceap.ops.durations import calibrate

        plain, calibration = found, calibrate(load([options.calibrate]))
        found = _ask(question, options, calibration=calibration)
        if found == plain:
            known = ", ".join(calibration.classes) or "none"
            lacks = f"has no such kernels that a model estimates (it has: {known})"
            note(f"{options.calibrate} {lacks}")
    device = resolve_device(options.device).name
    if not options.json:
        from torchtraceap.report.result_tables import estimate_table

        print_tables([estimate_table(options.what, device, found)], options.no_color)
        return FINE
    asked = _given_options(options)
    document = {
        "schema": SCHEMA,
        "what": options.what,
        "asked": {n: v for n, v in asked.items() if n not in ("what", "json", "no_color")},
        "device": device,
        "ns": found.ns,
        "low_ns": found.low_ns,
        "high_ns": found.high_ns,
        "source": found.source,
    }
    print_text(json.dumps(document, separators=(",", ":"), allow_nan=False))
    return FINE


COMMANDS = {
    "estimate": Command(
        summary_of("estimate"),
        arguments(
            option(
                "what",
                metavar="WHAT",
                help=f"{', '.join(_QUESTIONS)}; or the name of an NCCL kernel",
            ),
            option("--device", metavar="NAME", help="a GPU, such as 'H100 SXM' or A100-SXM4-80GB"),
            *(
                option(flag, type=reads, metavar=metavar, help=help_text)
                for flag, reads, metavar, help_text in (
                    (
                        "--bytes",
                        size,
                        "SIZE",
                        "collectives (the larger of a rank's input and output), copy: 256MB, 64MiB",
                    ),
                    ("--ranks", _number, "N", "collectives: members of the group"),
                    ("--nodes", _number, "N", "collectives: machines that the group spans [1]"),
                    ("--dtype", str, "TYPE", "bf16, fp16, fp32, tf32, fp8, ..., or torch.bfloat16"),
                    ("--m", _number, "N", "gemm: rows of the left operand"),
                    ("--n", _number, "N", "gemm: columns of the right operand"),
                    ("--k", _number, "N", "gemm: the size summed over"),
                    (
                        "--batch",
                        _number,
                        "N",
                        "gemm: products at once [1]; attention, embedding_bag: batch",
                    ),
                    ("--heads", _number, "N", "attention"),
                    ("--queries", _number, "N", "attention: length of the sequence"),
                    ("--keys", _number, "N", "attention: length of the keys [that of the queries]"),
                    ("--head-size", _number, "N", "attention: elements of a head"),
                    (
                        "--op",
                        str,
                        "NAME",
                        "elementwise: add, mul, addu (with a scalar), gelu, relu, ...",
                    ),
                    ("--elements", _number, "N", "elementwise: of the result"),
                    ("--rows", _number, "N", "softmax, layer_norm"),
                    ("--columns", _number, "N", "softmax, layer_norm: length of a row"),
                    ("--direction", str, "WAY", "copy: HtoD, DtoH, DtoD"),
                )
            ),
            option(
                "--table",
                type=_embedding_table,
                action="append",
                metavar="ROWSxCOLUMNSxLOOKUPS",
                help="embedding_bag: a table and the lookups of a bag; several times",
            ),
            option("--pinned", action="store_true", help="copy: from or to page-locked memory"),
            option(
                "--causal", action="store_true", help="attention: half of the products are left out"
            ),
            option("--backward", action="store_true", help="embedding_bag: the update of the rows"),
            option(
                "--calibrate",
                metavar="PATH",
                help="correct the models by the kernels of this trace",
            ),
            add_json,
            add_no_color,
        ),
        _estimate,
        (
            "estimate all_reduce --bytes 256MB --ranks 8 --device 'H100 SXM'",
            "estimate gemm --m 4096 --n 4096 --k 4096 --dtype bf16 --device 'H100 SXM'",
        ),
    ),
}
