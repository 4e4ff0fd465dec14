"""Command `predict`: predict a training or inference step of a model on a GPU."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtraceap.cli.input import load
from torchtraceap.cli.output import check_output, note, print_tables, print_text
from torchtraceap.cli.parser import FINE, Command, Options, Parser, add_json, add_no_color
from torchtraceap.core.progress import progress_stage
from torchtraceap.errors import OptionError
from torchtraceap.lab.cli import ENTRIES

if TYPE_CHECKING:
    from torchtraceap.lab.prediction import Loading, Prediction
    from torchtraceap.lab.prediction.lowering.recorded_host import RecordedCalls

__all__ = ["COMMANDS"]


def _describe(parser: Parser) -> None:
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="a workload, FILE.py:FUNCTION or package.module:FUNCTION (importing it runs the "
        "file); or a profile or an execution trace of a step",
    )
    parser.add_argument(
        "--device", required=True, action="append", metavar="NAME",
        help="a GPU, such as H100-SXM; several times: a table of them",
    )  # fmt: skip
    parser.add_argument("--dtype", metavar="TYPE", help="of the floating point numbers: bf16, ...")
    parser.add_argument("--world-size", type=int, default=1, metavar="N", help="GPUs [1]")
    parser.add_argument(
        "--strategy", action="append", metavar="WAY",
        help="how GPUs share the work: ddp, fsdp2, tp, embedding, pp=4,dp=2 [ddp]; several times: "
        "a table",
    )  # fmt: skip
    parser.add_argument(
        "--sharding", metavar="PLAN.json",
        help="of embedding: ranks of tables by name, or what `shard --json` prints",
    )  # fmt: skip
    parser.add_argument("--batch", type=int, metavar="N", help="leading dimension of the inputs")
    parser.add_argument("--steps", type=int, default=3, metavar="N", help="steps laid out [3]")
    parser.add_argument(
        "--calibrate", action="append", default=[], metavar="TRACE",
        help="correct durations and host times by a trace from the device; several times",
    )  # fmt: skip
    parser.add_argument(
        "--probe", action="store_true",
        help="measure this machine's processor, taken for one like that of the GPU's host",
    )  # fmt: skip
    parser.add_argument(
        "--upload", choices=("pageable", "pinned"),
        help="the loop around the step counts, and inputs are copied from this memory",
    )  # fmt: skip
    parser.add_argument(
        "--load-ms", type=float, metavar="T",
        help="so long a process takes to make a batch; with it or workers a loader counts",
    )  # fmt: skip
    parser.add_argument(
        "--load-workers", type=int, metavar="N", help="processes that make batches [0]"
    )
    parser.add_argument(
        "--trace", metavar="OUT",
        help="write the trace: .json or .json.gz of the first rank, else a folder",
    )  # fmt: skip
    parser.add_argument("--html", metavar="FILE", help="also write a page that draws it")
    parser.add_argument("--diagnose", action="store_true", help="what would lose time in it")
    add_json(parser)
    add_no_color(parser)


def _predict(options: Options) -> int:
    if options.trace:
        check_output(options.trace, [options.source, *options.calibrate])
    if options.html:
        check_output(options.html, _files(options))
    with progress_stage("predicting"), redirect_stdout(sys.stderr):  # a workload may print
        found = _predictions(options)
    if options.json:
        _print_json(found)
    else:
        _print_tables(found, options)
    if options.trace:
        for path in found[0].write_trace(options.trace):
            note(f"wrote {path}")
    if options.html:
        from torchtraceap.lab.prediction.page import write_prediction_page

        write_prediction_page(found, Path(options.html), _files(options))
        note(f"wrote {options.html}")
    return FINE


def _files(options: Options) -> list[str]:
    """Return the files that are read, including that of a workload."""
    source = options.source if Path(options.source).exists() else options.source.rpartition(":")[0]
    return [each for each in (source, *options.calibrate) if Path(each).exists()]


def _predictions(options: Options) -> list[Prediction]:
    """Predict a step for each device and strategy."""
    from torchtraceap.lab.prediction import predict

    traces = [load([path], 0) for path in options.calibrate]
    loading = _loading(options)
    probed = _probed() if options.probe else None
    plan = _plan(options)
    return [
        predict(
            options.source,
            device=device,
            dtype=options.dtype,
            world_size=options.world_size,
            strategy=strategy,
            batch=options.batch,
            steps=options.steps,
            calibrate=traces,
            loading=loading,
            probed=probed,
            sharding=plan if _shares_tables(strategy) else None,
        )
        for device in options.device
        for strategy in options.strategy or [None]
    ]


def _loading(options: Options) -> Loading | None:
    from torchtraceap.lab.prediction import Loading

    given = options.upload, options.load_ms, options.load_workers
    if all(each is None for each in given):
        return None
    return Loading(
        options.upload or "pageable", 1e6 * (options.load_ms or 0.0), options.load_workers or 0
    )


def _plan(options: Options) -> dict[str, Any] | None:
    """Read the plan for embedding tables; strategies compared with it take none."""
    if options.sharding is None:
        return None
    if not any(map(_shares_tables, options.strategy or [])):
        raise OptionError("--sharding is for --strategy embedding")
    from torchtraceap.lab.prediction.parallel.placement import read_plan

    return read_plan(options.sharding)


def _shares_tables(strategy: str | None) -> bool:
    return strategy is not None and "embedding" in strategy.lower()


def _probed() -> RecordedCalls:
    from torchtraceap.lab.prediction.lowering.recorded_host import probe

    with progress_stage("probing this machine"):
        return probe()


def _print_json(found: list[Prediction]) -> None:
    import json

    documents = [each.to_dict() for each in found]
    whole = documents[0] if len(documents) == 1 else documents
    print_text(json.dumps(whole, separators=(",", ":"), allow_nan=False))


def _print_tables(found: list[Prediction], options: Options) -> None:
    from torchtraceap.lab.prediction.text import comparison_table, prediction_tables

    if len(found) > 1:
        print_tables([comparison_table(found)], options.no_color)
        return
    print_tables(prediction_tables(found[0]), options.no_color)
    if options.diagnose:
        print_text(str(found[0].diagnose()))


COMMANDS = {
    "predict": Command(
        ENTRIES["predict"].summary,
        _describe,
        _predict,
        (
            "predict model.py:workload --device H100-SXM",
            "predict model.py:workload --device A100 --device H100-SXM --dtype bf16",
            "predict model.py:workload --device H100-SXM --world-size 8 --strategy fsdp2 "
            "--trace predicted.json.gz",
        ),
    ),
}
