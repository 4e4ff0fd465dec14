"""docs/errors.md lists every code and every class, and nothing that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torchtraceap import _core, errors

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/errors.md").read_text("utf-8")
LISTED = set(re.findall(r"^[|-] `(\w+)`[ :]", PAGE, re.MULTILINE))


def codes_in_cpp() -> set[str]:
    """Literals given to Diagnostics::add, and the reader's table of reasons."""
    codes: set[str] = set()
    for path in sorted((ROOT / "cpp/traceap").rglob("*.[ch]pp")):
        text = path.read_text("utf-8")
        codes |= set(re.findall(r'\badd\(\s*"(\w+)"', text))
    reasons = (ROOT / "cpp/traceap/trace/reasons.hpp").read_text("utf-8")
    table = reasons[reasons.index("kReasonTexts{{") :]
    return codes | set(re.findall(r'^\s*\{"(\w+)", "', table, re.MULTILINE))


def codes_in_python() -> set[str]:
    text = "".join(
        (ROOT / f"python/torchtraceap/{name}.py").read_text("utf-8")
        for name in (
            "trace/files",
            "trace/jobs",
            "trace/loader",
            "trace/recordings/__init__",
            "tables/steps/some_steps",
        )
    )
    return set(re.findall(r'(?:Diagnostic|_note)\(\s*"(\w+)"', text))


def test_every_code_is_listed() -> None:
    used = codes_in_cpp() | codes_in_python()
    assert {"bare_backslash", "orphan_gpu_events", "rank_from_order", "skipped_file"} <= used
    assert used - LISTED == set()


def test_nothing_is_listed_that_does_not_exist() -> None:
    classes = {*errors.__all__, "RecordingError"}
    assert LISTED - classes - codes_in_cpp() - codes_in_python() == set()


def test_every_class_is_listed() -> None:
    assert set(errors.__all__) <= LISTED


def test_core_errors_arrive_as_our_classes(tmp_path: Path) -> None:
    trace = b'{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":1}]}'
    table = _core.read_trace_bytes(trace, "x")
    tree = _core.build_tree(table)
    with pytest.raises(errors.ParseError, match=r"^name: "):
        _core.read_trace_bytes(b"nothing", "name")
    with pytest.raises(errors.ParseError, match="folder"):
        _core.read_trace(tmp_path)
    with pytest.raises(errors.OptionError, match="windows"):
        _core.build_windows(table, tree, count=0)
    with pytest.raises(errors.OptionError, match="bounds"):
        _core.timeline(table, tree, bounds=(2, 1))
    with pytest.raises(errors.OptionError, match="material_share"):
        _core.detect(table, tree, material_share=float("nan"))
    with pytest.raises(errors.SchemaError):
        _core.build_features(table, tree, _core.build_windows(table, _core.build_tree(table)))
    with pytest.raises(errors.TraceError, match="written"):
        _core.write_trace(table, tmp_path / "no" / "folder.json")
    with pytest.raises(TypeError):
        _core.read_trace_bytes(trace, "x", 3)  # type: ignore[call-arg, arg-type]
