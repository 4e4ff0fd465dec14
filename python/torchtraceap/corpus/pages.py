"""Pages over a corpus or a folder of traces, for a browser on this machine.

Note [Safety]: the server listens on this machine alone and reads only. Every request needs the
token, as a cookie that the first address sets, or as a bearer; those whose `Host` is another one
are refused, so no page of the web gets here under a name of its own. An address names a run by its
key and never a file; files of a folder that lead out of it are not served. All text of traces is
escaped, and pages may load nothing from elsewhere.
"""

from __future__ import annotations

import gzip
import hashlib
import hmac
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from html import escape
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from torchtraceap.core.formatting import replace_controls
from torchtraceap.core.records import dataclass
from torchtraceap.core.writing import drop_scratch, make_scratch, write_text
from torchtraceap.corpus.query import connect
from torchtraceap.corpus.report import build_report, report_html
from torchtraceap.corpus.sources import find_files, open_files, read_signs, run_key
from torchtraceap.corpus.store import Store
from torchtraceap.diagnosis.diagnose import build_diagnosis
from torchtraceap.errors import TraceError
from torchtraceap.report.diff_page import render_diff
from torchtraceap.trace.jobs import group_runs
from torchtraceap.trace.loader import load

__all__ = ["PageServer", "Pages"]

HTML, TEXT, JSON = "text/html; charset=utf-8", "text/plain; charset=utf-8", "application/json"
RUNS_OF_A_PAGE = 100
KEPT_PAGES = 200
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_COLUMNS = ("path", "day", "team", "model", "device", "gpu_hours", "lead", "headline")
_STYLE = """body{font:14px system-ui,sans-serif;margin:2em auto;max-width:90em;padding:0 1em}
table{border-collapse:collapse}td,th{padding:.3em .8em;text-align:left;vertical-align:top;
border-bottom:1px solid #8884;overflow-wrap:anywhere}:root{color-scheme:light dark}"""


@dataclass(frozen=True, slots=True)
class Page:
    """The answer to a request."""

    status: int
    kind: str
    body: bytes


