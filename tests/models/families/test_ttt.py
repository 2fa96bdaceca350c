"""TTT-Linear token by token, each gradient by autograd."""

import pytest
import torch
from torch.nn import functional as F

from lra.models.families.ttt import TTT
from lra.models.mixer import Layout, Site
from lra.models.positions import ROTARY_BASE
from tests.attention import builder, compare, drawn

WIDTH, HEADS, BLOCK = 12, 3, 4
KEYS = WIDTH // HEADS
built = builder(TTT, causal=True, block=BLOCK, moved=0.3)


def turned(x, place):
    """Rotate a head's pairs of channels."""
    pairs = torch.complex(*x.chunk(2))
    angles = place * ROTARY_BASE ** (-torch.arange(0, KEYS, 2).double() / KEYS)
    pairs = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((pairs.real, pairs.imag))


def literal(mixer, x):
    q, v = mixer.q_proj(x), mixer.value_map(x)
    k = q if mixer.k_proj is None else mixer.k_proj(x)
    if len(mixer.convolutions):
        q, k = (
            F.conv1d(F.pad(y.mT, (3, 0)), layer.weight[:, None], layer.bias, groups=WIDTH).mT
            for y, layer in zip((q, k), mixer.convolutions, strict=True)
        )
    rows = []
    for b in range(len(x)):
        heads = []
        for h in range(HEADS):
            here = slice(h * KEYS, (h + 1) * KEYS)
            norm = [KEYS], mixer.norm_weight[h, 0], mixer.norm_bias[h, 0], 1e-6
            weight, shift = mixer.weight[h], mixer.bias[h, 0]
            for t in range(x.shape[1]):
                i = t % BLOCK
                if i == 0:
                    total = 0.0, 0.0
                asked, key = turned(q[b, t, here], i), turned(k[b, t, here], i)
                loss = (F.layer_norm(key @ weight + shift, *norm) - (v[b, t, here] - key)).square()
                slopes = torch.autograd.grad(loss.sum() / 2, (weight, shift), create_graph=True)
                logit = mixer.rate_map.weight[h] @ x[b, t] + mixer.rate_map.bias[h]
                rate = mixer.rate * logit.sigmoid() / KEYS
                total = [a + rate * slope for a, slope in zip(total, slopes, strict=True)]
                tau = (1 / (i + 1) + mixer.place_rate[i]).clamp(min=0)
                after = weight - tau * total[0], shift - tau * total[1]
                heads.append(asked + F.layer_norm(asked @ after[0] + after[1], *norm))
                if i == BLOCK - 1:
                    weight, shift = after
        rows.append(torch.stack(heads).view(HEADS, -1, KEYS).transpose(0, 1).flatten(1))
    y = F.layer_norm(torch.stack(rows), [WIDTH], mixer.post_norm.weight, mixer.post_norm.bias, 1e-6)
    if mixer.gate_proj is not None:
        y = y * F.gelu(mixer.gate_proj(x), approximate="tanh")
    return mixer.out_proj(y)


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 2])
@pytest.mark.parametrize("options", [{}, {"share_query_key": True, "gate": True, "rate": 2.0}])
def test_it_is_the_paper_token_by_token(length, options):
    mixer, x = built(**options), drawn(2, length, WIDTH).requires_grad_()
    seen, wanted = mixer(x, Layout()), literal(mixer, x)
    compare(seen, wanted, [x, *mixer.parameters()], atol=1e-10, looser=10)


def test_heads_of_odd_width_are_refused():
    with pytest.raises(ValueError, match="got heads of 5; change heads or head_width"):
        TTT(Site(width=15, heads=3, max_length=8))
