"""Parameters of heads and positions, against the layers of the published code written out."""

import pytest
import torch

from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.families.identity import Identity


def count(head: Head, *, length: int, classes: int, **options) -> dict[str, int]:
    """Return the parameters of the head, of positions and of the CLS vector."""
    facts = TaskFacts(head=head, vocabulary=2, classes=classes, max_length=length)
    config = BackboneConfig(**{"depth": 1, "feed_forward": "none", "heads": 1} | options)
    with torch.device("meta"):
        model = Backbone(config, facts, [Identity], seed=0)
    found = {"head": 0, "positions": 0, "cls": 0}
    for name, parameter in model.named_parameters():
        part = name.partition(".")[0]
        found[part] = found.get(part, 0) + parameter.numel()
    return found


LRA = [
    # (in + 1) mlp + (mlp + 1) classes, and a table of length + 1 rows where positions are learned
    ("listops", {"width": 512, "feed_forward_width": 1024}, 2000, 10, 513 * 1024 + 1025 * 10, 0),
    ("text", {"width": 256, "feed_forward_width": 1024}, 1000, 2, 257 * 1024 + 1025 * 2, 0),
    (
        "image", {"width": 128, "feed_forward_width": 128, "positions": "learned"},
        1024, 10, 129 * 128 + 129 * 10, 1025 * 128,
    ),
    (
        "pathfinder", {"width": 32, "feed_forward_width": 32, "pooling": "mean_all"},
        1024, 2, 33 * 32 + 33 * 2, 0,
    ),
    (
        "sinkhorn on images",
        {"width": 32, "feed_forward_width": 64, "positions": "learned",
         "pooling": "mean_all", "head_hidden_layers": 0},
        1024, 10, 33 * 10, 1024 * 32,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("_", "options", "length", "classes", "head", "positions"), LRA)
def test_heads_of_the_long_range_arena(_, options, length, classes, head, positions):
    options = {"positions": "sinusoidal"} | options
    found = count(Head.classification, length=length, classes=classes, **options)
    wanted_cls = options["width"] if options.get("pooling", "cls") == "cls" else 0
    wanted = {"head": head, "positions": positions, "cls": wanted_cls}
    assert {name: found[name] for name in wanted} == wanted


@pytest.mark.parametrize(("interaction", "parts"), [("concat", 2), ("nli", 4)])
def test_the_head_of_its_pairs_has_two_hidden_layers(interaction, parts):
    found = count(
        Head.pair, length=4000, classes=2, width=128, feed_forward_width=512,
        positions="sinusoidal", pooling="first", interaction=interaction, head_hidden_layers=2,
    )  # fmt: skip
    layers = (parts * 128 + 1) * 512 + 513 * 256 + 257 * 2
    assert (found["head"], found["positions"], found["cls"]) == (layers, 0, 0)


def test_the_head_of_s4_is_one_linear_map():
    found = count(
        Head.classification, length=2048, classes=10, width=256, pooling="mean",
        positions="sinusoidal", head_hidden_layers=0,
    )  # fmt: skip
    assert (found["head"], found["positions"], found["cls"]) == (257 * 10, 0, 0)
