"""An answer of Chat Completions out of the bytes of a body, streamed as events or in one piece.

A server that was asked to stream may answer in one piece all the same. Nothing that it sends is
trusted: what has another type than it should is as if it were not there.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from typing import Any

from torchtraceap.core.records import dataclass
from torchtraceap.explanation.language_model import Reply, ToolCall

__all__ = ["Completion", "CompletionError", "Progress", "read_completion"]

Json = dict[str, Any]
Progress = Callable[[int], object]
"""Told how many characters have come."""

_DONE = b"[DONE]"
_MOST_BYTES = 16 << 20
_MOST_TOKENS = 1 << 40
"""Larger counts of tokens are not believed."""


class CompletionError(ValueError):
    """A body is no answer; the text is a sentence about it, with nothing that the body says."""


@dataclass(slots=True)
class Completion:
    """The part of an answer that has been received."""

    progress: Progress | None = None
    texts: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    calls: dict[int, _Call] = field(default_factory=dict)
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
        calls = tuple(call.made(place) for place, call in sorted(self.calls.items()))
        ends = "length" if self.reason == "length" else "tool_calls" if calls else "stop"
        return Reply(_join_text(self.texts), ends, calls)

    def take(self, document: Any) -> None:
        """A part of the answer, or all of it."""
        if not isinstance(document, dict):
            raise CompletionError("its answer is not one of Chat Completions")
        self.error = self.error or document.get("error")
        self.model = self.model or _text(document.get("model"))
        self.tokens = _tokens(document.get("usage")) or self.tokens
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
        content, refusal = _text(part.get("content")) or "", _text(part.get("refusal")) or ""
        if content:
            self.texts.append(content)
        if refusal:
            self.refusals.append(refusal)
        self.length += len(content) + len(refusal) + self._take_calls(part.get("tool_calls"))
        if self.progress is not None:
            self.progress(self.length)

    def _take_calls(self, calls: Any) -> int:
        """Return how many characters of arguments there are."""
        length = 0
        for place, entry in enumerate(calls if isinstance(calls, list) else ()):
            if not isinstance(entry, dict):
                continue
            index = entry.get("index")
            at = index if isinstance(index, int) else place
            length += self.calls.setdefault(at, _Call()).take(entry)
        return length


@dataclass(slots=True)
class _Call:
    """The part of a tool call that has been received."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    def take(self, entry: Json) -> int:
        function = entry.get("function")
        function = function if isinstance(function, dict) else {}
        self.id = self.id or _text(entry.get("id")) or ""
        self.name = self.name or _text(function.get("name")) or ""
        given = function.get("arguments", "")
        # Some servers give an object where the format has its text.
        self.arguments.append(given if isinstance(given, str) else json.dumps(given))
        return len(self.arguments[-1])

    def made(self, place: int) -> ToolCall:
        named = self.id or f"call_{place}"
        return ToolCall(_join_text([named]), _join_text([self.name]), _join_text(self.arguments))


def _join_text(parts: Iterable[str]) -> str:
    """One text; halves of characters that JSON let through are joined or replaced."""
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _tokens(usage: Any) -> tuple[int, int] | None:
    if not isinstance(usage, dict):
        return None
    prompt, completion = map(usage.get, ("prompt_tokens", "completion_tokens"))
    if not (isinstance(prompt, int) and isinstance(completion, int)):
        return None
    fits = min(prompt, completion) >= 0 and max(prompt, completion) < _MOST_TOKENS
    return (prompt, completion) if fits else None


def read_completion(chunks: Iterable[bytes], answer: Completion) -> None:
    """Read a body to the end of its answer, and no further.

    Args:
        chunks: The body, cut anywhere.
        answer: Is filled; holds what has come, too, where reading fails.

    Raises:
        CompletionError: It is too long, broken off, or no Chat Completion.
    """
    lines = _lines(_bounded(chunks))
    first = next((line for line in lines if line.strip()), b"").removeprefix(b"\xef\xbb\xbf")
    if first.lstrip().startswith(b"{"):
        answer.take(_parsed(b"\n".join([first, *lines])))
        ended = True
    else:
        ended = _read_events(itertools.chain([first], lines), answer)
    if answer.error is not None:
        return
    if not answer.choices:
        raise CompletionError("its answer is not one of Chat Completions")
    if not ended and answer.reason is None:
        raise CompletionError("its answer broke off")


def _read_events(lines: Iterable[bytes], answer: Completion) -> bool:
    """Read events into the answer; return True if the last one says that it is the last."""
    for data in _events(lines):
        if data.strip() == _DONE:
            return True
        answer.take(_parsed(data))
        if answer.error is not None:
            return True
    return False


def _events(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The data of server-sent events."""
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
    held, searched = bytearray(), 0
    for chunk in chunks:
        held += chunk
        while (end := held.find(b"\n", searched)) >= 0:
            yield bytes(held[:end])
            del held[: end + 1]
            searched = 0
        searched = len(held)
    if held:
        yield bytes(held)


def _bounded(chunks: Iterable[bytes]) -> Iterator[bytes]:
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > _MOST_BYTES:
            raise CompletionError(f"its answer is longer than {_MOST_BYTES >> 20} MiB")
        yield chunk


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        raise CompletionError("its answer is not JSON") from None
