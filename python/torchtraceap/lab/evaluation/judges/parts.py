"""A language model alone, without a detector: a trace in five parts, each of them one question.

As in the paper's Table 3, where a model is asked about five sub-traces, as a whole one does not fit
into its context. What the paper's prompt shows of a sub-trace is not published. Here it is a table
of the window features of that part (docs/features.md): numbers alone, no name out of the trace, no
label and no score of a detector.

Note [Invalid answers]: an answer that breaks the schema gets one more turn, which says what is
wrong with it. After that its windows score 0, and it is counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap.core.knowledge import load_knowledge
from torchtraceap.core.progress import progress_stage
from torchtraceap.datasets.labels import TYPES
from torchtraceap.explanation.build_pack import window_features
from torchtraceap.lab.evaluation.baselines.given import SCORES
from torchtraceap.lab.evaluation.judges.naming import entry
from torchtraceap.lab.evaluation.methods import LANGUAGE_MODEL

if TYPE_CHECKING:
    from torchtraceap.core.aliases import Array
    from torchtraceap.explanation.language_model import LanguageModel, Message, Reply
    from torchtraceap.lab.evaluation.judges.labelled import Labelled

__all__ = ["PARTS", "parts_document", "parts_of"]

Json = dict[str, Any]

PARTS = 5
_TITLE = "windows_of_a_part"
_MOST_LETTERS = 1 << 16
_MOST_REPEATED = 4_000
"""Characters of an answer that a repair turn repeats."""
_SHOWN = (
    "busy_share", "compute_share", "exposed_communication_share", "exposed_memcpy_share",
    "idle_data_loading_share", "idle_host_wait_share", "idle_synchronization_share",
    "idle_memory_copy_share", "idle_communication_wait_share", "idle_compilation_share",
    "idle_allocator_share", "idle_launch_latency_share", "idle_unknown_share",
    "small_kernel_share", "host_busy_share", "synchronization_share", "blocking_copy_share",
    "allocator_share", "data_loading_share", "launch_count", "kernel_count", "copy_count",
    "collective_count", "queue_depth_mean", "kernel_median_us", "launch_delay_p50_us",
    "collective_median_us",
)  # fmt: skip
_TASK = """\
A recording of a PyTorch training run on a GPU is cut into windows of equal time. You see one part \
of it: a line for each window, with numbers measured in it. Say in which windows time is lost that \
a change of the program would regain: a tenth of the window or more. Some recordings lose none.

Time is lost in one of these ways:
{ways}

Columns: *_share are percent of the window's time (idle_*_share: the GPU idles, by the cause), \
*_us are microseconds, the others are counts or means. Columns that are 0 throughout are left out.

