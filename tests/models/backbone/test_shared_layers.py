"""Layers that are one module: the same function as copies of it, parameters counted once."""

import dataclasses

import pytest
import torch
from torch import nn

from lra.models.backbone.model import Backbone, BackboneConfig, Head, Residual, TaskFacts
from lra.models.families.identity import Identity
from lra.models.families.luna import Luna
from lra.models.families.performer import Performer
from lra.models.families.sliding_window import SlidingWindow
from lra.models.families.softmax import SoftmaxAttention
from lra.models.families.tlb import TemporalLatentBottleneck
from lra.models.mixer import Unsupported
from lra.models.transfer.weights import transfer

CONFIG = BackboneConfig(width=16, feed_forward_width=24, depth=4)
FACTS = TaskFacts(head=Head.classification, vocabulary=11, classes=3, max_length=12)
TOKENS = torch.randint(0, 11, (3, 1, 12), generator=torch.Generator().manual_seed(0))


def build(mixers, groups: int | None, head: Head = Head.classification, **changes) -> Backbone:
    config = dataclasses.replace(CONFIG, layer_groups=groups, **changes)
    facts = dataclasses.replace(FACTS, head=head)
    return Backbone(config, facts, mixers, seed=0).double().eval()


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("mixer", [SoftmaxAttention, Performer, Luna])
@pytest.mark.parametrize("groups", [1, 2])
def test_parameters_count_once(mixer, groups: int) -> None:
    plain, shared = build([mixer], None), build([mixer], groups)
    slots = size(plain.stack.blocks[0].mixer.slots) if mixer is Luna else 0
    one = size(plain.stack.blocks[0]) - slots
    assert size(plain) - size(shared) == (4 - groups) * one
    assert len(shared.blocks) == groups
    assert len(shared.stack.blocks) == len(shared.traits) == 4


@pytest.mark.parametrize("residual", list(Residual))
@pytest.mark.parametrize("groups", [1, 2])
def test_equals_layers_with_copies_of_the_weights(groups: int, residual: Residual) -> None:
    """Outputs alike, and the gradient of a shared weight is the sum of its copies' gradients."""
    shared = build([SoftmaxAttention], groups, residual=residual)
    plain = build([SoftmaxAttention], None, residual=residual)
    plain.load_state_dict(shared.state_dict())
    outcomes = [model(TOKENS, torch.tensor([0, 1, 2])) for model in (shared, plain)]
    torch.testing.assert_close(outcomes[0].nll, outcomes[1].nll, atol=1e-12, rtol=0)
    for outcome in outcomes:
        outcome.nll.sum().backward()
    uses = 4 // groups
    own = dict(plain.stack.blocks.named_parameters())
    for group in range(groups):
        for name, parameter in shared.stack.blocks[group * uses].named_parameters():
            copies = [own[f"{group * uses + use}.{name}"].grad for use in range(uses)]
            torch.testing.assert_close(parameter.grad, sum(copies), atol=1e-11, rtol=0)


def test_an_option_by_layer_has_a_value_for_each_group() -> None:
    def windows(values: list[int]):
        return lambda site: SlidingWindow(site, window=values)

    model = build([windows([1, 2])], 2)
    assert [block.mixer.core.window for block in model.stack.blocks] == [1, 1, 2, 2]
    with pytest.raises(ValueError, match=r"1 value .* or depth=2 values: got 4"):
        build([windows([1, 1, 2, 2])], 2)


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must divide depth: got layer_groups=3"):
        build([SoftmaxAttention], 3)
    with pytest.raises(
        ValueError,
        match=r"layers 0 to 1 share their weights, but model.layers names different families",
    ):
        build([SoftmaxAttention, Identity, Identity, Identity], 2)
    build([SoftmaxAttention, SoftmaxAttention, Identity, Identity], 2)
    with pytest.raises(Unsupported, match=r"model\.backbone\.layer_groups must be null"):
        Backbone(
            dataclasses.replace(CONFIG, layer_groups=1, pooling="mean", positions="none"),
            FACTS, [], stack=TemporalLatentBottleneck, seed=0,
        )  # fmt: skip
    plain, shared = build([SoftmaxAttention], None), build([SoftmaxAttention], 1)
    with pytest.raises(Unsupported, match="layer_groups"):
        transfer(plain, shared)
