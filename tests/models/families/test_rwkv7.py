"""RWKV-7 against its paper token by token, the values that layers hand on, special cases."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from lra.models.contract import CHECKS, Case
from lra.models.families.rwkv7 import RWKV7
from lra.models.mixer import Flow, Layout, Site
from lra.models.ops.gated.delta_product import delta_product
from tests.attention import builder, compare, drawn
from tests.literal.rwkv7 import layer as literal

WIDTH, HEADS, CHUNK = 12, 3, 8


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


def test_both_ends_are_added_and_each_has_its_values():
    x = drawn(2, 13, WIDTH)
    ends = [literal(built(), row) for row in (x, x.flip(1))]
    flow = built(causal=False).extend(Flow(x), Layout())
    torch.testing.assert_close(flow.x, ends[0][0] + ends[1][0].flip(1), atol=1e-10, rtol=0)
    wanted = torch.cat((ends[0][1], ends[1][1].flip(1)), -1)
    torch.testing.assert_close(flow.stream, wanted, atol=1e-12, rtol=0)
    later = [literal(built(1), *each) for each in ((x, ends[0][1]), (x.flip(1), ends[1][1]))]
    seen = built(1, causal=False).extend(Flow(x, stream=flow.stream), Layout())
    torch.testing.assert_close(seen.x, later[0][0] + later[1][0].flip(1), atol=1e-10, rtol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_values_of_the_first_layer_reach_all_later_ones(causal):
    """Under padding and with documents as well, which are read in another order."""
    x = drawn(2, 13, WIDTH)
    keep = torch.ones(2, 13, dtype=torch.bool)
    keep[0, [0, 5, 12]] = False
    document = torch.tensor([[0, 0, 1, 1, 1, 0, 0, 2, 2, 2, 2, 1, 1]] * 2)
    layers = [built(layer, causal=causal) for layer in range(3)]

    def passed(x, layout):
        flow = Flow(x)
        for mixer in layers:
            flow = mixer.extend(flow, layout)
        return flow.x

    whole = passed(x, Layout(keep=keep, document=document))
    for row in range(2):
        for number in range(3):
            mine = keep[row] & (document[row] == number)
            alone = passed(x[row : row + 1, mine], Layout())
            torch.testing.assert_close(whole[row, mine], alone[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_the_first_of_two_layers_and_the_second_keep_the_contract(layer, causal):
    """The kit's own site has one layer, which hands nothing on."""

    def make(site):
        return RWKV7(replace(site, layer=layer, depth=2), chunk=5, ranks=[1, 2, 3, 4])

    case = Case(make=make, causal=causal, max_length=13, width=12, heads=3)
    names = ("ways", "padding", "document", "gradients", "extend", "half", "precisions")
    results = {name: CHECKS[name](case) for name in names}
    assert not {name: each.detail for name, each in results.items() if not each.passed}


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


def test_it_begins_where_the_published_model_begins():
    """Of 0.1 B parameters: 12 layers of 768 channels, ranks 64, 64, 32 and 128."""
    site = Site(width=768, heads=12, max_length=64, causal=True, layer=6, depth=12)
    mixer = RWKV7(site)
    assert [
        mixer.get_submodule(name).down.out_features
        for name in ("decay", "rate", "residual", "gate")
    ] == [64, 64, 32, 128]
    low_rank = 2 * 768 * (64 + 64 + 32 + 128) + 3 * 768
    assert sum(each.numel() for each in mixer.parameters()) == 4 * 768**2 + low_rank + 11 * 768
    place = 384
    for number, power in ((0, 0.2), (1, 0.9), (2, 0.7), (3, 0.7), (4, 0.9), (5, 0.2)):
        wanted = 1 - (place / 768) ** (power * 0.5)
        assert mixer.mixes[number, place].item() == pytest.approx(wanted, abs=1e-6)
    zigzag = (place % 64 - 31.5) / 31.5
    zigzag *= abs(zigzag)
    far = place / 767
    slope = -6 + 6 * far ** (1 + (6 / 11) ** 0.3) + 0.5 + 2.5 * zigzag
    assert mixer.decay.base[place].item() == pytest.approx(slope, abs=1e-5)
    base = mixer.rate.base[place].item()
    assert base == pytest.approx(-0.19 + 0.3 * zigzag + 0.4 * (far - 0.5), abs=1e-6)
    assert mixer.residual.base[place].item() == pytest.approx(0.73 - 0.4 * (far - 0.5), abs=1e-6)
    assert mixer.tuning()["decay.base"].learning_rate_scale == 2
    state, token = mixer.initial_state(1, 999)
    assert (state.numel(), token.numel()) == (64 * 768, 768)