Answer with one JSON object and nothing else, with a line for each window that loses time and how \
sure you are, from 0 to 1: {{"windows": [{{"window": 3, "confidence": 0.8}}]}}. Without such a \
window: {{"windows": []}}."""


@dataclass
class _Asked:
    """What a model was asked, and how it answered."""

    parts: int = 0
    repaired: int = 0
    """Second turns."""
    invalid: int = 0
    """Parts without an answer that holds."""


class _InvalidError(Exception):
    """What is wrong with an answer, for whoever gave it."""


def parts_document(traces: Iterable[Labelled], model: LanguageModel) -> Json:
    """What a language model says of each window, as a document of `torchtraceap score --json`.

    Args:
        traces: Labelled ones; their labels are not looked at.
        model: Is asked `PARTS` times for each of them, or twice as often.

    Returns:
        With a further entry "judged" that counts parts, second turns and invalid answers.

    Raises:
        ModelError: The model can't be asked.
    """
    asked = _Asked()
    with progress_stage("asking a model about parts of traces"):
        entries = [entry(each, _scores(each, model, asked)) for each in traces]
    return {
        "schema": SCORES,
        "scorer": f"language model {model.name}",
        "name": LANGUAGE_MODEL,
        "labels": "none",
        "judged": {"parts": asked.parts, "repaired": asked.repaired, "invalid": asked.invalid},
        "traces": entries,
    }


def parts_of(count: int) -> list[tuple[int, int]]:
    """Windows of each part, as a range; none is empty."""
    ends = [count * place // PARTS for place in range(PARTS + 1)]
    return [(start, end) for start, end in pairwise(ends) if start < end]


def _scores(labelled: Labelled, model: LanguageModel, asked: _Asked) -> Array:
    """float64 `[W]`."""
    diagnosis = labelled.diagnosis
    columns = window_features(diagnosis.trace, diagnosis.windows.count, 0)
    scores = np.zeros(diagnosis.windows.count)
    for start, end in parts_of(len(scores)):
        said = _ask(_table(columns, start, end), end - start, model, asked)
        for window, confidence in said.items():
            scores[start + window - 1] = confidence
    return scores


def _ask(table: str, count: int, model: LanguageModel, asked: _Asked) -> dict[int, float]:
    """Confidence by window, counted from 1; see Note [Invalid answers]."""
    messages = _messages(table)
    schema = _schema(count)
    asked.parts += 1
    reply = model.answer(messages, schema, _TITLE)
    try:
        return _read(reply, count)
    except _InvalidError as error:
        messages = [*messages, *_repair(reply, error)]
    asked.repaired += 1
    try:
        return _read(model.answer(messages, schema, _TITLE), count)
    except _InvalidError:
        asked.invalid += 1
        return {}


def _messages(table: str) -> list[Message]:
    ways = "\n".join(f"- {load_knowledge()[name].name}" for name in TYPES)
    return [
        {"role": "system", "content": _TASK.format(ways=ways)},
        {"role": "user", "content": table},
    ]


def _repair(reply: Reply, error: _InvalidError) -> list[Message]:
    return [
        {"role": "assistant", "content": reply.text[:_MOST_REPEATED]},
        {"role": "user", "content": f"That can't be used: {error}. Answer again, in that form."},
    ]


def _table(columns: Mapping[str, Array], start: int, end: int) -> str:
    """Comma-separated, a line for each window, counted from 1."""
    shown = [name for name in _SHOWN if columns[name][start:end].any()]
    lines = [",".join(["window", *shown])]
    for window in range(start, end):
        values = [_number(name, float(columns[name][window])) for name in shown]
        lines.append(",".join([str(window - start + 1), *values]))
    return "\n".join(lines)


def _number(name: str, value: float) -> str:
    """In percent, or with three significant digits."""
    return f"{100 * value:.0f}" if name.endswith("_share") else f"{value:.3g}"


def _schema(count: int) -> Json:
    """In the subset that strict servers take."""
    window = {"type": "integer", "enum": list(range(1, count + 1))}
    line = _object({"window": window, "confidence": {"type": "number"}})
    return _object({"windows": {"type": "array", "items": line}})


def _object(properties: Json) -> Json:
    required = list(properties)
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


# ------------------------------------------------------------------------------ what is answered


def _read(reply: Reply, count: int) -> dict[int, float]:
    """Raises _InvalidError for what breaks the schema."""
    if reply.finish != "stop":
        raise _InvalidError(f"it ended by {reply.finish}")
    lines = _object_in(reply.text).get("windows")
    if not isinstance(lines, list):
        raise _InvalidError('there is no list "windows"')
    found: dict[int, float] = {}
    for line in lines:
        window, confidence = _line(line, count)
        if window in found:
            raise _InvalidError(f"window {window} is there twice")
        found[window] = confidence
    return found


def _object_in(text: str) -> Json:
    """The first object, which may stand in a fence or behind prose."""
    place = text.find("{")
    if place < 0 or len(text) > _MOST_LETTERS:
        raise _InvalidError("it holds no JSON object, or is too long")
    try:
        found, _ = json.JSONDecoder(strict=False).raw_decode(text, place)
    except (ValueError, RecursionError):
        raise _InvalidError("it is no JSON") from None
    if set(found) != {"windows"}:
        raise _InvalidError('the object has to hold "windows" and nothing else')
    return dict(found)


def _line(line: object, count: int) -> tuple[int, float]:
    if not isinstance(line, dict) or set(line) != {"window", "confidence"}:
        raise _InvalidError('each line has to hold "window" and "confidence" and nothing else')
    window, confidence = line["window"], line["confidence"]
    if type(window) is not int or not 1 <= window <= count:
        raise _InvalidError(f"a window is a number from 1 to {count}")
    if type(confidence) not in (int, float) or not 0 <= confidence <= 1:
        raise _InvalidError("a confidence is a number from 0 to 1")
    return window, float(confidence)
