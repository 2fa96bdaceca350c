"""Networks in groups are networks whose matrices are block-diagonal."""

import pytest
import torch
from torch import nn

from lra.models.backbone.config import BackboneConfig
from lra.models.backbone.networks import FeedForward, GroupedLinear, network_of
from lra.models.mixer import Unsupported
from lra.models.transfer.weights import transfer
from tests.attention import drawn
from tests.models.backbone.small_backbones import build, tokens


def dense(layer: GroupedLinear) -> nn.Linear:
    """Return the map with the block-diagonal matrix."""
    groups, out, wide = layer.weight.shape
    found = nn.Linear(groups * wide, groups * out, bias=layer.bias is not None).double()
    with torch.no_grad():
        found.weight.copy_(torch.block_diag(*layer.weight))
        if layer.bias is not None:
            found.bias.copy_(layer.bias)
    return found


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("bias", [True, False])
def test_it_is_the_block_diagonal_map(groups, bias):
    layer, x = GroupedLinear(6, 12, groups, bias=bias).double(), drawn(2, 5, 6).requires_grad_()
    if bias:
        nn.init.normal_(layer.bias)
    whole, direction = dense(layer), drawn(2, 5, 12, seed=1)
    assert sum(p.numel() for p in layer.parameters()) == 72 // groups + 12 * bias
    assert torch.equal(layer(x[:0]), whole(x[:0]))
    torch.testing.assert_close(layer(x), whole(x), atol=1e-14, rtol=0)
    here = torch.autograd.grad(layer(x), [x, layer.weight], direction)
    there = torch.autograd.grad(whole(x), [x, whole.weight], direction)
    blocks = [
        there[1][12 // groups * g : 12 // groups * (g + 1), 6 // groups * g : 6 // groups * (g + 1)]
        for g in range(groups)
    ]
    torch.testing.assert_close(here[0], there[0], atol=1e-13, rtol=0)
    torch.testing.assert_close(here[1], torch.stack(blocks), atol=1e-13, rtol=0)


def test_a_network_in_groups_and_one_group_is_the_usual_one(averaging):
    usual, one = build(averaging), build(averaging, feed_forward_groups=1)
    for (name, here), there in zip(usual.named_parameters(), one.parameters(), strict=True):
        assert torch.equal(here, there), name
    torch.manual_seed(5)
    network = network_of(8, 16, 0.0, kind=FeedForward.relu, groups=4).double()
    first, last, x = network[0], network[3], drawn(3, 8)
    wanted = dense(last)(torch.relu(dense(first)(x)))
    torch.testing.assert_close(network(x), wanted, atol=1e-14, rtol=0)
    model = build(averaging, feed_forward_groups=4, feed_forward_chunks=2)
    assert isinstance(model.stack.blocks[0].network[0], GroupedLinear)
    torch.testing.assert_close(
        model.predict(tokens())[0],
        build(averaging, feed_forward_groups=4).predict(tokens())[0],
    )


@pytest.mark.parametrize("groups", [3, 16])
def test_groups_divide_both_widths(groups):
    with pytest.raises(ValueError, match=f"got feed_forward_groups={groups}, width=8, feed_"):
        BackboneConfig(width=8, feed_forward_width=48, feed_forward_groups=groups)


def test_what_has_no_network_has_no_groups(averaging):
    with pytest.raises(ValueError, match="feed_forward_groups has no effect"):
        BackboneConfig(feed_forward="none", feed_forward_groups=2)
    with pytest.raises(
        Unsupported, match="trained with feed_forward_groups=2, but this model has 1"
    ):
        transfer(build(averaging, feed_forward_groups=2), build(averaging))
