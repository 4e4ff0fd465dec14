"""The `openai` package as this one uses it: one request, its body as bytes, nothing logged; and
sentences about failures, which repeat neither the key nor the prompt.

Note [Bytes]: the SDK's own reading of streams has no limit of size and none of time that a server
which drips would meet. So the body is read here, of the response that the SDK hands out; requests,
authorisation and retries stay its own.

Note [Redirects]: none is followed. A prompt goes to the address that the user gave, or nowhere.

Note [Excerpts]: of what a server says, a short piece is told, in one line. It is dropped where it
repeats a part of the key or of the prompt, as servers like to do.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torchtraceap.core.records import dataclass
from torchtraceap.errors import MissingDependencyError
from torchtraceap.explanation.settings import KEY, ModelSettings

if TYPE_CHECKING:
    from openai import OpenAI

__all__ = ["FailedError", "Failure", "Sdk", "Secrets", "failure_of", "failure_of_event"]

_MOST_TOLD = 20_000
"""Characters of a refusal that are looked at."""
_EXCERPT = 160
_WHOLE = 5
"""Longest time of a whole answer, in timeouts."""
_LOGGERS = ("openai", "httpx", "httpcore", "httpx2", "httpcore2")
"""Loggers of version 3 and of version 2 of the SDK."""
_SILENT = logging.CRITICAL + 1


@dataclass(frozen=True, slots=True)
class Secrets:
    """Texts that no message may repeat."""

    key: str | None
    prompt: str

    def excerpt(self, text: str) -> str:
        """Return the beginning of a text as one harmless line; empty where it may not be told."""
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
        status, told = error.status_code, _dump(error.body)
        said = secrets.excerpt(_message(error.body) or told)
        tail = f": {said}" if said and status not in (401, 403) else ""
        if 300 <= status < 400:
            what = "sends requests elsewhere: give the base URL where they end"
        elif status in (401, 403):
            what = f"wants a key: set {KEY}" if settings.key is None else "refuses the key"
        elif status == 404:
            what = "has no such model, or no Chat Completions at this base URL"
        elif status == 429:
            what = "allows no more requests now, also after a pause"
        else:
            what = "fails" if status >= 500 else "refuses the request"
        return Failure(f"its server {what} (HTTP {status}){tail}", status, told)
    if isinstance(error, openai.APITimeoutError):
        return Failure(f"its server was silent for {settings.timeout_s:g} s")
    if isinstance(error, openai.APIConnectionError):
        return Failure("its server can't be reached")
    return Failure(f"its server can't be asked ({type(error).__name__})")


def failure_of_event(error: Any, secrets: Secrets) -> Failure:
    """Return the failure for an error that stands in place of an answer."""
    said = secrets.excerpt(_message(error) or _dump(error))
    return Failure(f"its server fails{f': {said}' if said else ''}")


def _message(body: Any) -> str:
    """Return the message of an error from the usual places of a body; empty if there is none."""
    if isinstance(body, str):
        return body
    if not isinstance(body, dict):
        return ""
    told = (body.get(name) for name in ("message", "error", "detail"))
    return next((each for each in told if isinstance(each, str) and each), "")


def _dump(body: Any) -> str:
    try:
        return json.dumps(body)[:_MOST_TOLD]
    except (TypeError, ValueError, RecursionError):
        return ""


class FailedError(Exception):
    """There is no answer; never shown, as what it came from holds the request."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.sentence)
        self.failure = failure


class Sdk:
    """Requests to one server. Not for several threads at once."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._client: OpenAI | None = None

    @contextlib.contextmanager
    def posting(self, body: Mapping[str, Any], secrets: Secrets) -> Iterator[Iterator[bytes]]:
        """Send a request of Chat Completions; yields the body of the answer as it comes.

        Args:
            body: The request.
            secrets: Texts that no message about a failure may repeat.

        Raises:
            MissingDependencyError: The SDK is not installed.
            FailedError: Whatever else keeps an answer from coming, or ends it.
        """
        client, late = self._connect(secrets), threading.Event()
        limit_s = _WHOLE * self._settings.timeout_s
        try:
            with (
                _logging_off(),
                _closing_after(limit_s, client, late),
                self._post(client, body, secrets) as stream,
            ):
                yield _read_body(stream)
        except Exception:
            if not late.is_set():
                raise
        finally:
            if late.is_set():
                self._client = None  # it is closed for good
        if late.is_set():
            raise FailedError(Failure(f"its answer took longer than {limit_s:g} s"))

    def _post(self, client: OpenAI, body: Mapping[str, Any], secrets: Secrets) -> Any:
        import openai

        key = self._settings.key
        headers = {
            "Authorization": openai.Omit() if key is None else f"Bearer {key}",
            # A compressed body could be any number of times as large as what is counted.
            "Accept-Encoding": "identity",
            # The SDK would take them from the environment, whatever the server.
            "OpenAI-Organization": openai.Omit(),
            "OpenAI-Project": openai.Omit(),
        }
        try:
            return client.post(
                "/chat/completions",
                cast_to=object,
                body=dict(body),
                options={"headers": headers, "follow_redirects": False},
                stream=True,
                stream_cls=openai.Stream[object],
            )
        except Exception as error:  # of the SDK, and of the transport below it
            raise FailedError(failure_of(error, self._settings, secrets)) from None

    def _connect(self, secrets: Secrets) -> OpenAI:
        try:
            from openai import OpenAI
        except ImportError:
            raise MissingDependencyError(
                "a language model needs the openai package: pip install 'torchtraceap[llm]'"
            ) from None
        if self._client is None:
            try:
                self._client = OpenAI(
                    api_key="unused",  # see the headers; without one the environment's is taken
                    base_url=self._settings.base_url,
                    timeout=self._settings.timeout_s,
                    max_retries=self._settings.retries,
                )
            except Exception as error:  # proxies or certificates of the environment
                raise FailedError(failure_of(error, self._settings, secrets)) from None
        return self._client

    def close(self) -> None:
        """End the connections."""
        if self._client is not None:
            self._client.close()
            self._client = None


def _read_body(stream: Any) -> Iterator[bytes]:
    try:
        yield from stream.response.iter_bytes()
    except Exception as error:
        # Errors of the transport, which is another package in each version of the SDK.
        broke = f"the connection broke before its answer was whole ({type(error).__name__})"
        raise FailedError(Failure(broke)) from None


@contextlib.contextmanager
def _closing_after(seconds: float, client: OpenAI, late: threading.Event) -> Iterator[None]:
    """Close a client's connections after a time, which ends whatever is being read from them."""

    def end() -> None:
        late.set()
        client.close()

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # so that `late` is final


class _Levels:
    """The loggers' levels of before, and how many requests keep them off."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.before: dict[str, int] = {}


_levels = _Levels()


@contextlib.contextmanager
def _logging_off() -> Iterator[None]:
    """Suppress the logging of requests, whatever `OPENAI_LOG` or the program's own logging says."""
    with _levels.lock:
        _levels.users += 1
        if _levels.users == 1:
            for name in _LOGGERS:
                _levels.before[name] = logging.getLogger(name).level
                logging.getLogger(name).setLevel(_SILENT)
    try:
        yield
    finally:
        with _levels.lock:
            _levels.users -= 1
            if not _levels.users:
                for name, level in _levels.before.items():
                    logging.getLogger(name).setLevel(level)
