"""Sentences about failed requests to a model, which repeat neither its key nor the prompt.

Note [Excerpts]: of what a server says, a short piece is told, in one line. It is dropped where it
repeats a part of the key or of the prompt, as servers like to do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from torchtraceap.core.records import dataclass
from torchtraceap.explanation.settings import KEY, ModelSettings

__all__ = ["Failure", "Secrets", "failure_of", "failure_of_event"]

_MOST_TOLD = 20_000
"""Characters of a refusal that are looked at."""
_EXCERPT = 160


@dataclass(frozen=True, slots=True)
class Secrets:
    """Texts that no message may repeat."""

    key: str | None
    prompt: str

    def excerpt(self, text: str) -> str:
        """The beginning of a text as one harmless line; empty where it may not be told."""
        line = " ".join(text[: 4 * _EXCERPT].split())
        prompt = " ".join(self.prompt.split())
        if _repeats(line, self.key or "", 6) or _repeats(line, prompt, 24):
            return ""
        safe = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
        return safe if len(safe) <= _EXCERPT else f"{safe[: _EXCERPT - 3]}..."


def _repeats(line: str, secret: str, width: int) -> bool:
    """Return True if the line contains the secret, or `width` consecutive characters of it."""
    if not secret:
        return False
    width = min(width, len(secret))
    return any(line[at : at + width] in secret for at in range(len(line) - width + 1))


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why there is no answer."""

    sentence: str
    status: int | None = None
    """HTTP status; None if there was none."""
    told: str = ""
    """The body of a refusal, as JSON. Not for people."""


def failure_of(error: Exception, settings: ModelSettings, secrets: Secrets) -> Failure:
    """Return the failure for an exception that the SDK raised before there was a body."""
    import openai

    if isinstance(error, openai.APIStatusError):
        return _status_failure(error.status_code, error.body, settings, secrets)
    if isinstance(error, openai.APITimeoutError):
        return Failure(f"its server was silent for {settings.timeout_s:g} s")
    if isinstance(error, openai.APIConnectionError):
        return Failure("its server can't be reached")
    return Failure(f"its server can't be asked ({type(error).__name__})")


def _status_failure(status: int, body: Any, settings: ModelSettings, secrets: Secrets) -> Failure:
    told = _dump(body)
    said = secrets.excerpt(_message(body) or told)
    tail = f": {said}" if said and status not in (401, 403) else ""
    return Failure(f"{_status_sentence(status, settings)} (HTTP {status}){tail}", status, told)


def _status_sentence(status: int, settings: ModelSettings) -> str:
    if 300 <= status < 400:
        return "its server sends requests elsewhere: give the base URL where they end"
    if status in (401, 403):
        no_key = f"its server wants a key: set {KEY}"
        return no_key if settings.key is None else "its server refuses the key"
    if status == 404:
        return "its server has no such model, or no Chat Completions at this base URL"
    if status == 429:
        return "its server allows no more requests now, also after a pause"
    return "its server fails" if status >= 500 else "its server refuses the request"


def failure_of_event(error: Any, secrets: Secrets) -> Failure:
    """Return the failure for an error that stands in place of an answer."""
    said = secrets.excerpt(_message(error) or _dump(error))
    return Failure(f"its server fails{f': {said}' if said else ''}")


def _message(body: Any) -> str:
    """Return the message of an error from the usual places of a body; empty if there is none."""
    return next((each for each in _messages(body)), "")


def _messages(body: Any) -> Iterator[str]:
    if isinstance(body, str):
        yield body
    if isinstance(body, dict):
        for name in ("message", "error", "detail"):
            if isinstance(body.get(name), str) and body[name]:
                yield body[name]


def _dump(body: Any) -> str:
    try:
        return json.dumps(body)[:_MOST_TOLD]
    except (TypeError, ValueError, RecursionError):
        return ""
