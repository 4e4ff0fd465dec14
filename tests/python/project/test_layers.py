"""tools/check_layers.py: planted violations are caught (`make style` checks the project)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


def check_python(layers: ModuleType, root: Path, rooms: Any = None) -> list[str]:
    modules = layers.read_package(root / "python/torchtraceap")
    return list(layers.check_python(modules, rooms or layers.read_rooms()))


@pytest.fixture(scope="module")
def layers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_layers", ROOT / "tools/check_layers.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plant(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_a_tree_without_violations_passes(
    layers: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(tmp_path, "cpp/traceap/base/a.cpp", "#include <vector>")
    plant(tmp_path, "python/torchtraceap/errors.py", "import os")
    assert layers.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith("layers: in order\n")


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("table/a.cpp", '#include "traceap/tree/event_tree.hpp"', "table may not include"),
        ("trace/a.cpp", '#include "traceap/tree/event_tree.hpp"', "trace may not include"),
        ("windows/a.cpp", '#include "traceap/analysis/idle/idle.hpp"', "windows may not include"),
        ("detect/a.cpp", '  #  include "traceap/trace/read.hpp"', "detect may not include"),
        ("tree/a.cpp", "#include <simdjson.h>", "belongs to the layer trace"),
        ("analysis/a.cpp", "#include <pybind11/numpy.h>", "belongs to the layer bindings"),
        ("base/a.cpp", "#include <torch/torch.h>", "in no row of CPP_THIRD_PARTY"),
        ("base/a.cpp", '#include "ids.hpp"', "should start with traceap/"),
        ("novel/a.cpp", "", "has no row in CPP_LAYERS"),
    ],
)
def test_a_planted_include_is_caught(
    layers: ModuleType, tmp_path: Path, name: str, text: str, complaint: str
) -> None:
    plant(tmp_path, f"cpp/traceap/{name}", text)
    violations = list(layers.check_cpp(tmp_path))
    assert len(violations) == 1 and complaint in violations[0]


def test_standard_headers_and_lower_layers_pass(layers: ModuleType, tmp_path: Path) -> None:
    plant(
        tmp_path,
        "cpp/traceap/detect/a.cpp",
        '#include <vector>\n#include <sys/mman.h>\n#include "traceap/base/ids.hpp"\n'
        '#include "traceap/analysis/idle/idle.hpp"\n',
    )
    assert list(layers.check_cpp(tmp_path)) == []


def test_a_third_party_header_may_show_in_one_private_header_only(
    layers: ModuleType, tmp_path: Path
) -> None:
    plant(tmp_path, "cpp/traceap/trace/a.hpp", "#include <simdjson.h>")
    assert list(layers.check_cpp(tmp_path)) == []
    plant(tmp_path, "cpp/traceap/bindings/b.cpp", '#include "traceap/trace/a.hpp"')
    assert ["private to its layer" in line for line in layers.check_cpp(tmp_path)] == [True]
    plant(tmp_path, "cpp/traceap/trace/c.hpp", "#include <zstd.h>")
    assert any("second header" in line for line in layers.check_cpp(tmp_path))


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("errors.py", "from torchtraceap import core", "may not import core"),
        ("core/knowledge/a.py", "from ...report import html", "may not import report"),
        ("core/a.py", "if True:\n    from ..cli import main", "may not import cli"),
        ("core/a.py", "def f():\n    from torchtraceap import report", "may not import report"),
        ("core/a.py", "def f():\n    import torchtraceap.trace.trace", "may not import trace"),
        (
            "core/table.py",
            "class T:\n    def f(self):\n        from .. import tables",
            "import tables",
        ),
        ("trace/trace.py", "from torchtraceap.tables.sql import run_sql", "may not import tables"),
        ("trace/a.py", "import pandas as pd", "import pandas inside the function"),
        (
            "record/a.py",
            "try:\n    import torch.nn\nexcept ImportError:\n    pass",
            "torch inside",
        ),
        ("novel.py", "", "has no row in layers.toml"),
    ],
)
def test_a_planted_import_is_caught(
    layers: ModuleType, tmp_path: Path, name: str, text: str, complaint: str
) -> None:
    plant(tmp_path, f"python/torchtraceap/{name}", text)
    violations = check_python(layers, tmp_path)
    assert len(violations) == 1 and complaint in violations[0]


def test_lazy_and_typing_imports_pass(layers: ModuleType, tmp_path: Path) -> None:
    plant(
        tmp_path,
        "python/torchtraceap/trace/trace.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas as pd\n"
        "def f() -> 'pd.DataFrame':\n    import pandas as pd\n    from torchtraceap import cli\n",
    )
    assert check_python(layers, tmp_path) == []


def test_a_circle_is_caught_though_it_leads_through_functions(
    layers: ModuleType, tmp_path: Path
) -> None:
    plant(tmp_path, "python/torchtraceap/tables/a.py", "from torchtraceap.tables import b")
    plant(tmp_path, "python/torchtraceap/tables/b.py", "from .c import f")
    assert check_python(layers, tmp_path) == []
    plant(tmp_path, "python/torchtraceap/tables/c.py", "def f():\n    from . import a")
    violation, size, whole = check_python(layers, tmp_path)
    assert whole == "whole: circle 3, more than the maximum 1"
    assert size == "tables: circle 3, more than the maximum 1"
    assert violation.startswith("circle of imports: ")
    assert {violation.count(f"torchtraceap.tables.{name}") for name in "abc"} == {1, 2}


TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "


def test_an_import_for_types_follows_the_rooms_too(layers: ModuleType, tmp_path: Path) -> None:
    plant(tmp_path, "python/torchtraceap/diagnosis/a.py", f"{TYPES}from ..explanation import E")
    assert check_python(layers, tmp_path) == []  # listed in layers.toml
    plant(tmp_path, "python/torchtraceap/errors.py", f"{TYPES}from .trace import Trace")
    (violation,) = check_python(layers, tmp_path)
    assert "errors may not import trace for types" in violation


def test_a_circle_of_types_has_a_maximum(layers: ModuleType, tmp_path: Path) -> None:
    plant(tmp_path, "python/torchtraceap/tables/a.py", "from .b import f")
    plant(tmp_path, "python/torchtraceap/tables/b.py", f"{TYPES}from .a import T")
    assert check_python(layers, tmp_path) == [
        "tables: circle 2, more than the maximum 1",
        "whole: circle 2, more than the maximum 1",
    ]


def test_the_product_may_not_import_the_lab(layers: ModuleType, tmp_path: Path) -> None:
    plant(tmp_path, "python/torchtraceap/lab/a.py", "")
    plant(tmp_path, "python/torchtraceap/lab/b.py", "from . import a")
    plant(tmp_path, "python/torchtraceap/cli/__init__.py", "from ..lab import a")
    assert check_python(layers, tmp_path) == []
    plant(tmp_path, "python/torchtraceap/report/c.py", f"{TYPES}from ..lab.a import T")
    room, wall = check_python(layers, tmp_path)
    assert "report may not import lab for types" in room
    assert wall == "the product may not import the lab: report.c -> lab.a"


def test_the_lab_imports_public_names_of_rooms_alone(layers: ModuleType, tmp_path: Path) -> None:
    plant(tmp_path, "python/torchtraceap/trace/__init__.py", "")
    plant(tmp_path, "python/torchtraceap/trace/ranks.py", "")
    plant(tmp_path, "python/torchtraceap/lab/a.py", "from torchtraceap.trace import Ranks")
    assert check_python(layers, tmp_path) == []
    plant(tmp_path, "python/torchtraceap/lab/a.py", f"{TYPES}from ..trace.ranks import Ranks")
    (violation,) = check_python(layers, tmp_path)
    assert violation.startswith("torchtraceap.lab.a may not import torchtraceap.trace.ranks")


def test_a_room_may_not_grow_beyond_its_maximum(layers: ModuleType, tmp_path: Path) -> None:
    maximum = layers.read_rooms().maxima["errors"]["lines"]
    plant(tmp_path, "python/torchtraceap/errors.py", "a = 1\n" * maximum)
    assert check_python(layers, tmp_path) == []
    plant(tmp_path, "python/torchtraceap/errors.py", "a = 1\n" * (maximum + 1))
    (violation,) = check_python(layers, tmp_path)
    assert violation == f"errors: lines {maximum + 1}, more than the maximum {maximum}"


SMALL_TABLE = """\
root = ["python"]
late = []
[wall]
lab = ["lab"]
facades = []
edges = [
  "core.a -> lab.a",
  "core.b -> lab.a",
]
doors = []
[types]
upward = [
  "core -> lab",
]
[heavy]
[whole]
circle = 5
[rooms.core]
may_import = ["lab"]
lines = 900
modules = 2
circle = 3
[rooms.lab]
may_import = []
lines = 50
modules = 4
"""


def test_maxima_and_exceptions_are_lowered_to_what_is_there(
    layers: ModuleType, tmp_path: Path
) -> None:
    plant(tmp_path, "python/torchtraceap/core/a.py", "from torchtraceap.lab import a\n" * 120)
    plant(tmp_path, "python/torchtraceap/core/b.py", "")
    plant(tmp_path, "python/torchtraceap/lab/a.py", "")
    modules = layers.read_package(tmp_path / "python/torchtraceap")
    rooms = layers.Rooms(SMALL_TABLE)
    assert check_python(layers, tmp_path, rooms) == []
    told = list(layers.notes(modules, rooms))
    assert "core: lines 120, so lower the maximum 900" in told
    assert '"core.b -> lab.a" is no longer imported, so take it from layers.toml' in told
    text = layers.tightened(SMALL_TABLE, modules)
    tight = layers.Rooms(text)
    assert tight.maxima["core"] == {"lines": 150, "modules": 2, "circle": 1}
    assert tight.maxima["lab"] == {"lines": 0, "modules": 1}
    assert tight.whole == {"circle": 1}
    assert tight.wall_edges == ["core.a -> lab.a"] and tight.upward_types == []
    assert list(layers.notes(modules, tight)) == [] and layers.tightened(text, modules) == text


def test_the_root_holds_listed_names(layers: ModuleType, tmp_path: Path) -> None:
    rooms = layers.read_rooms()
    plant(tmp_path, "README.md", "")
    assert list(layers.check_root(tmp_path, rooms)) == []
    plant(tmp_path, "bad.json.gz", "")
    (violation,) = layers.check_root(tmp_path, rooms)
    assert "bad.json.gz: the root holds" in violation


def test_each_room_has_one_row_in_the_architecture(layers: ModuleType, tmp_path: Path) -> None:
    rooms = layers.Rooms(SMALL_TABLE)
    rows = "| module | what |\n|---|---|\n| `core/`, `lab/` | all |\n"
    plant(tmp_path, "docs/architecture.md", f"## Python package\n{rows}")
    assert list(layers.check_rows(tmp_path, rooms)) == []
    plant(tmp_path, "docs/architecture.md", f"## Python package\n{rows}| `core/` | more |\n")
    (violation,) = layers.check_rows(tmp_path, rooms)
    assert violation.endswith("core/ has several rows")
    plant(tmp_path, "docs/architecture.md", "## Python package\n| `core/` | more |\n")
    (violation,) = layers.check_rows(tmp_path, rooms)
    assert violation.endswith("lab has no row")


def test_a_facade_may_reach_up_in_functions_only(layers: ModuleType, tmp_path: Path) -> None:
    plant(
        tmp_path,
        "python/torchtraceap/diagnosis/diagnose.py",
        "from torchtraceap.trace.ranks import Ranks",
    )
    plant(tmp_path, "python/torchtraceap/trace/ranks.py", "")
    late = "def f():\n    from torchtraceap.diagnosis.diagnose import build_diagnosis"
    plant(tmp_path, "python/torchtraceap/trace/trace.py", late)
    assert check_python(layers, tmp_path) == []
    plant(tmp_path, "python/torchtraceap/trace/ranks.py", late)
    assert len(check_python(layers, tmp_path)) == 3  # upwards, and a circle, larger than any
