"""The command `estimate`: the time of a kernel, copy or collective, without a trace."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torchtraceap.cli.catalog import summary_of
from torchtraceap.cli.output import note, print_tables, print_text
from torchtraceap.cli.parser import (
    FINE,
    Command,
    Options,
    Parser,
    UsageError,
    add_json,
    add_no_color,
    size,
    unknown_word,
    whole_or_not,
)
from torchtraceap.core.records import dataclass

if TYPE_CHECKING:
    from torchtraceap.ops.durations import Estimate

SCHEMA = "torchtraceap.estimate/1"
_IS_KERNEL = re.compile(r"[nr]ccl(?:Dev)?Kernel_")

Ask = Callable[[Options, Mapping[str, Any]], Any]
# Options come without types, so answers do: an `Estimate`, as the questions are strict.


def _number(text: str) -> float:
    try:
        return whole_or_not(float(text.replace("_", "")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"a number is needed, not {text!r}") from None


def _table(text: str) -> tuple[float, float, float]:
    """ROWSxCOLUMNSxLOOKUPS of an embedding table."""
    parts = text.lower().split("x")
    if len(parts) != 3:
        raise argparse.ArgumentTypeError(
            f"a table is ROWSxCOLUMNSxLOOKUPS, such as 1000000x128x20, not {text!r}"
        )
    rows, columns, lookups = (_number(part) for part in parts)
    return rows, columns, lookups


@dataclass(frozen=True, slots=True)
class _Question:
    """A kind of question: its options, and the function that answers it."""

    needed: tuple[str, ...]
    ask: Ask
    optional: tuple[str, ...] = ()


def _or(value: Any, default: Any) -> Any:
    """0 is given too, and then wrong."""
    return default if value is None else value


def _ask_collective(options: Options, more: Mapping[str, Any]) -> Any:
    from torchtraceap.ops.durations import collective_ns

    return collective_ns(
        _canonical(options.what), options.bytes, options.ranks, options.device,
        _or(options.nodes, 1), dtype=options.dtype or "", **more,
    )  # fmt: skip


def _ask_gemm(options: Options, more: Mapping[str, Any]) -> Any:
    from torchtraceap.ops.durations import gemm_ns

    return gemm_ns(
        options.m,
        options.n,
        options.k,
        options.dtype,
        options.device,
        _or(options.batch, 1),
        **more,
    )


def _ask_attention(options: Options, more: Mapping[str, Any]) -> Any:
    from torchtraceap.ops.durations import attention_ns

    return attention_ns(
        options.batch, options.heads, options.queries, _or(options.keys, options.queries),
        options.head_size, options.dtype, options.device, causal=options.causal, **more,
    )  # fmt: skip


def _ask_elementwise(options: Options, more: Mapping[str, Any]) -> Any:
    from torchtraceap.ops.durations import elementwise_ns

    return elementwise_ns(options.op, options.elements, options.dtype, options.device, **more)


def _ask_softmax(options: Options, more: Mapping[str, Any]) -> Any:
    from torchtraceap.ops.durations import softmax_ns

    return softmax_ns(options.rows, options.columns, options.dtype, options.device, **more)


def _ask_layer_norm(options: Options, more: Mapping[str, Any]) -> Any:
    from torchtraceap.ops.durations import layer_norm_ns

    return layer_norm_ns(options.rows, options.columns, options.dtype, options.device, **more)


def _ask_copy(options: Options, more: Mapping[str, Any]) -> Any:
    from torchtraceap.ops.durations import copy_ns

    pinned = options.pinned if options.pinned else None
    return copy_ns(options.bytes, options.direction, pinned, options.device, **more)


def _ask_embedding_bag(options: Options, more: Mapping[str, Any]) -> Any:
    from torchtraceap.ops.durations import EmbeddingTable, dtype_label, embedding_bag_ns
    from torchtraceap.ops.durations.estimate import element_bytes

    width = element_bytes(dtype_label(options.dtype or "fp32"))
    tables = [
        EmbeddingTable(rows, columns, lookups, element_bytes=width)
        for rows, columns, lookups in options.table
    ]
    return embedding_bag_ns(
        tables, options.batch, options.device, backward=options.backward, **more
    )


_COLLECTIVE = _Question(("bytes", "ranks"), _ask_collective, ("nodes", "dtype"))
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
    "gemm": _Question(("m", "n", "k", "dtype"), _ask_gemm, ("batch",)),
    "attention": _Question(
        ("batch", "heads", "queries", "head_size", "dtype"), _ask_attention, ("keys", "causal")
    ),
    "elementwise": _Question(("op", "elements", "dtype"), _ask_elementwise),
    "softmax": _Question(("rows", "columns", "dtype"), _ask_softmax),
    "layer_norm": _Question(("rows", "columns", "dtype"), _ask_layer_norm),
    "copy": _Question(("bytes", "direction"), _ask_copy, ("pinned",)),
    "embedding_bag": _Question(("table", "batch"), _ask_embedding_bag, ("backward", "dtype")),
}


def _describe(parser: Parser) -> None:
    parser.add_argument(
        "what", metavar="WHAT", help=f"{', '.join(_QUESTIONS)}; or the name of an NCCL kernel"
    )
    parser.add_argument(
        "--device", metavar="NAME", help="a GPU, such as 'H100 SXM' or A100-SXM4-80GB"
    )
    for flag, reads, metavar, help_text in (
        ("--bytes", size, "SIZE", "collectives (the larger of a rank's input and output), copy: "
         "256MB, 64MiB"),
        ("--ranks", _number, "N", "collectives: members of the group"),
        ("--nodes", _number, "N", "collectives: machines that the group spans [1]"),
        ("--dtype", str, "TYPE", "bf16, fp16, fp32, tf32, fp8, ..., or torch.bfloat16"),
        ("--m", _number, "N", "gemm: rows of the left operand"),
        ("--n", _number, "N", "gemm: columns of the right operand"),
        ("--k", _number, "N", "gemm: the size summed over"),
        ("--batch", _number, "N", "gemm: products at once [1]; attention, embedding_bag: batch"),
        ("--heads", _number, "N", "attention"),
        ("--queries", _number, "N", "attention: length of the sequence"),
        ("--keys", _number, "N", "attention: length of the keys [that of the queries]"),
        ("--head-size", _number, "N", "attention: elements of a head"),
        ("--op", str, "NAME", "elementwise: add, mul, addu (with a scalar), gelu, relu, ..."),
        ("--elements", _number, "N", "elementwise: of the result"),
        ("--rows", _number, "N", "softmax, layer_norm"),
        ("--columns", _number, "N", "softmax, layer_norm: length of a row"),
        ("--direction", str, "WAY", "copy: HtoD, DtoH, DtoD"),
    ):  # fmt: skip
        parser.add_argument(flag, type=reads, metavar=metavar, help=help_text)
    parser.add_argument(
        "--table", type=_table, action="append", metavar="ROWSxCOLUMNSxLOOKUPS",
        help="embedding_bag: a table and the lookups of one bag; several times",
    )  # fmt: skip
    for flag, help_text in (
        ("--pinned", "copy: from or to page-locked memory"),
        ("--causal", "attention: half of the products are left out"),
        ("--backward", "embedding_bag: the update of the rows"),
    ):
        parser.add_argument(flag, action="store_true", help=help_text)
    parser.add_argument(
        "--calibrate", metavar="PATH", help="correct the models by the kernels of this trace"
    )
    add_json(parser)
    add_no_color(parser)


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
    """`allreduce`, `reduce-scatter`, `LayerNorm` are what they look like."""
    plain = _plain(what)
    return next((name for name in _QUESTIONS if _plain(name) == plain), what)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())


def _given_options(options: Options) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(options).items()
        if value is not None and value is not False
    }


def _flags(names: list[str]) -> str:
    return ", ".join("--" + name.replace("_", "-") for name in names)


def _estimate(options: Options) -> int:
    question = _question(options)
    from torchtraceap.ops.durations import UnknownDurationError

    try:
        found: Estimate = question.ask(options, {"strict": True})
    except UnknownDurationError as reason:
        raise UsageError(f"no estimate: {reason}") from None
    if options.calibrate:
        found = _calibrate(question, options, found)
    from torchtraceap.ops.durations.estimate import resolve_device

    device = resolve_device(options.device).name
    if options.json:
        print_text(_document(options, device, found))
    else:
        from torchtraceap.report.result_tables import estimate_table

        print_tables([estimate_table(options.what, device, found)], options.no_color)
    return FINE


def _calibrate(question: _Question, options: Options, plain: Estimate) -> Estimate:
    from torchtraceap.cli.input import load
    from torchtraceap.ops.durations import calibrate

    calibration = calibrate(load([options.calibrate], 0))
    found: Estimate = question.ask(options, {"strict": True, "calibration": calibration})
    if found == plain:
        known = ", ".join(calibration.classes) or "none"
        note(f"{options.calibrate} has no such kernels that a model estimates (it has: {known})")
    return found


def _document(options: Options, device: str, found: Estimate) -> str:
    import json

    asked = {
        name: value
        for name, value in _given_options(options).items()
        if name not in ("what", "json", "no_color")
    }
    document = {
        "schema": SCHEMA,
        "what": options.what,
        "asked": asked,
        "device": device,
        "ns": found.ns,
        "low_ns": found.low_ns,
        "high_ns": found.high_ns,
        "source": found.source,
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


COMMANDS = {
    "estimate": Command(
        summary_of("estimate"),
        _describe,
        _estimate,
        (
            "estimate all_reduce --bytes 256MB --ranks 8 --device 'H100 SXM'",
            "estimate gemm --m 4096 --n 4096 --k 4096 --dtype bf16 --device 'H100 SXM'",
        ),
    ),
}
