"""Results of checks for other programs: text, Markdown, GitHub's annotations, JUnit, SARIF.

Names in them come from traces and files of others: `_clean_line` makes them harmless, and each
format escapes what it has to. Markdown, JUnit and SARIF take one result, or several, such as those
of a run of tests. Of SARIF only limits that fail are results, as a reader such as GitHub's takes
every result for an alert; limits of which the trace says nothing are notifications of the run.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from torchtraceap._version import __version__
from torchtraceap.contracts.limits import format_value
from torchtraceap.contracts.measures.vocabulary import MEASURES
from torchtraceap.contracts.result import FAILED, INCONCLUSIVE, CheckResult, KeyResult
from torchtraceap.core.formatting import RUNNER_MARK, escape_markdown, format_ns, one_line

__all__ = [
    "annotation_lines",
    "check_text",
    "junit_of",
    "junit_text",
    "markdown_of",
    "markdown_text",
    "sarif_of",
    "verdict",
]

_Json = dict[str, Any]
_LONGEST = 2000
_NAME = 200
_SHOWS = {"share": "longest", "time": "longest", "findings": "evidence"}
_LEVELS = {"failed": "error", "inconclusive": "warning"}
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot represent."""
_SIGNS = {"failed": "❌", "passed": "✅", "inconclusive": "❔"}
_TITLES = {
    "failed": "Performance contract broken",
    "passed": "Performance contract holds",
    "inconclusive": "Performance contract: this trace says nothing of it",
}
_COUNTS = {"failed": "broken", "passed": "hold", "inconclusive": "could not be checked"}
_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def _clean_line(text: str, limit: int = _LONGEST) -> str:
    """Return a text as one line without control characters that can be written as UTF-8."""
    return one_line(text.encode("utf-8", "replace").decode("utf-8"), limit)


def headline(result: CheckResult) -> str:
    """Return the numbers of limits that failed, passed or were inconclusive."""
    counts = {
        "failed": len(result.failed),
        "passed": sum(each.status == "passed" for each in result.results),
        "inconclusive": len(result.inconclusive),
    }
    said = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
    return said or "no limit"


def verdict(result: CheckResult) -> str:
    """Return the result in one word."""
    if not result.passed:
        return "failed"
    return "inconclusive" if len(result.inconclusive) == len(result.results) else "passed"


def details(result: KeyResult) -> Iterator[tuple[str, str]]:
    """Yield what stands below the sentence of a result: pairs of a word and a text."""
    if result.first_event is not None:
        of_rank = "" if result.rank is None else f" of rank {result.rank}"
        event = result.first_event
        word = _SHOWS.get(result.kind, "first beyond it")
        yield word, f"{_clean_line(event.name, _NAME)} (row {event.row}{of_rank})"
    if result.frame is not None:
        yield "in", _clean_line(str(result.frame), _NAME)
    if result.price_ns is not None:
        per = " per step" if result.price_per_step else ""
        saving = f"{format_ns(result.price_ns)}{per}" if result.price_ns else "nothing"
        yield "a fix saves", f"{saving} ({_clean_line(result.price_note)})"
    elif result.price_note:
        yield "a fix saves", f"not known ({_clean_line(result.price_note)})"
    if result.won:
        yield "won", _clean_line(result.won)


def uri_path(path: str) -> str:
    """Return a path as annotations and artifacts name it: below the working folder relative to it,
    with slashes."""
    text = _clean_line(path, 4 * _NAME)
    try:
        found = Path(os.path.abspath(text)).relative_to(Path.cwd())
    except (ValueError, OSError):
        return text.replace(os.sep, "/")
    return found.as_posix()


# -------------------------------------------------------------------------- text, annotations


def check_text(result: CheckResult, width: int = 100) -> str:
    """Write a result for a terminal: one paragraph for each limit, failures first, and a line that
    counts them.

    Args:
        result: The result of a check.
        width: Columns; long sentences go on in the next line.
    """
    words = {"failed": "FAILED", "inconclusive": "inconclusive", "passed": "passed"}
    lines: list[str] = []
    for each in sorted(result.results, key=lambda each: list(words).index(each.status)):
        said = f"{words[each.status]} {each.key}: {_clean_line(each.reason)}"
        below = [("    ", f"  {word}: {text}") for word, text in details(each)]
        for indent, text in [("  ", said), *below]:
            lines += textwrap.wrap(
                text,
                max(width, 40),
                subsequent_indent=indent,
                break_on_hyphens=False,
                break_long_words=False,
            )
    name = f" of {_clean_line(result.name, 200)}" if result.name else ""
    device = f" on {_clean_line(result.device, 100)}" if result.device else ""
    return "\n".join([*lines, f"contract{name}{device}: {headline(result)}"])


