"""What a batch's mask becomes is made once, however many layers read it."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.families.linear import LinearAttention
from lra.models.families.sdpa import SDPA
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Layout, MadeOnce
from tests.models.ops.linear.test_feature_calls import Calls

FAMILIES = {"sdpa": SDPA, "softmax": SoftmaxAttention, "linear": LinearAttention}
KEEP = torch.arange(20) < torch.tensor([[20], [13], [7]])
OF_MASKS = ("arange", "bitwise_and", "bitwise_not", "nonzero", "ones")
"""Operators whose inputs are masks, and no activations."""


def model_of(family: str, depth: int = 2, head: Head = Head.classification) -> Backbone:
    config = BackboneConfig(
        depth=depth, width=16, heads=2, feed_forward_width=16, positions="learned"
    )
    facts = TaskFacts(head=head, vocabulary=11, classes=3, max_length=20, padded=True)
    return Backbone(config, facts, [FAMILIES[family]], seed=0)


def step(model: Backbone, keep: Tensor | None = KEEP) -> list[Tensor]:
    """Return the losses of a batch, and all gradients."""
    tokens = torch.arange(60).view(3, 1, 20) % 11
    mask = None if keep is None else keep[:, None]
    nll = model(tokens, torch.tensor([0, 1, 2]), mask).nll
    torch.autograd.backward(nll.sum())
    return [nll, *(p.grad for p in model.parameters() if p.grad is not None)]


def calls_of(model: Backbone) -> Counter[str]:
    with Calls() as calls:
        step(model)
    return calls.of


def added_by_a_layer(family: str) -> Counter[str]:
    """Operators of the second layer."""
    return calls_of(model_of(family, 2)) - calls_of(model_of(family, 1))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_more_makes_no_mask_more(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    added = added_by_a_layer(family)
    # `softmax` turns the mask around for its scores, and looks for queries that see nothing.
    turned = {"softmax": 2}.get(family, 0)
    assert {name: added[name] for name in OF_MASKS} == dict.fromkeys(OF_MASKS, 0) | {
        "bitwise_not": turned
    }
    assert added["index_fill"] == 2  # of the input, and of its gradient
    assert added["masked_fill"] == (family == "softmax")  # of the gradient of scores
    monkeypatch.setattr(MadeOnce, "of", lambda self, name, made_of, make: make())
    assert added_by_a_layer(family)["nonzero"] == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_shared_masks_change_no_bit(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    once = step(model_of(family))
    monkeypatch.setattr(Layout, "once", lambda self, name, made_of, make: make())
    monkeypatch.setattr(
        Layout, "blanked", lambda self, x: x.masked_fill(~self.keep[..., None], 0.0)
    )
    for mine, plain in zip(once, step(model_of(family)), strict=True):
        assert torch.equal(mine, plain)


def test_another_mask_of_the_same_name_gets_its_own() -> None:
    derived, made = MadeOnce(), []

    def of(keep: Tensor) -> Tensor:
        return derived.of("seen", (keep,), lambda: made.append(keep) or ~keep)  # type: ignore[func-returns-value]

    first, second = KEEP[:1], KEEP[1:2]
    assert of(first) is of(first)
    assert torch.equal(of(second), ~second)
    assert len(made) == 2
    layout = Layout(keep=first, derived=derived)
    assert layout._replace(keep=second).once("seen", (second,), lambda: None) is of(second)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_of_padding_alone_gives_zeros(family: str) -> None:
    keep = KEEP.clone()
    keep[2] = False
    mixer: Any = model_of(family).stack.blocks[0].mixer.core
    q = torch.randn(3, 2, 20, 8)
    o = mixer(q, q, q, Layout(keep=keep))
    assert not o[2].any()
    assert o[0].any()


def test_learned_positions_are_read_in_place() -> None:
    calls = calls_of(model_of("sdpa"))
    assert calls["index"] == calls["index_put"] == 0
