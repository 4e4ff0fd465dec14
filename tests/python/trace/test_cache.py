"""What was read is kept and read again, as long as nothing changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.trace import cache, recordings

pytest.importorskip("pyarrow")


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cache, "LEAST_BYTES", 10)
    monkeypatch.delenv(cache.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    path = tmp_path / "trace.json"
    _write(path, "one")
    return path


def _write(path: Path, name: str) -> None:
    path.write_text(f'[{{"ph": "X", "name": "{name}", "pid": 1, "tid": 1, "ts": 1, "dur": 2}}]')


def _parses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are parsed from now on."""
    found: list[str] = []
    parse = recordings._parse

    def counting(path: Path, *rest: object) -> _core.EventTable:
        found.append(Path(path).name)
        return parse(path, *rest)

    monkeypatch.setattr(recordings, "_parse", counting)
    return found


def _name(path: Path, **options: object) -> str:
    table = ttap.load(path, **options).ranks[0].table
    assert table.path == str(path)
    return table.name_of(0)


def test_nothing_is_kept_unless_somebody_asks(trace: Path, tmp_path: Path) -> None:
    assert _name(trace) == "one"
    assert [each.name for each in tmp_path.iterdir()] == ["trace.json"]


@pytest.mark.parametrize("said", ["on", "a folder"])
def test_a_file_is_parsed_once(
    said: str, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = _parses(monkeypatch)
    folder = tmp_path / "home/torchtraceap/traces" if said == "on" else tmp_path / "a folder"
    monkeypatch.setenv(cache.VARIABLE, "on" if said == "on" else str(folder))
    assert [_name(trace) for _ in range(3)] == ["one"] * 3
    assert parsed == ["trace.json"] and len(list(folder.iterdir())) == 1
    assert folder.stat().st_mode & 0o777 == 0o700
    assert _name(trace, cache=False) == "one" and len(parsed) == 2


def test_a_changed_file_is_read_anew(trace: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    assert _name(trace, cache=folder) == "one"
    _write(trace, "two")  # of equal size
    assert _name(trace, cache=folder) == "two"
    os.utime(trace, ns=(1, 1))
    assert _name(trace, cache=folder) == "two"
    assert len(list(folder.iterdir())) == 3


def test_a_damaged_entry_is_replaced(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = _parses(monkeypatch)
    assert _name(trace, cache=tmp_path / "kept") == "one"
    (entry,) = (tmp_path / "kept").iterdir()
    whole = entry.read_bytes()
    for damage in (b"", whole[:500], whole[: len(whole) // 2] + b"\xff" * 400, b"x" * len(whole)):
        entry.write_bytes(damage)
        before = len(parsed)
        assert _name(trace, cache=tmp_path / "kept") == "one"
        assert len(parsed) == before + 1
        assert _name(trace, cache=tmp_path / "kept") == "one"
        assert len(parsed) == before + 1  # it was kept again


def test_a_folder_that_takes_nothing_is_no_error(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert _name(trace, cache=tmp_path / "file") == "one"
    assert (tmp_path / "file").read_text() == "in the way"


def test_the_folder_does_not_grow_without_end(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kept"
    assert _name(trace, cache=folder) == "one"
    (first,) = folder.iterdir()
    os.utime(first, ns=(1, 1))
    monkeypatch.setattr(cache, "MOST_BYTES", first.stat().st_size + 10)
    _write(trace, "two")
    assert _name(trace, cache=folder) == "two"
    assert len(list(folder.iterdir())) == 1 and not first.exists()
