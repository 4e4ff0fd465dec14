"""The commands `simulate` and `explain-idle`: replays of a trace, and chains of work behind idle
time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtraceap.cli.catalog import summary_of
from torchtraceap.cli.input import load
from torchtraceap.cli.output import check_output, note, print_tables, print_text
from torchtraceap.cli.parser import (
    FINE,
    PATHS_HELP,
    UNUSABLE,
    WINDOW_COUNTS,
    Command,
    Options,
    Parser,
    UsageError,
    add_json,
    add_no_color,
    add_paths,
    add_rank,
    add_threads,
    count,
    trace_path,
)
from torchtraceap.cli.tables import add_table_output, check_table_output, give_table
from torchtraceap.core.progress import progress_stage

if TYPE_CHECKING:
    from torchtraceap.simulation.simulate import Simulation
    from torchtraceap.trace.trace import Trace


def _describe_simulate(parser: Parser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="*", type=trace_path, help=PATHS_HELP)
    parser.add_argument(
        "--edit",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="what to fix, such as loader_workers=4; several times; --list names them "
        "[every fix that needs no decision]",
    )
    parser.add_argument("--list", action="store_true", help="list the edits and leave")
    parser.add_argument(
        "--plan", action="store_true", help="put the edits into the order in which they gain most"
    )
    parser.add_argument(
        "--trace",
        metavar="OUT",
        help="write the trace with the edits, whose step takes the predicted time: .json or "
        ".json.gz, of several ranks a folder",
    )
    parser.add_argument(
        "--form",
        choices=("best", "cautious"),
        help="of an edit's two forms the one to write [between them, so that a step takes the "
        "predicted time]",
    )
    add_json(parser)
    add_threads(parser)
    add_no_color(parser)


def _simulate(options: Options) -> int:
    if options.list:
        return _list_edits(as_json=options.json)
    if not options.paths:
        raise UsageError("simulate needs a trace: torchtraceap simulate PATH")
    if options.form and not options.trace:
        raise UsageError("--form says which form --trace writes; it needs --trace OUT")
    unusable = _unusable(options.edit)
    trace = load(options.paths, options.threads)
    if options.trace:
        _check_trace_target(options, trace)
    with progress_stage("replaying the run with edits"):
        simulation = trace.simulate(edits=options.edit or None)
    if options.json:
        print_text(_document(simulation))
    else:
        from torchtraceap.report.result_tables import simulation_tables

        tables = simulation_tables(simulation.to_dict(), plan=options.plan)
        print_tables(tables, options.no_color)
    for reason in unusable:
        note(reason)
    if options.trace:
        _write_trace(simulation, options)
    return UNUSABLE if unusable else FINE


def _check_trace_target(options: Options, trace: Trace) -> None:
    from torchtraceap.simulation.edited_trace import check_trace_target

    if len(trace.ranks) == 1:
        check_output(options.trace, options.paths)
    check_trace_target(options.trace, trace)


def _write_trace(simulation: Simulation, options: Options) -> None:
    """Write the trace with all named edits that apply, or with the measured times if none was
    named."""
    from torchtraceap.errors import OptionError

    named = dict.fromkeys(options.edit)
    applied = [name for name in named if name in simulation.applied]
    if named and not applied:
        reasons = "; ".join(f"{o.edit}: {o.note}" for o in simulation.edits)
        raise OptionError(f"{options.trace}: nothing to write, no edit applies ({reasons})")
    edited = simulation.edited_trace(applied, form=options.form)
    edited.write_trace(options.trace)
    note(f"wrote {options.trace}. {edited.note}")
    left_out = [name for name in named if name not in applied]
    if left_out:
        note(f"not in it, as they don't apply: {', '.join(left_out)}")


def _document(simulation: Simulation) -> str:
    import json

    return json.dumps(simulation.to_dict(), separators=(",", ":"), allow_nan=False)


def _unusable(names: list[str]) -> list[str]:
    """Return why some of the edits make no sense for any trace."""
    from torchtraceap.errors import OptionError
    from torchtraceap.simulation.edits.base import make_edit

    reasons = []
    for name in names:
        try:
            make_edit(name)
        except OptionError as error:
            reasons.append(str(error))
    return reasons


def _list_edits(*, as_json: bool) -> int:
    from torchtraceap.simulation.edits.base import default_edits, edit_names

    if as_json:
        import json

        document = {"edits": edit_names(), "default": list(default_edits())}
        print_text(json.dumps(document, separators=(",", ":")))
        return FINE
    print_text("\n".join(edit_names()))
    return FINE


# ---------------------------------------------------------------------------------- explain-idle


def _describe_explain_idle(parser: Parser) -> None:
    add_paths(parser)
    parser.add_argument(
        "--at",
        type=float,
        metavar="MS",
        help="the idle interval at this time, milliseconds from where the profiled time begins",
    )
    parser.add_argument(
        "--window", type=count, metavar="N", help="the longest one in this window, from 0"
    )
    parser.add_argument(
        "--windows",
        type=int,
        choices=WINDOW_COUNTS,
        default=100,
        metavar="N",
        help="of how many windows: 50, 100 or 200 [100]",
    )
    add_table_output(parser)
    add_rank(parser)
    add_threads(parser)
    add_no_color(parser)


def _explain_idle(options: Options) -> int:
    if options.at is not None and options.window is not None:
        raise UsageError("explain-idle takes --at or --window, not both")
    check_table_output(options, options.paths)
    trace = load(options.paths, options.threads)
    start_ns, end_ns = _range(trace, options)
    return give_table(trace.explain_idle(start_ns, end_ns, rank=options.rank), options)


def _range(trace: Trace, options: Options) -> tuple[int, int]:
    """Return the range of an instant or a window, or the whole profiled time."""
    start_ns, end_ns = trace.rank(options.rank).tree.profiled
    if options.at is not None:
        length_ns = end_ns - start_ns
        if not 0 <= options.at * 1e6 <= length_ns:
            raise UsageError(
                f"--at {options.at:g}: the profiled time is {length_ns / 1e6:.3f} ms long"
            )
        at_ns = start_ns + round(options.at * 1e6)
        return at_ns, at_ns
    if options.window is None:
        return start_ns, end_ns
    if options.window >= options.windows:
        raise UsageError(f"--window {options.window}: there are windows 0 to {options.windows - 1}")
    bounds = [
        start_ns + (end_ns - start_ns) * place // options.windows
        for place in (options.window, options.window + 1)
    ]
    return bounds[0], bounds[1]


COMMANDS = {
    "simulate": Command(
        summary_of("simulate"),
        _describe_simulate,
        _simulate,
        (
            "simulate trace.json.gz",
            "simulate trace.json.gz --edit loader_workers=4 --edit cuda_graph --plan",
            "simulate trace.json.gz --edit mixed_precision --trace edited.json.gz",
        ),
    ),
    "explain-idle": Command(
        summary_of("explain-idle"),
        _describe_explain_idle,
        _explain_idle,
        ("explain-idle trace.json.gz", "explain-idle trace.json.gz --at 250"),
    ),
}
