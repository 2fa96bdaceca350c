"""Differential attention against its paper, written out."""

import math

import pytest
import torch

from lra.models.families.differential import Differential
from lra.models.mixer import Layout, Positions, Site
from tests.attention import builder, compare, drawn

LENGTH, WIDTH, HEADS = 13, 24, 3
built = builder(Differential, width=WIDTH, depth=4, moved=0.3)


def literal(mixer, x, *, causal, layer):
    start = 0.8 - 0.6 * math.exp(-0.3 * layer)
    (a1, b1), (a2, b2) = mixer.core.attend.vectors
    strength = (a1 @ b1).exp() - (a2 @ b2).exp() + start
    q, k, v = (layer_(x) for layer_ in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
    width = WIDTH // HEADS
    hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool() if causal else None
    heads = []
    for h in range(HEADS):
        here = slice(h * width, (h + 1) * width)
        maps = []
        for half in (slice(0, width // 2), slice(width // 2, width)):
            scores = q[..., here][..., half] @ k[..., here][..., half].mT / (width / 2) ** 0.5
            if causal:
                scores = scores.masked_fill(hidden, -torch.inf)
            maps.append(scores.softmax(-1))
        o = (maps[0] - strength * maps[1]) @ v[..., here]
        o = o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt() * mixer.core.attend.norm.weight
        heads.append((1 - start) * o)
    return mixer.out_proj(torch.cat(heads, -1))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("layer", [0, 3])
def test_it_is_the_paper(causal, layer):
    mixer, x = built(causal=causal, layer=layer), drawn(2, LENGTH, WIDTH).requires_grad_()
    seen, wanted = mixer(x, Layout()), literal(mixer, x, causal=causal, layer=layer)
    compare(seen, wanted, [x, *mixer.parameters()], atol=1e-10)


def test_lambda_starts_near_its_place_in_the_depth():
    site = Site(width=512, heads=4, max_length=9, layer=2, depth=4)
    torch.manual_seed(0)
    mixer = Differential(site)
    wanted = 0.8 - 0.6 * math.exp(-0.6)
    assert abs(mixer.core.attend.strength(torch.float64).item() - wanted) < 0.3
    still = Differential(site, deviation=0.0)
    assert still.core.attend.strength(torch.float64).item() == pytest.approx(wanted)


def test_bad_options_say_what_is_wanted():
    with pytest.raises(ValueError, match="got heads of 5; change heads or head_width to even"):
        Differential(Site(width=15, heads=3, max_length=9))
    with pytest.raises(ValueError, match="deviation must be 0 or positive: got -1"):
        built(deviation=-1.0)


def test_positions_that_add_to_scores_are_not_offered():
    mixer = Differential(Site(width=WIDTH, heads=HEADS, max_length=9))
    assert mixer.traits.positions == {"rotary", "position_infused"}
    assert Positions.alibi.value not in mixer.traits.positions
