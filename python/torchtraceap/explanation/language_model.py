"""The interface of a language model; `client` implements it for servers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torchtraceap.core.records import dataclass
from torchtraceap.core.results import Result
from torchtraceap.errors import TraceError

__all__ = [
    "AnswerError",
    "LanguageModel",
    "Message",
    "ModelError",
    "RefusalError",
    "Reply",
    "ToolCall",
    "Usage",
    "estimate_tokens",
    "without_thoughts",
]

_CHARACTERS_PER_TOKEN = 3.5

Message = dict[str, Any]
"""A message of Chat Completions: "role" and "content", with "tool_calls" or "tool_call_id"."""


_OPEN = r"<(?:think|thinking|thought|reasoning)>"
_CLOSE = r"</(?:think|thinking|thought|reasoning)>"
_THOUGHT = re.compile(f"{_OPEN}.*?{_CLOSE}", re.DOTALL | re.IGNORECASE)
_TO_CLOSE = re.compile(f".*{_CLOSE}", re.DOTALL | re.IGNORECASE)
_FROM_OPEN = re.compile(f"{_OPEN}.*", re.DOTALL | re.IGNORECASE)
_CHANNEL = re.compile(
    r"<\|channel\|>\s*(\w+)(?:(?!<\|(?:message|channel)\|>).)*<\|message\|>(.*?)"
    r"(?=<\|(?:end|return|call|start|channel)\|>|\Z)",
    re.DOTALL,
)


def without_thoughts(text: str) -> str:
    """Return what a reasoning model answers, without what it thinks on the way there.

    Set aside are parts in tags such as <think> (of which the first may stand in the prompt, or the
    last be missing, as the answer was cut), and channels of the harmony format but the final one.
    """
    if "<|channel|>" in text:
        messages: list[tuple[str, str]] = _CHANNEL.findall(text)
        text = "".join(said for channel, said in messages if channel == "final")
    text = _TO_CLOSE.sub("", _THOUGHT.sub("", text))
    return _FROM_OPEN.sub("", text).strip() if "<" in text else text.strip()


def estimate_tokens(characters: int) -> int:
    """Return an estimate of the tokens in a text of so many characters of English and numbers."""
    return math.ceil(characters / _CHARACTERS_PER_TOKEN)


@dataclass(frozen=True, slots=True)
class Usage(Result):
    """Calls and tokens of a language model."""

    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None
    """None if the price is unknown."""


class ModelError(TraceError):
    """The model could not be asked, or a cap was reached; the text has no key and no prompt."""


class AnswerError(ModelError):
    """An answer that can't be used; the text says why, for whoever gave it."""


class RefusalError(ModelError):
    """The model was asked, and would not answer; it may answer something else."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the model wants to be called."""

    id: str
    name: str
    arguments: str
    """JSON, as the model wrote it: anything."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer."""

    text: str
    finish: str
    """"stop", "length" (cut), "refusal" or "tool_calls"."""
    calls: tuple[ToolCall, ...] = ()


class LanguageModel(Protocol):
    """Answers messages."""

    @property
    def name(self) -> str:
        """Name of the model, as the user gave it."""

    def answer(self, messages: Sequence[Message], schema: Mapping[str, Any], title: str) -> Reply:
        """Return an answer that should be JSON of a schema. It may still be anything.

        Raises:
            ModelError: The model gave no reply.
        """

    def converse(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Reply:
        """Return an answer, or calls of tools (their descriptions as Chat Completions has them).

        Raises:
            ModelError: The model gave no reply.
        """

    def usage(self) -> Usage:
        """Return the calls and tokens so far."""
