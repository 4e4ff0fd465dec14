"""Command `shard`: choose which rank holds which embedding table."""

from __future__ import annotations

from torchtraceap.cli.output import print_tables, print_text
from torchtraceap.cli.parser import FINE, Command, Options, Parser, add_json, add_no_color, size
from torchtraceap.lab.cli import ENTRIES

__all__ = ["COMMANDS"]


def _describe(parser: Parser) -> None:
    parser.add_argument(
        "tables", metavar="TABLES.json",
        help="a list of tables: rows, dim, pooling_factor, dtype, reuse (docs/prediction.md)",
    )  # fmt: skip
    parser.add_argument("--device", required=True, metavar="NAME", help="a GPU, such as 'H100 SXM'")
    parser.add_argument("--ranks", required=True, type=int, metavar="N", help="GPUs")
    for flag, default, help_text in (
        ("--nodes", 1, "machines that they are in [1]"),
        ("--batch", 4096, "samples of one rank [4096]"),
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
        import json

        print_text(json.dumps(found.to_dict(), separators=(",", ":"), allow_nan=False))
    else:
        from torchtraceap.report.result_tables import tables_of

        print_tables(tables_of(found), options.no_color)
    return FINE


COMMANDS = {
    "shard": Command(
        ENTRIES["shard"].summary,
        _describe,
        _shard,
        ("shard tables.json --device 'H100 SXM' --ranks 8 --batch 4096",),
    ),
}
