"""The notebooks of the documentation run from beginning to end, and show what they are to show."""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
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


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    """What runs the cells of a notebook, in this process: a kernel would import everything anew."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(
    file: Path, shell: InteractiveShell, capfd: pytest.CaptureFixture[str]
) -> None:
    shown: Counter[str] = Counter()
    for cell in read(file).cells:
        if cell.cell_type == "code":
            ended = shell.run_cell(cell.source)
            ended.raise_error()
            if ended.result is not None:
                shown.update(shell.display_formatter.format(ended.result)[0].keys())
    assert {kind: shown[kind] for kind in SHOWN[file.stem]} == SHOWN[file.stem]
    assert "Traceback" not in capfd.readouterr().err
