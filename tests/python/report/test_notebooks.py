"""The notebooks run from top to bottom, and are stored without outputs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat reads the notebooks")
nbclient = pytest.importorskip("nbclient", reason="nbclient runs the notebooks")
pytest.importorskip("ipykernel", reason="the notebooks need a kernel")

ROOT = Path(__file__).resolve().parents[3]
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def texts(notebook: Any) -> str:
    """Everything that the cells showed as text."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [output.get("text", "") for output in outputs]
    shown += [output.get("data", {}).get("text/plain", "") for output in outputs]
    return "\n".join(shown)


def pages(notebook: Any) -> str:
    """Everything that the cells showed as HTML."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "\n".join(output.get("data", {}).get("text/html", "") for output in outputs)


SAYS = {
    "quickstart": ("present -> absent",),
    "operators_and_roofline": ("True", "cudnn_convolution_backward_weight", "28% -> 49%"),
    "many_ranks": ("rank 2 by 2.50 ms", "Rank 2 arrives", "'data_loading': '46.5 ms'"),
    "simulate": (
        "supports predictions: True",
        "measured 127 ms",
        "True",
        "cached_batches: ",
        "most of it for",
    ),
    "diff": ("-50.1 ms per step", "True", "vanished"),
    "contracts_and_benchmarks": (
        "syncs              passed        0",
        "h2d_bytes          inconclusive",
        "syncs: 3 instead of 0, first aten::item",
        "holds: False",
        "verdict: ",
    ),
    "explanations": ("finding.cost", "holds", "num_workers=4", "no language model", "nothing sent"),
    "dataset_curation": (
        "planted: allocator_thrash",
        "53) features",
        "['relabelled']",
        "Table 3: pooled AUC, 100 windows",
    ),
}
"""What the outputs of each notebook hold, among other things."""


DRAWS = {
    "quickstart": ("num_workers", "Where the time goes", "Timeline:", "Places of 1  "),
    "simulate": ('aria-label="then ', "merge_collectives: not simulated"),
    "operators_and_roofline": ("<th>caller</th>",),
    "many_ranks": ("<th>verdict</th>",),
    "diff": ("<th>status</th>",),
}
"""What the cells of each draw, among other things."""


NEEDS_TORCH = ("contracts_and_benchmarks",)


def test_every_notebook_is_known() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(SAYS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_no_outputs_are_stored(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


# Jupyter's own packages warn of their own futures.
@pytest.mark.notebook
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_the_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if path.stem in NEEDS_TORCH:
        pytest.importorskip("torch", reason="it records a program")
    python_path = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'python'}:{python_path}" if python_path else "")
    notebook = read(path)
    client = nbclient.NotebookClient(
        notebook, timeout=240, resources={"metadata": {"path": str(path.parent)}}
    )
    client.execute()
    shown = texts(notebook)
    assert [words for words in SAYS[path.stem] if words not in shown] == []
    assert [words for words in DRAWS.get(path.stem, ()) if words not in pages(notebook)] == []
