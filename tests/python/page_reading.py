"""Reads a page back: its elements, the script's data, the tables."""

from __future__ import annotations

import base64
import gzip
import json
from html.parser import HTMLParser
from typing import Any


class Page(HTMLParser):
    """Elements, and the text of script and style elements."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[str, dict[str, str | None], str]] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside in ("script", "style"):
            self.raw.append((self.inside, self.elements[-1][1], data))

    def script(self, name: str | None) -> str:
        return "".join(text for tag, a, text in self.raw if tag == "script" and a.get("id") == name)

    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.script("report-data"))
        return found


def tables_of(page: Page) -> dict[str, Any]:
    """By section: views, and in each a table per rank."""
    packed = gzip.decompress(base64.b64decode(page.script("tables")))
    found: dict[str, Any] = json.loads(packed)
    return found


def column_of(table: dict[str, Any], name: str) -> list[Any]:
    """The plain values of a column in the page."""
    column = next(c for c in table["columns"] if c["name"] == name)
    if column["unit"] != "text":
        return list(column["values"])
    return [None if code < 0 else column["texts"][code] for code in column["values"]]
