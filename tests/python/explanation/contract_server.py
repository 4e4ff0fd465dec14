"""A server of Chat Completions on 127.0.0.1 that checks what it is asked and plays a script.

Each request is validated against the part of the published schema that concerns us (`REQUEST`,
`STRICT`): what does not fit is answered by 400 and remembered in `violations`. One that fits takes
the next step of the script. Steps are made by the functions below: `answer`, `fitting`, `status`,
`drip`, ...; what a server is like (which formats and parameters it takes, whether it streams) is
set by its attributes, and needs no step.
"""

from __future__ import annotations

import json
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jsonschema

Json = dict[str, Any]

_NAME = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}
_FUNCTION = {
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {
        "name": _NAME,
        "description": {"type": "string"},
        "parameters": {"type": "object"},
        "strict": {"type": ["boolean", "null"]},
    },
}
_CALL = {
    "type": "object",
    "required": ["id", "type", "function"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string"},
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name", "arguments"],
            "additionalProperties": False,
            "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}},
        },
    },
}


def _message(role: str, required: Sequence[str], **more: Any) -> Json:
    properties = {"role": {"const": role}, "name": {"type": "string"}, **more}
    return {
        "type": "object",
        "required": ["role", *required],
        "additionalProperties": False,
        "properties": properties,
    }


_TEXT = {"type": "string"}
_MESSAGES = [
    _message("system", ["content"], content=_TEXT),
    _message("user", ["content"], content=_TEXT),
    _message("assistant", ["content"], content=_TEXT),
    _message(
        "assistant",
        ["tool_calls"],
        content={"type": ["string", "null"]},
        tool_calls={"type": "array", "minItems": 1, "items": _CALL},
    ),
    _message("tool", ["content", "tool_call_id"], content=_TEXT, tool_call_id=_TEXT),
]
_FORMATS = [
    {"additionalProperties": False, "properties": {"type": {"const": "text"}}},
    # The schema is an extension by llama-cpp-python and others.
    {
        "additionalProperties": False,
        "properties": {"type": {"const": "json_object"}, "schema": {"type": "object"}},
    },
    {
        "required": ["json_schema"],
        "additionalProperties": False,
        "properties": {
            "type": {"const": "json_schema"},
            "json_schema": {
                "type": "object",
                "required": ["name"],
                "additionalProperties": False,
                "properties": {
                    "name": _NAME,
                    "description": {"type": "string"},
                    "schema": {"type": "object"},
                    "strict": {"type": ["boolean", "null"]},
                },
            },
        },
    },
]
REQUEST: Json = {
    "type": "object",
    "required": ["model", "messages"],
    "additionalProperties": False,
    "properties": {
        "model": {"type": "string", "minLength": 1},
        "messages": {"type": "array", "minItems": 1, "items": {"anyOf": _MESSAGES}},
        "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2},
        "seed": {"type": ["integer", "null"]},
        "max_tokens": {"type": ["integer", "null"], "minimum": 1},
        "max_completion_tokens": {"type": ["integer", "null"], "minimum": 1},
        "stream": {"type": ["boolean", "null"]},
        "stream_options": {
            "type": ["object", "null"],
            "additionalProperties": False,
            "properties": {"include_usage": {"type": "boolean"}},
        },
        "response_format": {"type": "object", "required": ["type"], "oneOf": _FORMATS},
        "tools": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["type", "function"],
                "additionalProperties": False,
                "properties": {"type": {"const": "function"}, "function": _FUNCTION},
            },
        },
        "tool_choice": {"enum": ["none", "auto", "required"]},
        # An extension by llama.cpp, vLLM and SGLang.
        "chat_template_kwargs": {"type": "object"},
    },
}
"""Of a request, as far as this project makes them."""


