"""Commands `bench show`, `table`, `breakdown`, `history` and `bisect`: what is kept, and where it
changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtraceap.cli import (
    FINE,
    Command,
    Options,
    Parser,
    UsageError,
    add_json,
    add_no_color,
    add_table_output,
    check_table_output,
    give_table,
    note,
    print_text,
)
from torchtraceap.core import progress_stage
from torchtraceap.lab.cli import print_document
from torchtraceap.lab.cli.bench.run import (
    SCHEMA,
    add_alpha,
    add_checkout_options,
    add_effect,
    add_run_timeout,
    add_store,
    open_store,
    print_runs,
)

if TYPE_CHECKING:
    from torchtraceap.lab.bench.bisect import Bisection
    from torchtraceap.lab.bench.revisions import Places, Repository, Revision
    from torchtraceap.lab.bench.rounds import Journal
    from torchtraceap.lab.bench.runs.run_store import StoredRun

_TABLES = ("eager-compiled", "devices")
_MEASURES = ("time", "memory", "launches", "syncs", "operators", "recompiles", "graph_breaks",
             "peak_memory", "copied_bytes", "collectives")  # fmt: skip
"""The measures of `rounds`, repeated because that module takes longer to import."""


def _looks(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{text!r}: are no numbers of rounds; write 10,20,40") from None


# ---------------------------------------------------------------------------------- show


def _describe_show(parser: Parser) -> None:
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help="an id or its beginning, or a workload's name for its latest; without, all are listed",
    )
    add_store(parser)
    add_json(parser)
    add_no_color(parser)


def _show(options: Options) -> int:
    store = open_store(options)
    runs = [store.load(name) for name in options.runs] or list(store.runs())
    if options.json:
        documents = [run.to_dict() for run in runs]
        for run, document in zip(runs, documents, strict=True):
            path = run.trace if options.runs else None
            document["trace"] = str(path) if path else None
        print_document({"schema": SCHEMA, "runs": documents})
    elif options.runs:
        print_text("\n\n".join(_run_description(run) for run in runs))
    else:
        print_runs(runs, options)
    return FINE


def _run_description(run: StoredRun) -> str:
    """Describe a run in words."""
    from torchtraceap.core import format_bytes, format_ns, format_share
    from torchtraceap.lab.bench.runs.config import label_of
    from torchtraceap.lab.bench.runs.tables import device_of

    figures, step = run.metrics, run.metrics["step_ns"]
    first, memory = figures["first_batch_ns"], figures["memory"]
    lines = [
        f"{run.id}  {label_of(run.config)}",
        f"when         {run.when[:19].replace('T', ' ')} UTC, on {device_of(run)}",
        f"step         {format_ns(step['median'])} (p10 {format_ns(step['p10'])}, "
        f"p90 {format_ns(step['p90'])}); processes: "
        + ", ".join(format_ns(ns) for ns in step["by_process"]),
        f"free running {format_ns(figures['free_step_ns']['mean'])} a step; waiting behind each "
        f"costs {format_share(figures['lost_overlap_share'])}",
        f"first batch  {format_ns(first['total'])} from the start: import "
        f"{format_ns(first['import'])}, construction {format_ns(first['construction'])}, first "
        f"step {format_ns(first['first_step'])}",
        f"memory       {format_bytes(memory['rss_peak_bytes'])} resident at most, "
        f"{format_bytes(memory['rss_above_bytes'])} of it by the workload",
    ]
    if memory["allocated_peak_bytes"] is not None:
        lines[-1] += (
            f"; GPU: {format_bytes(memory['allocated_peak_bytes'])} by tensors, "
            f"{format_bytes(memory['reserved_peak_bytes'])} reserved, "
            f"{format_share(memory['fragmentation'])} lost between"
        )
    if figures["samples_per_s"]:
        lines.append(
            f"throughput   {figures['samples_per_s']:.4g} samples/s, batch {figures['batch']}"
        )
    if figures["flops_per_step"]:
        lines.append(
            f"work         {figures['flops_per_step'] / 1e9:.4g} GFLOP a step, by "
            f"{figures['flops_by']}"
        )
    if run.counts:
        lines.append("counts       " + ", ".join(f"{k} {v}" for k, v in run.counts.items()))
    if run.diagnosis:
        found = [finding["type"] for finding in run.diagnosis["findings"]]
        lines.append(f"findings     {', '.join(found) or 'none'}")
    if run.trace:
        lines.append(f"trace        {run.trace}")
    return "\n".join([*lines, *(f"note         {text}" for text in figures["notes"])])


# --------------------------------------------------------------------------- table, breakdown


def _describe_table(parser: Parser) -> None:
    parser.add_argument("what", choices=_TABLES, metavar="WHAT", help=", ".join(_TABLES))
    parser.add_argument(
        "sides", nargs="*", metavar="DEVICE", help="devices: two names, such as A100 and H100"
    )
    add_store(parser)
    add_table_output(parser)
    add_no_color(parser)


def _table(options: Options) -> int:
    from torchtraceap.lab.bench.runs.tables import devices_table, eager_compiled_table

    wanted = 2 if options.what == "devices" else 0
    if len(options.sides) != wanted:
        raise UsageError(
            "bench table devices A B compares two devices"
            if wanted
            else "bench table eager-compiled takes no further words"
        )
    check_table_output(options, [])
    runs = open_store(options).runs()
    if options.what == "devices":
        return give_table(devices_table(runs, *options.sides), options)
    return give_table(eager_compiled_table(runs), options)


def _describe_breakdown(parser: Parser) -> None:
    parser.add_argument(
        "runs", metavar="RUN", nargs="*", help="as show takes them [the latest of each kind]"
    )
    parser.add_argument(
        "--by", choices=("run", "task"), default="run", metavar="WHAT", help="run, task [run]"
    )
    parser.add_argument("--html", metavar="FILE", help="draw it as a page")
    add_store(parser)
    add_table_output(parser)
    add_no_color(parser)


def _breakdown(options: Options) -> int:
    from torchtraceap.core import check_target
    from torchtraceap.lab.bench.runs.breakdown import (
        break_down_runs,
        breakdown_table,
        task_table,
        write_breakdown_page,
    )

    check_table_output(options, [])
    if options.html:
        check_target(options.html)
    store = open_store(options)
    runs = [store.load(name) for name in options.runs] or list(
        {run.config_hash: run for run in store.runs()}.values()
    )
    found, notes = break_down_runs(runs)
    if options.html:
        write_breakdown_page(found, options.html, notes)
        note(f"wrote {options.html}")
    if not options.html or options.json or options.csv or options.parquet:
        make = task_table if options.by == "task" else breakdown_table
        return give_table(make(found, notes), options)
    return FINE


# ---------------------------------------------------------------------------------- bisect


def _describe_bisect(parser: Parser) -> None:
    parser.add_argument(
        "range",
        metavar="A..B",
        nargs="?",
        help="git commits, A with the old and B with the new behavior [B: HEAD]",
    )
    parser.add_argument(
        "--repo",
        default=".",
        metavar="FOLDER",
        help="in the repository; the program runs there [.]",
    )
    parser.add_argument(
        "--all-parents", action="store_true", help="all commits, not only those of the main line"
    )
    parser.add_argument(
        "--package", metavar="NAME", help="versions of a package instead of commits"
    )
    parser.add_argument(
        "--versions", metavar="V..W", help="of the package: 1.0..1.4, or 1.0,1.1,1.4"
    )
    parser.add_argument(
        "--find-links", metavar="FOLDER", help="wheels of the package; no index is asked then"
    )
    parser.add_argument(
        "--with-dependencies", action="store_true",
        help="install what each version needs too [what is installed here serves all]",
    )  # fmt: skip
    add_checkout_options(parser)
    parser.add_argument(
        "--improvement", action="store_true", help="look for what made it faster, or smaller"
    )
    parser.add_argument(
        "--measure", choices=_MEASURES, default="time", metavar="WHAT",
        help="time (the median step), memory (the peak of the resident set), or one of what a "
        "single recording of each commit counts: " + ", ".join(_MEASURES[2:]) + " [time]",
    )  # fmt: skip
    add_effect(parser, "changes below it do not matter")
    add_alpha(parser, "false alarms of each comparison of two")
    parser.add_argument(
        "--looks", type=_looks, default=(10, 20, 40), metavar="N,N,...",
        help="rounds after which it may be decided [10,20,40]",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the orders [0]")
    add_run_timeout(parser)
    parser.add_argument(
        "--state", metavar="FILE",
        help="where runs are kept, to go on after an interruption [in the folder for caches, "
        "until it is done]",
    )  # fmt: skip
    parser.add_argument("--no-causes", action="store_true", help="record no traces at the end")
    parser.add_argument("--quiet", action="store_true", help="say nothing on the way")
    add_json(parser)


def _bisect(options: Options) -> int:
    from torchtraceap.lab.bench.bisect import Settings, bisect
    from torchtraceap.lab.bench.comparison.sides import split_command
    from torchtraceap.lab.bench.counted import TIMEOUT, bisect_counts
    from torchtraceap.lab.bench.processes.cleaner import working_folder
    from torchtraceap.lab.bench.revisions import (
        Installs,
        Repository,
        Source,
        TimedOutError,
        package_versions,
    )
    from torchtraceap.lab.bench.rounds import COUNTED, RevisionRuns

    if not options.program:
        raise UsageError("bench bisect needs a program: bench bisect A..B -- python train.py")
    if bool(options.range) == bool(options.package):
        raise UsageError("bench bisect needs a range of commits A..B, or --package and --versions")
    with ExitStack() as stack:
        places: Places
        repository = None
        if options.package:
            if not options.versions:
                raise UsageError("--package needs --versions, such as 1.0..1.4")
            source = Source(options.package, options.find_links, options.with_dependencies)
            line = package_versions(source, options.versions)
            places = stack.enter_context(Installs.of(source))
        else:
            repository = Repository(options.repo)
            line = repository.range(options.range, first_parent=not options.all_parents)
            places = stack.enter_context(repository.checkouts())
        settings = Settings(
            options.minimal_effect,
            options.alpha,
            options.looks,
            seed=options.seed,
            improvement=options.improvement,
        )
        journal, temporary = _open_journal(options, line, repository)
        if journal.resumed and not options.quiet:
            note(f"goes on behind {journal.resumed} rounds that were measured before")
        runner = RevisionRuns(
            places,
            options.program,
            setup=split_command(options.setup) if options.setup else None,
            measure=options.measure,
            pythonpath=options.pythonpath,
            timeout_s=options.timeout,
            kept=[line[0], line[-1]],
        )
        traces = stack.enter_context(working_folder())
        say = (lambda text: None) if options.quiet else note
        by_counts = partial(
            bisect_counts,
            line,
            runner,
            settings=settings,
            traces=traces,
            journal=journal,
            progress=say,
            explain=not options.no_causes,
        )
        with progress_stage("bisecting"):
            if options.measure in COUNTED:
                found = by_counts(options.measure)
            else:
                try:
                    wanted = None if options.no_causes else traces
                    found = bisect(
                        line, runner, settings, journal=journal, progress=say, traces=wanted
                    )
                except TimedOutError:  # a revision that hangs may be what is searched for
                    found = by_counts(TIMEOUT)
        for text, commit in getattr(places, "missing", {}).items():
            note(f"{commit}: {text}")
    if temporary is not None:
        temporary.unlink(missing_ok=True)
    print_text(found.to_json() if options.json else bisection_text(found))
    return FINE


def _open_journal(
    options: Options, line: Sequence[Revision], repository: Repository | None
) -> tuple[Journal, Path | None]:
    """Return the journal, and its file if that goes when the answer is known."""
    import json
    from hashlib import sha256

    from torchtraceap.core import cache_folder
    from torchtraceap.lab.bench.rounds import Journal

    header = {
        "revisions": [revision.id for revision in line],
        "package": options.package,
        "program": options.program,
        "setup": options.setup,
        "pythonpath": options.pythonpath,
        "measure": options.measure,
        "folder": repository.prefix if repository else "",
        "looks": list(options.looks),
        "seed": options.seed,
        "improvement": options.improvement,
    }
    if options.state or repository is None:
        return Journal(options.state or None, header), None
    header_text = json.dumps({**header, "repository": str(repository.root)})
    key = sha256(header_text.encode()).hexdigest()[:16]
    place = cache_folder() / "bisect" / f"{key}.jsonl"
    place.parent.mkdir(parents=True, exist_ok=True)
    return Journal(place, header), place


def bisection_text(found: Bisection) -> str:
    """Format the answer for a terminal."""
    line = found.line
    ends = f"{line[0].short}..{line[-1].short}"
    lines = [f"{ends}: {len(line)} revisions, {found.runs} runs"]
    if found.counts:
        lines.append(f"{found.measure} at the ends: {_counts(found.counts, 'from', 'to')}")
    elif found.difference:
        lines.append(f"difference of the ends: {_change(found.difference)}")
    for each in found.tested:
        where = "" if each.level is None else f", stands at {each.level:.2f} of the way"
        reason = f" ({each.reason})" if each.reason else f" after {each.rounds} rounds{where}"
        if found.counts and not each.reason:
            reason = f", {_count(each.value)}"
        lines.append(f"  {each.commit[:10]}  {each.verdict}{reason}  {each.subject}")
    if found.culprit is not None:
        change = f": {_change(found.change)}" if found.change else ""
        if found.counts:
            change = f": {found.measure} {_counts(found.counts, 'before', 'after')}"
        lines.append(f"culprit: {found.culprit.short} {found.culprit.title}{change}, confirmed")
    elif found.verdict == "range":
        lines.append("the culprit is one of:")
        lines += [f"  {revision.short} {revision.title}" for revision in found.range]
    else:
        lines.append({"no_difference": "no difference", "undecided": "undecided"}[found.verdict])
    lines += [
        f"  {each['name']}: {each['before']:g} → {each['after']:g} calls" for each in found.calls
    ]
    lines += list(found.notes)
    if found.causes:
        from torchtraceap.lab.bench.causes import causes_text

        lines.append(causes_text(found.causes))
    return "\n".join(lines)


def _counts(counts: Mapping[str, int | None], before: str, after: str) -> str:
    return f"{_count(counts[before])} → {_count(counts[after])}"


def _count(value: int | None) -> str:
    return "its time was over" if value is None else f"{value:,}"


def _change(change: Any) -> str:
    if change.low is None or change.high is None:
        return f"{100 * change.best:+.1f} %"
    return f"{100 * change.best:+.1f} % ({100 * change.low:+.1f} to {100 * change.high:+.1f})"


# ---------------------------------------------------------------------------------- history


def _describe_history(parser: Parser) -> None:
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="of a workload or program [all that are kept]"
    )
    add_store(parser)
    add_effect(parser, "smaller changes are not told")
    parser.add_argument("--html", metavar="FILE", help="write the chart as a page")
    add_json(parser)


def _history(options: Options) -> int:
    from torchtraceap.lab.bench.runs.history import histories, history_html, history_text

    found = histories(options.store, name=options.name, minimal_effect=options.minimal_effect)
    if options.html:
        from torchtraceap.core import write_text

        write_text(options.html, history_html(found))
        note(f"wrote {options.html}")
    if options.json:
        series = [each.to_dict() for each in found]
        print_document({"schema": "torchtraceap.history/1", "series": series})
    else:
        print_text(history_text(found))
    return FINE


TRACK_ACTIONS: dict[str, Command] = {
    "show": Command(
        "runs that are kept",
        _describe_show,
        _show,
        ("bench show", "bench show resnet", "bench show 3f2a --json"),
    ),
    "table": Command(
        "runs side by side: eager-compiled, devices A B",
        _describe_table,
        _table,
        ("bench table eager-compiled", "bench table devices A100 H100 --csv devices.csv"),
    ),
    "breakdown": Command(
        "active, data movement and idle time of a step, by workload and task",
        _describe_breakdown,
        _breakdown,
        ("bench breakdown", "bench breakdown --by task --html breakdown.html"),
    ),
    "bisect": Command(
        "find the commit, or version, that changed what a program takes",
        _describe_bisect,
        _bisect,
        (
            "bench bisect v1.0..HEAD -- python train.py",
            "bench bisect main~20.. --setup 'make' --minimal-effect 3% -- ./build/bench",
            "bench bisect --package NAME --versions 1.0..1.4 --find-links wheels/ -- python b.py",
        ),
        takes_program=True,
    ),
    "history": Command(
        "show how what is kept changed over time, and where it stepped",
        _describe_history,
        _history,
        ("bench history", "bench history resnet50 --json"),
    ),
}
