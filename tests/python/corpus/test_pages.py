"""Pages of a corpus and of a folder: who gets them, and what they never give."""

from __future__ import annotations

import gzip
import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorder import Recorder
from test_fleet_report import MONDAY, Fleet

from torchtraceap.corpus.pages import Pages, PageServer

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")

TOKEN = "secret-token"
EVIL = "<script>alert('x')</script>\"&"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, a link that leads out of the folder, and a file of a hostile name."""
    outside = tmp_path_factory.mktemp("outside")
    folder = tmp_path_factory.mktemp("traces")
    for number, name in enumerate(["a.json.gz", "it's <b>&.json.gz"]):
        recorder = Recorder(base=1.79e15 + number * 1e12)
        recorder.steps(3, 10, 30.0 + number)
        recorder.write(folder / name)
    recorder.write(outside / "private.json.gz")
    (folder / "link.json.gz").symlink_to(outside / "private.json.gz")
    return folder


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Fleet(tmp_path_factory.mktemp("corpus") / "fleet")
    for number in range(250):
        made.add(MONDAY, {"cpu_bound": 0.1}, team=EVIL if number == 7 else f"team{number % 3}")
    made.report()
    return Path(made.folder)


@pytest.fixture(scope="module", params=["folder", "fleet"])
def served(request: pytest.FixtureRequest) -> Iterator[PageServer]:
    pages = Pages(str(request.getfixturevalue(request.param)))
    server = PageServer(pages, 0, TOKEN)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
    pages.close()


def ask(
    server: PageServer, path: str, *, token: str | None = TOKEN, method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1])
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_the_list_and_what_it_leads_to(served: PageServer) -> None:
    answer, body = ask(served, "/")
    text = body.decode()
    assert answer.status == 200
    assert "<script>" not in text
    assert "<b>" not in text
    assert "private" not in text
    assert "default-src 'none'" in (answer.getheader("Content-Security-Policy") or "")
    assert json.loads(ask(served, "/health")[1])["runs"] == len(served.pages.runs())
    assert b"torchtraceap_requests" in ask(served, "/metrics")[1]
    _, none = ask(served, "/?q=nothing-is-called-so")
    assert b"<h1>0 runs" in none
    for page in ("-1", "9" * 40, "x", "%00"):
        assert ask(served, f"/?page={page}")[0].status == 200


@pytest.mark.parametrize(
    "path",
    ["/../../etc/passwd", "/run/../../etc/passwd", "/run/%2e%2e%2fetc%2fpasswd", "/run/", "/run/x",
     "/diff?a=x&b=y", "/diff", "/run//etc/passwd", "/fleet/../x", "/%00"],
)  # fmt: skip
def test_no_address_leads_to_a_file(served: PageServer, path: str) -> None:
    answer, body = ask(served, path)
    assert answer.status == 404
    assert b"root:" not in body


def test_only_those_with_the_token_get_in(served: PageServer) -> None:
    for path in ("/", "/health", "/metrics", "/fleet"):
        assert ask(served, path, token=None)[0].status == 401
        assert ask(served, path, token="secret")[0].status == 401
        assert ask(served, path, token=None, Cookie="token=x")[0].status == 401
    assert ask(served, "/", token=None, Cookie=f"token={TOKEN}")[0].status == 200
    answer, _ = ask(served, f"/?token={TOKEN}", token=None)
    assert (answer.status, answer.getheader("Location")) == (303, "/")
    answer, _ = ask(served, f"////evil.example/?token={TOKEN}", token=None)
    assert answer.getheader("Location") == "/evil.example/"
    assert "HttpOnly; SameSite=Strict" in (answer.getheader("Set-Cookie") or "")
    assert ask(served, "/", Host="evil.example")[0].status == 403
    assert ask(served, "/", method="POST")[0].status == 501


def test_pages_are_kept_and_compressed(served: PageServer) -> None:
    answer, body = ask(served, "/", Accept_Encoding="gzip")
    text = gzip.decompress(body) if answer.getheader("Content-Encoding") == "gzip" else body
    assert b"runs</h1>" in text
    tag = answer.getheader("ETag") or ""
    again, empty = ask(served, "/", If_None_Match=tag)
    assert (again.status, empty) == (304, b"")


def test_reports_and_differences_are_made_once(folder: Path) -> None:
    pages = Pages(str(folder))
    try:
        first, second = pages.runs()
        for _ in range(2):
            report: Any = pages.answer(f"/run/{first}")
            diff = pages.answer(f"/diff?a={first}&b={second}")
        assert (report.status, diff.status) == (200, 200)
        assert b"<html" in report.body
        assert pages.counts["made_pages"] == 2
        assert pages.answer("/fleet").status == 404
    finally:
        pages.close()


def test_the_fleet_has_a_page_and_the_list_has_pages(fleet: Path) -> None:
    pages = Pages(str(fleet))
    try:
        assert b"GPU hours lost by finding" in pages.answer("/fleet").body
        assert pages.answer("/").body.count(b'href="/run/') == 100
        assert pages.answer("/?page=2").body.count(b'href="/run/') == 50
        assert b"<h1>1 runs" in pages.answer("/?q=script+alert").body
        (run, *_) = pages.runs()
        assert pages.answer(f"/run/{run}").status == 500  # its trace is gone
    finally:
        pages.close()
