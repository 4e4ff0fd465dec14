"""The command `score`: windows of many traces, in one process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torchtraceap.cli.catalog import summary_of
from torchtraceap.cli.input import load
from torchtraceap.cli.output import print_tables, standard_output
from torchtraceap.cli.parser import (
    FINE,
    UNUSABLE,
    Command,
    Options,
    Parser,
    add_json,
    add_no_color,
    add_paths,
    add_threads,
    add_windows,
)

if TYPE_CHECKING:
    from torchtraceap.core.results import Windows
    from torchtraceap.diagnosis.scoring import BatchScorer, Scorer

SCHEMA = "torchtraceap.scores/1"
S = TypeVar("S")
T = TypeVar("T")


def add_scorer(parser: Parser) -> None:
    parser.add_argument("--scorer", metavar="NAME", help="who scores the windows: " + _scorers())


def _scorers() -> str:
    from torchtraceap.diagnosis.scoring import DEFAULT, SCORERS

    return f"{', '.join(SCORERS)} [{DEFAULT}]"


def _describe(parser: Parser) -> None:
    from torchtraceap.diagnosis.scoring import DEVICES, NETWORKS

    add_paths(parser, help_text="traces, each a file or a folder of ranks; - is standard input")
    add_scorer(parser)
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default="cpu",
        help=f"where the network of {' or '.join(NETWORKS)} runs [cpu]",
    )
    add_windows(parser)
    add_json(parser)
    add_threads(parser)
    add_no_color(parser)


def _score(options: Options) -> int:
    from torchtraceap.diagnosis.scoring import label_of, load_scorer

    scorer = load_scorer(options.scorer, device=options.device)
    answers = _answers(options.paths, scorer, options.windows, options.threads)
    if options.json:
        failed = _print_json(label_of(scorer), answers)
    else:
        failed = _print_table(list(answers), options.no_color)
    return UNUSABLE if failed else FINE


def _answers(
    paths: Sequence[str], scorer: Scorer, count: int, threads: int
) -> Iterator[dict[str, Any]]:
    """Yield the answer for each path; a trace is freed before the next one is read.

    A scorer of batches gets the inputs of as many traces together as are worth a batch.
    """
    from torchtraceap.diagnosis.scoring import BatchScorer

    if not isinstance(scorer, BatchScorer):
        for path in paths:
            yield _answer(path, _tried(lambda at: scorer.score(load([at], threads), count), path))
        return
    batch: list[tuple[str, Any]] = []
    rows = 0
    for path in paths:
        read = _tried(lambda at: scorer.inputs(load([at], threads), count), path)
        batch.append((path, read))
        rows += 0 if isinstance(read, Exception) else len(read)
        if rows >= scorer.rows_at_once:
            yield from _batch_answers(scorer, batch)
            batch, rows = [], 0
    yield from _batch_answers(scorer, batch)


def _batch_answers(scorer: BatchScorer, batch: list[tuple[str, Any]]) -> Iterator[dict[str, Any]]:
    read = [inputs for _, inputs in batch if not isinstance(inputs, Exception)]
    scored = iter(_together(scorer, read))
    for path, inputs in batch:
        yield _answer(path, inputs if isinstance(inputs, Exception) else next(scored))


def _together(scorer: BatchScorer, inputs: list[Any]) -> list[Windows | Exception]:
    """Score a batch; where its traces fail together, score each by itself."""
    found = _tried(scorer.score_inputs, inputs)
    if not isinstance(found, Exception):
        return list(found)
    if len(inputs) == 1:
        return [found]
    return [one for alone in inputs for one in _together(scorer, [alone])]


def _tried(work: Callable[[S], T], argument: S) -> T | Exception:
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


def _print_json(scorer: str, answers: Iterator[dict[str, Any]]) -> bool:
    """Write one document, trace by trace; whether one failed."""
    failed = False
    with standard_output() as stream:
        stream.write(f'{{"schema":{json.dumps(SCHEMA)},"scorer":{json.dumps(scorer)},"traces":[')
        for place, answer in enumerate(answers):
            failed = failed or "error" in answer
            text = json.dumps(answer, separators=(",", ":"), allow_nan=False)
            stream.write(f",{text}" if place else text)
        stream.write("]}\n")
    return failed


def _print_table(answers: Sequence[dict[str, Any]], no_color: bool) -> bool:
    """The worst window of each trace, for a person; whether one failed."""
    from torchtraceap.report.tables import TextTable

    columns = ("trace", "worst", "mean", "from ms", "to ms", "most likely type")
    rows = [_row(answer) for answer in answers]
    print_tables([TextTable("", columns, rows)], no_color)
    return any("error" in answer for answer in answers)


def _row(answer: dict[str, Any]) -> tuple[str, ...]:
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
    "score": Command(
        summary_of("score"),
        _describe,
        _score,
        (
            "score trace.json.gz",
            "score a.json.gz b.json.gz --scorer evidence --windows 200 --json",
        ),
    )
}
