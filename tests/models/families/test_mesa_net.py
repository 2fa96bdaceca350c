"""MesaNet token by token, its systems solved by elimination."""

import pytest
import torch
from torch.nn import functional as F

from lra.models.contract.counting import pretending, saved_bytes
from lra.models.families.mesa_net import MesaNet, least_squares
from lra.models.mixer import Layout, Site
from lra.models.ops.gated.decayed_solve import decayed_solve
from tests.attention import builder, compare, drawn, joined

WIDTH, HEADS, CHUNK = 12, 3, 8
built = builder(MesaNet, causal=True, chunk=CHUNK, moved=0.3)


def literal(mixer, x):
    def heads(y):
        return y.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    streams = [mixer.q_proj(x), mixer.k_proj(x)]
    if len(mixer.convolutions):
        streams = [
            F.conv1d(F.pad(y.mT, (3, 0)), layer.weight[:, None], groups=WIDTH).mT
            for y, layer in zip(streams, mixer.convolutions, strict=True)
        ]
    q, k = (heads(y * y.sigmoid()) for y in streams)
    q, k = (y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
    v, beta, gamma = (heads(layer(x)) for layer in (mixer.v_proj, mixer.beta_map, mixer.decay_map))
    beta, gamma = beta.sigmoid(), gamma.sigmoid()
    ridge = torch.diag_embed((1 + mixer.ridge.exp()).log() + mixer.ridge_min)
    of_keys = of_values = torch.zeros(*q.shape[:2], q.shape[3], q.shape[3]).double()
    outputs = []
    for t in range(x.shape[1]):
        left, enters = gamma[:, :, t, None], beta[:, :, t, None]
        of_keys = left * of_keys + enters * k[:, :, t, :, None] * k[:, :, t, None]
        of_values = left * of_values + enters * v[:, :, t, :, None] * k[:, :, t, None]
        solved = torch.linalg.solve(of_keys + ridge, q[:, :, t])
        outputs.append((of_values @ solved[..., None])[..., 0])
    o = torch.stack(outputs, 2).transpose(1, 2)
    o = o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt() * mixer.norm.weight
    gate = 1.0
    if mixer.norm.gate != "none":
        gate = mixer.gate_proj(x)
        gate = gate.sigmoid() * (gate if mixer.norm.gate == "silu" else 1)
    return mixer.out_proj(o.flatten(2) * gate)


@pytest.mark.parametrize("length", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
@pytest.mark.parametrize(
    "options", [{}, {"gate": "silu", "ridge_min": 0.1}, {"convolution": None, "gate": "sigmoid"}]
)
def test_it_is_the_paper_token_by_token(length, options):
    mixer, x = built(**options), drawn(2, length, WIDTH).requires_grad_()
    compare(mixer(x, Layout()), literal(mixer, x), [x, *mixer.parameters()], atol=1e-10)


def inputs(length, *, width=5, gates=1.0):
    """Return queries, unit keys, strengths and decays of two rows of two heads."""
    shape = 2, 2, length
    q, k = drawn(*shape, width), F.normalize(drawn(*shape, width, seed=1), dim=-1)
    beta = drawn(*shape, seed=2).sigmoid()
    g = -gates * drawn(*shape, seed=3).square()
    return [each.requires_grad_() for each in (q, k, beta, g)]


def test_steps_that_find_nothing_more_change_nothing():
    given = inputs(21)
    few, many = (decayed_solve(*given, steps=steps, chunk=8)[0] for steps in (6, 60))
    compare(many, few, given, atol=1e-11)


def test_a_state_is_carried_with_its_gradients():
    given, root = inputs(21), drawn(2, 2, 5, 5, seed=4).requires_grad_()
    state = root @ root.mT  # of a symmetric matrix alone a gradient has one meaning
    whole, last = decayed_solve(*given, state=state, chunk=8)
    parts, now = [], state
    for cut in (slice(0, 3), slice(3, 4), slice(4, 21)):
        o, now = decayed_solve(*(each[:, :, cut] for each in given), state=now, chunk=8)
        parts.append(o)
    found = joined(torch.cat(parts, 2), now)
    wanted = joined(whole, last)
    compare(found, wanted, [*given, root], atol=1e-11)
    q, k, beta, g = given
    matrix = torch.zeros_like(state) + state
    rows = []
    for t in range(21):
        outer = k[:, :, t, :, None] * k[:, :, t, None]
        matrix = g[:, :, t, None, None].exp() * matrix + beta[:, :, t, None, None] * outer
        rows.append(torch.linalg.solve(torch.eye(5).double() + matrix, q[:, :, t]))
    literal = joined(torch.stack(rows, 2), matrix)
    compare(wanted, literal, [*given, root], atol=1e-10)


@pytest.mark.parametrize("strength", [40.0, 800.0])
def test_strong_gates_leave_float32_near_float64(strength):
    given = inputs(150, gates=1e-3)
    g = given[3].detach().clone()
    g[:, :, ::7] = -strength
    given[3] = g.requires_grad_()
    wide = decayed_solve(*given, chunk=32)[0]
    narrow = decayed_solve(*(each.float() for each in given), chunk=32)[0]
    assert (narrow - wide).abs().max() < 2e-5 * wide.abs().max()


def test_few_steps_stop_short_as_theory_bounds():
    """Errors in the matrix's own norm, of bounded condition; a step less is no better."""
    given = inputs(64, width=16, gates=1e-3)
    exact = decayed_solve(*given, steps=16, chunk=16)[0]
    errors = []
    for steps in (1, 2, 4, 8):
        errors.append((decayed_solve(*given, steps=steps, chunk=16)[0] - exact).norm())
    assert errors[0] > errors[1] > errors[2] > errors[3] > 1e-9 * exact.norm()


def test_all_that_was_seen_under_orthogonal_keys_is_read_exactly():
    """Without decay, beta 1 and a vanishing ridge, a key returns the mean of its values."""
    k = torch.eye(5).double().repeat(2, 1)[None, None]
    v, ridge = drawn(1, 1, 10, 5), torch.full((1, 5), 1e-9).double()
    beta, g = torch.ones(1, 1, 10).double(), torch.zeros(1, 1, 10).double()
    o, _ = least_squares(k, k, v, beta, g, ridge=ridge)
    wanted = (v[:, :, :5] + v[:, :, 5:]) / 2
    torch.testing.assert_close(o[:, :, 5:], wanted, atol=1e-6, rtol=0)


def test_small_gradients_are_not_lost_in_float32():
    """Their squares are below the least number of float32."""
    given = [each.detach().float().requires_grad_() for each in inputs(21)]
    o, _ = decayed_solve(*given)
    plain = torch.autograd.grad(o.sum(), given, retain_graph=True)
    small = torch.autograd.grad(o.sum() * 1e-25, given)
    for one, other in zip(small, plain, strict=True):
        torch.testing.assert_close(one * 1e25, other, atol=1e-5, rtol=1e-5)


def test_steps_keep_nothing_for_backward():
    def kept(steps):
        with pretending():
            site = Site(width=32, heads=2, max_length=512, causal=True)
            mixer, x = MesaNet(site, steps=steps), torch.randn(1, 512, 32, requires_grad=True)
            return saved_bytes(lambda: mixer(x, Layout()), mixer.parameters())

    assert kept(2) == kept(40)


def test_lambda_begins_at_one():
    torch.testing.assert_close(F.softplus(built(moved=0.0).ridge) + 0.25, torch.ones(3, 4).double())
