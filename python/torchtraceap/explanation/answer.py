"""The answer that a language model has to give about a pack: its schema, and strict reading of it.

An answer is text that anybody may have written. It is bounded in size and nesting before it is
parsed, and everything that is wrong with it is one `AnswerError`, which a repair turn can tell.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Any, Literal

from torchtraceap.errors import MissingDependencyError
from torchtraceap.explanation.language_model import AnswerError, without_thoughts
from torchtraceap.explanation.pack import Pack
from torchtraceap.explanation.verdict import Citation, Verdict

try:
    from pydantic import (
        BaseModel,
        ConfigDict,
        Field,
        ValidationError,
        ValidationInfo,
        field_validator,
    )
except ImportError as error:
    raise MissingDependencyError(
        "answers of a language model need pydantic: pip install 'torchtraceap[llm]'"
    ) from error

__all__ = ["VerdictAnswer", "json_schema", "read_answer", "to_verdict"]

_MOST_LETTERS = 1 << 16
_DEEPEST = 16
"""Brackets within brackets; an answer needs three."""
_MOST_STARTS = 256
"""Places at which an object may begin, of those that are tried."""
_MOST_WORDS = 60
_MOST_PROBLEMS = 6
_KEPT = frozenset(
    ["additionalProperties", "anyOf", "enum", "items", "properties", "required", "type"]
)
"""Keywords that every server knows which takes a schema strictly; bounds are checked here."""

_Name = Annotated[str, Field(max_length=64)]
_Prose = Annotated[str, Field(max_length=800)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class EvidenceItem(_Strict):
    """One event or metric on which an answer rests."""

    row: _Name | None
    metric: Annotated[str, Field(max_length=160)] | None
    value: Annotated[float, Field(allow_inf_nan=False)] | None
    why: Annotated[str, Field(max_length=400)]


class VerdictAnswer(_Strict):
    """An answer, with the types of one pack: see `json_schema`."""

    verdict: Literal["anti_pattern", "benign", "misclassified", "insufficient_evidence"]
    labels: Annotated[list[_Name], Field(max_length=8)]
    primary: _Name
    confidence: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
    evidence: Annotated[list[EvidenceItem], Field(max_length=12)]
    what: _Prose
    why: _Prose
    fix: _Name
    suggested_window: Literal["50", "100", "200", "keep"]

    @field_validator("what", "why")
    @classmethod
    def _is_short(cls, text: str) -> str:
        if len(text.split()) > _MOST_WORDS:
            raise ValueError(f"more than {_MOST_WORDS} words")
        return text

    @field_validator("labels", "primary", "fix")
    @classmethod
    def _is_allowed(cls, value: list[str] | str, info: ValidationInfo) -> list[str] | str:
        allowed = (*(info.context or {}).get("allowed", ()), "none")
        for name in [value] if isinstance(value, str) else value:
            if name not in allowed:
                raise ValueError("not one of the types that are allowed")
        return value


def json_schema(pack: Pack) -> dict[str, Any]:
    """Return the schema of an answer about a pack, in the subset that strict servers take.

    Every property is required, none may join, and types are listed. Lengths and ranges are not
    said, as not every server knows their keywords: `read_answer` checks them.
    """
    schema = VerdictAnswer.model_json_schema()
    found: dict[str, Any] = _strict(schema, schema.get("$defs", {}))
    properties = found["properties"]
    for place in (properties["labels"]["items"], properties["primary"], properties["fix"]):
        place["enum"] = [*pack.allowed, "none"]
    return found


def _strict(node: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a schema with references filled in, with keywords that every server knows alone."""
    if isinstance(node, list):
        return [_strict(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _strict(definitions[node["$ref"].rpartition("/")[2]], definitions)
    kept = {key: _strict(value, definitions) for key, value in node.items() if key in _KEPT}
    if "properties" in node:
        inner = {name: _strict(each, definitions) for name, each in node["properties"].items()}
        kept |= {"properties": inner, "required": list(inner), "additionalProperties": False}
    return kept


def read_answer(text: str, pack: Pack) -> VerdictAnswer:
    """Return the answer in a text, which may stand in a fence or between prose. Of several complete
    objects the last one counts: what comes before is a draft.

    Raises:
        AnswerError: No object in the text fits the schema.
    """
    if len(text) > _MOST_LETTERS:
        raise AnswerError(f"The answer has more than {_MOST_LETTERS} characters.")
    objects = [each for each in _objects(without_thoughts(text)) if "verdict" in each]
    found = objects[-1] if objects else None
    if found is None:
        raise AnswerError('The answer holds no complete JSON object with a "verdict".')
    try:
        return VerdictAnswer.model_validate(found, context={"allowed": pack.allowed})
    except ValidationError as error:
        # The place and kind of each error, without the value, the place in ASCII.
        found_wrong = error.errors(include_url=False, include_context=False, include_input=False)
        problems = []
        for each in found_wrong[:_MOST_PROBLEMS]:
            place = ".".join(ascii(part)[:64].strip("'") for part in each["loc"])
            problems.append(f"{place or 'the whole'}: {each['msg']}")
        raise AnswerError(f"The answer does not fit the schema: {'; '.join(problems)}.") from None


def to_verdict(answer: VerdictAnswer) -> Verdict:
    """Return the answer as a verdict, with "none" removed from the labels."""
    window = answer.suggested_window
    return Verdict(
        verdict=answer.verdict,
        labels=tuple(dict.fromkeys(name for name in answer.labels if name != "none")),
        primary=answer.primary,
        confidence=answer.confidence,
        evidence=tuple(Citation(e.row, e.metric, e.value, e.why) for e in answer.evidence),
        what=answer.what,
        why=answer.why,
        fix=answer.fix,
        suggested_windows=None if window == "keep" else int(window),
    )


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield objects that stand in a text side by side."""
    decoder = json.JSONDecoder(strict=False, parse_constant=_refuse)
    place = text.find("{")
    for _ in range(_MOST_STARTS):
        if place < 0:
            return
        if _is_deep(text, place):
            raise AnswerError(f"The answer nests deeper than {_DEEPEST} levels.")
        try:
            found, end = decoder.raw_decode(text, place)
        except ValueError:  # also of a number with too many digits
            end = place + 1
        else:
            yield found
        place = text.find("{", end)


def _is_deep(text: str, start: int) -> bool:
    """Return True if brackets that open at `start` nest too deep before the first of
    them closes."""
    depth, inside, escaped = 0, False, False
    for letter in islice(text, start, None):
        if inside:
            inside = escaped or letter != '"'
            escaped = letter == "\\" and not escaped
        elif letter == '"':
            inside = True
        elif letter in "{[":
            depth += 1
        elif letter in "}]":
            depth -= 1
        if depth > _DEEPEST or not depth:
            break
    return depth > _DEEPEST


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")
