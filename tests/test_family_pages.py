"""Family pages: everything on them comes from code, YAML or rows."""

import json
import re
from pathlib import Path

import pytest

from family_pages import capabilities, docstring, linked, measured, options, write_pages
from lra.composition.catalogue import choices, names, ours
from lra.composition.compose import group_file
from lra.reports.rows import prepare
from lra.results.stored import published as read_published


@pytest.mark.parametrize("name", names("model"))
def test_every_option_of_a_family_is_on_its_page(name: str) -> None:
    node = group_file("model", name)
    core = node.get("mixer") or node["stack"]
    listed = [option for option, _, _ in options(ours() / "model" / f"{name}.yaml")]
    assert listed == [key for key in core if key != "class_path"]
    text = docstring(core["class_path"])
    assert "Cost" in text
    assert len(text) > 300


def test_capabilities_are_those_of_an_instance() -> None:
    files = {file.stem: file for file in choices("model")}
    linear = " ".join(capabilities(files["linear"]))
    assert linear.startswith(
        "Bidirectional and causal, exact. Operations and activations grow as n."
    )
    assert "a state along time" in linear
    assert "Not causal: " in " ".join(capabilities(files["tlb"]))


def test_papers_are_links() -> None:
    seen = linked("arXiv:1706.03762; Maas et al.")
    assert seen == "[arXiv:1706.03762](https://arxiv.org/abs/1706.03762); Maas et al."


def test_pages_hold_text_and_numbers(tmp_path: Path) -> None:
    published = Path(__file__).parents[1] / "reports" / "published"
    (rows,) = published.glob("quickstart-*.jsonl")
    written = write_pages(tmp_path, [rows])
    assert {path.stem for path in written} == {*names("model"), "README"}
    assert {*written} == {*tmp_path.glob("*.md")}
    page = (tmp_path / "performer.md").read_text()
    for part in ("## What it computes", "## Options", "## What it guarantees", "## Measured"):
        assert part in page
    cells = [json.loads(line) for line in rows.read_text().splitlines()]
    (accuracy,) = (
        row["value"]
        for row in cells
        if row["model"] == "performer"
        and row["metric"] == "accuracy"
        and row["step"] is None
        and row["labels"]["split"] == "test"
    )
    assert f"- listops, test: {100 * accuracy:.1f} [" in page
    for figure in tmp_path.glob("figures/*.png"):
        assert figure.read_bytes().startswith(b"\x89PNG")
    assert any(tmp_path.glob("figures/performer-*.png"))


def test_what_rows_hold_is_text_on_a_page_and_never_a_path(tmp_path: Path) -> None:
    published = Path(__file__).parents[1] / "reports" / "published"
    (rows,) = published.glob("quickstart-*.jsonl")
    hostile = tmp_path / "rows.jsonl"
    kept = [
        {**row, "mode": "../<b>", "device": "<script>x|y</script>"}
        for row in map(json.loads, rows.read_text().splitlines())
        if row["model"] in {"performer", "sdpa"} and row["runner"] == "scaling"
    ]
    hostile.write_text("".join(json.dumps(row) + "\n" for row in kept))
    frame = prepare(read_published(hostile))
    (tmp_path / "out").mkdir()
    lines = measured("performer", [(hostile, frame)], tmp_path / "out")
    assert lines
    assert not re.search(r"(?<!\\)<", "\n".join(lines))
    assert {path.name for path in tmp_path.iterdir()} == {"rows.jsonl", "out"}
    assert {path.parent for path in tmp_path.rglob("*.png")} <= {tmp_path / "out" / "figures"}
