"""Transformer-XL against its released code; clamps and biases."""

import numpy as np
import pytest
import torch

from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.families.transformer_xl import SameLength, TransformerXL
from lra.models.mixer import Layout, Positions, Site
from tests.attention import builder, drawn, streamed
from tests.models.families.released import transformer_xl as released

STORED = np.load(released.OUTPUTS)
WIDTH, HEADS, MEMORY = 12, 3, 7


def build(positions: Positions = Positions.transformer_xl, **options) -> TransformerXL:
    usual = builder(TransformerXL, causal=True, positions=positions)
    return usual(**options).train()


@pytest.mark.parametrize("case", released.CASES)
def test_equals_the_released_code(case: str) -> None:
    same_length, clamp = released.CASES[case]
    site = Site(
        width=released.WIDTH, heads=released.HEADS, own_head_width=released.HEAD_WIDTH,
        max_length=64, causal=True, positions=Positions.transformer_xl,
    )  # fmt: skip
    when = SameLength.always if same_length else SameLength.never
    mixer = TransformerXL(site, same_length=when, clamp=clamp).double()
    theirs = released.weights()
    q, k, v = theirs["qkv_net.weight"].chunk(3)
    relative = mixer.core.relative
    ours = {
        mixer.q_proj: q, mixer.k_proj: k, mixer.v_proj: v, mixer.out_proj: theirs["o_net.weight"],
        relative.r_proj: theirs["r_net.weight"],
    }  # fmt: skip
    with torch.no_grad():
        for layer, weight in ours.items():
            layer.weight.copy_(weight)
        relative.biases.content.copy_(theirs["r_w_bias"])
        relative.biases.position.copy_(theirs["r_r_bias"])
    x = torch.cat(released.stream(), 1)
    y, _ = streamed(mixer, x, released.LENGTH, released.MEMORY, detached=True)
    np.testing.assert_allclose(y.detach(), STORED[f"{case}.y"], atol=1e-12)
    (y * drawn(*y.shape, seed=7)).sum().backward()
    joined = torch.cat([layer.weight.grad for layer in (mixer.q_proj, mixer.k_proj, mixer.v_proj)])
    for name, grad in {
        "qkv_net.weight": joined, "o_net.weight": mixer.out_proj.weight.grad,
        "r_net.weight": relative.r_proj.weight.grad, "r_w_bias": relative.biases.content.grad,
        "r_r_bias": relative.biases.position.grad,
    }.items():  # fmt: skip
        np.testing.assert_allclose(grad, STORED[f"{case}.{name}"], atol=1e-11, err_msg=name)


def model(**changes) -> Backbone:
    options = {"same_length": SameLength.always, **changes}
    config = BackboneConfig(
        width=WIDTH, heads=HEADS, feed_forward_width=16, depth=3, positions=Positions.transformer_xl
    )
    facts = TaskFacts(
        head=Head.language_modelling, vocabulary=11, classes=11, max_length=64, memory=MEMORY
    )
    return Backbone(
        config, facts, [lambda site: TransformerXL(site, **options)], seed=0
    ).double()  # fmt: skip


def test_clamps_of_training_and_evaluation() -> None:
    mixer, x = build(clamp=2, evaluation_clamp=4), drawn(1, 9, WIDTH)
    for training, clamp in ((True, 2), (False, 4)):
        wanted = build(clamp=clamp)
        torch.testing.assert_close(mixer.train(training)(x, Layout()), wanted(x, Layout()))
    assert not torch.equal(build(clamp=2)(x, Layout()), build(clamp=4)(x, Layout()))


def test_biases_are_one_pair_unless_untied() -> None:
    for untied, wanted in ((False, 1), (True, 3)):
        blocks = model(untied=untied).stack.blocks
        assert len({id(block.mixer.core.relative.biases) for block in blocks}) == wanted
