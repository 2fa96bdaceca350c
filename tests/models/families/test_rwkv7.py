"""RWKV-7's layers, which hand values on, and strong decays."""

import torch
from torch.nn import functional as F

from lra.models.families.rwkv7 import RWKV7
from lra.models.mixer import Flow, Layout
from lra.models.ops.gated.delta_product import delta_product
from tests.attention import builder, compare, drawn
from tests.literal.rwkv7 import layer as literal

WIDTH, CHUNK = 12, 8


def built(layer=0, **options) -> RWKV7:
    """Return a mixer whose every parameter differs from channel to channel, and layer to layer."""
    usual = builder(RWKV7, causal=True, depth=3, chunk=CHUNK, ranks=[2, 3, 4, 5], moved=0.3)
    return usual(layer=layer, seed=layer, **options)


def test_a_later_layer_takes_of_the_values_of_the_first():
    mixer, x = built(1), drawn(2, CHUNK + 1, WIDTH).requires_grad_()
    first = drawn(2, CHUNK + 1, WIDTH, seed=4).requires_grad_()
    flow = mixer.extend(Flow(x, stream=first), Layout())
    assert flow.stream is first
    wanted, _ = literal(mixer, x, first)
    leaves = [x, first, *mixer.parameters()]
    compare(flow.x, wanted, leaves, atol=1e-10, rtol=1e-10, looser=10)


def test_one_layer_alone_or_without_residual_hands_nothing_on():
    x = drawn(2, 9, WIDTH)
    for mixer in (built(depth=1), built(value_residual=False)):
        assert mixer.extend(Flow(x), Layout()).stream is None
        assert mixer.traits.reversible
    assert built(2).extend(Flow(x), Layout()).stream is None
    assert not built().traits.reversible


def keys(length, *, k=4, v=5):
    """Return queries, keys, values and log decays of two rows and heads, and keys of additions."""
    q, w, u, g = (drawn(2, 2, length, k, seed=seed) for seed in range(4))
    return q, F.normalize(w, dim=-1), drawn(2, 2, length, v, seed=5), -g.abs(), u


def test_float32_bears_decays_far_below_those_of_the_family():
    """Decays of exp(-60) a token, read before they apply: keys of exp(60)."""
    q, k, v, g, u = keys(150)
    g = torch.where(torch.arange(150)[:, None] % 3 == 0, -60.0, g.clamp(min=-0.6))
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [each.to(dtype).requires_grad_() for each in (q, k, v, g, u)]
        q_, k_, v_, g_, u_ = leaves
        o, last = delta_product(q_, k_ * (-g_).exp(), 0.5 * k_, v_, g_, u=u_, chunk=64)
        results.append([o, last, *torch.autograd.grad(o.sum(), leaves)])
    for seen, wanted in zip(*results, strict=True):
        assert (seen - wanted).abs().max() < 1e-4 * wanted.abs().max()