def annotation_lines(result: CheckResult) -> list[str]:
    """Return annotations as GitHub's runner reads them from the output of a step: an error for each
    limit that fails, a warning for each that the trace says nothing of, a notice for each that
    could be tightened."""
    found = []
    for each in result.results:
        if each.status not in _LEVELS and not each.won:
            continue
        level = _LEVELS.get(each.status, "notice")
        lines = [_clean_line(each.won if level == "notice" else each.reason)]
        if level == "error":
            lines += [f"{word}: {text}" for word, text in details(each)]
        properties = {"title": f"contract: {each.key}"}
        if result.file:
            properties["file"] = uri_path(result.file)
            properties |= {"line": str(each.line)} if each.line else {}
        given = ",".join(
            f"{name}={_annotation(value).replace(':', '%3A').replace(',', '%2C')}"
            for name, value in properties.items()
        )
        found.append(f"::{level} {given}::{_annotation(chr(10).join(lines))}")
    return found


def _annotation(text: str) -> str:
    text = RUNNER_MARK.sub("# #", text)
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


# ----------------------------------------------------------------------------------- Markdown


def markdown_text(result: CheckResult) -> str:
    """Write a comment for a pull request: a heading, a table of all limits, and what stands behind
    each that failed. Its first line is a mark by which a bot finds its own comment again."""
    mark = re.sub(r"[^A-Za-z0-9_.:/\[\]]", "_", _clean_line(result.name, _NAME)).replace("--", "__")
    name = f" `{_markdown_code(result.name)}`" if result.name else ""
    device = f" on {_markdown(result.device)}" if result.device else ""
    lines = [
        f"<!-- torchtraceap check {mark} -->",
        f"### {_SIGNS[verdict(result)]} {_TITLES[verdict(result)]}{name}",
        "",
        f"{headline(result)}{device}.",
        "",
        "| | key | limit | measured |",
        "|---|---|---|---|",
    ]
    for each in result.results:
        limit = str(each.limit)
        if isinstance(each.limit, dict):
            limit = ", ".join(f"{name} {number}" for name, number in each.limit.items())
        elif isinstance(each.limit, list):
            limit = "without " + ", ".join(map(str, each.limit))
        measured = _clean_line(format_value(each.measured, each.kind), _NAME)
        limit = _markdown_code(_clean_line(limit, _NAME))
        cells = f"`{_markdown_code(each.key)}` | `{limit}` | {_markdown(measured)}"
        lines.append(f"| {_SIGNS[each.status]} | {cells} |")
    lines.append("")
    for each in result.results:
        if each.status == "passed" and not each.won:
            continue
        said = f"**`{_markdown_code(each.key)}`**: {_markdown(each.reason)}"
        lines.append(f"- {_SIGNS[each.status]} {said}")
        lines += [f"  - {word}: {_markdown(text)}" for word, text in details(each)]
    return "\n".join(lines).rstrip() + "\n"


def markdown_of(results: Sequence[CheckResult]) -> str:
    """Write one comment about several contracts: how many hold, then those that need a look, broken
    ones first. Its first line is a mark by which a bot finds its own comment again."""
    by_verdict: dict[str, list[CheckResult]] = {name: [] for name in _COUNTS}
    for result in results:
        by_verdict[verdict(result)].append(result)
    said = [f"{len(found)} {_COUNTS[name]}" for name, found in by_verdict.items() if found]
    heading = f"## Performance contracts: {', '.join(said) or 'none'}"
    lines = ["<!-- torchtraceap contracts -->", heading, ""]
    for name, found in by_verdict.items():
        for result in found:
            needs_a_look = any(each.won or each.status == INCONCLUSIVE for each in result.results)
            if name != "passed" or needs_a_look:
                _, _, text = markdown_text(result).partition("\n")
                lines.append(text)
    return "\n".join(lines).rstrip() + "\n"


def _markdown(text: str) -> str:
    return escape_markdown(_clean_line(text))


def _markdown_code(text: str) -> str:
    """Return a text for the inside of backticks in a table."""
    return _clean_line(text, _NAME).replace("`", "'").replace("|", "¦") or " "


# -------------------------------------------------------------------------------------- JUnit


def junit_text(result: CheckResult) -> str:
    """Write JUnit's XML, as CI systems read it: one suite with a case for each limit. Inconclusive
    limits are skipped cases."""
    suite = _junit_suite(result)
    counts = {name: value for name, value in suite.items() if name != "name"}
    return _junit_document({"name": "torchtraceap check", **counts}, [suite])


def junit_of(results: Sequence[CheckResult]) -> str:
    """Write JUnit's XML with a suite for each contract."""
    suites = [_junit_suite(result) for result in results]
    counts = {
        name: str(sum(int(suite.get(name, "0")) for suite in suites))
        for name in ("tests", "failures", "errors", "skipped")
    }
    return _junit_document({"name": "torchtraceap check", **counts}, suites)


