"""`mcp`: tools over a trace for programs that speak the Model Context Protocol."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchtraceap.cli.input import load
from torchtraceap.cli.parsing import FINE, Command, Options, Parser, UsageError, add_threads

if TYPE_CHECKING:
    from torchtraceap.trace import Trace

__all__ = ["EXPLAINING_COMMANDS"]


def _describe_mcp(parser: Parser) -> None:
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="a trace file, a folder of ranks, or several files; nothing else can be read",
    )
    parser.add_argument(
        "--baseline", metavar="PATH", help="a trace that clients may compare it with"
    )
    add_threads(parser)


def _mcp(options: Options) -> int:
    from torchtraceap.files import expand_paths
    from torchtraceap.llm.mcp_server import serve

    given = [*options.paths, *filter(None, [options.baseline])]
    if "-" in given:
        raise UsageError("mcp speaks through standard input: a trace can't come from there")
    expand_paths(options.paths)  # says now what does not exist; reading waits for a call
    if options.baseline is not None:
        expand_paths(options.baseline)
    gc.enable()  # a process that lasts

    def read(paths: Sequence[str]) -> Trace:
        return load(paths, options.threads)

    serve(options.paths, options.baseline, read)
    return FINE


EXPLAINING_COMMANDS: dict[str, Command] = {
    "mcp": Command(
        "tools over a trace for language models, by the Model Context Protocol on stdio",
        _describe_mcp,
        _mcp,
        ("mcp trace.json.gz", "mcp after.json.gz --baseline before.json.gz"),
    ),
}
