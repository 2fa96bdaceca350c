"""The gallery's page is true: every kind of figure is there, with a picture and its command."""

import ast
import re
import shlex
from pathlib import Path

import pytest
from matplotlib.image import imread

from archive import PUBLISHED, index
from gallery import EXHIBITS, WITHOUT_ROWS, command, picture, published_file, write_gallery
from lra.results.rows import published_rows
from lra.results.style import shipped_styles

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/gallery.md"
PARTS_OF_OTHERS = {"new_figure"}


def drawn_in_reports() -> set[str]:
    """The dotted paths of what draws a figure, in reports and of peers: functions and drawings."""
    found = set()
    files = [(ROOT, file) for file in (ROOT / "reports").rglob("*.py")]
    for home, file in [*files, (ROOT / "tests/parity", ROOT / "tests/parity/peers/section.py")]:
        module = ".".join(file.relative_to(home).with_suffix("").parts)
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and re.fullmatch(r"[a-z]\w*_figure", node.name):
                found.add(f"{module}.{node.name}")
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                found |= {f"{module}.{name}"} if re.fullmatch(r"[a-z]\w*_figures?", name) else set()
    return {name for name in found if name.rpartition(".")[2] not in PARTS_OF_OTHERS}


def test_the_index_lists_all_published_rows() -> None:
    assert (PUBLISHED / "README.md").read_text(encoding="utf-8") == index(), "make pages"


def test_every_kind_of_figure_is_in_the_gallery() -> None:
    shown = {exhibit.function for exhibit in EXHIBITS} - {"reports.figures.panels.line_figures"}
    assert "reports.figures.panels.scaling_figure" in drawn_in_reports()
    assert shown | {*WITHOUT_ROWS} == drawn_in_reports()


def test_its_page_has_a_picture_and_a_command_for_each_that_parses() -> None:
    text = PAGE.read_text(encoding="utf-8")
    pictures = [picture(exhibit) for exhibit in EXHIBITS]
    assert re.findall(r"!\[[^]]+\]\(gallery/([^)]+)\)", text) == pictures
    assert {file.name for file in (ROOT / "docs/gallery").iterdir()} == {*pictures}
    assert sum(file.stat().st_size for file in (ROOT / "docs/gallery").iterdir()) < 3e6
    commands = re.findall(r"^```\n((?:PYTHONPATH=\S+ )?lra .*)\n```$", text, re.MULTILINE)
    assert commands == [command(exhibit) for exhibit in EXHIBITS]
    for line in commands:
        *_, words = line.partition("lra report ")
        words = shlex.split(words)
        assert words[:6:2] == ["--rows", "--style", "--out"]
        assert words[6::2] in ([], ["--config-dir", "--plugin"])
        assert (ROOT / words[1]).is_file()
        assert words[3] in shipped_styles()


@pytest.mark.every_format
def test_it_is_made_from_published_rows(tmp_path: Path) -> None:
    one = [exhibit for exhibit in EXHIBITS if exhibit.stem == "learned-spans-by-layer"]
    page, made = write_gallery(tmp_path, one)
    assert imread(made).shape == imread(ROOT / "docs/gallery" / made.name).shape
    assert command(one[0]) in page.read_text()
    assert len(published_rows(published_file("adaptive_span"))) > 100
