"""The notebooks of `examples/` run from their first cell to their last."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_stored_without_outputs(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.long
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    needed = "notebooks are executed by nbclient and ipykernel: make setup installs both"
    nbclient = pytest.importorskip("nbclient", reason=needed)
    nbformat = pytest.importorskip("nbformat", reason=needed)
    pytest.importorskip("ipykernel", reason=needed)
    read = nbformat.read(notebook, as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    done = nbclient.NotebookClient(read, timeout=600, kernel_name="python3", resources=where).execute()
    assert all(cell.execution_count for cell in done.cells if cell.cell_type == "code")
