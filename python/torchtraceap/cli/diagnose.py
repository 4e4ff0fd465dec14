"""The commands `diagnose` and `report`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchtraceap.cli.catalog import summary_of
from torchtraceap.cli.input import load
from torchtraceap.cli.output import check_output, note, print_diagnosis, print_text, write_html
from torchtraceap.cli.parser import (
    FINDINGS,
    FINE,
    Command,
    Options,
    Parser,
    UsageError,
    add_json,
    add_no_color,
    add_paths,
    add_spreadsheet,
    add_threads,
    add_windows,
    unknown_word,
)
from torchtraceap.cli.score import add_scorer

if TYPE_CHECKING:
    from torchtraceap.diagnosis.result import Diagnosis


def _describe_diagnose(parser: Parser) -> None:
    add_paths(parser)
    add_json(parser)
    parser.add_argument("--html", metavar="FILE", help="also write the report as an HTML page")
    add_windows(parser)
    add_scorer(parser)
    parser.add_argument(
        "--gate", action="store_true", help="exit with 1 while a finding is present"
    )
    parser.add_argument(
        "--fail-on",
        metavar="WHAT",
        help="what the gate fails on, separated by commas: types of findings, 'present' for any "
        "finding (what --gate does), 'unknown' for one of the eight main checks that could not "
        "be made; implies --gate",
    )
    add_threads(parser)
    add_no_color(parser)


def _diagnose(options: Options) -> int:
    wanted = _parse_fail_on(options.fail_on, options.gate)
    if options.html:
        check_output(options.html, options.paths)
    trace = load(options.paths, options.threads)
    diagnosis = trace.diagnose(windows=options.windows, scorer=options.scorer)
    reasons = _gate_reasons(diagnosis, wanted)
    if options.html:
        write_html(diagnosis, options.html)
    if options.json:
        print_text(diagnosis.to_json())
    else:
        print_diagnosis(diagnosis, options.no_color)
    if reasons:
        note(f"gate: {', '.join(reasons)}")
    return FINDINGS if reasons else FINE


def _parse_fail_on(text: str | None, gate: bool) -> tuple[str, ...]:
    """Return what the gate fails on; empty without a gate."""
    if text is None:
        return ("present",) if gate else ()
    wanted = tuple(word.strip() for word in text.split(",") if word.strip())
    if not wanted:
        raise UsageError("--fail-on needs a type of finding, 'present' or 'unknown'")
    from torchtraceap.core.knowledge import load_knowledge

    known = ("present", "unknown", *sorted(load_knowledge()))
    for word in wanted:
        if word not in known:
            choices = ", ".join(known)
            raise UsageError(f"--fail-on: {unknown_word(word, known)} (choices: {choices})")
    return wanted


def _gate_reasons(diagnosis: Diagnosis, wanted: Sequence[str]) -> list[str]:
    """Return the reasons why the gate fails; empty if it passes."""
    present = [finding.type for finding in diagnosis.findings]
    hits = present if "present" in wanted else [name for name in present if name in wanted]
    reasons = [f"{name} is present" for name in hits]
    if "unknown" in wanted:
        verdicts = diagnosis.verdicts.items()
        reasons += [f"{name} could not be checked" for name, v in verdicts if v == "unknown"]
    return reasons


def _describe_report(parser: Parser) -> None:
    add_paths(parser)
    parser.add_argument("--html", metavar="FILE", help="where to write the page")
    parser.add_argument(
        "--tracelens-csv", metavar="DIR", help="write the tables of TraceLens under their names"
    )
    add_spreadsheet(parser, "--tracelens-csv")
    parser.add_argument(
        "--tracelens-xlsx", metavar="FILE", help="the same as one workbook (needs openpyxl)"
    )
    parser.add_argument(
        "--detect-recompute",
        action="store_true",
        help="in the tables of TraceLens: split by what checkpointing recomputes "
        "(needs with_stack=True)",
    )
    add_windows(parser)
    add_threads(parser)


def _report(options: Options) -> int:
    if not (options.html or options.tracelens_csv or options.tracelens_xlsx):
        raise UsageError("report needs --html FILE, --tracelens-csv DIR or --tracelens-xlsx FILE")
    if options.spreadsheet and not options.tracelens_csv:
        raise UsageError("--spreadsheet goes with --tracelens-csv DIR")
    if options.detect_recompute and not (options.tracelens_csv or options.tracelens_xlsx):
        raise UsageError("--detect-recompute goes with --tracelens-csv or --tracelens-xlsx")
    for path in filter(None, (options.html, options.tracelens_xlsx)):
        check_output(path, options.paths)
    trace = load(options.paths, options.threads)
    if options.html:
        write_html(trace.diagnose(windows=options.windows), options.html)
    if options.tracelens_csv:
        from torchtraceap.compat.tracelens import write_tracelens_csvs

        folder = options.tracelens_csv
        written = write_tracelens_csvs(
            trace,
            folder,
            detect_recompute=options.detect_recompute,
            spreadsheet=options.spreadsheet,
        )
        note(f"wrote {len(written)} tables into {folder}")
    if options.tracelens_xlsx:
        from torchtraceap.compat.tracelens import write_tracelens_xlsx

        write_tracelens_xlsx(
            trace, options.tracelens_xlsx, detect_recompute=options.detect_recompute
        )
        note(f"wrote {options.tracelens_xlsx}")
    return FINE


COMMANDS = {
    "diagnose": Command(
        summary_of("diagnose"),
        _describe_diagnose,
        _diagnose,
        (
            "trace.json.gz",
            "diagnose runs/ --html report.html",
            "diagnose trace.json.gz --fail-on no_memory_pin,straggler",
            "diagnose - --json < trace.json.gz",
        ),
    ),
    "report": Command(
        summary_of("report"),
        _describe_report,
        _report,
        (
            "report trace.json.gz --html report.html",
            "report trace.json.gz --tracelens-csv tables",
        ),
    ),
}
