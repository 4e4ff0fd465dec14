"""Commands `predict` and `shard`: what a step would take that never ran, and where embedding tables
belong."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from torchtraceap.cli import (
    FINE,
    Command,
    Options,
    Parser,
    add_json,
    add_no_color,
    check_output,
    load,
    note,
    print_tables,
    print_text,
    size,
)
from torchtraceap.core import progress_stage
from torchtraceap.errors import OptionError
from torchtraceap.lab.cli import ENTRIES, print_document

if TYPE_CHECKING:
    from torchtraceap.lab.prediction import Prediction

__all__ = ["COMMANDS"]


def _describe_predict(parser: Parser) -> None:
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
        "--routing-skew", type=float, default=0.0, metavar="S",
        help="of a mixture of experts: the n-th is chosen n^-S times as often as the first [0]",
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
    from torchtraceap.lab.prediction.text import comparison_table, prediction_tables

    source = options.source if Path(options.source).exists() else options.source.rpartition(":")[0]
    files = [each for each in (source, *options.calibrate) if Path(each).exists()]
    if options.trace:
        check_output(options.trace, [options.source, *options.calibrate])
    if options.html:
        check_output(options.html, files)
    with progress_stage("predicting"), redirect_stdout(sys.stderr):  # a workload may print
        found = _predictions(options)
    if options.json:
        documents = [each.to_dict() for each in found]
        print_document(documents[0] if len(documents) == 1 else documents)
    elif len(found) > 1:
        print_tables([comparison_table(found)], options.no_color)
    else:
        print_tables(prediction_tables(found[0]), options.no_color)
        if options.diagnose:
            print_text(str(found[0].diagnose()))
    if options.trace:
        for path in found[0].write_trace(options.trace):
            note(f"wrote {path}")
    if options.html:
        from torchtraceap.lab.prediction.page import write_prediction_page

        write_prediction_page(found, Path(options.html), files)
        note(f"wrote {options.html}")
    return FINE


def _predictions(options: Options) -> list[Prediction]:
    """Predict a step for each device and strategy."""
    from torchtraceap.lab.prediction import Loading, predict

    traces = [load([path]) for path in options.calibrate]
    loading = None
    if (options.upload, options.load_ms, options.load_workers) != (None, None, None):
        load_ns = 1e6 * (options.load_ms or 0.0)
        loading = Loading(options.upload or "pageable", load_ns, options.load_workers or 0)
    probed = None
    if options.probe:
        from torchtraceap.lab.prediction.lowering.recorded_host import probe

        with progress_stage("probing this machine"):
            probed = probe()
    strategies = options.strategy or [None]
    with_tables = [way for way in strategies if way is not None and "embedding" in way.lower()]
    plan = None
    if options.sharding is not None:
        if not with_tables:
            raise OptionError("--sharding is for --strategy embedding")
        from torchtraceap.lab.prediction.parallel.placement import read_plan

        plan = read_plan(options.sharding)
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
            sharding=plan if strategy in with_tables else None,
            routing_skew=options.routing_skew,
        )
        for device in options.device
        for strategy in strategies
    ]


def _describe_shard(parser: Parser) -> None:
    parser.add_argument(
        "tables", metavar="TABLES.json",
        help="a list of tables: rows, dim, pooling_factor, dtype, reuse (docs/prediction.md)",
    )  # fmt: skip
    parser.add_argument("--device", required=True, metavar="NAME", help="a GPU, such as 'H100 SXM'")
    parser.add_argument("--ranks", required=True, type=int, metavar="N", help="GPUs")
    for flag, default, help_text in (
        ("--nodes", 1, "machines that they are in [1]"),
        ("--batch", 4096, "samples of a rank [4096]"),
        ("--seed", 0, "of the sharder random [0]"),
    ):
        parser.add_argument(flag, type=int, default=default, metavar="N", help=help_text)
    parser.add_argument(
        "--memory",
        type=size,
        metavar="SIZE",
        help="of a GPU for tables [four fifths of its memory]",
    )
    parser.add_argument(
        "--node-gbits", type=float, metavar="RATE",
        help="Gbit/s one way between a machine and the others, all adapters together",
    )  # fmt: skip
    parser.add_argument(
        "--dense-us", type=float, default=0.0, metavar="US", help="the rest of a step [0]"
    )
    parser.add_argument(
        "--optimizer", default="sgd", metavar="NAME", help="sgd, rowwise_adagrad, adagrad, adam"
    )
    parser.add_argument("--column-wise", action="store_true", help="tables may be split by columns")
    parser.add_argument(
        "--exchange-indices", action="store_true", help="ranks read the indices of their samples"
    )
    add_json(parser)
    add_no_color(parser)


def _shard(options: Options) -> int:
    from torchtraceap.lab.sharding import Cluster, choose_sharding, read_tables

    gbits = options.node_gbits
    bandwidth = None if gbits is None else gbits * 1e9 / 8
    found = choose_sharding(
        read_tables(options.tables),
        Cluster(options.device, options.ranks, options.nodes, options.memory, bandwidth),
        batch=options.batch,
        dense_ns=options.dense_us * 1000.0,
        optimizer=options.optimizer,
        column_wise=options.column_wise,
        exchange_indices=options.exchange_indices,
        seed=options.seed,
    )
    if options.json:
        print_document(found.to_dict())
    else:
        from torchtraceap.report import tables_of

        print_tables(tables_of(found), options.no_color)
    return FINE


COMMANDS = {
    "predict": Command(
        ENTRIES["predict"].summary,
        _describe_predict,
        _predict,
        runs="Runs the file or module that SOURCE names.",
        examples=(
            "predict model.py:workload --device H100-SXM",
            "predict model.py:workload --device A100 --device H100-SXM --dtype bf16",
            "predict model.py:workload --device H100-SXM --world-size 8 --strategy fsdp2 "
            "--trace predicted.json.gz",
        ),
    ),
    "shard": Command(
        ENTRIES["shard"].summary,
        _describe_shard,
        _shard,
        ("shard tables.json --device 'H100 SXM' --ranks 8 --batch 4096",),
    ),
}
