"""RetNet against its paper: the recurrence in complex numbers, the parallel form, norm and gate."""

import math

import pytest
import torch

from lra.models.families.retnet import EPSILON, HeadDecay, HeadNorm, RetNet, log_decays
from lra.models.mixer import Layout, Unsupported
from lra.models.ops.gated.delta_layer import StreamActivation
from lra.models.ops.gated.head_norm import Gate
from tests.attention import builder, compare, drawn, streamed

LENGTH, WIDTH, HEADS = 21, 12, 3
NORMS = pytest.mark.parametrize("norm", [HeadNorm.group, HeadNorm.rms])


def built(**options) -> RetNet:
    mixer = builder(RetNet, chunk=8)(**options)
    mixer.place = options.get("layer", 0), options.get("depth", 1)
    return mixer


def projected(mixer, x):
    """Return q, k and v of each head, neither rotated nor scaled."""
    parts = (x @ layer.weight.mT for layer in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
    return [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts]


def decays(mixer):
    if mixer.factor is not None:
        return slopes(HEADS, *mixer.place)
    return torch.tensor([1 - 2 ** (-5 - h) for h in range(HEADS)], dtype=torch.float64)


def slopes(heads, layer, layers):
    """MiniMax-01's rates of a layer, head by head: e to the power of minus each."""
    rates = [
        (1 / 2 ** (8 / heads)) ** (h + 1) * (1 - layer / (layers - 1 + 1e-5) + 1e-5)
        for h in range(heads)
    ]
    return torch.tensor([math.exp(-rate) for rate in rates], dtype=torch.float64)


def angles(width):
    return torch.tensor(
        [10_000 ** (-2 * c / width) for c in range(width // 2)], dtype=torch.float64
    )


def as_complex(x):
    return torch.complex(*x.chunk(2, -1))


def recurrent(mixer, x):
    """Equation 3: A = gamma e^(i theta), one state of complex channels after the other."""
    q, k, v = projected(mixer, x)
    q, k = as_complex(q), as_complex(k / math.sqrt(q.shape[-1]))
    turn = torch.polar(torch.ones(q.shape[-1]).double(), angles(2 * q.shape[-1]))
    step = decays(mixer)[:, None] * turn
    state, outputs = torch.zeros(*q.shape[:2], q.shape[-1], v.shape[-1]).to(q.dtype), []
    for t in range(x.shape[1]):
        state = step[..., None] * state + k[:, :, t, :, None].conj() * v[:, :, t, None]
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, :, t], state).real)
    return torch.stack(outputs, 2)


def parallel(mixer, x, *, both=False, rotary=True, distance=None):
    """Equation 5: (Q K^T * D) V with D_nm = gamma^(n - m), or gamma^|n - m| of `both` sides."""
    q, k, v = projected(mixer, x)
    place = torch.arange(x.shape[1])
    if rotary:
        angle = place[:, None] * angles(q.shape[-1])
        turn = torch.polar(torch.ones_like(angle), angle)
        q, k = (torch.cat([y.real, y.imag], -1) for y in (turn * as_complex(z) for z in (q, k)))
    apart = place[:, None] - place if distance is None else distance
    d = decays(mixer)[:, None, None] ** apart.abs()
    d = d if both else d.tril()
    return (q @ k.mT / math.sqrt(q.shape[-1]) * d) @ v


def finished(mixer, o, x, norm=HeadNorm.group):
    """Equation 8, from what heads read."""
    if norm == HeadNorm.group:
        o = o - o.mean(-1, keepdim=True)
    o = o / (o.square().mean(-1, keepdim=True) + EPSILON).sqrt()
    gate = x @ mixer.gate_proj.weight.mT
    joined = o.transpose(1, 2).flatten(2)
    return (gate * gate.sigmoid() * joined) @ mixer.out_proj.weight.mT


@NORMS
@pytest.mark.parametrize("form", [recurrent, parallel])
@pytest.mark.parametrize("value_expansion", [1, 2])
def test_it_is_the_paper_when_causal(form, norm, value_expansion):
    mixer = built(causal=True, norm=norm, value_expansion=value_expansion)
    x = drawn(2, LENGTH, WIDTH).requires_grad_()
    compare(
        mixer(x, Layout()),
        finished(mixer, form(mixer, x), x, norm),
        [x, *mixer.parameters()],
        atol=1e-10,
        looser=10,
    )


@pytest.mark.parametrize("rotary", [False, True])
def test_both_sides_decay_with_the_distance(rotary):
    mixer, x = built(rotary=rotary), drawn(2, LENGTH, WIDTH).requires_grad_()
    wanted = finished(mixer, parallel(mixer, x, both=True, rotary=rotary), x)
    compare(mixer(x, Layout()), wanted, [x, *mixer.parameters()], atol=1e-10, looser=10)
    assert not mixer.traits.causal


