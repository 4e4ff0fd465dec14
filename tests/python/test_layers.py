"""tools/check_layers.py: planted violations are caught (`make style` checks the project)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


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
    assert capsys.readouterr().out == "layers: in order\n"


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
        ("errors.py", "from torchtraceap import results", "may not import results"),
        ("knowledge/a.py", "from ..report import html", "may not import report"),
        ("results.py", "if True:\n    from .cli import main", "may not import cli"),
        ("results.py", "def f():\n    from torchtraceap import report", "may not import report"),
        ("analysis/a.py", "def f():\n    import torchtraceap.trace", "may not import trace"),
        ("table.py", "class T:\n    def f(self):\n        from . import sql", "import sql"),
        ("trace.py", "from torchtraceap.sql import run_sql", "may not import sql"),
        ("trace.py", "import pandas as pd", "import pandas inside the function"),
        (
            "collect/a.py",
            "try:\n    import torch.nn\nexcept ImportError:\n    pass",
            "torch inside",
        ),
        ("novel.py", "", "has no row in PYTHON_LAYERS"),
    ],
)
def test_a_planted_import_is_caught(
    layers: ModuleType, tmp_path: Path, name: str, text: str, complaint: str
) -> None:
    plant(tmp_path, f"python/torchtraceap/{name}", text)
    violations = list(layers.check_python(tmp_path))
    assert len(violations) == 1 and complaint in violations[0]


def test_lazy_and_typing_imports_pass(layers: ModuleType, tmp_path: Path) -> None:
    plant(
        tmp_path,
        "python/torchtraceap/trace.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas as pd\n"
        "def f() -> 'pd.DataFrame':\n    import pandas as pd\n    from torchtraceap import cli\n",
    )
    assert list(layers.check_python(tmp_path)) == []


def test_a_circle_is_caught_though_it_leads_through_functions(
    layers: ModuleType, tmp_path: Path
) -> None:
    plant(tmp_path, "python/torchtraceap/analysis/a.py", "from torchtraceap.analysis import b")
    plant(tmp_path, "python/torchtraceap/analysis/b.py", "from .c import f")
    assert list(layers.check_python(tmp_path)) == []
    plant(tmp_path, "python/torchtraceap/analysis/c.py", "def f():\n    from . import a")
    (violation,) = layers.check_python(tmp_path)
    assert violation.startswith("circle of imports: ")
    assert {violation.count(f"torchtraceap.analysis.{name}") for name in "abc"} == {1, 2}


def test_a_facade_may_reach_up_in_functions_only(layers: ModuleType, tmp_path: Path) -> None:
    plant(tmp_path, "python/torchtraceap/diagnosis.py", "from torchtraceap.ranks import Ranks")
    plant(tmp_path, "python/torchtraceap/ranks.py", "")
    late = "def f():\n    from torchtraceap.diagnosis import build_diagnosis"
    plant(tmp_path, "python/torchtraceap/trace.py", late)
    assert list(layers.check_python(tmp_path)) == []
    plant(tmp_path, "python/torchtraceap/ranks.py", late)
    assert len(list(layers.check_python(tmp_path))) == 2  # upwards, and a circle
