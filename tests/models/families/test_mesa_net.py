"""MesaNet token by token, its systems solved by elimination."""

import pytest
import torch
from torch.nn import functional as F

from lra.models.families.mesa_net import least_squares
from lra.models.ops.gated.decayed_solve import decayed_solve
from tests.attention import compare, drawn


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
