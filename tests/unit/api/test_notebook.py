"""The notebook that a user starts from: committed without outputs, and it runs in a real kernel."""

from __future__ import annotations

import nbformat
import pytest
from conftest import ROOT
from nbclient import NotebookClient

FIRST_STEPS = ROOT / "docs" / "notebooks" / "first_steps.ipynb"


def test_the_notebook_is_committed_without_outputs():
    notebook = nbformat.read(FIRST_STEPS, nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all((cell.outputs, cell.execution_count) == ([], None) for cell in code)


@pytest.mark.nightly
def test_the_notebook_runs(monkeypatch):
    """As a user starts it: in its folder, with the kernel of this environment."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(FIRST_STEPS, nbformat.NO_CONVERT)
    resources = {"metadata": {"path": str(FIRST_STEPS.parent)}}
    done = NotebookClient(notebook, timeout=600, resources=resources).execute()
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    said = "".join(output.get("text", "") for output in outputs)
    assert "update 4  loss" in said and "difference" in said
