"""The parts of Chat Completions that a server accepts, found by trying, one refusal at a time.

Note [Ladder]: an answer should fit a schema. In this order: `json_schema`, which constrains it;
`json_object_schema`, `{"type": "json_object", "schema": ...}`, an extension by which
llama-cpp-python and others constrain it, while some ignore it and a few refuse it; `json_object`;
`text`. From the second rung on the schema stands in the prompt too. A server that refuses one form
is asked by the next; it never climbs back by itself, but a stored dialect ends after some days.

Note [Parameters]: some models refuse parameters that others need, such as a temperature. One that a
server says it doesn't support is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchtraceap.core.records import dataclass
from torchtraceap.explanation.language_model import Message
from torchtraceap.explanation.settings import ModelSettings

__all__ = ["RUNGS", "Dialect", "Question"]

Json = dict[str, Any]

RUNGS = ("json_schema", "json_object_schema", "json_object", "text")
_OPTIONAL = ("temperature", "seed", "stream_options", "max_tokens")
_ABOUT_FORMAT = re.compile(r"response_format|json_schema|json_object|grammar", re.IGNORECASE)
_UNSUPPORTED = re.compile(
    r"support|unknown|unrecogni[sz]ed|unexpected|extra|not permitted|not allowed", re.IGNORECASE
)
_BY_PROMPT = (
    "Answer with one JSON object that fits this JSON schema, and with nothing else, "
    "neither prose nor code fences:\n"
)


@dataclass(frozen=True, slots=True)
class Question:
    """A question, independent of the dialect in which it is asked."""

    messages: Sequence[Message]
    schema: Mapping[str, Any] | None
    """Schema of the answer; None if it is free text."""
    title: str
    """Title of the schema."""
    tools: Sequence[Mapping[str, Any]] = ()

    def to_dict(self) -> Json:
        return {
            "messages": list(self.messages),
            "schema": self.schema,
            "title": self.title,
            "tools": list(self.tools),
        }


@dataclass(frozen=True, slots=True)
class Dialect:
    """The form of requests to one model of one server."""

    rung: str = RUNGS[0]
    without: tuple[str, ...] = ()
    """Parameters that it refuses. Without "max_tokens", "max_completion_tokens" is sent."""

    def body(self, question: Question, settings: ModelSettings) -> Json:
        """The request; see Note [Ladder]."""
        body: Json = {
            "model": settings.model,
            "messages": list(question.messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "max_tokens": settings.max_answer_tokens,
        }
        if settings.seed is not None:
            body["seed"] = settings.seed
        for name in self.without:
            body.pop(name, None)
        if "max_tokens" in self.without:
            body["max_completion_tokens"] = settings.max_answer_tokens
        if question.tools:
            body["tools"] = list(question.tools)
        if question.schema is not None:
            self._ask_for(body, question.schema, question.title)
        return body

    def _ask_for(self, body: Json, schema: Mapping[str, Any], title: str) -> None:
        if self.rung == "json_schema":
            name = re.sub(r"[^A-Za-z0-9_-]", "_", title)[:64] or "answer"
            asked = {"name": name, "strict": True, "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": asked}
            return
        body["messages"] = _with_schema(body["messages"], schema)
        if self.rung == "json_object_schema":
            body["response_format"] = {"type": "json_object", "schema": schema}
        elif self.rung == "json_object":
            body["response_format"] = {"type": "json_object"}

    def after(self, status: int, told: str, sent: Mapping[str, Any]) -> Dialect | None:
        """The next to try; None where a refusal is not one of the form.

        Args:
            status: The HTTP status. Servers by llama-cpp-python answer 500 where others answer 400.
            told: The body of the answer.
            sent: The request that was refused.
        """
        if status not in (400, 422, 500):
            return None
        if "response_format" in sent and _ABOUT_FORMAT.search(told):
            return replace(self, rung=RUNGS[RUNGS.index(self.rung) + 1])
        if status == 500 or not _UNSUPPORTED.search(told):
            return None
        for name in _OPTIONAL:
            if name in sent and re.search(rf"\b{name}\b", told):
                return replace(self, without=(*self.without, name))
        return None

    def to_json(self) -> str:
        return json.dumps({"rung": self.rung, "without": self.without})

    @staticmethod
    def from_json(text: str) -> Dialect | None:
        """Parse a dialect; return None if it is not what `to_json` wrote."""
        try:
            known = json.loads(text)
            rung, without = known["rung"], tuple(known["without"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        fits = rung in RUNGS and all(name in _OPTIONAL for name in without)
        return Dialect(rung, without) if fits else None


def _with_schema(messages: Sequence[Message], schema: Mapping[str, Any]) -> list[Message]:
    """Add the schema to the first system message, which stays the same from call to call."""
    asked = _BY_PROMPT + json.dumps(schema, separators=(",", ":"))
    first = messages[0] if messages else {}
    if first.get("role") == "system" and isinstance(first.get("content"), str):
        joined = {**first, "content": f"{first['content']}\n\n{asked}"}
        return [joined, *messages[1:]]
    return [{"role": "system", "content": asked}, *messages]
