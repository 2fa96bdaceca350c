"""Family pages: everything on them comes from code, YAML or rows."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from family_pages import LOOKS_BACK, capabilities, docstring, linked, measured, options, write_pages
from lra.composition.binding import make
from lra.composition.catalogue import choices, names, ours
from lra.composition.compose import core_of, group_file
from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.mixer import Layout, Unsupported
from lra.models.state import size_bytes
from lra.reports.rows import prepare
from lra.results.rows import published_rows as read_published


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
        "The model can be bidirectional and causal. A causal output depends on earlier tokens "
        "only. "
        "For n tokens, the number of operations grows as n, and the memory of activations for the "
        "backward pass grows as n. To read a sequence token by token, each layer stores "
    )
    assert "The model cannot be causal, because " in " ".join(capabilities(files["tlb"]))


def built(name: str, head: Head, *, padded: bool = False, **backbone: Any) -> Backbone:
    """Return a family's model with its defaults and weights, as pages describe it."""
    node = group_file("model", name)
    mixers, stack, _ = core_of(node, ())
    wanted = node.get("backbone") or {}
    if head == Head.language_modelling:
        wanted = {key: value for key, value in wanted.items() if key != "pooling"}
    size = {"width": 64, "heads": 2, "depth": 3}
    config = make(BackboneConfig, {**wanted, **size, **backbone}, "model.backbone")
    task = TaskFacts(head=head, vocabulary=9, classes=2, max_length=1024, padded=padded)
    return Backbone(config, task, mixers, stack=stack, seed=0).eval()


def builds(name: str, head: Head, **facts: Any) -> bool:
    try:
        built(name, head, **facts)
    except ValueError:
        return False
    return True


def looks_ahead(model: Backbone) -> bool:
    """Say whether any of 16 tokens depends on the last one, but that itself."""
    tokens = torch.arange(16)[None, None] % 8
    changed = torch.cat((tokens[..., :-1], tokens[..., -1:] + 1), -1)
    model.double()
    with torch.no_grad():
        one, other = (model.run(each, None, None).x for each in (tokens, changed))
    assert (one[:, -1] - other[:, -1]).abs().max() > 1e-6
    return bool((one - other)[:, int(model.has_cls) : -1].abs().max() > 1e-10)


@pytest.mark.share(6)
@pytest.mark.parametrize("name", names("model"))
def test_what_a_page_guarantees_is_true_of_built_models(name: str) -> None:
    """Directions by changed tokens; reversible residuals, padding and states by using them."""
    (file,) = [file for file in choices("model") if file.stem == name]
    ways, *_ = said = [*filter(None, capabilities(file))]
    page = " ".join(said)
    for head, way in ((Head.classification, "bidirectional"), (Head.language_modelling, "causal")):
        back = way == "bidirectional" and LOOKS_BACK in ways
        works = builds(name, head)
        assert works == (back or way in ways.partition(". ")[0]), way
        if not works:
            assert f"The model cannot be {way}, because " in page
            continue
        reversible = re.search(r"reversible residual connections(?: \((\w+) only\))?", page)
        may = reversible is not None and reversible[1] in {None, "causal" if back else way}
        assert builds(name, head, residual="reversible", feed_forward="gelu") == may, way
        assert builds(name, head, padded=True) == ("Padding raises an error" not in page), way
        model = built(name, head)
        if model.traits[0].keeps_length:
            ahead = way == "bidirectional" and not back and name != "identity"
            assert looks_ahead(model) == ahead, way
    check_state(name, page)


def check_state(name: str, page: str) -> None:
    """Compare the state behind five tokens with what a page says of its bytes."""
    claim = re.search(r"each layer stores ([\d,]+) bytes(?: if it remembers (\d+) tokens)?", page)
    try:
        model = built(name, Head.language_modelling)
        state = model.initial_state(1, int((claim and claim[2]) or 8))
    except Unsupported:
        assert claim is None
        return
    with torch.no_grad():
        _, after = model.run(torch.arange(5)[None, None], None, state, Layout()).state
    assert size_bytes(after) == 3 * int(claim[1].replace(",", ""))


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
    accuracies = [
        row["value"]
        for row in cells
        if row["model"] == "performer"
        and row["metric"] == "accuracy"
        and row["step"] is None
        and row["labels"]["split"] == "test"
    ]
    assert f"- mqar, test: {100 * sum(accuracies) / len(accuracies):.1f}" in page
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