def _junit_document(attributes: dict[str, str], suites: Sequence[ElementTree.Element]) -> str:
    root = ElementTree.Element("testsuites", attributes)
    root.extend(suites)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _junit_suite(result: CheckResult) -> ElementTree.Element:
    name = _xml(result.name or result.file or "contract")
    counts = {
        "tests": str(len(result.results)),
        "failures": str(len(result.failed)),
        "errors": "0",
        "skipped": str(len(result.inconclusive)),
        "time": "0",
    }
    suite = ElementTree.Element("testsuite", {"name": name, **counts})
    if result.device:
        properties = ElementTree.SubElement(suite, "properties")
        attributes = {"name": "device", "value": _xml(result.device)}
        ElementTree.SubElement(properties, "property", attributes)
    for each in result.results:
        attributes = {"classname": name, "name": each.key, "time": "0"}
        if result.file:
            attributes["file"] = _xml(result.file)
            attributes |= {"line": str(each.line)} if each.line else {}
        case = ElementTree.SubElement(suite, "testcase", attributes)
        below = [f"{word}: {text}" for word, text in details(each)]
        whole = _NOT_XML.sub("\ufffd", "\n".join([_clean_line(each.reason), *below]))
        reason = _xml(each.reason)
        if each.status == FAILED:
            failure = ElementTree.SubElement(case, "failure", {"message": reason, "type": each.key})
            failure.text = whole
        elif each.status == INCONCLUSIVE:
            ElementTree.SubElement(case, "skipped", {"message": reason})
        else:
            ElementTree.SubElement(case, "system-out").text = whole
    return suite


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", _clean_line(text))


# -------------------------------------------------------------------------------------- SARIF


def sarif_of(results: Sequence[CheckResult]) -> str:
    """Write SARIF 2.1.0, as code scanning reads it, with one run for all results: of several GitHub
    takes only the first for a category."""
    keys = list(dict.fromkeys(each.key for result in results for each in result.results))
    rules = []
    for key in keys:
        measure = MEASURES[key]
        sentence = f"{measure.what[0].upper()}{measure.what[1:]}."
        rules.append(
            {
                "id": key,
                "shortDescription": {"text": sentence},
                "fullDescription": {"text": f"A limit on {key}: {measure.what}."},
                "help": {"text": f"A trace needs {measure.needs or 'nothing'} for it."},
                "defaultConfiguration": {"level": "error"},
            }
        )
    notes = [
        {
            "level": "note",
            "message": {"text": f"{each.key} is inconclusive: {_clean_line(each.reason)}"},
            "associatedRule": {"id": each.key, "index": keys.index(each.key)},
            "locations": _sarif_locations(each, result),
        }
        for result in results
        for each in result.inconclusive
    ]
    run = {
        "tool": {"driver": {"name": "torchtraceap", "version": __version__, "rules": rules}},
        "columnKind": "utf16CodeUnits",
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notes}],
        "results": [
            _sarif_result(each, keys, result) for result in results for each in result.failed
        ],
    }
    document = {"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _sarif_result(each: KeyResult, keys: list[str], result: CheckResult) -> _Json:
    lines = [f"{each.key}: {_clean_line(each.reason)}"]
    lines += [f"{word}: {text}" for word, text in details(each)]
    found: _Json = {
        "ruleId": each.key,
        "ruleIndex": keys.index(each.key),
        "level": "error",
        "message": {"text": "\n".join(lines)},
        "locations": _sarif_locations(each, result),
        "partialFingerprints": {"torchtraceap/v1": _clean_line(f"{result.name}:{each.key}")},
    }
    frame = each.frame
    if frame is not None and frame.kind == "python" and frame.file:
        place = _sarif_place(frame.file, frame.line)
        text = _clean_line(str(frame), _NAME)
        place["message"] = {"text": f"the first event beyond the limit: {text}"}
        found["relatedLocations"] = [{"id": 1, **place}]
    return found


def _sarif_locations(each: KeyResult, result: CheckResult) -> list[_Json]:
    """Return the line of the contract, else the file of the trace."""
    if result.file:
        return [_sarif_place(result.file, each.line)]
    return [_sarif_place(path, None) for path in result.paths[:1]]


def _sarif_place(path: str, line: int | None) -> _Json:
    """Return the place of a line in a file; one that is not below the working folder is
    absolute."""
    text = uri_path(path)
    uri = f"file://{quote(text)}" if text.startswith("/") else quote(text)
    place: _Json = {"artifactLocation": {"uri": uri}}
    if line:
        place["region"] = {"startLine": line}
    return {"physicalLocation": place}
