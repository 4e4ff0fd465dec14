"""Commands `bench coverage` and `bench select`: PyTorch features that workloads use, and which to
run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchtraceap.cli import (
    FINE,
    Command,
    Options,
    Parser,
    UsageError,
    add_json,
    add_no_color,
    note,
    print_tables,
    print_text,
)
from torchtraceap.lab.cli import print_document
from torchtraceap.lab.cli.bench.run import add_protocol, add_store, duration, open_store

if TYPE_CHECKING:
    from torchtraceap.lab.bench.coverage import Coverage
    from torchtraceap.lab.bench.selection import Candidate, Selection

__all__ = ["SELECT_ACTIONS"]

_KINDS = ("functions", "ops", "families")
_MODES = {"train": ("train",), "eval": ("eval",), "both": ("train", "eval")}
_NAMES_HELP = "workloads [all of the suite]; also FILE.py:FUNCTION"
_SHOWN = 12
"""Number of uncovered names that are shown without --uncovered."""


def _add_common(parser: Parser) -> None:
    parser.add_argument("names", metavar="NAME", nargs="*", help=_NAMES_HELP)
    parser.add_argument(
        "--mode", choices=tuple(_MODES), default="both", help="train, eval or both [both]"
    )
    parser.add_argument(
        "--by", choices=_KINDS, default="ops",
        help="functions (TorchBench's measure), ops (ATen operators by type and direction) or "
        "families (of kernels) [ops]",
    )  # fmt: skip
    add_store(parser)
    add_json(parser)
    add_no_color(parser)


def _coverage_of(options: Options, *, measure: bool = False) -> Coverage:
    """Return the coverage stored with the suite, with measurements for what is missing there."""
    from torchtraceap.lab.bench.coverage import measure_coverage, stored_coverage

    modes = _MODES[options.mode]
    if measure:
        return measure_coverage(options.names or None, modes, imports=bool(options.write))
    stored = stored_coverage()
    known = {row.name for row in stored.rows} | {each.name for each in stored.missing}
    new = [name for name in options.names if name not in known]
    if not new:
        return stored.restrict(options.names or known, modes)
    found = measure_coverage(new, modes)
    return found.merge(stored.restrict(options.names, modes))  # with what imports take


# ------------------------------------------------------------------------- coverage


def _describe_coverage(parser: Parser) -> None:
    _add_common(parser)
    parser.add_argument(
        "--measure", action="store_true",
        help="run steps of each here and now, instead of reading what is stored with the suite",
    )  # fmt: skip
    parser.add_argument(
        "--uncovered", action="store_true", help="name everything that no workload covers"
    )
    parser.add_argument(
        "--write", metavar="FILE", help="write what was measured, as the suite has it"
    )


def _coverage(options: Options) -> int:
    from torchtraceap.lab.bench.coverage import finding_types, write_coverage

    if options.write and not options.measure:
        raise UsageError("--write keeps what --measure measures")
    found = _coverage_of(options, measure=options.measure)
    store = open_store(options)
    types: dict[str, tuple[str, ...]] = {}
    if store.folder.is_dir():
        types = finding_types(store)
    elif options.store is not None:
        raise UsageError(f"{options.store}: there is no such folder")
    for each in found.missing:
        note(f"{each.name} {each.mode}: not covered ({each.reason})")
    if options.write:
        write_coverage(found, options.write)
        note(f"wrote {options.write}")
    if options.json:
        print_document(_coverage_document(found, types))
    else:
        _print_coverage(found, types, options)
    return FINE


def _coverage_document(found: Coverage, types: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    from torchtraceap.lab.bench.coverage import KINDS, all_types

    rows = [
        {**row.to_dict(), "families": list(row.families), "findings": list(types.get(row.name, ()))}
        for row in found.rows
    ]
    return {
        "schema": "torchtraceap.coverage_table/1",
        "torch": found.torch,
        "workloads": rows,
        "missing": [each.to_dict() for each in found.missing],
        "union": {
            kind: {
                "distinct": len(found.union(kind)),
                "covered": len(found.covered(kind)),
                "of": len(found.universe(kind)),
                "share": len(found.covered(kind)) / len(found.universe(kind)),
                "uncovered": list(found.uncovered(kind)),
            }
            for kind in KINDS
        },
        "findings": {
            "found": sorted({each for row in found.rows for each in types.get(row.name, ())}),
            "of": list(all_types()),
        },
    }


def _print_coverage(found: Coverage, types: dict[str, tuple[str, ...]], options: Options) -> None:
    from torchtraceap.lab.bench.coverage import all_types
    from torchtraceap.report import TextTable

    alone = found.unique(options.by)
    columns = ["workload", "mode", *_KINDS, f"{options.by} of it alone", "step ms"]
    columns += ["findings"] if types else []
    rows = []
    for row in found.rows:
        cells: list[Any] = [row.name, row.mode, *(len(row.of(kind)) for kind in _KINDS)]
        cells += [len(set(alone.get(row.name, ())) & set(row.of(options.by)))]
        cells += [round(1000 * row.step_s, 2)]
        rows.append((*cells, ", ".join(types.get(row.name, ()))) if types else tuple(cells))
    said = f"torch {found.torch}, on the CPU; ops are ATen operators by type and direction"
    what = {
        "functions": "Python functions that may be overridden (TorchBench's measure)",
        "ops": "ATen operators by name",
        "families": "kernel families",
    }
    together = [
        (text, len(found.covered(kind)), len(found.universe(kind)),
         f"{len(found.covered(kind)) / len(found.universe(kind)):.1%}")
        for kind, text in what.items()
    ]  # fmt: skip
    if types:
        seen = {each for row in found.rows for each in types.get(row.name, ())}
        known = all_types()
        share = f"{len(seen & set(known)) / len(known):.1%}"
        together.append(("types of findings, in kept runs", len(seen), len(known), share))
    pairs = f"{len(found.union('ops'))} pairs of an operator's type and direction"
    tables = [
        TextTable("", tuple(columns), rows, said),
        TextTable("All together", ("", "covered", "of", "share"), together, pairs),
    ]
    print_tables(tables, options.no_color)
    nobody = found.uncovered(options.by)
    if nobody:
        shown = nobody if options.uncovered else nobody[:_SHOWN]
        more = "" if len(shown) == len(nobody) else f" and {len(nobody) - len(shown)} more"
        print_text(f"\nNo workload here covers {', '.join(shown)}{more}.")


# ------------------------------------------------------------------------- select


def _describe_select(parser: Parser) -> None:
    parser.add_argument(
        "--budget", type=duration, metavar="TIME",
        help="what `bench run` of the chosen may take: 90s, 10m, 1h [until all is covered]",
    )  # fmt: skip
    _add_common(parser)
    add_protocol(parser, ("of `bench run`, by which its time is counted",) * 3)
    parser.add_argument("--plan", metavar="FILE", help="write them for `bench run --plan FILE`")


def _select(options: Options) -> int:
    from torchtraceap.core import write_text
    from torchtraceap.lab.bench.selection import select

    found = _coverage_of(options)
    selection = select(_candidates(found, options), options.budget)
    if options.plan:
        lines = ["# Written by `torchtraceap bench select`; `bench run --plan` reads it."]
        for mode in _MODES["both"]:
            names = [json.dumps(each.name) for each in selection.chosen if each.mode == mode]
            if names:
                lines += ["", "[[run]]", f'mode = "{mode}"', f"names = [{', '.join(names)}]"]
        write_text(options.plan, "\n".join(lines) + "\n")
        note(f"wrote {options.plan}")
    worth = "at least 0.316 of the best in this budget; bound: what no choice in it exceeds"
    if selection.budget_s is None:
        worth = "at most 1 + ln(n) times the cheapest that covers all (n: the most of a workload)"
    if options.json:
        document = {
            "schema": "torchtraceap.selection/1", "by": options.by, "torch": found.torch,
            **selection.to_dict(), "share": selection.share, "guarantee": f"greedy: {worth}",
        }  # fmt: skip
        print_document(document)
    else:
        _print_selection(selection, options)
    return FINE


def _candidates(found: Coverage, options: Options) -> list[Candidate]:
    """Return candidates with the seconds of kept runs, else with those stored with the suite."""
    from torchtraceap.lab.bench.selection import Candidate, measured_seconds, seconds_of_run
    from torchtraceap.lab.workloads.registry import workloads

    how = {name: getattr(options, name) for name in ("processes", "steps", "warmup")}
    store = open_store(options)
    runs = [run.to_dict() for run in store.runs()] if store.folder.is_dir() else []
    measured = measured_seconds(runs, **how)
    entries = {entry.name: entry for entry in workloads()}
    candidates = []
    for row in found.rows:
        entry = entries.get(row.name)
        if entry is not None and not entry.available:
            continue
        kept = measured.get((row.name, row.mode))
        needs = ("torch", *(entry.needs if entry is not None else ()))
        first = row.made_s + sum(found.imports_s.get(need, 0.0) for need in needs)
        seconds = seconds_of_run(first, row.step_s, **how) if kept is None else kept
        covers = frozenset(row.of(options.by))
        candidates.append(Candidate(row.name, row.mode, seconds, covers, kept is not None))
    return candidates


def _print_selection(selection: Selection, options: Options) -> None:
    from torchtraceap.report import TextTable

    covered = 0
    rows: list[Sequence[Any]] = []
    for each in selection.chosen:
        covered += each.adds
        measured = "a kept run" if each.measured else "the suite's file"
        share = f"{covered / selection.of:.1%}" if selection.of else ""
        rows.append((each.name, each.mode, round(each.seconds, 1), measured, each.adds, share))
    columns = ("workload", "mode", "seconds", "by", f"{options.by} added", "covered")
    said = f"{selection.covered} of {selection.of} {options.by} ({selection.share:.1%})"
    said += f" in {selection.seconds:.0f} s"
    if selection.budget_s is not None:
        said += f" of {selection.budget_s:.0f} s; no choice covers more than {selection.bound}"
    print_tables([TextTable("", columns, rows, said)], options.no_color)


SELECT_ACTIONS: dict[str, Command] = {
    "coverage": Command(
        "what of PyTorch workloads use: functions, operators, kernel families, findings",
        _describe_coverage,
        _coverage,
        ("bench coverage", "bench coverage train.py:workload", "bench coverage --measure resnet"),
    ),
    "select": Command(
        "the workloads that cover most within a time",
        _describe_select,
        _select,
        ("bench select --budget 10m", "bench select --budget 5m --by functions --plan plan.toml"),
    ),
}