class Pages:
    """The pages by their addresses.

    Args:
        folder: A corpus, or a folder of traces.

    Raises:
        ParseError, OptionError: It is neither.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._is_corpus = Path(folder, "manifest", "corpus.json").is_file()
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._stamp: object = None
        self._runs: dict[str, dict[str, Any]] = {}
        self._kept = make_scratch(None)
        self.counts: Counter[str] = Counter()
        self.runs()

    def close(self) -> None:
        """Remove the pages that are kept."""
        drop_scratch(self._kept)

    def runs(self) -> dict[str, dict[str, Any]]:
        """Return the runs by key, as they are now."""
        with self._lock:
            place = Path(self._folder, "manifest") if self._is_corpus else Path(self._folder)
            stamp = place.stat().st_mtime_ns
            if stamp != self._stamp:
                self._runs = _runs_of_corpus(self._folder) if self._is_corpus else (
                    _runs_of_folder(self._folder)
                )  # fmt: skip
                self._stamp = stamp
            return self._runs

    def answer(self, address: str) -> Page:
        """Return the page of an address."""
        parts = urlsplit(address)
        words = [word for word in parts.path.split("/") if word]
        asked = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        self.counts["requests"] += 1
        try:
            match words:
                case []:
                    return Page(200, HTML, self._list(asked).encode("utf-8", "replace"))
                case ["fleet"] if self._is_corpus:
                    return self._kept_page(f"fleet-{self._stamp}", self._fleet)
                case ["run", run] if run in self.runs():
                    return self._kept_page(f"run-{run}", lambda: self._report(run))
                case ["diff"] if {asked.get("a"), asked.get("b")} <= self.runs().keys():
                    a, b = asked["a"], asked["b"]
                    return self._kept_page(f"diff-{a}-{b}", lambda: self._diff(a, b))
                case ["health"]:
                    return Page(200, JSON, json.dumps({"runs": len(self.runs())}).encode())
                case ["metrics"]:
                    lines = [f"torchtraceap_{name} {count}" for name, count in self.counts.items()]
                    return Page(200, TEXT, "\n".join([*lines, ""]).encode())
        except (TraceError, OSError) as error:
            self.counts["errors"] += 1
            return Page(500, TEXT, str(error).encode("utf-8", "replace"))
        return Page(404, TEXT, b"there is no such page\n")

    def _kept_page(self, name: str, make: Any) -> Page:
        """Return a page that is made at the first request and kept."""
        place = self._kept / hashlib.sha256(name.encode()).hexdigest()
        if not place.exists():
            with self._making:
                if not place.exists():
                    self.counts["made_pages"] += 1
                    text = make()
                    kept = sorted(self._kept.iterdir(), key=lambda path: path.stat().st_mtime_ns)
                    for old in kept[: max(0, len(kept) - KEPT_PAGES)]:
                        old.unlink()
                    write_text(place, text)
        return Page(200, HTML, place.read_bytes())

    def _fleet(self) -> str:
        return report_html(build_report(self._folder))

    def _report(self, run: str) -> str:
        with open_files(self.runs()[run]["files"]) as local:
            return build_diagnosis(load(list(local.values()))).to_html()

    def _diff(self, a: str, b: str) -> str:
        with (
            open_files(self.runs()[a]["files"]) as before,
            open_files(self.runs()[b]["files"]) as after,
        ):
            return render_diff(load(list(before.values())), load(list(after.values())))

    def _list(self, asked: Mapping[str, str]) -> str:
        words = asked.get("q", "").lower().split()
        found = [
            (key, run)
            for key, run in self.runs().items()
            if all(word in run["search"] for word in words)
        ]
        wanted = asked.get("page", "0")[:9]
        page = min(int(wanted) if wanted.isdecimal() else 0, len(found) // RUNS_OF_A_PAGE)
        begin = page * RUNS_OF_A_PAGE
        rows = [
            f'<tr><td><input type="radio" name="a" value="{key}"><input type="radio" name="b" '
            f'value="{key}"></td><td><a href="/run/{key}">{_cell(run["path"])}</a></td>'
            + "".join(f"<td>{_cell(run.get(name))}</td>" for name in _COLUMNS[1:])
            + "</tr>"
            for key, run in found[begin : begin + RUNS_OF_A_PAGE]
        ]
        query = quote(asked.get("q", ""))
        links = [f'<a href="/?q={query}&amp;page={page - 1}">before</a>'] if page else []
        if begin + RUNS_OF_A_PAGE < len(found):
            links.append(f'<a href="/?q={query}&amp;page={page + 1}">further</a>')
        fleet = '<p><a href="/fleet">The fleet</a></p>' if self._is_corpus else ""
        heads = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in _COLUMNS)
        return (
            '<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>Runs</title>'
            f"<style>{_STYLE}</style>\n<h1>{len(found)} runs</h1>{fleet}\n"
            f'<form action="/"><input name="q" value="{escape(asked.get("q", ""))}" '
            'aria-label="search"><button>search</button></form>\n'
            '<form action="/diff"><button>compare the first with the second</button>\n'
            f"<table><tr><th>compare</th>{heads}</tr>\n{''.join(rows)}</table></form>\n"
            f"<p>{' '.join(links)}</p></html>\n"
        )


def _cell(value: Any) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else str("" if value is None else value)
    return escape(replace_controls(text))


def _runs_of_corpus(folder: str) -> dict[str, dict[str, Any]]:
    store = Store(folder)
    alive = store.living(store.batches())
    connection = connect(folder)
    try:
        names = ", ".join(_COLUMNS)
        rows = connection.execute(
            f"select run, {names} from runs order by recorded_ns desc, run"
        ).fetchall()
    finally:
        connection.close()
    runs = {}
    for run, *values in rows:
        found: dict[str, Any] = dict(zip(_COLUMNS, values, strict=True))
        known = alive.get(run.partition(".")[0])
        files = known[1]["files"] if known else [[found["path"]]]
        found["files"] = [path for path, *_ in files]
        found["search"] = " ".join(str(v).lower() for v in values if v is not None)
        runs[run] = found
    return runs


def _runs_of_folder(folder: str) -> dict[str, dict[str, Any]]:
    """Return the runs of a folder, without files that lead out of it."""
    root = os.path.realpath(folder)
    signs, heads = [], {}
    for file in find_files([folder]):
        real = os.path.realpath(file.path)
        if os.path.commonpath([root, real]) == root:
            head, one = read_signs(file)
            signs.append(one)
            heads[one.path] = (file.size, head)
    runs: dict[str, dict[str, Any]] = {}
    for run in group_runs(signs):
        path = str(run.files[0].path)
        content, _ = run_key(run, heads, "")
        runs[content] = {
            "path": path,
            "device": ", ".join(run.files[0].devices) or None,
            "files": [str(one.path) for one in run.files],
            "search": path.lower(),
        }
    return runs


class PageServer(ThreadingHTTPServer):
    """Serves pages on this machine. See Note [Safety].

    Args:
        pages: The pages.
        port: The port; 0 takes a free one.
        token: What requests have to show.
    """

    daemon_threads = True

    def __init__(self, pages: Pages, port: int, token: str) -> None:
        self.pages, self.token = pages, token
        super().__init__(("127.0.0.1", port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "torchtraceap", ""
    timeout = 30

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        if self.headers.get("Host", "") not in (f"127.0.0.1:{port}", f"localhost:{port}"):
            return self._send(Page(403, TEXT, b"this host is not served\n"))
        parts = urlsplit(self.path)
        given = parse_qs(parts.query).get("token", [""])[-1]
        if given and self._is_token(given):
            self.send_response(303)
            self.send_header("Location", "/" + quote(parts.path.lstrip("/")))
            cookie = f"token={self.server.token}; HttpOnly; SameSite=Strict; Path=/"
            self.send_header("Set-Cookie", cookie)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if not self._is_known():
            return self._send(Page(401, TEXT, b"open the address that serve printed\n"))
        begun = time.monotonic()
        page = self.server.pages.answer(self.path)
        self.server.pages.counts["milliseconds"] += int((time.monotonic() - begun) * 1000)
        return self._send(page)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.server.token.encode())

    def _is_known(self) -> bool:
        scheme, _, bearer = self.headers.get("Authorization", "").partition(" ")
        if scheme == "Bearer" and self._is_token(bearer.strip()):
            return True
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get("token")
        except CookieError:
            return False
        return cookie is not None and self._is_token(cookie.value)

    def _send(self, page: Page) -> None:
        tag = f'"{hashlib.sha256(page.body).hexdigest()[:32]}"'
        same = page.status == 200 and self.headers.get("If-None-Match") == tag
        body = b"" if same else page.body
        self.send_response(304 if same else page.status)
        if "gzip" in self.headers.get("Accept-Encoding", "") and len(body) > 1000:
            body = gzip.compress(body, 5)
            self.send_header("Content-Encoding", "gzip")
        if not same:
            self.send_header("Content-Type", page.kind)
            self.send_header("Content-Length", str(len(body)))
        for name, value in (
            ("ETag", tag),
            ("Vary", "Accept-Encoding, Cookie"),
            ("Cache-Control", "private, no-cache"),
            ("Content-Security-Policy", _POLICY),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: standard output is the result's, and addresses may hold the token."""