def violations_of(body: Any) -> list[str]:
    """What a request has that the published schema does not allow."""
    found = [
        f"{'/'.join(map(str, error.path))}: {error.message}"
        for error in jsonschema.Draft202012Validator(REQUEST).iter_errors(body)
    ]
    if found:
        return found
    asked = body.get("response_format", {}).get("json_schema", {})
    if asked.get("strict"):
        found += _loose(asked.get("schema"), "schema")
    if body.get("response_format", {}).get("type") == "json_object":
        said = " ".join(str(message.get("content")) for message in body["messages"])
        if "json" not in said.lower():
            found.append("'messages' must contain the word 'json'")
    if "stream_options" in body and not body.get("stream"):
        found.append("stream_options without stream")
    return found


def _loose(schema: Any, where: str) -> Iterator[str]:
    """Where a schema is not as strict as `"strict": true` wants it."""
    if isinstance(schema, list):
        for place, entry in enumerate(schema):
            yield from _loose(entry, f"{where}/{place}")
    if not isinstance(schema, dict):
        return
    if "properties" in schema:
        if schema.get("additionalProperties") is not False:
            yield f"{where}: 'additionalProperties' has to be false"
        if set(schema.get("required", ())) != set(schema["properties"]):
            yield f"{where}: 'required' has to name every property"
    for name, entry in schema.items():
        yield from _loose(entry, f"{where}/{name}")


@dataclass(frozen=True)
class Asked:
    """A request that came."""

    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: Json

    @property
    def format(self) -> str | None:
        """Type of `response_format`; with "+schema" behind it where a `json_object` has one."""
        given = self.body.get("response_format")
        if given is None:
            return None
        return f"{given['type']}{'+schema' if 'schema' in given else ''}"


Step = Callable[["_Handler", Asked], None]
"""Answers one request."""


# ------------------------------------------------------------------------------------- steps


def answer(
    text: str = "",
    *,
    finish: str | None = "stop",
    usage: tuple[int, int] | None = (100, 20),
    model: str | None = None,
    plain: bool = False,
    refusal: str | None = None,
    calls: Sequence[tuple[str, Any]] = (),
    done: bool = True,
    thoughts: str = "",
    in_parts: bool = False,
) -> Step:
    """An answer with a text, whatever it is.

    Args:
        text: Valid JSON or not.
        finish: Reason; "length" is a truncated answer.
        usage: Tokens of the prompt and the answer; None: the server doesn't say.
        model: Which one answers; None: the one that was asked for.
        plain: In one piece, although a stream was asked for.
        refusal: Of the model, instead of a text.
        calls: Names of tools and their arguments, as texts or as what becomes one.
        done: End the stream by `[DONE]`.
        thoughts: `reasoning_content` in front of the text.
        in_parts: The content is a list of parts, thoughts among them.
    """

    def play(handler: _Handler, asked: Asked) -> None:
        made = _Made(
            text, finish, usage, model or asked.body["model"], refusal, calls, thoughts, in_parts
        )
        if plain or not asked.body.get("stream"):
            handler.send_json(200, made.whole())
        else:
            wanted = asked.body.get("stream_options", {}).get("include_usage", False)
            handler.send_events(made.events(with_usage=wanted), done=done)

    return play


def truncated(text: str) -> Step:
    """An answer that ran into the limit of its tokens."""
    return answer(text, finish="length")


def refusal(text: str = "I can't help with that.") -> Step:
    """A model that will not answer."""
    return answer(refusal=text)


def tool_calls(*calls: tuple[str, Any], **more: Any) -> Step:
    """Calls of tools: names and arguments."""
    return answer(calls=calls, finish="tool_calls", **more)


def fitting(change: Callable[[Json], object] | None = None, **more: Any) -> Step:
    """An answer that fits the schema that was asked for, wherever the request has it.

    Args:
        change: Changes it before it is sent: `wrong_enum()`, or something of the test.
        more: As `answer` takes it.
    """

    def play(handler: _Handler, asked: Asked) -> None:
        schema = schema_of(asked.body)
        made = example(schema, schema)
        if change is not None:
            change(made)
        answer(json.dumps(made), **more)(handler, asked)

    return play


