"""JUnit's XML, as CI systems read it: a test case for each limit."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from torchtraceap.contracts.output.plain import details, plain_line
from torchtraceap.contracts.result import FAILED, INCONCLUSIVE, CheckResult, KeyResult

__all__ = ["junit_text"]

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot represent."""


def junit_text(result: CheckResult) -> str:
    """A document of one suite. Inconclusive limits are skipped cases."""
    name = _xml(result.name or result.file or "contract")
    counts = {
        "tests": str(len(result.results)),
        "failures": str(len(result.failed)),
        "errors": "0",
        "skipped": str(len(result.inconclusive)),
        "time": "0",
    }
    root = ElementTree.Element("testsuites", {"name": "torchtraceap check", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": name, **counts})
    if result.device:
        properties = ElementTree.SubElement(suite, "properties")
        attributes = {"name": "device", "value": _xml(result.device)}
        ElementTree.SubElement(properties, "property", attributes)
    for each in result.results:
        _add_case(suite, each, name, result.file)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _add_case(suite: ElementTree.Element, result: KeyResult, name: str, file: str | None) -> None:
    attributes = {"classname": name, "name": result.key, "time": "0"}
    if file:
        attributes["file"] = _xml(file)
        attributes |= {"line": str(result.line)} if result.line else {}
    case = ElementTree.SubElement(suite, "testcase", attributes)
    below = [f"{word}: {text}" for word, text in details(result)]
    whole = _NOT_XML.sub("\ufffd", "\n".join([plain_line(result.reason), *below]))
    reason = _xml(result.reason)
    if result.status == FAILED:
        failure = ElementTree.SubElement(case, "failure", {"message": reason, "type": result.key})
        failure.text = whole
    elif result.status == INCONCLUSIVE:
        ElementTree.SubElement(case, "skipped", {"message": reason})
    else:
        said = ElementTree.SubElement(case, "system-out")
        said.text = whole


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", plain_line(text))
