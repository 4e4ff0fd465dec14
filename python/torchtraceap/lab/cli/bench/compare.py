"""Commands `bench compare` and `bench calibrate`: verdicts, and their reliability on this
machine."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchtraceap.cli import (
    FINDINGS,
    FINE,
    Command,
    Options,
    Parser,
    UsageError,
    add_json,
    add_no_color,
    add_seed,
    count,
    fraction,
    note,
    print_tables,
    print_text,
)
from torchtraceap.lab.cli import print_document
from torchtraceap.lab.cli.bench.run import add_alpha, add_effect, add_run_timeout

if TYPE_CHECKING:
    from torchtraceap.lab.bench.comparison.compare import Comparison
    from torchtraceap.lab.bench.statistics.sequential import Plan

_DEFAULTS = {"minimal_effect": 0.02, "alpha": 0.01, "pairs": 40}
_LOOKS = (10, 20, 40)


def _describe_compare(parser: Parser) -> None:
    parser.add_argument(
        "sides", metavar="A B", nargs="*",
        help="before and after: two commands in quotes, workload:NAME[,compile][,bf16][,batch=N], "
        "two ids of stored runs, or, with a program behind --, two git revisions",
    )  # fmt: skip
    parser.add_argument(
        "--suite", metavar="FILE.toml",
        help="several comparisons, a table [[compare]] with a and b each, corrected for their "
        "number",
    )  # fmt: skip
    _add_plan(parser)
    add_run_timeout(parser)
    parser.add_argument(
        "--setup", metavar="COMMAND", help="of revisions: runs once in each checkout"
    )
    parser.add_argument(
        "--no-causes", action="store_true", help="record no traces: no counts and no causes"
    )
    parser.add_argument(
        "--store", metavar="DIR",
        help="keep pairs and traces here, and go on where an interrupted comparison stopped; the "
        "store of stored runs",
    )  # fmt: skip
    parser.add_argument("--gate", action="store_true", help="exit code 1 if B is slower")
    parser.add_argument(
        "--gate-undecided", action="store_true", help="exit code 1 if B is slower or undecided"
    )
    parser.add_argument(
        "--gate-counts", action="store_true", help="exit code 1 if an exact count changed"
    )
    add_json(parser)
    add_no_color(parser)


def _add_plan(parser: Parser) -> None:
    add_effect(parser, "changes below it do not matter")
    add_alpha(parser, "probability of a false alarm, all looks together")
    parser.add_argument(
        "--pairs", type=count, default=_DEFAULTS["pairs"], metavar="N",
        help="pairs of runs, at most; looks at 10, 20 and N [40]",
    )  # fmt: skip
    add_seed(parser, "decides which side of a pair runs first")


def _plan(options: Options) -> Plan:
    from torchtraceap.lab.bench.statistics.sequential import Plan

    looks = (*(look for look in _LOOKS if look < options.pairs), options.pairs)
    return Plan(options.minimal_effect, options.alpha, looks)


def _compare(options: Options) -> int:
    if options.suite:
        return _compare_suite(options)
    if len(options.sides) != 2:
        raise UsageError("bench compare needs two sides: A and B, or --suite FILE.toml")
    comparison = _compare_stored(options) or _compare_fresh(options)
    if options.json:
        print_document(comparison.to_dict())
    else:
        from torchtraceap.lab.bench.comparison.report import comparison_lines

        print_text("\n".join(comparison_lines(comparison)))
    return _exit_code(options, [comparison])


def _exit_code(options: Options, comparisons: list[Comparison]) -> int:
    failing = {"slower"} if options.gate else set()
    failing |= {"slower", "undecided"} if options.gate_undecided else set()
    gated = any(each.verdict in failing for each in comparisons)
    counted = options.gate_counts and any(each.changed_counts for each in comparisons)
    return FINDINGS if gated or counted else FINE


def _compare_stored(options: Options) -> Comparison | None:
    from torchtraceap.lab.bench.comparison.stored_runs import compare_stored, find_runs
    from torchtraceap.lab.bench.runs.run_store import Store

    if options.program is not None:
        return None
    a, b = options.sides
    found = find_runs(a, b, Store(options.store))
    if found is None:
        return None
    note("A and B are stored runs")
    return compare_stored(
        *found,
        minimal_effect=options.minimal_effect,
        alpha=options.alpha,
        causes=not options.no_causes,
        reproduce=_reproduce_command(options),
    )


def _compare_fresh(options: Options) -> Comparison:
    from torchtraceap.lab.bench.comparison.compare import compare
    from torchtraceap.lab.bench.comparison.pairs import PAIRS, keep, make_folder, parent_folder
    from torchtraceap.lab.bench.comparison.sides import WORKLOAD, open_sides

    plan = _plan(options)
    sides = open_sides(
        *options.sides, program=options.program, setup=options.setup, timeout_s=options.timeout
    )
    kind = "revisions"
    if not options.program:
        kinds = ["workload" if side.startswith(WORKLOAD) else "command" for side in options.sides]
        kind = f"{kinds[0]}s" if len(set(kinds)) == 1 else f"a {kinds[0]} and a {kinds[1]}"
    with parent_folder(options.store) as parent, sides as (side_a, side_b):
        note(f"A and B are {kind}")
        folder = make_folder(parent, side_a, side_b, [plan.looks, options.seed])
        comparison = compare(
            side_a,
            side_b,
            minimal_effect=plan.minimal_effect,
            alpha=plan.alpha,
            looks=plan.looks,
            seed=options.seed,
            causes=not options.no_causes,
            kept=folder / PAIRS,
            reproduce=_reproduce_command(options),
        )
        keep(folder, comparison)
        if options.store:
            note(f"kept in {folder}")
    return comparison


def _reproduce_command(options: Options) -> str:
    """Return the command that repeats the comparison."""
    import shlex

    words = ["torchtraceap", "bench", "compare", *options.sides]
    if options.suite:
        words += ["--suite", options.suite]
    if options.minimal_effect != _DEFAULTS["minimal_effect"]:
        words += ["--minimal-effect", f"{100 * options.minimal_effect:g}%"]
    for name in ("alpha", "pairs"):
        if getattr(options, name) != _DEFAULTS[name]:
            words += [f"--{name}", f"{getattr(options, name):g}"]
    if options.timeout is not None:
        words += ["--timeout", f"{options.timeout:g}"]
    if options.setup:
        words += ["--setup", options.setup]
    words += ["--seed", str(options.seed)]
    return shlex.join([*words, *(["--", *options.program] if options.program else [])])


def _compare_suite(options: Options) -> int:
    from torchtraceap.lab.bench.comparison.pairs import PAIRS, keep, make_folder, parent_folder
    from torchtraceap.lab.bench.comparison.sides import open_sides, split_command
    from torchtraceap.lab.bench.comparison.suites import SuiteEntry, compare_many, read_suite

    if options.sides or options.program is not None or options.setup:
        raise UsageError("--suite names the sides; programs and setups stand in its file")
    described = read_suite(Path(options.suite))
    with parent_folder(options.store) as parent, ExitStack() as stack:
        entries = []
        for place, each in enumerate(described):
            plan = _plan(options)
            if each.minimal_effect is not None:  # 0.05 or "5%"
                try:
                    effect = fraction(str(each.minimal_effect))
                except (ValueError, argparse.ArgumentTypeError):
                    raise UsageError(f'{each.name}: minimal_effect is 0.05 or "5%"') from None
                plan = replace(plan, minimal_effect=effect)
            program = split_command(each.program) if each.program else None
            sides = open_sides(
                each.a, each.b, program=program, setup=each.setup, timeout_s=options.timeout
            )
            side_a, side_b = stack.enter_context(sides)
            settings = [plan.looks, options.seed + place, each.name]
            folder = make_folder(parent, side_a, side_b, settings)
            entries.append(SuiteEntry(each.name, side_a, side_b, plan, folder / PAIRS))
        found = compare_many(
            entries,
            seed=options.seed,
            causes=not options.no_causes,
            reproduce=_reproduce_command(options),
        )
        for entry, (_, _, comparison) in zip(entries, found.comparisons, strict=True):
            if entry.kept is not None:
                keep(entry.kept.parent, comparison)
    if options.json:
        print_document(found.to_dict())
    else:
        from torchtraceap.lab.bench.comparison.report import comparison_lines, suite_tables

        print_tables(suite_tables(found), options.no_color)
        for name, _, each_found in found.comparisons:
            if each_found.verdict in ("slower", "faster"):
                print_text("\n".join(["", name, *comparison_lines(each_found)]))
    return _exit_code(options, [comparison for _, _, comparison in found.comparisons])


def _describe_calibrate(parser: Parser) -> None:
    parser.add_argument(
        "program_or_workload", metavar="COMMAND", nargs="?",
        help="a command in quotes, or workload:NAME; else a program behind --; else a loop of "
        "Python that takes 0.1 s",
    )  # fmt: skip
    parser.add_argument(
        "--runs", type=count, default=160, metavar="N", help="fresh processes [160]"
    )
    parser.add_argument(
        "--comparisons", type=count, default=1000, metavar="N",
        help="replays of each rule and effect [1000]",
    )  # fmt: skip
    _add_plan(parser)
    add_run_timeout(parser)
    add_json(parser)
    add_no_color(parser)


def _calibrate(options: Options) -> int:
    import shlex

    from torchtraceap.lab.bench.comparison.calibrate import calibrate
    from torchtraceap.lab.bench.comparison.report import calibration_tables, false_alarms_line
    from torchtraceap.lab.bench.comparison.sides import LOOP, ProgramSide, word_side

    word, program = options.program_or_workload, options.program
    if word and program is not None:
        raise UsageError("a command, or a program behind --, not both")
    if program is not None and not program:
        raise UsageError("a program has to stand behind --")
    if program:
        side = ProgramSide(shlex.join(program), program, timeout_s=options.timeout)
    elif word:
        side = word_side(word, options.timeout)
    else:
        side = ProgramSide("a loop of Python", LOOP, timeout_s=options.timeout)
    found = calibrate(
        side,
        runs=options.runs,
        comparisons=options.comparisons,
        plan=_plan(options),
        seed=options.seed,
    )
    if options.json:
        print_document(found.to_dict())
    else:
        print_text(false_alarms_line(found) + "\n")
        print_tables(calibration_tables(found), options.no_color)
    return FINE


COMPARE_ACTIONS: dict[str, Command] = {
    "compare": Command(
        "whether B is slower than A, faster, equivalent, or undecided; and why",
        _describe_compare,
        _compare,
        (
            "bench compare 'python old.py' 'python new.py'",
            "bench compare main HEAD --gate -- python bench.py",
            "bench compare workload:resnet workload:resnet,compile --minimal-effect 5%",
            "bench compare --suite benchmarks.toml --gate --json",
        ),
        takes_program=True,
    ),
    "calibrate": Command(
        "compares a program with itself: how often this machine raises a false alarm",
        _describe_calibrate,
        _calibrate,
        ("bench calibrate 'python bench.py'", "bench calibrate workload:resnet --runs 320"),
        takes_program=True,
    ),
}
