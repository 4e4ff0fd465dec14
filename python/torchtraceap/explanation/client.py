"""A client for a language model behind any server of Chat Completions.

Note [Caps]: before a request it is assumed to cost as many tokens as its characters suggest, and
the longest answer that it may have; if that could go beyond a cap, it is not sent. Afterwards what
the server counted is added, and a cap that was overstepped all the same ends the run; the answer is
kept in the cache, as it is paid for. A request that failed half way counts with what had come.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from torchtraceap.errors import OptionError
from torchtraceap.explanation.cache import Cache, question_key
from torchtraceap.explanation.completions import (
    Completion,
    CompletionError,
    Dialect,
    Progress,
    Question,
    read_completion,
)
from torchtraceap.explanation.language_model import (
    Message,
    ModelError,
    Reply,
    Usage,
    estimate_tokens,
)
from torchtraceap.explanation.sdk import FailedError, Failure, Sdk, Secrets, failure_of_event
from torchtraceap.explanation.settings import ModelSettings, Price, read_prices

__all__ = ["Client"]


class Client:
    """A `LanguageModel` that connects when it is first asked; not for several threads at once.

    Args:
        settings: The model and the limits.
        progress: Told, while an answer comes, how many characters of it there are.

    Raises:
        OptionError: The file of prices can't be used, or a limit of cost has no price.
    """

    def __init__(self, settings: ModelSettings, progress: Progress | None = None) -> None:
        self._settings = settings
        self._progress = progress
        self._price = _price(settings)
        self._cache = Cache(settings)
        self._sdk = Sdk(settings)
        self._dialect: Dialect | None = None
        self._problems: dict[str, None] = {}
        self._calls = self._prompt_tokens = self._completion_tokens = 0

    def __repr__(self) -> str:
        return f"Client({self._settings!r})"

    @property
    def name(self) -> str:
        return self._settings.model

    @property
    def problems(self) -> tuple[str, ...]:
        """Problems, each once: estimated usage, an answer by another model than asked, trouble of
        the cache."""
        return (*self._problems, *self._cache.problems)

    def usage(self) -> Usage:
        return Usage(self._calls, self._prompt_tokens, self._completion_tokens, self._cost_usd())

    def answer(self, messages: Sequence[Message], schema: Mapping[str, Any], title: str) -> Reply:
        """Return an answer that should be JSON of a schema; see `LanguageModel`."""
        return self._ask(Question(tuple(messages), schema, title))

    def converse(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Reply:
        """Return an answer, or calls of tools; see `LanguageModel`."""
        return self._ask(Question(tuple(messages), None, "", tuple(tools)))

    def estimate(
        self, requests: Sequence[Sequence[Message]], schema: Mapping[str, Any] | None = None
    ) -> Usage:
        """Return an upper estimate of what requests take; nothing is sent, and the cache is not
        read.

        Args:
            requests: The messages of each.
            schema: The schema of the answers.
        """
        asked = [Question(tuple(messages), schema, "") for messages in requests]
        prompt = sum(estimate_tokens(len(_prompt(question))) for question in asked)
        completion = len(asked) * self._settings.max_answer_tokens
        cost = self._price.cost_usd(prompt, completion) if self._price else None
        return Usage(len(asked), prompt, completion, cost)

    def close(self) -> None:
        """End the connections; a later question makes new ones."""
        self._sdk.close()

    def _ask(self, question: Question) -> Reply:
        settings, key = self._settings, question_key(question, self._settings)
        if (known := self._cache.reply(key)) is not None:
            return known
        prompt = _prompt(question)
        if self._calls >= settings.max_calls:
            raise self._cap_error(f"{settings.max_calls} calls")
        self._check_caps(estimate_tokens(len(prompt)), settings.max_answer_tokens)
        answer = self._complete(question, Secrets(settings.key, prompt))
        reply, tokens = answer.reply(), answer.tokens
        if tokens is None:
            said = f"{self.name}: the server counts no tokens; they are estimated by characters"
            self._problems[said] = None
            tokens = estimate_tokens(len(prompt)), estimate_tokens(answer.length)
        self._add(tokens)
        if reply.finish in ("stop", "tool_calls"):
            self._cache.keep(key, reply, tokens)
        self._check_caps()
        return reply

    def _complete(self, question: Question, secrets: Secrets) -> Completion:
        """Ask in one dialect after the other, until the server takes one."""
        first = dialect = self._dialect or self._cache.dialect() or Dialect()
        while True:
            body = dialect.body(question, self._settings)
            answer = Completion(self._progress)
            failure = self._exchange(body, answer, secrets)
            if failure is None:
                break
            following = None
            if failure.status is not None:
                following = dialect.after(failure.status, failure.told, body)
            if following is None:
                # Its tokens count if a part of the answer had come.
                prompt_tokens = estimate_tokens(len(secrets.prompt)) if answer.length else 0
                self._add((prompt_tokens, estimate_tokens(answer.length)))
                raise ModelError(f"{self._settings.model}: {failure.sentence}")
            dialect = following
        self._dialect = dialect
        if dialect != first:
            self._cache.keep_dialect(dialect)
        # A dated version of the model may answer.
        said, asked = (answer.model or "").lower(), self.name.lower()
        if said and said not in asked and asked not in said:
            shown = secrets.excerpt(answer.model or "") or "another model"
            self._problems[f"{self.name} was asked, and {shown} answered"] = None
        return answer

    def _exchange(
        self, body: Mapping[str, Any], answer: Completion, secrets: Secrets
    ) -> Failure | None:
        """Send one request, whose answer is filled.

        What goes wrong is returned, not raised: an exception would drag those of the SDK along,
        which hold the request with its headers.
        """
        try:
            with self._sdk.posting(body, secrets) as chunks:
                read_completion(chunks, answer)
        except FailedError as error:
            return error.failure
        except CompletionError as error:
            return Failure(str(error))
        return None if answer.error is None else failure_of_event(answer.error, secrets)

    def _add(self, tokens: tuple[int, int]) -> None:
        self._calls += 1
        self._prompt_tokens += tokens[0]
        self._completion_tokens += tokens[1]

    def _cost_usd(self, more_prompt: int = 0, more_completion: int = 0) -> float | None:
        """Return the cost of all tokens used and of some more; None if the price is unknown."""
        if self._price is None:
            return None
        prompt = self._prompt_tokens + more_prompt
        return self._price.cost_usd(prompt, self._completion_tokens + more_completion)

    def _check_caps(self, more_prompt: int = 0, more_completion: int = 0) -> None:
        """Raise where so many tokens more would go beyond a cap. See Note [Caps]."""
        settings, cost = self._settings, self._cost_usd(more_prompt, more_completion)
        used = self._prompt_tokens + self._completion_tokens
        if used + more_prompt + more_completion > settings.max_tokens:
            raise self._cap_error(f"{settings.max_tokens} tokens")
        if settings.max_usd is not None and cost is not None and cost > settings.max_usd:
            raise self._cap_error(f"{settings.max_usd:g} US dollars")

    def _cap_error(self, cap: str) -> ModelError:
        used = self.usage()
        cost = "" if used.cost_usd is None else f", {used.cost_usd:.4f} US dollars"
        return ModelError(
            f"{self.name}: the limit of {cap} leaves no room for more: used were {used.calls} "
            f"calls, {used.prompt_tokens} tokens of prompts and {used.completion_tokens} of "
            f"answers{cost}"
        )


def _price(settings: ModelSettings) -> Price | None:
    known = read_prices(settings.prices) if settings.prices is not None else {}
    price = known.get(settings.model)
    if price is None and settings.max_usd is not None:
        raise OptionError(f"a limit of cost needs a price of {settings.model}: a file of prices")
    return price


def _prompt(question: Question) -> str:
    """Return all that is sent of a question as one text, its schema included."""
    parts: list[Any] = [question.schema or "", *question.tools]
    for message in question.messages:
        content = message.get("content")
        parts.append(content)
        parts.append({name: value for name, value in message.items() if name != "content"})
    return "\n".join(part if isinstance(part, str) else json.dumps(part) for part in parts)
