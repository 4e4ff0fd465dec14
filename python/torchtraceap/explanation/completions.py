"""Requests of Chat Completions in the dialect of a server, and answers out of the bytes of a body.

Note [Ladder]: an answer should fit a schema. In this order: `json_schema`, which constrains it;
`json_object_schema`, `{"type": "json_object", "schema": ...}`, an extension by which
llama-cpp-python and others constrain it, while some ignore it and a few refuse it; `json_object`;
`text`. From the second rung on the schema stands in the prompt too. A server that refuses one form
is asked by the next; it never climbs back by itself, but a stored dialect ends after some days.

Note [Parameters]: some models refuse parameters that others need, such as a temperature. One that a
server says it doesn't support is left out.

Note [Thoughts]: models that think before they answer do so at length and for money. Where a server
takes `chat_template_kwargs` (llama.cpp, vLLM, SGLang), it is asked to leave that out. What they
think all the same, as `reasoning_content`, parts of the content or in tags, counts as tokens and is
no part of the answer.

Note [Answers]: a server that was asked to stream may answer in one piece all the same. Nothing that
it sends is trusted: what has another type than it should is as if it were not there.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from torchtraceap.core.records import dataclass
from torchtraceap.core.stored import parse_json
from torchtraceap.explanation.language_model import Message, Reply, ToolCall, without_thoughts
from torchtraceap.explanation.settings import ModelSettings

__all__ = [
    "RUNGS",
    "Completion",
    "CompletionError",
    "Dialect",
    "Progress",
    "Question",
    "read_completion",
]

Json = dict[str, Any]

Progress = Callable[[int], object]
"""Told how many characters have come."""

_DONE = b"[DONE]"
_MOST_BYTES = 16 << 20
_MOST_TOKENS = 1 << 40
"""Larger counts of tokens are not believed."""
RUNGS = ("json_schema", "json_object_schema", "json_object", "text")
_OPTIONAL = ("temperature", "seed", "stream_options", "max_tokens", "chat_template_kwargs")
_THINKING = {"enable_thinking": False}
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
        """Return the body of the request; see Note [Ladder]."""
        body: Json = {
            "model": settings.model,
            "messages": list(question.messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "max_tokens": settings.max_answer_tokens,
            "chat_template_kwargs": _THINKING,  # see Note [Thoughts]
        }
        if settings.seed is not None:
            body["seed"] = settings.seed
        for name in self.without:
            body.pop(name, None)
        if "max_tokens" in self.without:
            body["max_completion_tokens"] = settings.max_answer_tokens
        if question.tools:
            body["tools"] = list(question.tools)
        schema = question.schema
        if schema is None:
            return body
        if self.rung == "json_schema":
            name = re.sub(r"[^A-Za-z0-9_-]", "_", question.title)[:64] or "answer"
            asked = {"name": name, "strict": True, "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": asked}
            return body
        # The schema joins the first system message, which stays the same from call to call.
        demand = _BY_PROMPT + json.dumps(schema, separators=(",", ":"))
        first, *others = question.messages or ({},)
        if first.get("role") == "system" and isinstance(first.get("content"), str):
            joined = {**first, "content": f"{first['content']}\n\n{demand}"}
            body["messages"] = [joined, *others]
        else:
            body["messages"] = [{"role": "system", "content": demand}, *question.messages]
        if self.rung == "json_object_schema":
            body["response_format"] = {"type": "json_object", "schema": schema}
        elif self.rung == "json_object":
            body["response_format"] = {"type": "json_object"}
        return body

    def after(self, status: int, told: str, sent: Mapping[str, Any]) -> Dialect | None:
        """Return the next to try; None where a refusal is not one of the form.

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
            known = parse_json(text, "a dialect")
            rung, without = known["rung"], tuple(known["without"])
        except (ValueError, TypeError, KeyError):
            return None
        fits = rung in RUNGS and all(name in _OPTIONAL for name in without)
        return Dialect(rung, without) if fits else None


class CompletionError(ValueError):
    """A body is no answer; the text is a sentence about it, with nothing that the body says."""


