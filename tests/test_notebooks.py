"""The notebooks of the documentation run from beginning to end, and show what they are to show."""

from collections import Counter
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
SHOWN = {
    "compare-three-families": {"image/png": 3, "text/html": 3},
    "measure-your-own-mixer": {"image/png": 1, "text/html": 4},
}
"""How many figures and tables each shows: of tables, those of pandas among them."""


def read(file: Path) -> NotebookNode:
    return nbformat.read(file, as_version=4)


def test_there_are_notebooks() -> None:
    assert {file.stem for file in NOTEBOOKS} == set(SHOWN)


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_is_kept_without_what_it_showed(file: Path) -> None:
    notebook = read(file)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell for cell in code if cell.outputs or cell.execution_count] == []
    assert any("assert " in cell.source for cell in code)


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = read(file)
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()  # raises what a cell raises
    outputs = [each for cell in notebook.cells for each in cell.get("outputs", ())]
    shown = Counter(kind for each in outputs for kind in each.get("data", ()))
    assert {kind: shown[kind] for kind in SHOWN[file.stem]} == SHOWN[file.stem]
    errors = "".join(each.text for each in outputs if each.get("name") == "stderr")
    assert "Traceback" not in errors
