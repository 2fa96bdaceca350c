"""Luna against its equations written out by head, and its causal form against a loop over time."""

import pytest
import torch
from torch import nn

from lra.models.backbone.networks import FeedForward
from lra.models.backbone.stack import Stack, TransformerBlock
from lra.models.families.luna import Luna
from lra.models.mixer import Flow, Layout
from tests.attention import builder, compare, drawn, joined
from tests.literal.luna import nested

built = builder(Luna, slots=5, moved=0.3)


@pytest.mark.parametrize(
    "options",
    [{}, {"tie_kv": False}, {"pack_heads": 2}, {"tie_kv": False, "norm_residual": True}],
    ids=["usual", "untied", "two heads", "norms"],
)
@pytest.mark.parametrize("length", [1, 5, 21])
def test_outputs_and_gradients_equal_the_equations(length, options):
    mixer = built(**options)
    x, p = drawn(2, length, 12).requires_grad_(), drawn(2, 5, 12, seed=1).requires_grad_()
    flow = mixer.extend(Flow(x, stream=p), Layout())
    pairs = [nested(mixer, *row) for row in zip(x, p, strict=True)]
    wanted = [torch.stack(part) for part in zip(*pairs, strict=True)]
    inputs = [x, p, *(w for name, w in mixer.named_parameters() if not name.startswith("slots"))]
    compare(joined(flow.x, flow.stream), joined(*wanted), inputs, looser=10)


def stack(depth: int = 3, *, checkpointing: bool = False, **options) -> Stack:
    shared: dict[str, nn.Module] = {}
    mixers = [built(seed=i, layer=i, depth=depth, shared=shared, **options) for i in range(depth)]
    frame = {"width": 12, "feed_forward": FeedForward.none, "feed_forward_width": 12}
    blocks = [TransformerBlock(mixer, dropout=0.0, **frame) for mixer in mixers]
    return Stack(blocks, width=12, checkpointing=checkpointing).double()


def test_a_stack_hands_the_slots_on_and_every_parameter_learns():
    model, x = stack(), drawn(2, 9, 12)
    assert sum(name.endswith("slots.weight") for name, _ in model.named_parameters()) == 1
    flow = model(Flow(x), Layout())
    p, y = model.blocks[0].mixer.slots.weight.expand(2, -1, -1), x
    for block in model.blocks:
        pairs = [nested(block.mixer, *row) for row in zip(block.mixer_norm(y), p, strict=True)]
        y, p = y + torch.stack([a for a, _ in pairs]), torch.stack([b for _, b in pairs])
    torch.testing.assert_close(flow.x, model.norm(y), rtol=0, atol=1e-11)
    torch.testing.assert_close(flow.stream, p, rtol=0, atol=1e-11)
    flow.x.square().sum().backward()
    assert all(w.grad is not None and w.grad.any() for w in model.parameters())


def test_layers_that_share_slots_have_as_many():
    shared: dict[str, nn.Module] = {}
    built(shared=shared)
    with pytest.raises(ValueError, match="got slots=7 after 5 in a layer before; use one number"):
        built(shared=shared, slots=7)
    assert not built().traits.reversible
    assert built(causal=True).traits.reversible
