"""The commands `simulate` and `explain-idle`: replays of a trace, and chains of work behind idle
time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from torchtraceap.cli.catalog import summary_of
from torchtraceap.cli.input import load
from torchtraceap.cli.output import check_output, note, print_tables, print_text
from torchtraceap.cli.parser import (
    FINE,
    PATHS_HELP,
    UNUSABLE,
    Command,
    Options,
    UsageError,
    add_json,
    add_no_color,
    add_paths,
    add_rank,
    add_reading,
    add_windows,
    arguments,
    count,
    option,
    trace_path,
)
from torchtraceap.cli.tables import add_table_output, check_table_output, give_table
from torchtraceap.core.progress import progress_stage

if TYPE_CHECKING:
    from torchtraceap.simulation.simulate import Simulation


def _simulate(options: Options) -> int:
    from torchtraceap.errors import OptionError
    from torchtraceap.simulation.edits.base import default_edits, edit_names, make_edit

    if options.list:
        document = {"edits": edit_names(), "default": list(default_edits())}
        as_json = json.dumps(document, separators=(",", ":"))
        print_text(as_json if options.json else "\n".join(edit_names()))
        return FINE
    if not options.paths:
        raise UsageError("simulate needs a trace: torchtraceap simulate PATH")
    if options.form and not options.trace:
        raise UsageError("--form says which form --trace writes; it needs --trace OUT")
    unusable = []  # why some of the edits make no sense for any trace
    for name in options.edit:
        try:
            make_edit(name)
        except OptionError as error:
            unusable.append(str(error))
    trace = load(options.paths, options)
    if options.trace:
        from torchtraceap.simulation.edited_trace import check_trace_target

        if len(trace.ranks) == 1:
            check_output(options.trace, options.paths)
        check_trace_target(options.trace, trace)
    with progress_stage("replaying the run with edits"):
        simulation = trace.simulate(edits=options.edit or None)
    found: dict[str, Any] = simulation.to_dict()
    if options.together:
        together = simulation.together().to_dict() if simulation.applied else None
        found["together"] = together
    if options.shares:
        shares = simulation.shares(options.shares)
        found["shares"] = shares.to_dict()
    if options.json:
        print_text(json.dumps(found, separators=(",", ":"), allow_nan=False))
    else:
        from torchtraceap.report.result_tables import simulation_tables, tables_of

        if options.together and together is not None:
            found["edits"].append(together)
        tables = simulation_tables(found, plan=options.plan)
        if options.shares:
            tables += tables_of(shares)
        print_tables(tables, options.no_color)
    for reason in unusable:
        note(reason)
    if options.trace:
        _write_trace(simulation, options)
    return UNUSABLE if unusable else FINE


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


# ---------------------------------------------------------------------------------- explain-idle


def _explain_idle(options: Options) -> int:
    if options.at is not None and options.window is not None:
        raise UsageError("explain-idle takes --at or --window, not both")
    check_table_output(options, options.paths)
    trace = load(options.paths, options)
    start_ns, end_ns = trace.rank(options.rank).tree.profiled
    length_ns = end_ns - start_ns
    if options.at is not None:
        if not 0 <= options.at * 1e6 <= length_ns:
            length = f"the profiled time is {length_ns / 1e6:.3f} ms long"
            raise UsageError(f"--at {options.at:g}: {length}")
        start_ns = end_ns = start_ns + round(options.at * 1e6)
    elif options.window is not None:
        window, windows = options.window, options.windows
        if window >= windows:
            raise UsageError(f"--window {window}: there are windows 0 to {windows - 1}")
        end_ns = start_ns + length_ns * (window + 1) // windows
        start_ns += length_ns * window // windows
    return give_table(trace.explain_idle(start_ns, end_ns, rank=options.rank), options)


COMMANDS = {
    "simulate": Command(
        summary_of("simulate"),
        arguments(
            option("paths", metavar="PATH", nargs="*", type=trace_path, help=PATHS_HELP),
            option(
                "--edit",
                action="append",
                default=[],
                metavar="NAME[=VALUE]",
                help="what to fix, such as loader_workers=4; several times; --list names them "
                "[every fix that needs no decision]",
            ),
            option("--list", action="store_true", help="list the edits and leave"),
            option(
                "--plan",
                action="store_true",
                help="put the edits into the order in which they gain most",
            ),
            option(
                "--together",
                action="store_true",
                help="tell as well what all edits that apply save at once",
            ),
            option(
                "--shares",
                choices=("kernel", "operator", "family"),
                help="also how much of the step hangs on each kernel, operator or family",
            ),
            option(
                "--trace",
                metavar="OUT",
                help="write the trace with the edits, whose step takes the predicted time: .json "
                "or .json.gz, of several ranks a folder",
            ),
            option(
                "--form",
                choices=("best", "cautious"),
                help="of an edit's two forms the one to write [between them, so that a step takes "
                "the predicted time]",
            ),
            add_json,
            add_reading,
            add_no_color,
        ),
        _simulate,
        (
            "simulate trace.json.gz",
            "simulate trace.json.gz --edit loader_workers=4 --edit cuda_graph --plan",
            "simulate trace.json.gz --edit mixed_precision --trace edited.json.gz",
            "simulate trace.json.gz --edit kernel=gemm:0.5 --edit remove=validation --together",
            "simulate trace.json.gz --shares kernel",
        ),
    ),
    "explain-idle": Command(
        summary_of("explain-idle"),
        arguments(
            add_paths,
            option(
                "--at",
                type=float,
                metavar="MS",
                help="the idle interval at this time, milliseconds from where the profiled time "
                "begins",
            ),
            option(
                "--window", type=count, metavar="N", help="the longest one in this window, from 0"
            ),
            lambda parser: add_windows(parser, "of how many windows"),
            add_table_output,
            add_rank,
            add_reading,
            add_no_color,
        ),
        _explain_idle,
        ("explain-idle trace.json.gz", "explain-idle trace.json.gz --at 250"),
    ),
}
