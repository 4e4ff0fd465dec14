"""tools/structure: the measures count what they say, on modules of a few lines."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
TEXT = '''\
"""Of a module."""

from dataclasses import dataclass


@dataclass
class A:
    """Holds three fields."""

    x: int
    """What it is."""
    y: int
    z: int


@dataclass
class B:
    x: int
    y: int
    w: int


@dataclass
class C:
    x: int
    v: int
    u: int


def used(value):
    """Return the value."""
    return _once(value) + _twice(value) + _twice(value)


def _once(value):
    return value


def _twice(value):
    return value
'''


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools/structure"))
    for name in ("measures", "modules", "picture"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("measures")


def package(root: Path, **texts: str) -> Path:
    top = root / "python/torchtraceap"
    top.mkdir(parents=True)
    for name, text in texts.items():
        (top / f"{name}.py").write_text(text, "utf-8")
    return top


def test_dataclasses_helpers_and_docstrings(measures: ModuleType, tmp_path: Path) -> None:
    modules = sys.modules["modules"].read_package(package(tmp_path, a=TEXT))
    fields = measures.dataclass_fields(modules)
    assert sorted(map(sorted, fields)) == [["u", "v", "x"], ["w", "x", "y"], ["x", "y", "z"]]
    assert measures.alike_pairs(fields) == 1  # two of four names; C shares one of five
    assert measures.one_caller_helpers(modules[0]) == 1
    assert measures.function_lengths(modules) == (2, 3, 3)
    texts = list(measures.docstrings(modules[0].tree))
    assert {text: measures.is_fragment(text) for text in texts} == {
        "Of a module.": True,
        "Holds three fields.": False,
        "What it is.": True,
        "Return the value.": False,
    }


@pytest.mark.parametrize(
    ("text", "fragment"),
    [("Loading from files.", True), ("Nothing is read.", False), ("Whether it is so.", True),
     ("Office hours are counted.", False)],
)  # fmt: skip
def test_words_that_begin_a_fragment(measures: ModuleType, text: str, fragment: bool) -> None:
    assert measures.is_fragment(text) is fragment


def test_the_wall_and_circles(measures: ModuleType, tmp_path: Path) -> None:
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torchtraceap import a\n"
    top = package(tmp_path, a="from . import b", b=typed, lab="from . import a, b\n", c="")
    (top / "c.py").write_text("def f():\n    from torchtraceap.lab import g\n", "utf-8")
    modules = sys.modules["modules"].read_package(top)
    assert measures.largest_circle(modules) == 2
    assert measures.wall_edges(modules, ["lab"]) == [("torchtraceap.c", "torchtraceap.lab")]
    used = measures.product_imported_by_lab(modules, ["lab"])
    assert used == {"torchtraceap.a", "torchtraceap.b"}


def test_the_stored_figures_are_those_that_are_measured(measures: ModuleType) -> None:
    stored = json.loads((ROOT / "tools/structure/before.json").read_text("utf-8"))["figures"]
    found = measures.measure(ROOT, sys.modules["modules"].read_package(ROOT / "cmake"), [], [])
    assert list(stored) == list(found)


def test_the_picture_of_the_rooms(measures: ModuleType, tmp_path: Path) -> None:
    picture, read = importlib.import_module("picture"), sys.modules["modules"].read_package
    top = package(tmp_path, core="pass\n" * 600, trace="pass\n")
    (tmp_path / "cpp/traceap/base").mkdir(parents=True)
    (tmp_path / "cpp/traceap/base/ids.hpp").write_text("int id;\n", "utf-8")

    def parts() -> dict[str, str]:
        found: dict[str, str] = picture.draw_parts(tmp_path, read(top), ["core", "trace"], ["base"])
        return found

    marks = "".join(f"<!-- begin {name}: python tools/structure --draw --><!-- end {name} -->\n"
                    for name in ("rooms", "modules"))  # fmt: skip
    page = picture.fill(marks, parts())
    assert "  core                       600          1  ██\n" in page
    assert page.index("  trace ") < page.index("  core ") < page.index("  base ")  # lowest last
    assert "| `cpp/traceap/base/` | ids |" in page and "| core, trace |" in page
    assert picture.fill(page, parts()) == page and picture.is_current(page, parts())
    (top / "core.py").write_text("pass\n" * 700, "utf-8")
    assert picture.is_current(page, parts())  # sizes may be a little off
    (top / "core.py").write_text("pass\n" * 900, "utf-8")
    assert not picture.is_current(page, parts())
    (top / "core.py").rename(top / "other.py")
    (top / "core.py").write_text("pass\n" * 600, "utf-8")
    assert not picture.is_current(page, parts())  # a module that the page does not name
