"""A language model alone, without a detector: a trace in five parts, each of them one question.

As in the paper's Table 3, where a model is asked about five sub-traces, as a whole one does not fit
into its context. The text of a sub-trace in the paper's prompt is not published. Here it is a table
of the window features of that part (docs/scorers.md): numbers alone, no name out of the trace, no
label and no score of a detector.

Note [Invalid answers]: an answer that breaks the schema gets one more turn, which says what is
wrong with it. After that its windows score 0, and it is counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtraceap.core import load_knowledge, progress_stage
from torchtraceap.datasets import TYPES
from torchtraceap.explanation import common_features
from torchtraceap.lab.evaluation.judged_traces import entry
from torchtraceap.lab.evaluation.methods import LANGUAGE_MODEL, SCORES

if TYPE_CHECKING:
    from torchtraceap.explanation import LanguageModel, Message, Reply
    from torchtraceap.lab.evaluation.judged_traces import LabeledTrace
    from torchtraceap.tables import FeatureTable

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


class _InvalidError(Exception):
    """An answer that breaks the schema; the message is for the model."""


def parts_document(traces: Iterable[LabeledTrace], model: LanguageModel) -> Json:
    """Return a language model's scores of windows as a document of `torchtraceap score --json`.

    Args:
        traces: Labeled ones; their labels are not looked at.
        model: Is asked `PARTS` times for each of them, or twice as often.

    Returns:
        With a further entry "judged" that counts parts, second turns and invalid answers.

    Raises:
        ModelError: The model can't be asked.
    """
    counts = {"parts": 0, "repaired": 0, "invalid": 0}
    entries = []
    with progress_stage("asking a model about parts of traces"):
        for labeled in traces:
            diagnosis = labeled.diagnosis
            columns = common_features(diagnosis.trace, diagnosis.windows.count, 0)
            scores = np.zeros(diagnosis.windows.count)
            for start, end in parts_of(len(scores)):
                answer = _ask(_table(columns, start, end), end - start, model, counts)
                for window, confidence in answer.items():
                    scores[start + window - 1] = confidence
            entries.append(entry(labeled, scores))
    return {
        "schema": SCORES,
        "scorer": f"language model {model.name}",
        "name": LANGUAGE_MODEL,
        "labels": "none",
        "judged": counts,
        "traces": entries,
    }


def parts_of(count: int) -> list[tuple[int, int]]:
    """Windows of each part, as a range; none is empty."""
    ends = [count * place // PARTS for place in range(PARTS + 1)]
    return [(start, end) for start, end in pairwise(ends) if start < end]


def _ask(table: str, count: int, model: LanguageModel, counts: dict[str, int]) -> dict[int, float]:
    """Return the confidence by window, counted from 1; see Note [Invalid answers]."""
    ways = "\n".join(f"- {load_knowledge()[name].name}" for name in TYPES)
    messages: list[Message] = [
        {"role": "system", "content": _TASK.format(ways=ways)},
        {"role": "user", "content": table},
    ]
    window = {"type": "integer", "enum": list(range(1, count + 1))}
    line = _object_schema({"window": window, "confidence": {"type": "number"}})
    schema = _object_schema({"windows": {"type": "array", "items": line}})
    counts["parts"] += 1
    reply = model.answer(messages, schema, _TITLE)
    try:
        return _read(reply, count)
    except _InvalidError as error:
        complaint = f"That can't be used: {error}. Answer again, in that form."
    counts["repaired"] += 1
    messages = [
        *messages,
        {"role": "assistant", "content": reply.text[:_MOST_REPEATED]},
        {"role": "user", "content": complaint},
    ]
    try:
        return _read(model.answer(messages, schema, _TITLE), count)
    except _InvalidError:
        counts["invalid"] += 1
        return {}


def _table(columns: FeatureTable, start: int, end: int) -> str:
    """Return comma-separated lines, one for each window, counted from 1."""
    shown = [name for name in _SHOWN if columns[name][start:end].any()]
    lines = [",".join(["window", *shown])]
    for window in range(start, end):
        values = [str(window - start + 1)]
        for name in shown:
            value = float(columns[name][window])
            values.append(f"{100 * value:.0f}" if name.endswith("_share") else f"{value:.3g}")
        lines.append(",".join(values))
    return "\n".join(lines)


def _object_schema(properties: Json) -> Json:
    """Return the schema of an object, in the subset that strict servers take."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _read(reply: Reply, count: int) -> dict[int, float]:
    """Return the confidence by window of an answer, which may stand in a fence or behind prose.

    Raises:
        _InvalidError: It breaks the schema.
    """
    if reply.finish != "stop":
        raise _InvalidError(f"it ended by {reply.finish}")
    place = reply.text.find("{")
    if place < 0 or len(reply.text) > _MOST_LETTERS:
        raise _InvalidError("it holds no JSON object, or is too long")
    try:
        answer, _ = json.JSONDecoder(strict=False).raw_decode(reply.text, place)
    except (ValueError, RecursionError):
        raise _InvalidError("it is no JSON") from None
    if set(answer) != {"windows"}:
        raise _InvalidError('the object has to hold "windows" and nothing else')
    if not isinstance(answer["windows"], list):
        raise _InvalidError('there is no list "windows"')
    found: dict[int, float] = {}
    for line in answer["windows"]:
        if not isinstance(line, dict) or set(line) != {"window", "confidence"}:
            raise _InvalidError('each line has to hold "window" and "confidence" and nothing else')
        window, confidence = line["window"], line["confidence"]
        if type(window) is not int or not 1 <= window <= count:
            raise _InvalidError(f"a window is a number from 1 to {count}")
        if type(confidence) not in (int, float) or not 0 <= confidence <= 1:
            raise _InvalidError("a confidence is a number from 0 to 1")
        if window in found:
            raise _InvalidError(f"window {window} is there twice")
        found[window] = float(confidence)
    return found
