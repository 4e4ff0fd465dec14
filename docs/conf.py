"""Configuration of the site for Sphinx, which `tools/build_docs.py` calls."""

from __future__ import annotations

from typing import Any

project = "torchtraceap"
author = "torchtraceap developers"
root_doc = "docs/index"
exclude_patterns = ["examples", "extra"]

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
# What a cell says on stderr belongs to the log of the build, not on a page.
nb_output_stderr = "remove"

# Docstrings write code in single backticks.
default_role = "code"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_title = "torchtraceap"
html_copy_source = False
html_show_copyright = False


def _indent_fenced_code(*event: Any) -> None:
    """Turn code between fences, as docstrings write it, into what Sphinx reads as code."""
    lines = event[-1]
    inside = False
    for place, line in enumerate(lines):
        if line.strip().startswith("```"):
            inside = not inside
            lines[place] = ".. code-block:: python\n" if inside else ""
        elif inside:
            lines[place] = f"   {line}"
    lines[:] = "\n".join(lines).split("\n")


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", _indent_fenced_code)
