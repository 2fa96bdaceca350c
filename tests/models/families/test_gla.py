"""Families with a decay of each channel of keys, GLA, HGRN2 and Kimi Delta, token by token."""

import pytest
import torch
from torch.nn import functional as F

from lra.models.families.gla import GLA
from lra.models.families.hgrn2 import HGRN2
from lra.models.families.kimi_delta import KimiDelta
from lra.models.mixer import Layout, Site
from lra.models.ops.gated.head_norm import Gate
from tests.attention import builder, compare, drawn

LENGTH, WIDTH, HEADS = 21, 12, 3


def built(family, **options):
    """Return a causal mixer of chunks of 8."""
    return builder(family, causal=True, chunk=8)(**options)


def heads(x):
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def convolved(mixer, number, y):
    if not len(mixer.convolutions):
        return y
    weight = mixer.convolutions[number].weight[:, None]
    y = F.conv1d(F.pad(y.mT, (weight.shape[-1] - 1, 0)), weight, groups=y.shape[-1]).mT
    return y * y.sigmoid()


def loop(q, k, v, alpha, beta=None):
    """Return what each query reads of S = alpha S + k v^T, or of the delta rule, v x k numbers."""
    state, outputs = torch.zeros(*q.shape[:2], v.shape[-1], k.shape[-1]).double(), []
    for t in range(q.shape[2]):
        state = state * alpha[:, :, t, None]
        value = v[:, :, t]
        if beta is not None:
            value = beta[:, :, t] * (value - torch.einsum("bhvk,bhk->bhv", state, k[:, :, t]))
        state = state + value[..., None] * k[:, :, t, None]
        outputs.append(torch.einsum("bhvk,bhk->bhv", state, q[:, :, t] * q.shape[-1] ** -0.5))
    return torch.stack(outputs, 2)


def normed(o, weight):
    """Norm along the channels of one head, or of all heads together."""
    y = o.transpose(1, 2)
    y = y.flatten(2) if weight.numel() > o.shape[-1] else y
    y = y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    return y if weight.numel() > o.shape[-1] else y.flatten(2)


def gla(mixer, x):
    names = ("q_proj", "k_proj", "v_proj")
    projected = (mixer.get_submodule(name)(x) for name in names)
    q, k, v = (heads(convolved(mixer, number, y)) for number, y in enumerate(projected))
    alpha = heads(mixer.decay_up(mixer.decay_down(x)).sigmoid() ** (1 / mixer.divisor))
    o = normed(loop(q, k, v, alpha), mixer.norm.weight)
    gate = mixer.gate_proj(x) if mixer.norm.gate != Gate.none else None
    return mixer.out_proj(o if gate is None else o * gate * gate.sigmoid())


def hgrn2(mixer, x):
    share = mixer.bounds.table.softmax(0).cumsum(0) if mixer.bounds else torch.zeros(1, WIDTH)
    gamma = share[mixer.layer] - share[0] if mixer.bounds else share[0].double()
    alpha = gamma + (1 - gamma) * mixer.forget_proj(x).sigmoid()
    q = mixer.q_proj(x)
    q, k, v = (heads(each) for each in (q * q.sigmoid(), 1 - alpha, mixer.input_proj(x)))
    return mixer.out_proj(normed(loop(q, k, v, heads(alpha)), mixer.norm.weight))


def kimi(mixer, x):
    names = ("q_proj", "k_proj", "v_proj")
    projected = (mixer.get_submodule(name)(x) for name in names)
    q, k, v = (heads(convolved(mixer, number, y)) for number, y in enumerate(projected))
    q, k = (each / (each.square().sum(-1, keepdim=True) + 1e-6).sqrt() for each in (q, k))
    steps = heads(mixer.decay_up(mixer.decay_down(x)) + mixer.step_bias)
    rate = mixer.log_rate.exp()[:, None, None]
    alpha = (-rate * (1 + steps.exp()).log()).exp()
    if mixer.bound is not None:
        alpha = (mixer.bound * (rate * steps).sigmoid()).exp()
    beta = heads(mixer.beta_map(x)).sigmoid() * mixer.beta_scale
    o = normed(loop(q, k, v, alpha, beta), mixer.norm.weight)
    return mixer.out_proj(o * mixer.gate_up(mixer.gate_down(x)).sigmoid())


@pytest.mark.parametrize(
    ("family", "literal", "options"),
    [
        (GLA, gla, {}),
        (GLA, gla, {"convolution": 3, "gate": Gate.none, "value_expansion": 2}),
        (GLA, gla, {"key_expansion": 1.0, "gate_divisor": 1.0, "gate_rank": 2}),
        (HGRN2, hgrn2, {}),
        (HGRN2, hgrn2, {"layer": 2, "depth": 4}),
        (KimiDelta, kimi, {}),
        (KimiDelta, kimi, {"bound": -5.0, "negative_eigenvalues": True, "gate_rank": 3}),
    ],
)
def test_it_is_the_paper_token_by_token(family, literal, options):
    mixer, x = built(family, **options), drawn(2, LENGTH, WIDTH).requires_grad_()
    if family is HGRN2 and mixer.bounds is not None:
        mixer.bounds.table.data.normal_()
    seen, wanted = mixer(x, Layout()), literal(mixer, x)
    compare(seen, wanted, [x, *mixer.parameters()], atol=1e-10)


def test_lower_bounds_grow_from_nothing_in_equal_steps_and_are_shared():
    shared, layers = {}, []
    for layer in range(4):
        site = Site(
            width=12, heads=3, max_length=9, causal=True, layer=layer, depth=4, shared=shared
        )
        layers.append(HGRN2(site))
    assert layers[0].bounds is None
    assert layers[1].bounds is layers[3].bounds
    for layer in (1, 2, 3):
        wanted = torch.full((12,), layer / 4)
        torch.testing.assert_close(layers[layer].bounds(layer, torch.float32), wanted)
