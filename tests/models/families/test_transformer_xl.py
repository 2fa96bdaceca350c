"""Transformer-XL against loops and its released code, and cut in any way."""

import numpy as np
import pytest
import torch
from torch import Tensor

from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.families.transformer_xl import SameLength, TransformerXL
from lra.models.mixer import Layout, Positions, Site
from tests.attention import builder, drawn, streamed
from tests.models.families.released import transformer_xl as released

STORED = np.load(released.OUTPUTS)
WIDTH, HEADS, LENGTH, MEMORY = 12, 3, 5, 7


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


def logits(model: Backbone, tokens: Tensor, sizes: list[int], memory: int) -> Tensor:
    state, out = model.initial_state(len(tokens), memory), []
    for piece in tokens.split(sizes, dim=1):
        y, state = model.predict(piece[:, None], state=state)
        out.append(y)
    return torch.cat(out, dim=1)


TOKENS = torch.randint(0, 11, (4, 24), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("training", [True, False])
def test_segments_are_one_pass_while_memory_holds_all(training: bool) -> None:
    whole = model().train(training)
    wanted, _ = whole.predict(TOKENS[:, None])
    for sizes in ([8, 8, 8], [1] * 24, [5, 1, 18]):
        found = logits(whole, TOKENS, sizes, 24)
        torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)
    # 6 tokens of memory: two segments of 3 and the memory of the first still hold all
    short = logits(model(same_length=SameLength.never), TOKENS, [3] * 8, 6)
    torch.testing.assert_close(short[:, :9], wanted[:, :9], atol=1e-12, rtol=0)
    assert (short[:, 9:] - wanted[:, 9:]).abs().max() > 1e-3


def test_of_the_same_length_any_cut_gives_the_same() -> None:
    one = model(clamp=5).eval()
    found = [logits(one, TOKENS, [size] * (24 // size), 12) for size in (1, 8, 24)]
    for other in found[1:]:
        torch.testing.assert_close(found[0], other, atol=1e-12, rtol=0)


@pytest.mark.parametrize("positions", [p for p in Positions if p.value in build().traits.positions])
def test_any_positions_inside_are_read_along_segments(positions: Positions) -> None:
    mixer, x, cuts = build(positions).train(), drawn(2, 12, WIDTH), [5, 1, 6]
    found, _ = streamed(mixer, x, cuts, 12)
    torch.testing.assert_close(found, mixer(x, Layout()), atol=1e-12, rtol=0)
    # evaluation remembers keys and values, with the same numbers, when memory has to forget, too
    for memory in (12, 4):
        mixer = build(positions, same_length=SameLength.always)
        projected, again = (
            streamed(mixer.train(training), x, cuts, memory)[0] for training in (False, True)
        )
        torch.testing.assert_close(projected, again, atol=1e-12, rtol=0)


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
