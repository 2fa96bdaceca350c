"""SwiGLU: three maps in the place of two, counted and computed as in the paper."""

import pytest
import torch
from torch import nn

from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.backbone.networks import FeedForward, GroupedLinear, network_of
from lra.models.families.softmax import SoftmaxAttention
from tests.attention import drawn

WIDTH, INNER, ROWS = 8, 12, 5
GATED = FeedForward.swiglu


def whole(layer: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the matrix of a map, block-diagonal where it is in groups, and its bias or zeros."""
    matrix = torch.block_diag(*layer.weight) if isinstance(layer, GroupedLinear) else layer.weight
    return matrix, torch.zeros(len(matrix)).double() if layer.bias is None else layer.bias


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_it_is_the_paper(groups, bias):
    """FFN(x) = (Swish(x W) * x V) W_2, arXiv:2002.05202, equation 6, channel by channel."""
    network = network_of(WIDTH, INNER, 0.0, kind=GATED, bias=bias, groups=groups).double()
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    (gates, gate_bias), (values, value_bias), (out, out_bias) = map(
        whole, (network[0].gate, network[0].value, network[2])
    )
    x, wanted = drawn(ROWS, WIDTH).requires_grad_(), []
    for row in x:
        inner = []
        for j in range(INNER):
            s = row @ gates[j] + gate_bias[j]
            inner.append(s / (1 + (-s).exp()) * (row @ values[j] + value_bias[j]))
        wanted.append(out @ torch.stack(inner) + out_bias)
    seen, wanted = network(x), torch.stack(wanted)
    torch.testing.assert_close(seen, wanted, atol=1e-12, rtol=0)
    leaves, direction = [x, *network.parameters()], drawn(ROWS, WIDTH, seed=1)
    here, there = (torch.autograd.grad(y, leaves, direction) for y in (seen, wanted))
    torch.testing.assert_close(here, there, atol=1e-11, rtol=0)


def test_every_map_is_drawn_by_xaviers_rule_without_biases():
    torch.manual_seed(0)
    network = network_of(64, 96, 0.0, kind=GATED)
    bound = (6 / 160) ** 0.5
    for layer in (network[0].gate, network[0].value, network[2]):
        assert 0.97 * bound < layer.weight.abs().max() <= bound
        assert not layer.bias.any()
    assert not torch.equal(network[0].gate.weight, network[0].value.weight)


def test_llama_2_7b_has_as_many_parameters_as_published():
    """6,738,415,616, of 32 layers of width 4,096 with networks of 11,008, all without biases."""
    config = BackboneConfig(
        depth=32, width=4096, heads=32, feed_forward_width=11008, feed_forward=GATED,
        feed_forward_bias=False, qkv_bias=False, output_bias=False, norm="rms",
        positions="rotary", tied_embeddings=False,
    )  # fmt: skip
    facts = TaskFacts(head=Head.language_modelling, vocabulary=32_000, classes=0, max_length=4096)
    with torch.device("meta"):
        model = Backbone(config, facts, [SoftmaxAttention], seed=0)
    assert sum(each.numel() for each in model.parameters()) == 6_738_415_616


def test_no_classifier_is_gated():
    with pytest.raises(ValueError, match="gelu_tanh, relu, silu, relu_squared: got swiglu"):
        BackboneConfig(head_activation="swiglu")
    with pytest.raises(ValueError, match=r"got none; .* set head_hidden_layers=0"):
        BackboneConfig(head_activation="none")
