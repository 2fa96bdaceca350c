"""A Longformer encoder and an exact decoder: against a literal form, masks, gradients, state."""

import math

import pytest
import torch
from torch import Tensor, nn

from lra.models.backbone.encoder_decoder import DecoderBlock
from lra.models.backbone.networks import FeedForward
from lra.models.backbone.stack import Stack, TransformerBlock
from lra.models.families.linear import LinearAttention
from lra.models.families.longformer import Longformer
from lra.models.families.sdpa import SDPA
from lra.models.families.sliding_window import SlidingWindow
from lra.models.mixer import Flow, Layout, Site, Unsupported
from lra.models.multi_head import MultiHead
from tests.attention import drawn

WIDTH, HEADS, DEPTH, SOURCE, TARGET = 16, 4, 2, 41, 13


def site(*, causal: bool = False, layer: int = 0) -> Site:
    return Site(width=WIDTH, heads=HEADS, max_length=64, causal=causal, layer=layer, depth=DEPTH)


class EncoderDecoder(nn.Module):
    """LED without embeddings and output."""

    def __init__(self) -> None:
        super().__init__()
        facts = {"width": WIDTH, "feed_forward_width": 24, "dropout": 0.0}
        self.encoder = Stack(
            [
                TransformerBlock(
                    Longformer(site(layer=layer), window=[4, 6], global_mask=True),
                    feed_forward=FeedForward.gelu,
                    **facts,
                )
                for layer in range(DEPTH)
            ],
            width=WIDTH,
        )
        self.blocks = nn.ModuleList(
            DecoderBlock(SDPA(site(causal=True)), SDPA(site()), **facts) for _ in range(DEPTH)
        )
        self.double()
        with torch.no_grad():
            for i, parameter in enumerate(self.parameters()):
                parameter.add_(0.1 * drawn(*parameter.shape, seed=50 + i))

    def forward(self, x: Tensor, y: Tensor, layout: Layout, own: Layout | None = None) -> Tensor:
        source, flow = self.encoder(Flow(x), layout).x, Flow(y)
        for block in self.blocks:
            flow = block(flow, own or Layout(), source, layout._replace(is_global=None))
        return flow.x


def inputs() -> tuple[Tensor, Tensor, Layout]:
    keep = torch.arange(SOURCE) < torch.tensor([[SOURCE], [23]])
    is_global = torch.zeros(2, SOURCE, dtype=torch.bool)
    is_global[0, [0, 17]], is_global[1, 3] = True, True
    x, y = drawn(2, SOURCE, WIDTH, seed=1), drawn(2, TARGET, WIDTH, seed=2)
    return x.requires_grad_(), y.requires_grad_(), Layout(keep=keep, is_global=is_global)


def attention(mixer: MultiHead, x: Tensor, source: Tensor, sees: Tensor) -> Tensor:
    """One head after the other, with all scores."""
    q, k, v = mixer.q_proj(x), mixer.k_proj(source), mixer.v_proj(source)
    out, size = [], WIDTH // HEADS
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        scores = q[..., part] @ k[..., part].mT / math.sqrt(size)
        out.append(scores.masked_fill(~sees, -torch.inf).softmax(-1) @ v[..., part])
    return mixer.out_proj(torch.cat(out, -1))


def test_equals_the_literal_form() -> None:
    model, (x, y, layout) = EncoderDecoder(), inputs()
    source, wanted = model.encoder(Flow(x), layout).x, y
    past = torch.ones(TARGET, TARGET, dtype=torch.bool).tril()
    for block in model.blocks:
        normed = block.own.mixer_norm(wanted)
        wanted = wanted + attention(block.own.mixer, normed, normed, past)
        normed = block.cross_norm(wanted)
        wanted = wanted + attention(block.cross, normed, source, layout.keep[:, None])
        first, gelu, _, second = block.network
        wanted = wanted + second(gelu(first(block.network_norm(wanted))))
    seen = model(x, y, layout)
    torch.testing.assert_close(seen, wanted, atol=1e-12, rtol=0)
    leaves = [x, y, *model.parameters()]
    g = drawn(*seen.shape, seed=3)
    found = [torch.autograd.grad(o, leaves, g) for o in (seen, wanted)]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-11, rtol=0)


def test_later_targets_are_hidden_and_all_of_the_source_is_seen() -> None:
    model, (x, y, layout) = EncoderDecoder(), inputs()
    by_x, by_y = torch.autograd.grad(model(x, y, layout)[:, 5].sum(), (x, y))
    assert torch.equal(by_y.abs().sum((0, 2)) > 0, torch.arange(TARGET) <= 5)
    assert torch.equal(by_x.abs().sum(-1) > 0, layout.keep)


def test_padding_of_the_source_moves_nothing() -> None:
    model, (x, y, layout) = EncoderDecoder(), inputs()
    loud = torch.where(layout.keep[..., None], x, 1e3 * drawn(*x.shape, seed=9))
    wanted = model(x, y, layout)
    torch.testing.assert_close(model(loud, y, layout), wanted, atol=1e-12, rtol=0)
    short = Layout(keep=layout.keep[1:, :23], is_global=layout.is_global[1:, :23])
    alone = model(x[1:, :23], y[1:], short)
    torch.testing.assert_close(alone, wanted[1:], atol=1e-12, rtol=0)


@pytest.mark.parametrize("mixer", [SDPA, SlidingWindow, LinearAttention])
def test_a_target_may_come_piece_by_piece(mixer: type[MultiHead]) -> None:
    block = DecoderBlock(mixer(site(causal=True)), SDPA(site()), width=WIDTH, feed_forward_width=24)
    block.double().eval()
    source, y = drawn(2, SOURCE, WIDTH, seed=1), drawn(2, TARGET, WIDTH, seed=2)
    flow, seen = Flow(y, block.initial_state(2, TARGET)), []
    for piece in y.split([5, 1, 7], dim=1):
        flow = block(flow._replace(x=piece), Layout(), source, Layout())
        seen.append(flow.x)
    wanted = block(Flow(y), Layout(), source, Layout()).x
    torch.testing.assert_close(torch.cat(seen, 1), wanted, atol=1e-12, rtol=0)


def test_what_cannot_serve_is_refused() -> None:
    facts = {"width": WIDTH, "feed_forward_width": 24}
    with pytest.raises(Unsupported, match="SDPA looks at later tokens"):
        DecoderBlock(SDPA(site()), SDPA(site()), **facts)
    with pytest.raises(Unsupported, match="Longformer offers no cross attention"):
        DecoderBlock(SDPA(site(causal=True)), Longformer(site()), **facts)
    with pytest.raises(Unsupported, match="choose an exact family, at a site with causal=False"):
        DecoderBlock(SDPA(site(causal=True)), SDPA(site(causal=True)), **facts)