def wrong_enum() -> Step:
    """An answer that would fit, but for a value that its first enum does not have."""

    def play(handler: _Handler, asked: Asked) -> None:
        schema = schema_of(asked.body)
        name = next(
            name
            for name, entry in schema["properties"].items()
            if "enum" in _resolved(entry, schema)
        )
        fitting(lambda made: made.update({name: "no_such_value"}))(handler, asked)

    return play


def unknown_citation(*names: str) -> Step:
    """An answer that fits the schema and cites what no pack has.

    Args:
        names: Of the properties that cite, wherever they are.
    """

    def change(made: Any) -> None:
        for name, value in list(made.items()) if isinstance(made, dict) else enumerate(made):
            if name in names:
                made[name] = "r999999"
            elif isinstance(value, (dict, list)):
                change(value)

    return fitting(change)


def status(
    code: int,
    message: str = "it failed",
    *,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
    raw: bytes | None = None,
) -> Step:
    """An error of HTTP, in the form of OpenAI's, or with any body."""

    def play(handler: _Handler, asked: Asked) -> None:
        error = {"message": message, "type": "error", "param": param, "code": None}
        body = json.dumps({"error": error}).encode() if raw is None else raw
        handler.send_body(code, body, headers or {})

    return play


def too_many(retry_after: float) -> Step:
    """429 with the pause that the server wants, s."""
    return status(429, "slow down", headers={"Retry-After": f"{retry_after:g}"})


def drip(text: str | None, pause_s: float, code: int = 200) -> Step:
    """One character at a time.

    Args:
        text: None: an endless row of comments, which never makes an event.
        pause_s: Between two.
        code: Of HTTP.
    """

    def play(handler: _Handler, asked: Asked) -> None:
        handler.begin_chunks(code)
        made = _Made(text or "", "stop", (100, 20), asked.body["model"])
        events = b"".join(_event(each) for each in made.events(with_usage=True))
        finite = [bytes([byte]) for byte in events + b"data: [DONE]\n\n"]
        for piece in finite if text is not None else _forever(b":"):
            if handler.owner.stopping.wait(pause_s):
                return
            handler.chunk(piece)
        handler.chunk(b"")

    return play


def _forever(piece: bytes) -> Iterator[bytes]:
    while True:
        yield piece


def silent() -> Step:
    """Takes the request and says nothing, until the test ends."""
    return lambda handler, asked: handler.owner.stopping.wait() and None


def broken(text: str = '{"verdict": ', *, plain: bool = False) -> Step:
    """Half of an answer, then the connection ends."""

    def play(handler: _Handler, asked: Asked) -> None:
        made = _Made(text, None, None, asked.body["model"])
        if plain:
            body = json.dumps(made.whole()).encode()
            handler.begin(200, {"Content-Length": str(2 * len(body))})
            handler.wfile.write(body)
        else:
            handler.begin_chunks(200)
            for each in made.events(with_usage=False):
                handler.chunk(_event(each))
        handler.close_connection = True

    return play


