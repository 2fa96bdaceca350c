"""What reversible residuals promise: memory, states, refusals, and chunks that change nothing."""

from functools import partial

import pytest
import torch
from torch import nn

from lra.models.backbone.model import (
    Backbone,
    BackboneConfig,
    Head,
    Residual,
    StreamsOut,
    TaskFacts,
)
from lra.models.backbone.networks import FeedForward
from lra.models.backbone.reversible import ReversibleStack
from lra.models.backbone.stack import TransformerBlock
from lra.models.contract.counting import saved_bytes
from lra.models.families.linear import LinearAttention
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Flow, Layout, Site, Traits, Unsupported


def build(mixer=LinearAttention, head=Head.classification, **changes) -> Backbone:
    options = {"width": 16, "heads": 2, "feed_forward_width": 64, **changes}
    facts = TaskFacts(head=head, vocabulary=11, classes=3, max_length=64)
    return Backbone(BackboneConfig(**options), facts, [mixer], seed=0)


def tokens(length: int = 64) -> torch.Tensor:
    return torch.randint(0, 11, (2, 1, length), generator=torch.Generator().manual_seed(1))


def kept(model: Backbone) -> int:
    x, target = tokens(), torch.tensor([0, 1])
    exclude = [*model.parameters(), *model.buffers(), x, target]
    return saved_bytes(lambda: model(x, target), exclude)


def test_saved_bytes_do_not_grow_with_depth() -> None:
    reversible = {"residual": Residual.reversible, "feed_forward_chunks": 4}
    shallow, deep = (kept(build(depth=depth, **reversible)) for depth in (2, 12))
    assert deep <= 1.05 * shallow
    plain, deeper = (kept(build(depth=depth)) for depth in (2, 12))
    assert deeper > 4 * plain  # the measure sees what grows


class Precise(nn.Module):
    """Averages, and multiplies in float32 whatever autocast says."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.lowered = nn.Linear(site.width, site.width)
        self.precise = nn.Linear(site.width, site.width)
        self.traits = Traits()

    def forward(self, x: torch.Tensor, layout: Layout) -> torch.Tensor:
        mixed = self.lowered(x).mean(1, keepdim=True) + x
        with torch.autocast("cpu", enabled=False):
            return self.precise(mixed.float())


@pytest.mark.parametrize("lowered", [True, False], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("mixer", [Precise, LinearAttention, SoftmaxAttention])
def test_gradients_under_autocast_are_those_of_autograd(mixer, lowered) -> None:
    """One block, whose inputs are not reconstructed: nothing but rounding of sums may differ."""
    model = build(mixer, depth=1, residual=Residual.reversible)

    def gradients() -> dict[str, torch.Tensor]:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=lowered):
            loss = model(tokens(), torch.tensor([0, 1])).nll.sum()
        loss.backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    reversed_ = gradients()
    model.stack.forward = partial(plainly, model.stack)
    ordinary = gradients()
    assert {gradient.dtype for gradient in reversed_.values()} == {torch.float32}
    for name, gradient in ordinary.items():
        scale = gradient.abs().max()
        assert (reversed_[name] - gradient).abs().max() <= 1e-6 * scale, name


def plainly(stack: ReversibleStack, flow: Flow, layout: Layout) -> Flow:
    """Compute both streams without reversing anything."""
    x1 = x2 = flow.x
    for block in stack.blocks:
        x1 = x1 + block.mixed(flow._replace(x=x2), layout).x
        x2 = x2 + block.transformed(x1)
    return flow._replace(x=stack.norm((x1 + x2) / 2), state=None)


@pytest.mark.parametrize("residual", list(Residual))
def test_chunks_of_the_network_change_nothing(residual: Residual) -> None:
    whole = build(residual=residual).double()
    pieces = build(residual=residual, feed_forward_chunks=5).double()
    pieces.load_state_dict(whole.state_dict())
    for each in (whole, pieces):
        each(tokens(), torch.tensor([0, 1])).nll.sum().backward()
    for one, other in zip(whole.parameters(), pieces.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-12)
    assert kept(build(feed_forward_chunks=4, depth=1)) < kept(build(depth=1))


def test_concatenated_streams_double_the_head() -> None:
    model = build(residual=Residual.reversible, reversible_output=StreamsOut.concat)
    logits, _ = model.predict(tokens())
    assert logits.shape == (2, 3)
    assert model.stack.norm.normalized_shape == (32,)
    with pytest.raises(ValueError, match="tied_embeddings=false"):
        build(
            head=Head.language_modelling,
            residual=Residual.reversible,
            reversible_output=StreamsOut.concat,
        )


def test_a_state_passes_through_detached() -> None:
    model = build(head=Head.language_modelling, residual=Residual.reversible).double()
    whole, _ = model.predict(tokens())
    state, pieces = model.initial_state(2, 64), []
    for piece in tokens().split([30, 1, 33], dim=-1):
        logits, state = model.predict(piece, state=state)
        pieces.append(logits)
    torch.testing.assert_close(torch.cat(pieces, 1), whole)
    target = torch.zeros(2, 64, dtype=torch.long)
    outcome = model(tokens(), target, state=model.initial_state(2, 64))
    outcome.nll.sum().backward()
    assert not any(part.requires_grad for part in _tensors(outcome.state))
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def _tensors(state) -> list[torch.Tensor]:
    if isinstance(state, tuple):
        return [tensor for part in state for tensor in _tensors(part)]
    return [] if state is None else [state]


def test_what_cannot_be_reversed_is_refused() -> None:
    class Streaming(LinearAttention):
        def __init__(self, site: Site) -> None:
            super().__init__(site)
            self.traits = Traits(reversible=False)

    with pytest.raises(
        Unsupported, match="Streaming, because this mixer passes more than hidden states"
    ):
        build(Streaming, residual=Residual.reversible)
    with pytest.raises(ValueError, match="activation_checkpointing=false"):
        build(residual=Residual.reversible, activation_checkpointing=True)
    with pytest.raises(ValueError, match="feed_forward=gelu"):
        build(residual=Residual.reversible, feed_forward=FeedForward.none)


def test_dropout_falls_alike_in_both_passes() -> None:
    torch.manual_seed(0)
    site = Site(width=8, heads=2, max_length=8)
    make = partial(
        TransformerBlock, width=8, feed_forward=FeedForward.gelu, feed_forward_width=16, dropout=0.5
    )
    stack = ReversibleStack([make(LinearAttention(site)) for _ in range(3)], width=8).double()
    x = torch.randn(2, 8, 8, dtype=torch.float64, requires_grad=True)

    def loss(point: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(5)
        return stack(Flow(point), Layout()).x.square().sum()

    assert torch.autograd.gradcheck(loss, (x,), fast_mode=True)
