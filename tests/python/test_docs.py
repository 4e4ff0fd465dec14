"""The documentation keeps its promises: links lead somewhere, what is shown is what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text("utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#\s]+)", text)
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert missing == []


def test_files_named_in_the_architecture_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    named = re.findall(r"`((?:cpp|tests|benchmarks|examples|tools)/[\w/.]+)`", text)
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_readme_shows_the_kept_terminal_output() -> None:
    blocks = re.findall(r"```\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), flags=re.DOTALL)
    assert (ROOT / "docs/terminal_output.txt").read_text("utf-8") in blocks


def test_versions_agree() -> None:
    patterns = {
        "pyproject.toml": r'^version = "([^"]+)"',
        "CMakeLists.txt": r"^project\(torchtraceap VERSION (\S+)",
        "python/torchtraceap/_version.py": r'^__version__ = "([^"]+)"',
        "CHANGELOG.md": r"^## \[(\d[^\]]*)\]",
    }
    versions = set()
    for name, pattern in patterns.items():
        match = re.search(pattern, (ROOT / name).read_text("utf-8"), re.MULTILINE)
        assert match is not None, name
        versions.add(match[1])
    assert len(versions) == 1
