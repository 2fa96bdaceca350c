"""What docstrings and docs/python.md show happens: their examples are run."""

import doctest
import importlib
import sys
from pathlib import Path

import pytest

import lra

pytestmark = pytest.mark.usefixtures("short_counts")
ROOT = Path(__file__).resolve().parents[3]
FUNCTIONS = [name for name in lra.__all__ if name.islower()]
MODULES = sorted({lra._MODULES[name] for name in FUNCTIONS})


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with our published rows, in which examples may write."""
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/published").symlink_to(ROOT / "reports/published")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.share(3)
@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_function(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    functions = [each for each in FUNCTIONS if lra._MODULES[each] == name]
    assert found.attempted >= 2 * len(functions)
    assert found.failed == 0


def test_the_examples_of_the_page() -> None:
    found = doctest.testfile(str(ROOT / "docs/python.md"), module_relative=False, encoding="utf-8")
    assert found.attempted > 15
    assert found.failed == 0


def test_the_page_names_every_function() -> None:
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    assert [name for name in FUNCTIONS if f"`lra.{name}(" not in page] == []