def huge(size: int, *, line: bool = False) -> Step:
    """A body of at least so many bytes, as events or as one line that never ends."""

    def play(handler: _Handler, asked: Asked) -> None:
        handler.begin_chunks(200)
        made = _Made("x" * 65536, None, None, asked.body["model"])
        piece = b"x" * 65536 if line else b"".join(map(_event, made.events(with_usage=False)))
        for _ in range(size // len(piece) + 1):
            handler.chunk(piece)
        handler.chunk(b"")

    return play


def events(*documents: Any) -> Step:
    """Server-sent events as they are given; bytes are sent raw."""

    def play(handler: _Handler, asked: Asked) -> None:
        handler.begin_chunks(200)
        for each in documents:
            handler.chunk(each if isinstance(each, bytes) else _event(each))
        handler.chunk(b"")

    return play


def redirect(location: str) -> Step:
    """307 to another address."""
    return status(307, headers={"Location": location})


@dataclass(frozen=True)
class _Made:
    """What an answer is made of."""

    text: str
    finish: str | None
    usage: tuple[int, int] | None
    model: str
    refusal: str | None = None
    calls: Sequence[tuple[str, Any]] = ()
    thoughts: str = ""
    in_parts: bool = False

    def _content(self, text: str) -> Any:
        if not self.in_parts:
            return text
        thought = {"type": "thinking", "thinking": [{"type": "text", "text": self.thoughts}]}
        return [thought, {"type": "text", "text": text}]

    def whole(self) -> Json:
        content = self._content(self.text)
        message: Json = {"role": "assistant", "content": content, "refusal": self.refusal}
        if self.thoughts and not self.in_parts:
            message["reasoning_content"] = self.thoughts
        if self.calls:
            message["tool_calls"] = [
                {"id": f"call_{place}", "type": "function", "function": {"name": n, "arguments": a}}
                for place, (n, a) in enumerate(self._calls())
            ]
        choice = {"index": 0, "message": message, "finish_reason": self.finish}
        more = {} if self.usage is None else {"usage": self._usage()}
        return {**self._head("chat.completion"), "choices": [choice], **more}

    def events(self, *, with_usage: bool) -> Iterator[Json]:
        yield self._chunk({"role": "assistant", "content": ""})
        for at in range(0, 0 if self.in_parts else len(self.thoughts), 7):
            yield self._chunk({"reasoning_content": self.thoughts[at : at + 7]})
        for at in range(0, len(self.text), 7):
            yield self._chunk({"content": self._content(self.text[at : at + 7])})
        if self.refusal is not None:
            yield self._chunk({"refusal": self.refusal})
        for place, (name, arguments) in enumerate(self._calls()):
            first = {"index": place, "id": f"call_{place}", "type": "function"}
            yield self._chunk({"tool_calls": [{**first, "function": {"name": name}}]})
            for at in range(0, len(arguments), 5):
                piece = {"arguments": arguments[at : at + 5]}
                yield self._chunk({"tool_calls": [{"index": place, "function": piece}]})
        if self.finish is not None:
            yield self._chunk({}, self.finish)
        if with_usage and self.usage is not None:
            yield {**self._head("chat.completion.chunk"), "choices": [], "usage": self._usage()}

    def _calls(self) -> list[tuple[str, str]]:
        return [(n, a if isinstance(a, str) else json.dumps(a)) for n, a in self.calls]

    def _usage(self) -> Json:
        prompt, completion = self.usage or (0, 0)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    def _head(self, kind: str) -> Json:
        return {"id": "chatcmpl-1", "object": kind, "created": 0, "model": self.model}

    def _chunk(self, delta: Json, finish: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}


def _event(document: Any) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


# ------------------------------------------------------------------------- schemas and examples


def schema_of(body: Json) -> Json:
    """The schema of the answer that a request asks for, in its format or in its prompt."""
    given = body.get("response_format", {})
    found = given.get("schema") or given.get("json_schema", {}).get("schema")
    if found:
        return found
    lines = str(body["messages"][0]["content"]).splitlines()
    return json.loads(next(line for line in reversed(lines) if line.startswith("{")))


def _resolved(schema: Json, root: Json) -> Json:
    if "$ref" in schema:
        target: Any = root
        for name in schema["$ref"].removeprefix("#/").split("/"):
            target = target[name]
        return _resolved(target, root)
    for name in ("anyOf", "oneOf", "allOf"):
        if name in schema:
            return _resolved(schema[name][0], root)
    return schema


def example(schema: Json, root: Json) -> Any:
    """The plainest value of a schema."""
    schema = _resolved(schema, root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return {name: example(each, root) for name, each in schema.get("properties", {}).items()}
    if kind == "array":
        return [example(schema["items"], root) for _ in range(schema.get("minItems", 0))]
    if kind == "string":
        return "a" * schema.get("minLength", 1)
    plain: dict[Any, Any] = {"boolean": False, "null": None}
    return plain.get(kind, schema.get("minimum", 0))


# ------------------------------------------------------------------------------------ the server


@dataclass
class ContractServer:
    """A server that runs; see the fixture `llm_server`."""

    base_url: str = ""
    takes: frozenset[str] = frozenset({"json_schema", "json_object+schema", "json_object", "text"})
    """Formats of answers; a request with another is refused, and takes no step."""
    refuses_with: int = 400
    """Status of that refusal; 500 is what llama_cpp.server answers."""
    lacks: frozenset[str] = frozenset()
    """Parameters that it refuses as unsupported."""
    key: str | None = None
    """The only one that it lets in; None: anybody."""
    asked: list[Asked] = field(default_factory=list)
    """Every request that fitted the schema, refused or not, the oldest first."""
    violations: list[str] = field(default_factory=list)
    """What did not fit it."""
    stopping: threading.Event = field(default_factory=threading.Event)
    _script: deque[Step] = field(default_factory=deque)
    _always: Step | None = None

    def plays(self, *steps: Step) -> None:
        """Adds steps, one for each request; a request without one is answered by 503."""
        self._script.extend(steps)

    def always(self, step: Step) -> None:
        """What every request gets for which the script has no step."""
        self._always = step

    @property
    def formats(self) -> list[str | None]:
        """Of every request; see `Asked.format`."""
        return [asked.format for asked in self.asked]

    @property
    def left(self) -> int:
        """How many steps were not played."""
        return len(self._script)

    def respond(self, handler: _Handler, asked: Asked) -> None:
        found = violations_of(asked.body)
        if found:
            self.violations += found
            status(400, f"the contract: {found[0]}")(handler, asked)
            return
        self.asked.append(asked)
        (self._refusal(asked) or self._next())(handler, asked)

    def _next(self) -> Step:
        if self._script:
            return self._script.popleft()
        return self._always or status(503, "the script of the test is over")

    def _refusal(self, asked: Asked) -> Step | None:
        if self.key is not None and asked.headers.get("authorization") != f"Bearer {self.key}":
            return status(
                401, "Incorrect API key provided: " + asked.headers.get("authorization", "")
            )
        if asked.format is not None and asked.format not in self.takes:
            return status(self.refuses_with, _FORMAT_REFUSED, param="response_format")
        for name in sorted(self.lacks & set(asked.body)):
            told = f"Unsupported parameter: '{name}' is not supported with this model."
            return status(400, told, param=name)
        return None


_FORMAT_REFUSED = (
    "[{'type': 'literal_error', 'loc': ('body', 'response_format', 'type'), "
    "'msg': \"Input should be 'text' or 'json_object'\"}]"
)
"""As llama_cpp.server says it."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    owner: ContractServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def owner(self) -> ContractServer:
        assert isinstance(self.server, _Server)
        return self.server.owner

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        if not re.fullmatch("/v1/chat/completions", self.path):
            self.send_json(404, {"error": {"message": "no such path"}})
            return
        with suppress(OSError):  # the client went away
            self.owner.respond(self, Asked(self.path, headers, json.loads(body)))

    def begin(self, code: int, headers: Mapping[str, str]) -> None:
        self.send_response(code)
        for name, value in {**headers, "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()

    def begin_chunks(self, code: int) -> None:
        headers = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
        self.begin(code, headers)

    def chunk(self, piece: bytes) -> None:
        """A piece of a body; the empty one is the last."""
        self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")

    def send_body(self, code: int, body: bytes, headers: Mapping[str, str]) -> None:
        length = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        self.begin(code, {**length, **headers})
        self.wfile.write(body)

    def send_json(self, code: int, document: Any) -> None:
        self.send_body(code, json.dumps(document).encode(), {})

    def send_events(self, documents: Iterator[Json], *, done: bool) -> None:
        self.begin_chunks(200)
        for document in documents:
            self.chunk(_event(document))
        if done:
            self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")


def serving(server: ContractServer) -> Iterator[ContractServer]:
    """Runs a server on a free port until the generator is resumed."""
    with _Server(("127.0.0.1", 0), _Handler) as http:
        http.owner = server
        server.base_url = f"http://127.0.0.1:{http.server_address[1]}/v1"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.stopping.set()
            http.shutdown()
            thread.join()
