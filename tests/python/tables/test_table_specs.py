"""What a table says of itself is what `Trace`, the commands, SQL, the page and the docs have."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torchtraceap as ttap
from torchtraceap.cli import COMMANDS
from torchtraceap.report.sections import SECTIONS
from torchtraceap.tables.catalog import TABLES, table_spec

ROOT = Path(__file__).resolve().parents[3]


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


@pytest.mark.parametrize("name", TABLES)
def test_the_method_has_the_options_of_the_table(name: str) -> None:
    spec, method = table_spec(name), getattr(ttap.Trace, TABLES[name].method)
    built = inspect.signature(spec.build).parameters
    offered = inspect.signature(method).parameters
    assert ("rank" in offered) == spec.per_rank
    for keyword, parameter in offered.items():
        if keyword not in ("self", "rank"):
            assert built[keyword].default == parameter.default, keyword
    for option in spec.options:
        assert built[option.keyword].default == option.default, option.keyword
    assert ("by" in offered) == bool(spec.views)
    if spec.views:
        assert offered["by"].default == built["by"].default == spec.views[0]


@pytest.mark.parametrize("name", [name for name in TABLES if table_spec(name).views])
def test_the_method_describes_every_view_and_no_other(name: str) -> None:
    text = inspect.getdoc(getattr(ttap.Trace, TABLES[name].method)) or ""
    described = re.search(r"^    by: (.*?)(?=^    \w+: |\Z)", text, re.DOTALL | re.MULTILINE)
    assert described is not None
    assert tuple(re.findall(r'"(\w+)"', described[1])) == tuple(table_spec(name).views)


@pytest.mark.parametrize("name", TABLES)
def test_an_unknown_view_is_one_sentence(name: str, bundled: Path) -> None:
    if table_spec(name).views:
        with pytest.raises(ttap.errors.OptionError, match=re.escape(table_spec(name).views[-1])):
            table_spec(name).make(ttap.load(bundled), by="nothing")


@pytest.mark.parametrize("name", TABLES)
def test_the_documentation_lists_the_table_with_its_views(name: str) -> None:
    entry = re.search(
        rf"^- `{name} PATH`.*?(?=^- |\n\n)", read("docs/command_line.md"), re.M | re.S
    )
    assert entry is not None
    flags = {option.flag for option in table_spec(name).options}
    assert flags <= set(re.findall(r"--[a-z-]+", entry[0]))
    shown = re.findall(r"--by ([\w|]+)", entry[0])
    assert shown == (["|".join(table_spec(name).views)] if table_spec(name).views else [])
    assert re.search(rf"`{name}`", read("docs/tables.md"))
    assert f"`{name}`" in read("docs/report.md") or not table_spec(name).page


def test_every_table_is_a_command() -> None:
    assert set(TABLES) <= set(COMMANDS)
    assert all(COMMANDS[name].summary == entry.summary for name, entry in TABLES.items())


def test_views_of_the_page_have_a_section_and_charts_a_view() -> None:
    views = {(view.section, view.label) for name in TABLES for view in table_spec(name).page}
    assert {section for section, _ in views} == {section.key for section in SECTIONS}
    for section in SECTIONS:
        assert {(section.key, label) for label in section.charts} <= views


def test_names_in_sql_are_given_once() -> None:
    names = [name for table in TABLES for name in table_spec(table).sql]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "code", ["import torchtraceap", "from torchtraceap.cli import main\nmain(['--help'])"]
)
def test_no_table_is_loaded_before_it_is_asked_for(code: str) -> None:
    listed = "import sys\nprint([m for m in sys.modules if m.startswith('torchtraceap.tables.')])"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{listed}"], capture_output=True, text=True, check=True
    )
    loaded = set(re.findall(r"torchtraceap\.analysis\.([\w.]+)", done.stdout.splitlines()[-1]))
    assert loaded & {entry.module for entry in TABLES.values()} == set()