@pytest.mark.parametrize(("layer", "depth"), [(0, 1), (0, 4), (1, 4), (3, 4)])
def test_slopes_are_those_of_lightning_attention(layer, depth):
    """Causal, from both sides, and from a state; 1/16 and 1/256 of 2 heads in the first layer."""
    options = {"decay": HeadDecay.slopes, "layer": layer, "depth": depth}
    mixer, x = built(causal=True, **options), drawn(2, LENGTH, WIDTH).requires_grad_()
    wanted = finished(mixer, recurrent(mixer, x), x)
    compare(mixer(x, Layout()), wanted, [x, *mixer.parameters()], atol=1e-10, looser=10)
    torch.testing.assert_close(streamed(mixer, x, [5, 1, 15], 8)[0], wanted, atol=1e-10, rtol=0)
    both = built(**options)
    wanted = finished(both, parallel(both, x, both=True), x)
    compare(both(x, Layout()), wanted, [x, *both.parameters()], atol=1e-10, looser=10)


MINIMAX = {
    "decay": HeadDecay.slopes, "norm": HeadNorm.joint, "gate": Gate.sigmoid,
    "activation": StreamActivation.silu, "rotary": False, "value_expansion": 1,
}  # fmt: skip


def lightning(mixer, x):
    """MiniMax-01's layer: SiLU on q, k and v, one RMSNorm over all heads, a sigmoid gate."""
    q, k, v = (y * y.sigmoid() for y in projected(mixer, x))
    state, outputs = torch.zeros(*q.shape[:2], q.shape[-1], v.shape[-1]).double(), []
    for t in range(x.shape[1]):
        state = decays(mixer)[:, None, None] * state + k[:, :, t, :, None] * v[:, :, t, None]
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, :, t], state))
    o = torch.stack(outputs, 2).transpose(1, 2).flatten(2)
    # Its keys are not divided by the root of a head's width.
    size = o.square().mean(-1, keepdim=True) + EPSILON * q.shape[-1]
    gate = (x @ mixer.gate_proj.weight.mT).sigmoid()
    return (gate * mixer.joint_norm.weight * o / size.sqrt()) @ mixer.out_proj.weight.mT


@pytest.mark.parametrize("layer", [0, 2])
def test_the_whole_layer_is_that_of_minimax(layer):
    mixer = built(causal=True, layer=layer, depth=4, **MINIMAX)
    mixer.joint_norm.weight.data.normal_()
    x = drawn(2, LENGTH, WIDTH).requires_grad_()
    wanted = lightning(mixer, x)
    compare(mixer(x, Layout()), wanted, [x, *mixer.parameters()], atol=1e-10, looser=10)
    torch.testing.assert_close(streamed(mixer, x, [5, 1, 15], 8)[0], wanted, atol=1e-10, rtol=0)


def test_a_gate_can_be_left_out():
    mixer, x = built(causal=True, gate=Gate.none), drawn(2, LENGTH, WIDTH)
    o = recurrent(mixer, x)
    o = o - o.mean(-1, keepdim=True)
    o = o / (o.square().mean(-1, keepdim=True) + EPSILON).sqrt()
    wanted = o.transpose(1, 2).flatten(2) @ mixer.out_proj.weight.mT
    torch.testing.assert_close(mixer(x, Layout()), wanted, atol=1e-10, rtol=0)


def test_slopes_are_slower_from_layer_to_layer_and_nothing_in_the_last():
    gates = [built(heads=2, decay=HeadDecay.slopes, layer=n, depth=3).factor for n in range(3)]
    logs = [log_decays(torch.zeros(1, 2, 1, 4).double(), factor) for factor in gates]
    wanted = torch.tensor([1 / 16, 1 / 256], dtype=torch.float64)
    torch.testing.assert_close(-logs[0], wanted, rtol=2e-5, atol=0)
    torch.testing.assert_close(-logs[1], wanted / 2, rtol=5e-5, atol=0)
    assert 0 < -logs[2].min() < 1e-6


def test_one_direction_is_the_causal_form():
    one, causal, x = built(bidirectional=False), built(causal=True), drawn(2, LENGTH, WIDTH)
    torch.testing.assert_close(one(x, Layout()), causal(x, Layout()), atol=0, rtol=0)
    assert one.traits.causal


def test_decays_are_those_of_the_paper_in_half_precision_too():
    """A model in bfloat16 would forget at rates that are off by a half per cent."""
    gates = log_decays(torch.zeros(1, 6, 2, 4, dtype=torch.bfloat16))
    wanted = torch.tensor([math.log1p(-(2.0 ** (-5 - h))) for h in range(6)])
    torch.testing.assert_close(gates, wanted, atol=0, rtol=1e-6)
    half = built(causal=True, heads=6).bfloat16()
    assert not [*half.buffers()]


def test_parameters_are_counted_by_hand():
    wanted = 8 * WIDTH**2  # q, k: 2 d^2; v, gate and out of twice the width: 6 d^2
    assert sum(p.numel() for p in built().parameters()) == wanted
    biased = built(bias=True)
    assert sum(p.numel() for p in biased.parameters()) == wanted + 7 * WIDTH


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ValueError, match="value_expansion must be at least 1: got 0"):
        built(value_expansion=0)
    with pytest.raises(ValueError, match="chunk must be at least 1"):
        built(chunk=0)
    with pytest.raises(ValueError, match="rotary=true turns pairs"):
        built(heads=4)
    built(heads=4, rotary=False)
    with pytest.raises(Unsupported, match="bidirectional"):
        built(causal=True, bidirectional=False)
