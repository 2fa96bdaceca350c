"""What a batch's mask becomes is made once, however many layers read it."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.backbone.seeding import draw_on_cpu
from lra.models.contract.counting import saved_bytes
from lra.models.families.linear import BOUNDED, Denominator, FeatureChoice, LinearAttention
from lra.models.families.sdpa import SDPA
from lra.models.families.softmax import SoftmaxAttention
from lra.models.made_once import MadeOnce
from lra.models.mixer import Layout, Site
from tests.benchmarks.backbone import buckets, pair
from tests.models.ops.linear.test_feature_calls import Calls

FAMILIES = {"sdpa": SDPA, "softmax": SoftmaxAttention, "linear": LinearAttention}
KEEP = torch.arange(20) < torch.tensor([[20], [13], [7]])
OF_MASKS = ("arange", "bitwise_and", "bitwise_not", "nonzero", "ones")
"""Operators whose inputs are masks, and no activations."""
VIEWS = ("detach", "expand", "select", "slice", "squeeze", "t", "transpose", "unsqueeze", "view")
"""Operators that move nothing."""


def model_of(family: str, depth: int = 2, pooling: str = "cls", **options: Any) -> Backbone:
    config = BackboneConfig(
        depth=depth,
        width=16,
        heads=2,
        feed_forward_width=16,
        positions="learned",
        pooling=pooling,
        **options,
    )
    facts = TaskFacts(
        head=Head.classification, vocabulary=11, classes=3, max_length=20, padded=True
    )
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


def added_by_a_layer(family: str, pooling: str) -> Counter[str]:
    """Operators of the second layer."""
    return calls_of(model_of(family, 2, pooling)) - calls_of(model_of(family, 1, pooling))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_more_makes_no_mask_more(
    family: str, pooling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = added_by_a_layer(family, pooling)
    assert {name: added[name] for name in OF_MASKS} == dict.fromkeys(OF_MASKS, 0)
    # Of the input, and of its gradient, where `mean` reads along the length.
    assert added["index_fill"] == (2 if pooling == "mean" else 0)
    assert added["masked_fill"] == (family == "softmax")  # of the gradient of scores
    monkeypatch.setattr(MadeOnce, "of", lambda self, name, made_of, make: make())
    remade = added_by_a_layer(family, pooling)
    assert remade["nonzero"] == (pooling == "mean")
    assert remade["any"] == (2 if family == "softmax" else 0)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("family", FAMILIES)
def test_shared_masks_and_padding_as_it_is_change_no_bit(
    family: str, pooling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = step(model_of(family, pooling=pooling))
    monkeypatch.setattr(Layout, "once", lambda self, name, made_of, make: make())
    monkeypatch.setattr(
        Layout, "blanked", lambda self, x: x.masked_fill(~self.keep[..., None], 0.0)
    )
    model = model_of(family, pooling=pooling)
    for block in model.stack.blocks:
        cast(Any, block).mixer.weighs_padding = True
    for mine, plain in zip(once, step(model), strict=True):
        assert torch.equal(mine, plain)


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize(
    ("family", "options"),
    [
        (SDPA, {}),
        (SoftmaxAttention, {}),
        (SoftmaxAttention, {"qk_norm": True, "output_gate": True}),
        *((LinearAttention, {"feature_map": name}) for name in BOUNDED),
        (LinearAttention, {"denominator": Denominator.root_length}),
    ],
)
def test_what_stands_at_padding_changes_no_bit_elsewhere(
    family: Any, options: dict[str, Any], scale: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    site = Site(width=16, heads=2, max_length=20)
    with draw_on_cpu():
        mixer = family(site, **options)
    assert not mixer.weighs_padding
    x = torch.randn(3, 20, 16, generator=generator)
    found = []
    for unread in (False, True):
        mixer.zero_grad()
        y = mixer(torch.where(KEEP[..., None], x, scale * x), Layout(keep=KEEP, unread=unread))
        torch.autograd.backward(y[KEEP].square().sum())
        found.append([y[KEEP], *(p.grad for p in mixer.parameters())])
    for filled, left in zip(*found, strict=True):
        assert torch.equal(filled, left)


def test_padding_is_filled_where_it_may_be_read() -> None:
    of = {
        "cls": model_of("sdpa"),
        "mean": model_of("sdpa", pooling="mean"),
        "first token": model_of("sdpa", cls_keep="first_token"),
        "post-norm": model_of("sdpa", residual="post_norm"),
        "no norm": model_of("sdpa", residual="none"),
    }
    assert [name for name, model in of.items() if calls_of(model)["index_fill"] == 0] == ["cls"]
    mixer = LinearAttention(Site(width=16, heads=2, max_length=20), feature_map=FeatureChoice.exp)
    assert mixer.weighs_padding  # its sums are compared along all queries


def ours_and_by_hand(family: str, count: Callable[[Callable[[], Tensor]], int]) -> list[int]:
    (batch,) = buckets(1)
    return [count(loss) for loss in pair(family).losses(batch)]


def operators(loss: Callable[[], Tensor]) -> int:
    with Calls() as calls:
        torch.autograd.backward(loss())
    return calls.of.total() - sum(calls.of[name] for name in VIEWS)


def python_calls(loss: Callable[[], Tensor]) -> int:
    calls = 0

    def called(frame: Any, event: str, _: object) -> None:
        nonlocal calls
        file = Path(frame.f_code.co_filename).parts  # not of what checks shapes in tests
        calls += event == "call" and not {"torch", "models", "benchmarks"}.isdisjoint(file)

    sys.setprofile(called)
    try:
        loss()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(("family", "more"), [("sdpa", 4), ("softmax", 9), ("linear", 98)])
def test_a_step_has_few_operators_that_the_module_by_hand_lacks(family: str, more: int) -> None:
    ours, by_hand = ours_and_by_hand(family, operators)
    assert ours - by_hand <= more


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pass_keeps_no_more_than_the_module_by_hand(family: str) -> None:
    ours, by_hand = ours_and_by_hand(family, saved_bytes)
    assert ours <= 1.001 * by_hand


@pytest.mark.parametrize(("family", "more"), [("sdpa", 145), ("softmax", 165), ("linear", 240)])
def test_a_pass_calls_few_functions_of_python_that_the_other_does_not(
    family: str, more: int
) -> None:
    ours, by_hand = ours_and_by_hand(family, python_calls)
    assert by_hand > 150
    assert ours - by_hand <= more
