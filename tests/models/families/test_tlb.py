"""The recurrence against a loop from its definition, padding, and what it refuses."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lra.models.backbone.model import Backbone, BackboneConfig, Head, Pooling, Positions, TaskFacts
from lra.models.backbone.networks import FeedForward
from lra.models.backbone.stack import NormKind
from lra.models.families.tlb import ChunkPositions, TemporalLatentBottleneck
from lra.models.mixer import Flow, Layout, PaddingRule, Site, Unsupported
from lra.models.positions import position_ids, sinusoid
from tests.attention import compare, drawn

FRAME = BackboneConfig(
    width=16, feed_forward_width=24, pooling=Pooling.mean, positions=Positions.none
)


def site(length: int = 64, causal: bool = False) -> Site:
    return Site(width=16, heads=2, max_length=length, causal=causal)


def build(frame: BackboneConfig = FRAME, **options: Any) -> TemporalLatentBottleneck:
    torch.manual_seed(0)
    options = {"state_tokens": 3, "chunk": 5, **options}
    return TemporalLatentBottleneck(site(), frame, **options).double().eval()


def sequential(stack: TemporalLatentBottleneck, x: Tensor) -> Tensor:
    """The definition: chunk after chunk, nothing in parallel, lengths that divide."""
    place, own = (
        sinusoid(position_ids(length, None, x), 16, dtype=torch.float64)
        for length in (stack.chunk, stack.state_tokens)
    )
    place = place if stack.places is None else stack.places
    state = torch.zeros(x.shape[0], stack.state_tokens, 16, dtype=torch.float64)
    for chunk in x.split(stack.chunk, dim=1):
        state, chunk = state + own, chunk + place
        for group, look in zip(stack.groups, stack.looks, strict=True):
            for block in group:
                chunk = block(Flow(chunk), Layout()).x
            seen = look.attention.attend(
                look.norm(chunk), Layout(), look.source_norm(state), Layout()
            )
            chunk = chunk + seen
            chunk = chunk + look.network(look.network_norm(chunk))
        for update in stack.updates:
            state = update(state, chunk, None)
    return stack.norm(state)


OPTIONS = [
    {},
    {"groups": 2, "state_layers": 2},
    {"self_layers": 1},
    {"chunk_positions": ChunkPositions.learned},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_equals_the_sequential_definition(options: dict) -> None:
    stack, x = build(**options), drawn(2, 20, 16).requires_grad_()
    seen, wanted = stack(Flow(x), Layout()).x, sequential(stack, x)
    compare(seen, wanted, [x])


def test_a_chunk_without_a_token_leaves_the_state() -> None:
    stack, x = build(), drawn(1, 15, 16)
    keep = torch.ones(1, 15, dtype=torch.bool)
    keep[:, 5:10] = False
    both = torch.cat((x[:, :5], x[:, 10:]), dim=1)
    torch.testing.assert_close(
        stack(Flow(x), Layout(keep=keep)).x, stack(Flow(both), Layout()).x, atol=1e-12, rtol=0
    )
    nothing = stack(Flow(x), Layout(keep=torch.zeros(1, 15, dtype=torch.bool))).x
    assert nothing.isfinite().all()


def test_a_chunk_without_a_token_adds_positions_with_original_padding() -> None:
    stack, keep = build(padding=PaddingRule.original), torch.zeros(1, 15, dtype=torch.bool)
    own = sinusoid(position_ids(3, None, drawn(1, 3, 16)), 16, dtype=torch.float64)
    seen = stack(Flow(drawn(1, 15, 16)), Layout(keep=keep)).x
    torch.testing.assert_close(seen, stack.norm(3 * own), atol=1e-12, rtol=0)


def test_it_has_the_activation_epsilon_and_projections_of_the_backbone() -> None:
    frame = replace(FRAME, feed_forward=FeedForward.relu, norm_epsilon=1e-3)
    facts = TaskFacts(head=Head.classification, vocabulary=9, classes=4, max_length=23)
    wide = replace(frame, head_width=3, qkv_bias=False, output_bias=False)
    stack = Backbone(wide, facts, [], stack=TemporalLatentBottleneck, seed=0).stack
    assert {part.eps for part in stack.modules() if isinstance(part, nn.LayerNorm)} == {1e-3}
    assert not any(isinstance(part, nn.GELU) for part in stack.modules())
    names = {name: value.shape for name, value in stack.named_parameters()}
    assert not any("proj.bias" in name for name in names)
    assert {names[name] for name in names if "q_proj" in name} == {(wide.heads * 3, 16)}
    rms = replace(wide, norm=NormKind.rms)
    with pytest.raises(Unsupported, match="norm must be layer: got rms"):
        Backbone(rms, facts, [], stack=TemporalLatentBottleneck, seed=0)
    with pytest.raises(Unsupported, match="set it to gelu, or another activation"):
        build(replace(FRAME, feed_forward=FeedForward.none))


def test_every_parameter_learns_and_gradients_stop_where_asked() -> None:
    x = drawn(1, 20, 16).requires_grad_()
    stack = build()
    # Weighted: the plain sum over a normalised output is constant, and its gradient rounding.
    out = stack(Flow(x), Layout()).x
    weights = drawn(*out.shape)
    (out * weights).sum().backward()
    assert all(parameter.grad is not None for parameter in stack.parameters())
    assert x.grad[:, :5].abs().max() > 1e-6
    cut, z = build(detach_every=2), x.detach().requires_grad_()
    (cut(Flow(z), Layout()).x * weights).sum().backward()
    assert not z.grad[:, :10].any()
    assert z.grad[:, 10:15].abs().max() > 1e-6


def test_what_it_cannot_do_is_refused_with_the_way_out() -> None:
    facts = TaskFacts(head=Head.language_modelling, vocabulary=9, classes=0, max_length=23)
    make = partial(TemporalLatentBottleneck, chunk=5)
    with pytest.raises(Unsupported, match="cannot be a language model"):
        Backbone(FRAME, facts, [], stack=make, seed=0)
    with pytest.raises(Unsupported, match="which must be averaged"):
        make(replace(site(), cls=True), BackboneConfig(width=16, positions=Positions.none))
    rotary = BackboneConfig(width=16, pooling=Pooling.mean, positions=Positions.rotary)
    with pytest.raises(Unsupported, match="positions=none"):
        build(rotary)
    with pytest.raises(ValueError, match="chunk must be at least 1: got 0"):
        build(chunk=0)
    with pytest.raises(ValueError, match="detach_every"):
        build(detach_every=-1)
