"""The commands `diagnose`, `report` and `score`: what is wrong with a trace, and how likely each of
its windows holds lost time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from torchtraceap.cli.catalog import summary_of
from torchtraceap.cli.input import load
from torchtraceap.cli.output import (
    check_output,
    json_output,
    note,
    print_diagnosis,
    print_tables,
    print_text,
    write_html,
)
from torchtraceap.cli.parser import (
    FINDINGS,
    FINE,
    UNUSABLE,
    Command,
    Options,
    Parser,
    UsageError,
    add_json,
    add_no_color,
    add_paths,
    add_reading,
    add_spreadsheet,
    add_windows,
    arguments,
    option,
    trace_path,
    unknown_word,
)

if TYPE_CHECKING:
    from torchtraceap.core.results import Windows
    from torchtraceap.diagnosis.scoring import BatchScorer, Scorer

SCHEMA = "torchtraceap.scores/1"
S = TypeVar("S")
T = TypeVar("T")


def add_scorer(parser: Parser) -> None:
    from torchtraceap.diagnosis.scoring import DEFAULT, SCORERS

    scorers = f"who scores the windows: {', '.join(SCORERS)} [{DEFAULT}]"
    parser.add_argument("--scorer", metavar="NAME", help=scorers)


def _diagnose(options: Options) -> int:
    wanted = _parse_fail_on(options.fail_on, options.gate)
    if options.html:
        check_output(options.html, options.paths)
    trace = load(options.paths, options)
    diagnosis = trace.diagnose(windows=options.windows, scorer=options.scorer)
    present = [finding.type for finding in diagnosis.findings]
    hits = present if "present" in wanted else [name for name in present if name in wanted]
    reasons = [f"{name} is present" for name in hits]
    if "unknown" in wanted:
        verdicts = diagnosis.verdicts.items()
        reasons += [f"{name} could not be checked" for name, v in verdicts if v == "unknown"]
    if options.html:
        write_html(diagnosis, options.html)
    if options.json:
        print_text(diagnosis.to_json())
    else:
        print_diagnosis(diagnosis, options.no_color, options.verbose)
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


def _report(options: Options) -> int:
    csvs, inference = options.tracelens_csv, options.tracelens_inference
    if not (options.html or csvs or options.tracelens_xlsx or inference):
        raise UsageError(
            "report needs --html FILE, --tracelens-csv DIR, --tracelens-xlsx FILE or "
            "--tracelens-inference DIR"
        )
    if options.spreadsheet and not (csvs or inference):
        raise UsageError("--spreadsheet goes with --tracelens-csv or --tracelens-inference")
    if options.capture and not inference:
        raise UsageError("--capture goes with --tracelens-inference DIR")
    if options.detect_recompute and not (options.tracelens_csv or options.tracelens_xlsx):
        raise UsageError("--detect-recompute goes with --tracelens-csv or --tracelens-xlsx")
    for path in filter(None, (options.html, options.tracelens_xlsx)):
        check_output(path, options.paths)
    trace = load(options.paths, options)
    if options.html:
        write_html(trace.diagnose(windows=options.windows), options.html)
    if inference:
        from torchtraceap.compat.tracelens import write_inference_csvs

        written = write_inference_csvs(
            trace, inference, capture=options.capture, spreadsheet=options.spreadsheet
        )
        note(f"wrote {len(written)} tables into {inference}")
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


# ---------------------------------------------------------------------------------- score


def _add_device(parser: Parser) -> None:
    from torchtraceap.diagnosis.scoring import DEVICES, NETWORKS

    networks = f"where the network of {' or '.join(NETWORKS)} runs [cpu]"
    parser.add_argument("--device", choices=DEVICES, default="cpu", help=networks)


def _score(options: Options) -> int:
    from torchtraceap.diagnosis.scoring import label_of, load_scorer

    scorer = load_scorer(options.scorer, device=options.device)
    answers = _answers(scorer, options)
    failed = False
    if options.json:
        # One document, written trace by trace.
        name = json.dumps(label_of(scorer))
        with json_output() as stream:
            stream.write(f'{{"schema":{json.dumps(SCHEMA)},"scorer":{name},"traces":[')
            for place, answer in enumerate(answers):
                failed = failed or "error" in answer
                text = json.dumps(answer, separators=(",", ":"), allow_nan=False)
                stream.write(f",{text}" if place else text)
            stream.write("]}\n")
    else:
        from torchtraceap.report.tables import TextTable

        found = list(answers)
        failed = any("error" in answer for answer in found)
        columns = ("trace", "worst", "mean", "from ms", "to ms", "most likely type")
        note = getattr(scorer, "reading", "")
        print_tables([TextTable("", columns, list(map(_row, found)), note)], options.no_color)
    return UNUSABLE if failed else FINE


def _answers(scorer: Scorer, options: Options) -> Iterator[dict[str, Any]]:
    """Yield the answer for each path; a trace is freed before the next one is read.

    A scorer of batches gets the inputs of as many traces together as are worth a batch.
    """
    from torchtraceap.diagnosis.scoring import BatchScorer

    paths, count = options.paths, options.windows
    if not isinstance(scorer, BatchScorer):
        for path in paths:
            yield _answer(
                path, _result_or_error(lambda at: scorer.score(load([at], options), count), path)
            )
        return
    batch: list[tuple[str, Any]] = []
    rows = 0
    for path in paths:
        read = _result_or_error(lambda at: scorer.inputs(load([at], options), count), path)
        batch.append((path, read))
        rows += 0 if isinstance(read, Exception) else len(read)
        if rows >= scorer.rows_at_once:
            yield from _batch_answers(scorer, batch)
            batch, rows = [], 0
    yield from _batch_answers(scorer, batch)


def _batch_answers(scorer: BatchScorer, batch: list[tuple[str, Any]]) -> Iterator[dict[str, Any]]:
    read = [inputs for _, inputs in batch if not isinstance(inputs, Exception)]
    scored = iter(_score_together(scorer, read))
    for path, inputs in batch:
        yield _answer(path, inputs if isinstance(inputs, Exception) else next(scored))


def _score_together(scorer: BatchScorer, inputs: list[Any]) -> list[Windows | Exception]:
    """Score a batch; where its traces fail together, score each by itself."""
    found = _result_or_error(scorer.score_inputs, inputs)
    if not isinstance(found, Exception):
        return list(found)
    if len(inputs) == 1:
        return [found]
    return [one for alone in inputs for one in _score_together(scorer, [alone])]


def _result_or_error(work: Callable[[S], T], argument: S) -> T | Exception:
    """Return the result of the work, or the error that kept it from being done."""
    from torchtraceap.errors import TraceError

    try:
        return work(argument)
    except (TraceError, OSError, MemoryError) as error:
        # Without the frames, which hold what was being read.
        return error.with_traceback(None)


def _answer(path: str, found: Windows | Exception) -> dict[str, Any]:
    if isinstance(found, MemoryError):
        return {"path": path, "error": "not enough memory"}
    if isinstance(found, Exception):
        return {"path": path, "error": " ".join(str(found).split())}
    scores = found.to_dict()
    return {"path": path} | {key: scores[key] for key in ("bounds_ns", "scores", "types")}


def _row(answer: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a trace for a person: its worst window."""
    if "error" in answer:
        return answer["path"], "", "", "", "", answer["error"]
    scores, bounds = answer["scores"], answer["bounds_ns"]
    worst = max(range(len(scores)), key=lambda window: scores[window])
    types: dict[str, float] = {name: of[worst] for name, of in answer["types"].items()}
    likely = max(types, key=lambda name: types[name], default="")
    return (
        answer["path"],
        f"{scores[worst]:.3f}",
        f"{sum(scores) / len(scores):.3f}",
        f"{(bounds[worst] - bounds[0]) / 1e6:.2f}",
        f"{(bounds[worst + 1] - bounds[0]) / 1e6:.2f}",
        likely if types.get(likely) else "",
    )


