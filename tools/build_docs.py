"""Build the documentation as a site: `python tools/build_docs.py [SPHINX OPTION ...]`.

Pages keep their places of the repository below `build/docs/source`, so that links hold in both.
The headings of docs/index.md become the navigation. Three things are made on the way: the help of
every command, the public names of Python with their docstrings, and the report of the bundled
trace. Notebooks are executed, unless `-D nb_execution_mode=off` is given. Warnings, such as a link
that leads nowhere, are errors. The site is in `build/docs/html`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from sphinx.cmd.build import build_main

import torchtraceap as ttap
from torchtraceap.cli.catalog import Commands, command_groups
from torchtraceap.cli.parser import each_command, make_parser

ROOT = Path(__file__).resolve().parents[1]
SOURCE, OUT = ROOT / "build/docs/source", ROOT / "build/docs/html"
PAGES = ("docs/*", ":(glob)*.md", "notebooks/*.ipynb", "benchmarks/device/*.md")
"""What git tracks of these becomes pages, or a file that pages show."""
TRACE = "examples/traces/resnet50_num_workers_0.json.gz"
_SECTION = re.compile(r"^## (.+)\n((?:(?!^## ).*\n?)*)", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#\s:]+\.(?:md|ipynb))\)")
_FILE = re.compile(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)")


def lay_out() -> None:
    """Copy pages, and the files that they link to. What is no page, such as a folder, stays as the
    words of its link."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    tracked = subprocess.run(
        ["git", "ls-files", *PAGES], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    pages = {ROOT / name for name in tracked}
    for page in sorted(pages):
        _copy(page)
        if page.suffix in (".md", ".ipynb"):
            text = page.read_text("utf-8")
            for link in set(_FILE.findall(text)):
                path = (page.parent / link).resolve()
                if path.is_dir() or (path.suffix == ".md" and path not in pages):
                    text = re.sub(rf"\[([^\]]*)\]\({re.escape(link)}(#[^)]*)?\)", r"\1", text)
                else:
                    _copy(path)
            (SOURCE / page.relative_to(ROOT)).write_text(text, "utf-8")
    # Notebooks read traces.
    for folder in ("traces", "mini_dataset", "wins"):
        shutil.copytree(
            ROOT / "examples" / folder, SOURCE / "examples" / folder, dirs_exist_ok=True
        )


def _copy(path: Path) -> None:
    place = SOURCE / path.relative_to(ROOT)
    if path.is_file() and not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)


def write_navigation() -> None:
    """Add the sections of the index to it as trees of contents that the sidebar shows."""
    index = SOURCE / "docs/index.md"
    text = index.read_text("utf-8")
    seen: set[str] = set()
    trees = []
    for title, section in _SECTION.findall(text):
        own = [link for link in _LINK.findall(section) if link not in seen]
        seen.update(own)
        if title == "Reference":
            own += ["../reference/commands", "../reference/python", "../reference/gallery"]
        trees.append(_toctree(title, own))
    own = ["../README", "../SECURITY", "../THIRD_PARTY_NOTICES", "../benchmarks/device/OWED"]
    index.write_text(text + "\n" + "".join([*trees, _toctree("Project", own)]), "utf-8")


def _toctree(title: str, entries: list[str]) -> str:
    lines = "\n".join(entry.removesuffix(".md").removesuffix(".ipynb") for entry in entries)
    return f"```{{toctree}}\n:hidden:\n:caption: {title}\n:maxdepth: 1\n\n{lines}\n```\n\n"


def write_commands() -> None:
    """Write the help of every command, by the groups of `torchtraceap --help`."""
    commands = Commands()
    parts = ["# Help of every command", "", "As `torchtraceap help COMMAND` prints it."]
    for group, entries in command_groups().items():
        parts += ["", f"## {group[0].upper()}{group[1:]}"]
        for name in entries:
            for words, command in each_command({name: commands[name]}).items():
                text = make_parser(words, command).format_help().rstrip()
                parts += ["", f"### {words}", "", "```text", text, "```"]
    _write("commands", parts)


def write_python() -> None:
    """Write the public names with their docstrings."""
    parts = ["# Python", "", "What `import torchtraceap` shows.", ""]
    for name in ttap.__all__:
        found = getattr(ttap, name)
        if isinstance(found, str):
            continue
        kind = "class" if isinstance(found, type) else "function"
        if not (isinstance(found, type) or callable(found)):
            kind, name = "module", found.__name__.removeprefix("torchtraceap.")
        members = [] if kind == "function" else ["   :members:"]
        parts += [f"## {name}", "", "```{eval-rst}", f".. auto{kind}:: torchtraceap.{name}"]
        parts += [*members, "```", ""]
    _write("python", parts)


def write_gallery() -> None:
    """Write the report of the bundled trace as a page, and a page that leads there."""
    extra = SOURCE / "extra"
    extra.mkdir()
    ttap.diagnose(ROOT / TRACE).to_html(extra / "resnet50.html")
    _write("gallery", [
        "# Gallery", "",
        "- [The report of a ResNet-50 training](https:../resnet50.html), as "
        f"`torchtraceap diagnose {TRACE} --html FILE` writes it.",
        "- The notebooks of these pages are executed when the site is built, so what they show is "
        "what a user gets.",
    ])  # fmt: skip


def _write(name: str, lines: list[str]) -> None:
    path = SOURCE / "reference" / f"{name}.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n", "utf-8")


def main() -> int:
    lay_out()
    write_navigation()
    write_commands()
    write_python()
    write_gallery()
    code = build_main([
        "-q", "-W", "--keep-going", "-E", "-b", "html", "-c", str(ROOT / "docs"),
        "-D", f"version={ttap.__version__}", "-D", f"html_extra_path={SOURCE / 'extra'}",
        *sys.argv[1:], str(SOURCE), str(OUT),
    ])  # fmt: skip
    if not code:
        print(f"the site is in {OUT / 'docs/index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
