"""benchmarks/answers: what is kept of an answer, and that a changed value is found."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ANSWERS = Path(__file__).resolve().parents[3] / "benchmarks/answers"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    monkeypatch.syspath_prepend(str(ANSWERS))
    for name in ("commands", "record", "compare"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("record"), importlib.import_module("compare")


def test_a_long_list_keeps_a_digest_of_each_column(
    scripts: tuple[ModuleType, ModuleType],
) -> None:
    record, _ = scripts
    rows = [[place, "name"] for place in range(2_000)]
    before = record.kept({"rows": rows})["rows"]
    rows[1_999] = [1_999, "other"]
    after = record.kept({"rows": rows})["rows"]
    assert before["length"] == 2_000 and len(before["first"]) == 100
    assert before["digests"][0] == after["digests"][0]
    assert before["digests"][1] != after["digests"][1]


def test_volatile_values_are_left_out(scripts: tuple[ModuleType, ModuleType]) -> None:
    record, _ = scripts
    first, second = ({"name": "a2c", "place": place} for place in ("old.module", "new.module"))
    assert record.kept(first) == record.kept(second)
    assert record.kept([first] * 2_000)["digests"] == record.kept([second] * 2_000)["digests"]


def test_differences_name_path_and_values(scripts: tuple[ModuleType, ModuleType]) -> None:
    _, compare = scripts
    old, new = {"a": [1, {"b": 2}]}, {"a": [1, {"b": 2.0}, 3]}
    assert [where for where, _, _ in compare.differences(old, new)] == [".a[1].b", ".a[2]"]
    assert list(compare.differences(old, old)) == []


def test_two_recordings_are_compared(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    command = [sys.executable, str(ANSWERS / "record.py"), str(old), "--jobs", "1"]
    command += ["--only", "pairs/examples", "--corpus", str(tmp_path / "none")]
    subprocess.run(command, check=True, capture_output=True)
    shutil.copytree(old, new)
    compare = [sys.executable, str(ANSWERS / "compare.py"), str(old), str(new)]
    done = subprocess.run(compare, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("answers compared, 0 differ\n") and done.returncode == 0
    digests = json.loads((new / "digests.json").read_text("utf-8"))
    assert len(digests["pairs/examples"]) >= 9
    digests["pairs/examples"].popitem()
    (new / "digests.json").write_text(json.dumps(digests), "utf-8")
    done = subprocess.run(compare, capture_output=True, text=True, check=False)
    assert "1 differ" in done.stdout and done.returncode == 1
