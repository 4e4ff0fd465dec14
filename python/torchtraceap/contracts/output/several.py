"""The results of several contracts, such as those of a run of tests, in one document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from torchtraceap.contracts.output.junit import junit_text
from torchtraceap.contracts.output.markdown import markdown_text
from torchtraceap.contracts.output.plain import verdict
from torchtraceap.contracts.output.sarif import sarif_text
from torchtraceap.contracts.result import CheckResult

__all__ = ["junit_of", "markdown_of", "sarif_of"]

_COUNTED = ("tests", "failures", "errors", "skipped")
_WORDS = {"failed": "broken", "passed": "hold", "inconclusive": "could not be checked"}


def junit_of(results: Sequence[CheckResult]) -> str:
    """JUnit's XML with a suite for each contract."""
    root = ElementTree.Element("testsuites", {"name": "torchtraceap check"})
    for result in results:
        root.extend(ElementTree.fromstring(junit_text(result)))
    for name in _COUNTED:
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def sarif_of(results: Sequence[CheckResult]) -> str:
    """SARIF with one run: of several GitHub takes only the first for a category."""
    whole: dict[str, Any] = json.loads(sarif_text(CheckResult(passed=True, results=())))
    run = whole["runs"][0]
    rules: dict[str, Any] = {}
    told = run["invocations"][0].setdefault("toolExecutionNotifications", [])
    for result in results:
        (each,) = json.loads(sarif_text(result))["runs"]
        for rule in each["tool"]["driver"]["rules"]:
            rules.setdefault(rule["id"], rule)
        run["results"] += each["results"]
        told += each["invocations"][0].get("toolExecutionNotifications", [])
    places = {name: place for place, name in enumerate(rules)}
    for found in run["results"]:
        found["ruleIndex"] = places[found["ruleId"]]
    for note in told:
        note["associatedRule"]["index"] = places[note["associatedRule"]["id"]]
    run["tool"]["driver"]["rules"] = list(rules.values())
    return json.dumps(whole, indent=2, allow_nan=False) + "\n"


def markdown_of(results: Sequence[CheckResult]) -> str:
    """A comment: how many contracts hold, then those that need a look, broken ones first. Its first
    line is a mark by which a bot finds its own comment again."""
    by_verdict: dict[str, list[CheckResult]] = {name: [] for name in _WORDS}
    for result in results:
        by_verdict[verdict(result)].append(result)
    said = [f"{len(found)} {_WORDS[name]}" for name, found in by_verdict.items() if found]
    heading = f"## Performance contracts: {', '.join(said) or 'none'}"
    lines = ["<!-- torchtraceap contracts -->", heading, ""]
    for name, found in by_verdict.items():
        for result in found:
            if name == "passed" and not any(
                e.won or e in result.inconclusive for e in result.results
            ):
                continue
            _, _, text = markdown_text(result).partition("\n")
            lines += [text]
    return "\n".join(lines).rstrip() + "\n"
