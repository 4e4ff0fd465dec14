"""The documentation keeps its promises: links lead somewhere, what is shown is what is there."""

from __future__ import annotations

import argparse
import fnmatch
import functools
import json
import re
import runpy
import shlex
import tomllib
from pathlib import Path

import pytest

from torchtraceap import Trace, load
from torchtraceap.cli import COMMANDS, main
from torchtraceap.cli.parser import Parser, each_command, parse
from torchtraceap.core.knowledge import load_knowledge
from torchtraceap.report.terminal import render_text
from torchtraceap.tables.sql import sql_tables

ROOT = Path(__file__).resolve().parents[3]
EVERY = each_command(COMMANDS)
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
TRACE = ROOT / "examples/traces/resnet50_num_workers_0.json.gz"
EVERYWHERE = {"--help", "--json", "--csv", "--spreadsheet", "--parquet", "--limit", "--all-columns",
              "--columns", "--sort", "--phase", "--rank", "--steps", "--threads",
              "--no-color"}  # fmt: skip


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


@functools.cache
def bundled_trace() -> Trace:
    return load(TRACE)


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def options_of(command: str) -> list[argparse.Action]:
    parser = Parser()
    EVERY[command].describe(parser)
    return parser._actions


def shown_commands() -> list[tuple[str, str, str]]:
    """Page, command and output of the blocks that begin with `$ torchtraceap`."""
    found = []
    for page in PAGES:
        blocks = re.findall(
            r"```\n\$ torchtraceap ([^\n]*)\n(.*?)```", page.read_text("utf-8"), re.S
        )
        found += [(str(page.relative_to(ROOT)), command, output) for command, output in blocks]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text("utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#\s]+)", text)
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_headings_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text("utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#\s]*)#([^)\s]+)", text)
    local = [(page.parent / file if file else page, name) for file, name in targets
             if "://" not in file]  # fmt: skip
    assert [(file.name, name) for file, name in local if name not in anchors(file)] == []


def test_the_index_links_every_page_and_notebook() -> None:
    linked = {(ROOT / "docs" / name).resolve()
              for name in re.findall(r"\]\(([^)#\s]+)", read("docs/index.md"))}  # fmt: skip
    wanted = {*ROOT.glob("docs/**/*.md"), *ROOT.glob("notebooks/*.ipynb")}
    assert wanted - linked - {ROOT / "docs/index.md"} == set()
    assert "](docs/index.md)" in read("README.md")


def test_the_way_to_a_diagnosis_is_short() -> None:
    way = read("docs/index.md").split("## My run is slow\n")[1].split("\n## ")[0]
    pages = re.findall(r"^\d+\. \[[^\]]+\]\((\w+\.md)\)", way, re.MULTILINE)
    assert len(pages) == 5
    assert sum(len(read(f"docs/{page}").split()) for page in pages) <= 8_000