@dataclass(slots=True)
class Completion:
    """The part of an answer that has been received."""

    progress: Progress | None = None
    texts: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    calls: dict[int, dict[str, list[str]]] = field(default_factory=dict)
    """Parts of each tool call: of its "id", "name" and "arguments"."""
    reason: str | None = None
    """Reason why the answer ended; None before its end."""
    model: str | None = None
    """Name of the answering model, as the server gives it."""
    error: Any = None
    """Error that the server sent instead of an answer."""
    tokens: tuple[int, int] | None = None
    """Tokens of the prompt and of the answer, as the server counts them."""
    choices: int = 0
    length: int = 0
    """Characters of the texts, refusals and calls so far."""

    def reply(self) -> Reply:
        if self.refusals or self.reason == "content_filter":
            return Reply(_join_text(self.refusals or self.texts), "refusal")
        calls = tuple(
            ToolCall(
                _join_text(parts["id"][:1] or [f"call_{place}"]),
                _join_text(parts["name"][:1]),
                _join_text(parts["arguments"]),
            )
            for place, parts in sorted(self.calls.items())
        )
        ends = "length" if self.reason == "length" else "tool_calls" if calls else "stop"
        return Reply(without_thoughts(_join_text(self.texts)), ends, calls)

    def take(self, document: Any) -> None:
        """Take a part of the answer, or all of it."""
        if not isinstance(document, dict):
            raise CompletionError("its answer is not one of Chat Completions")
        self.error = self.error or document.get("error")
        self.model = self.model or _text(document.get("model"))
        usage = document.get("usage")
        if isinstance(usage, dict):
            names = ("prompt_tokens", "completion_tokens")
            counts = [usage[name] for name in names if isinstance(usage.get(name), int)]
            if len(counts) == len(names) and all(0 <= count < _MOST_TOKENS for count in counts):
                self.tokens = (counts[0], counts[1])
        choices = document.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("index", 0) == 0:
                self._take_choice(choice)

    def _take_choice(self, choice: Json) -> None:
        self.choices += 1
        self.reason = _text(choice.get("finish_reason")) or self.reason
        part = choice.get("delta", choice.get("message"))
        if not isinstance(part, dict):
            return
        for name, known in (("content", self.texts), ("refusal", self.refusals)):
            said = part.get(name)
            if (text := _text(_joined_parts(said) if isinstance(said, list) else said)) is not None:
                known.append(text)
                self.length += len(text)
        thoughts = (_text(part.get(name)) for name in ("reasoning_content", "reasoning"))
        self.length += sum(len(text) for text in thoughts if text is not None)
        entries = part.get("tool_calls")
        for place, entry in enumerate(entries if isinstance(entries, list) else ()):
            if not isinstance(entry, dict):
                continue
            index = entry.get("index")
            at = index if isinstance(index, int) else place
            parts = self.calls.setdefault(at, {"id": [], "name": [], "arguments": []})
            function = entry.get("function")
            function = function if isinstance(function, dict) else {}
            for name, value in (("id", entry.get("id")), ("name", function.get("name"))):
                if (text := _text(value)) is not None:
                    parts[name].append(text)
            given = function.get("arguments", "")
            # Some servers give an object where the format has its text.
            parts["arguments"].append(given if isinstance(given, str) else json.dumps(given))
            self.length += len(parts["arguments"][-1])
        if self.progress is not None:
            self.progress(self.length)


def _join_text(parts: Iterable[str]) -> str:
    """Return one text; halves of characters that JSON let through are joined or replaced."""
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _joined_parts(parts: list[Any]) -> str:
    """Return the texts of content that comes as a list of parts; images and thoughts are none."""
    said = (each for each in parts if isinstance(each, dict))
    texts = (each.get("text") for each in said if each.get("type") in ("text", "output_text"))
    return "".join(text for text in texts if isinstance(text, str))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def read_completion(chunks: Iterable[bytes], answer: Completion) -> None:
    """Read a body to the end of its answer, and no further.

    Args:
        chunks: The body, cut anywhere.
        answer: Is filled; holds what has come, too, where reading fails.

    Raises:
        CompletionError: It is too long, broken off, or no Chat Completion.
    """
    lines = _lines(chunks)
    first = next((line for line in lines if line.strip()), b"").removeprefix(b"\xef\xbb\xbf")
    ended = first.lstrip().startswith(b"{")
    if ended:
        answer.take(_parse_json(b"\n".join([first, *lines])))
    else:
        for data in _events(itertools.chain([first], lines)):
            if data.strip() != _DONE:
                answer.take(_parse_json(data))
            ended = data.strip() == _DONE or answer.error is not None
            if ended:
                break
    if answer.error is not None:
        return
    if not answer.choices:
        raise CompletionError("its answer is not one of Chat Completions")
    if not ended and answer.reason is None:
        raise CompletionError("its answer broke off")


def _events(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the data of server-sent events."""
    data: list[bytes] = []
    for line in lines:
        line = line.removesuffix(b"\r")
        if line.startswith(b"data:"):
            data.append(line[5:])
        elif not line and data:
            yield b"\n".join(data)
            data = []
    if data:
        yield b"\n".join(data)


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a body as they come; raise CompletionError where it is too long."""
    held, searched, size = bytearray(), 0, 0
    for chunk in chunks:
        size += len(chunk)
        if size > _MOST_BYTES:
            raise CompletionError(f"its answer is longer than {_MOST_BYTES >> 20} MiB")
        held += chunk
        while (end := held.find(b"\n", searched)) >= 0:
            yield bytes(held[:end])
            del held[: end + 1]
            searched = 0
        searched = len(held)
    if held:
        yield bytes(held)


def _parse_json(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        raise CompletionError("its answer is not JSON") from None
