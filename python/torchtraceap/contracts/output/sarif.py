"""SARIF 2.1.0, as code scanning reads it.

Only limits that fail are results: a reader such as GitHub's takes every result for an alert.
Limits of which the trace says nothing are notifications of the run.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from torchtraceap._version import __version__
from torchtraceap.contracts.measures.vocabulary import MEASURES
from torchtraceap.contracts.output.plain import details, frame_text, plain_line, uri_path
from torchtraceap.contracts.result import CheckResult, KeyResult

__all__ = ["sarif_text"]

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_Json = dict[str, Any]


def sarif_text(result: CheckResult) -> str:
    """A document of one run."""
    keys = list(dict.fromkeys(each.key for each in result.results))
    run = {
        "tool": {
            "driver": {
                "name": "torchtraceap",
                "version": __version__,
                "rules": [_rule(key) for key in keys],
            }
        },
        "columnKind": "utf16CodeUnits",
        "invocations": [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [
                    _notification(each, keys, result) for each in result.inconclusive
                ],
            }
        ],
        "results": [_result(each, keys, result) for each in result.failed],
    }
    document = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _rule(key: str) -> _Json:
    measure = MEASURES[key]
    sentence = f"{measure.what[0].upper()}{measure.what[1:]}."
    return {
        "id": key,
        "shortDescription": {"text": sentence},
        "fullDescription": {"text": f"A limit on {key}: {measure.what}."},
        "help": {"text": f"A trace needs {measure.needs or 'nothing'} for it."},
        "defaultConfiguration": {"level": "error"},
    }


def _result(each: KeyResult, keys: list[str], result: CheckResult) -> _Json:
    lines = [f"{each.key}: {plain_line(each.reason)}"]
    lines += [f"{word}: {text}" for word, text in details(each)]
    found: _Json = {
        "ruleId": each.key,
        "ruleIndex": keys.index(each.key),
        "level": "error",
        "message": {"text": "\n".join(lines)},
        "locations": _locations(each, result),
        "partialFingerprints": {"torchtraceap/v1": plain_line(f"{result.name}:{each.key}")},
    }
    frame = each.frame
    if frame is not None and frame.kind == "python" and frame.file:
        place = _physical(frame.file, frame.line)
        place["message"] = {"text": f"the first event beyond the limit: {frame_text(frame)}"}
        found["relatedLocations"] = [{"id": 1, **place}]
    return found


def _locations(each: KeyResult, result: CheckResult) -> list[_Json]:
    """The line of the contract, else the file of the trace."""
    if result.file:
        return [_physical(result.file, each.line)]
    return [_physical(path, None) for path in result.paths[:1]]


def _notification(each: KeyResult, keys: list[str], result: CheckResult) -> _Json:
    return {
        "level": "note",
        "message": {"text": f"{each.key} is inconclusive: {plain_line(each.reason)}"},
        "associatedRule": {"id": each.key, "index": keys.index(each.key)},
        "locations": _locations(each, result),
    }


def _physical(path: str, line: int | None) -> _Json:
    place: _Json = {"artifactLocation": {"uri": _uri(path)}}
    if line:
        place["region"] = {"startLine": line}
    return {"physicalLocation": place}


def _uri(path: str) -> str:
    """A reference to a file; one that is not below the working folder is absolute."""
    text = uri_path(path)
    return f"file://{quote(text)}" if text.startswith("/") else quote(text)