COMMANDS = {
    "diagnose": Command(
        summary_of("diagnose"),
        arguments(
            add_paths,
            add_json,
            option("--html", metavar="FILE", help="also write the report as an HTML page"),
            option(
                "--verbose",
                action="store_true",
                help="also how well steps are simulated, and each repair of the recording",
            ),
            add_windows,
            add_scorer,
            option("--gate", action="store_true", help="exit with 1 while a finding is present"),
            option(
                "--fail-on",
                metavar="WHAT",
                help="what the gate fails on, separated by commas: types of findings, 'present' "
                "for any finding (what --gate does), 'unknown' for one of the eight main checks "
                "that could not be made; implies --gate",
            ),
            add_reading,
            add_no_color,
        ),
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
        arguments(
            add_paths,
            option("--html", metavar="FILE", help="where to write the page"),
            option(
                "--tracelens-csv",
                metavar="DIR",
                help="write the tables of TraceLens under their names",
            ),
            lambda parser: add_spreadsheet(parser, "--tracelens-csv, --tracelens-inference"),
            option(
                "--tracelens-inference",
                metavar="DIR",
                help="write the inference report of TraceLens, of a served model",
            ),
            option(
                "--capture",
                type=trace_path,
                metavar="PATH",
                help="with --tracelens-inference: trace of the capture of CUDA graphs, or a folder "
                "with such [capture_traces/ next to the trace]",
            ),
            option(
                "--tracelens-xlsx",
                metavar="FILE",
                help="the same as one workbook (needs openpyxl)",
            ),
            option(
                "--detect-recompute",
                action="store_true",
                help="in the tables of TraceLens: split by what checkpointing recomputes "
                "(needs with_stack=True)",
            ),
            add_windows,
            add_reading,
        ),
        _report,
        (
            "report trace.json.gz --html report.html",
            "report trace.json.gz --tracelens-csv tables",
            "report trace.json.gz --tracelens-inference tables --capture capture_traces/",
        ),
    ),
    "score": Command(
        summary_of("score"),
        arguments(
            lambda parser: add_paths(
                parser, "traces, each a file or a folder of ranks; - is standard input"
            ),
            add_scorer,
            _add_device,
            add_windows,
            add_json,
            add_reading,
            add_no_color,
        ),
        _score,
        (
            "score trace.json.gz",
            "score a.json.gz b.json.gz --scorer evidence --windows 200 --json",
        ),
    ),
}