def test_lines_are_short() -> None:
    """At most 120 characters, so that a change shows as the sentence it changes.

    Exempt is what can't be broken: captured output, below the command that printed it, a line of
    hardly more than a URL, and tables that a command writes between its marks.
    """
    long: list[str] = []
    for page in PAGES:
        text = re.sub(r"```\n\$ .*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
        text = re.sub(r"<!-- begin .*?<!-- end ", "", text, flags=re.DOTALL)
        long += [f"{page.name}: {line}" for line in text.splitlines()
                 if len(line) > 120 and len(line.split()) > 3]  # fmt: skip
    assert long == []


def test_the_notebooks_link_to_what_exists() -> None:
    for path in ROOT.glob("notebooks/*.ipynb"):
        cells = json.loads(path.read_text("utf-8"))["cells"]
        text = "".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
        targets = re.findall(r"\]\(([^)#\s]+)", text)
        assert [t for t in targets if "://" not in t and not (path.parent / t).exists()] == []


@pytest.mark.parametrize("command", EVERY)
def test_every_command_and_option_is_documented(command: str) -> None:
    text = read("docs/command_line.md")
    (item,) = re.findall(rf"^- (`{command.split()[0]} [^\n]*(?:\n  [^\n]*)*)", text, re.MULTILINE)
    assert f"`{command}" in item
    for action in options_of(command):
        for name in (n for n in action.option_strings if n.startswith("--")):
            assert f"`{name}" in (text if name in EVERYWHERE else item)
            if name == "--by":
                assert f"`--by {'|'.join(action.choices or ())}`" in item


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_stands_on_the_page_of_tables_or_of_exports(command: str) -> None:
    if command in ("completion", "doctor"):
        return  # give nothing of a trace
    text = read("docs/tables.md") + read("docs/formats.md") + read("README.md")
    assert re.search(rf"`(torchtraceap )?{command}\b", text)


def test_templates_for_ci_hold_commands_that_parse() -> None:
    yaml = pytest.importorskip("yaml")
    found = []
    for path in sorted(ROOT.glob("examples/ci/*/*.y*ml")) + sorted(
        ROOT.glob("examples/ci/*/.*.y*ml")
    ):
        yaml.safe_load(path.read_text("utf-8"))
        text = re.sub(r"\n\s+(?=--)", " ", path.read_text("utf-8"))
        found += re.findall(r"torchtraceap ((?:check|diagnose) .*)$", text, re.MULTILINE)
    assert len(found) >= 5
    for line in found:
        name, *rest = shlex.split(line)
        assert parse(name, COMMANDS[name], rest).paths


def test_every_dependency_has_an_upper_bound() -> None:
    project = tomllib.loads(read("pyproject.toml"))
    groups = {"": project["project"]["dependencies"], "build": project["build-system"]["requires"],
              **project["project"]["optional-dependencies"]}  # fmt: skip
    open_ended = [(g, entry) for g, entries in groups.items() for entry in entries
                  if not re.search(r",<\d", entry)]  # fmt: skip
    assert open_ended == []


def test_every_documented_command_exists() -> None:
    pages = [read(str(page.relative_to(ROOT))) for page in PAGES]
    blocks = [b for text in pages for b in re.findall(r"```(?:\w*)\n(.*?)```", text, re.S)]
    used = {
        name for block in blocks for name in re.findall(r"^torchtraceap ([a-z-]+) ", block, re.M)
    }
    assert used - set(COMMANDS) == set()


def test_every_missing_signal_has_the_option_that_records_it() -> None:
    text = read("docs/recording.md").split("| signal |")[1].split("\n\n")[0]
    listed = {signal for row in text.splitlines()[2:]
              for signal in re.findall(r"`([^`]+)`", row.split(" | ")[0])}  # fmt: skip
    rules = "".join(p.read_text("utf-8") for p in (ROOT / "cpp/traceap/detect").rglob("*.cpp"))
    calls = re.findall(r"\babstain\([^;]*;|missing_signals\.emplace_back\([^;]*;", rules)
    signals = {name for call in calls for name in re.findall(r'"([A-Za-z][^"]{3,})"', call)}
    assert len(signals) > 20
    assert [name for name in sorted(signals) if not name.startswith(tuple(listed))] == []
    assert [name for name in sorted(listed) if not any(s.startswith(name) for s in signals)] == []


def test_every_rule_has_a_section() -> None:
    pages = read("docs/rules.md") + read("docs/serving.md")
    headings = re.findall(r"^### (.*)$", pages, re.MULTILINE)
    described = {name for heading in headings for name in heading.split(" and ")}
    assert set(load_knowledge()) - described == set()


def test_every_table_of_sql_is_documented() -> None:
    text = read("docs/formats.md")
    assert [name for name in sql_tables() if f"| `{name}` |" not in text] == []


def test_the_queries_of_the_documentation_run(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("duckdb", reason="DuckDB runs the queries")
    queries = re.findall(r"```sql\n(.*?)```", read("docs/formats.md"), re.S)
    assert queries
    for query in queries:
        assert main(["sql", str(TRACE), query, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["rows"]


@pytest.mark.parametrize(("page", "command", "output"), shown_commands())
def test_what_is_shown_is_what_is_printed(
    page: str,
    command: str,
    output: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(command.split()) == 0
    assert capsys.readouterr().out == output


def test_outputs_are_shown() -> None:
    assert {page for page, _, _ in shown_commands()} >= {"README.md", "docs/tables.md"}


SOURCES = [str(path.relative_to(ROOT))
           for root in ("cpp", "python", "tests", "benchmarks", "examples", "tools", "notebooks")
           for path in (ROOT / root).rglob("*.*")]  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    """A path from the root, or the end of one where a page has said in which folder it is."""
    text = page.read_text("utf-8")
    files = set(re.findall(r"`((?:\w+/)*\w+\.(?:cpp|hpp|py|pyi|yaml|ipynb))`", text))
    ends = {name for source in SOURCES for name in (source, *_ends(source))}
    assert sorted(name for name in files - ends if not name.startswith("torch/")) == []
    folders = re.findall(r"`((?:cpp|tests|benchmarks|examples|tools)/[\w/]+/)`", text)
    assert [name for name in folders if not (ROOT / name).is_dir()] == []


def _ends(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[i:]) for i in range(1, len(parts))]


def test_the_imports_of_the_documentation_work() -> None:
    pages = [page.read_text("utf-8") for page in PAGES]
    blocks = [block for text in pages for block in re.findall(r"```python\n(.*?)```", text, re.S)]
    lines = {line for block in blocks
             for line in re.findall(r"^(?:from|import) torchtraceap.*$", block, re.M)}  # fmt: skip
    assert len(lines) > 5
    for line in sorted(lines):
        exec(line, {})


COLUMNS = {
    "tables": {"ops": ("name", "category", "args", "call"), "modules": (),
                  "host": ("thread", "op", "frame"),
               "kernels": ("name", "canonical", "event"), "short_kernels": (), "sequences": (),
               "launches": ("call", "kernel", "stream", "event", "queue"),
               "memory": ("direction", "copy", "bandwidth", "allocator", "timeline"), "steps": ()},
    "roofline": {"roofline": ("args", "family", "call")},
    "idle_time": {"critical_path": ("cause", "name", "event")},
    "many_ranks": {"collectives": (), "ranks_table": ("rank", "op", "alltoall", "clock")},
}  # fmt: skip


@pytest.mark.parametrize(
    ("page", "table", "by"),
    [(page, table, by) for page, tables in COLUMNS.items()
     for table, views in tables.items() for by in views or (None,)],
)  # fmt: skip
def test_every_column_is_on_the_page_of_its_table(page: str, table: str, by: str | None) -> None:
    words = set(re.findall(r"`([^`\s]+)`", read(f"docs/{page}.md")))
    made = getattr(bundled_trace(), table)(**({"by": by} if by else {}))
    assert [name for name in made.columns
            if not any(fnmatch.fnmatch(name, word) for word in words)] == []  # fmt: skip


def test_every_folder_is_in_the_architecture() -> None:
    text = read("docs/architecture.md")
    tracked = {path.parent for root in ("cpp/traceap", "python/torchtraceap", "tests", "benchmarks")
               for suffix in ("cpp", "py") for path in ROOT.glob(f"{root}/**/*.{suffix}")
               if not path.parent.is_relative_to(ROOT / "tests/cpp")}  # fmt: skip
    modules = {path.name for path in ROOT.glob("python/torchtraceap/*.py")} - {"__main__.py"}
    wanted = {f"{path.name}/" for path in tracked - {ROOT / "python/torchtraceap"}} | modules
    assert [name for name in sorted(wanted) if not re.search(rf"[`/]{name}", text)] == []


def test_the_layers_of_the_architecture_are_those_that_are_checked() -> None:
    rows = re.findall(r"^\| `(\w+)/` \| [^|]* \| ([^|;]*)(?:;[^|]*)? \|$",
                      read("docs/architecture.md"), re.MULTILINE)  # fmt: skip
    said = {name: set(below.strip().split(", ")) - {"nothing"} for name, below in rows}
    assert said == runpy.run_path(str(ROOT / "tools/check_layers.py"))["CPP_LAYERS"]


def test_the_limit_of_an_event_is_that_of_the_reader() -> None:
    header = read("cpp/traceap/trace/read.hpp")
    mebibytes = re.findall(r"max_event_bytes = std::size_t\{(\d+)\} << 20", header)
    assert (
        re.findall(r"`event_too_long` \| longer than (\d+) MiB", read("docs/errors.md"))
        == mebibytes
    )


def test_the_readme_shows_the_kept_terminal_output() -> None:
    blocks = re.findall(r"```\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), flags=re.DOTALL)
    assert (ROOT / "docs/terminal_output.txt").read_text("utf-8") in blocks


def test_the_kept_terminal_output_is_what_is_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sys.argv", ["torchtraceap"])
    diagnosis = load(TRACE.relative_to(ROOT)).diagnose()
    assert f"{render_text(diagnosis)}\n" == read("docs/terminal_output.txt")


def test_versions_agree() -> None:
    patterns = {
        "pyproject.toml": r'^version = "([^"]+)"',
        "CMakeLists.txt": r"^project\(torchtraceap VERSION (\S+)",
        "python/torchtraceap/_version.py": r'^__version__ = "([^"]+)"',
        "CHANGELOG.md": r"^## \[(\d[^\]]*)\]",
        "CITATION.cff": r"^version: (\S+)",
    }
    versions = set()
    for name, pattern in patterns.items():
        match = re.search(pattern, (ROOT / name).read_text("utf-8"), re.MULTILINE)
        assert match is not None, name
        versions.add(match[1])
    assert len(versions) == 1
