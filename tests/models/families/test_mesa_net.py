"""MesaNet's systems in float32."""

import pytest
import torch
from torch.nn import functional as F

from lra.models.ops.gated.decayed_solve import decayed_solve
from tests.attention import drawn


def inputs(length, *, width=5, gates=1.0):
    """Return queries, unit keys, strengths and decays of two rows of two heads."""
    shape = 2, 2, length
    q, k = drawn(*shape, width), F.normalize(drawn(*shape, width, seed=1), dim=-1)
    beta = drawn(*shape, seed=2).sigmoid()
    g = -gates * drawn(*shape, seed=3).square()
    return [each.requires_grad_() for each in (q, k, beta, g)]


@pytest.mark.parametrize("strength", [40.0, 800.0])
def test_strong_gates_leave_float32_near_float64(strength):
    given = inputs(150, gates=1e-3)
    g = given[3].detach().clone()
    g[:, :, ::7] = -strength
    given[3] = g.requires_grad_()
    wide = decayed_solve(*given, chunk=32)[0]
    narrow = decayed_solve(*(each.float() for each in given), chunk=32)[0]
    assert (narrow - wide).abs().max() < 2e-5 * wide.abs().max()


def test_small_gradients_are_not_lost_in_float32():
    """Their squares are below the least number of float32."""
    given = [each.detach().float().requires_grad_() for each in inputs(21)]
    o, _ = decayed_solve(*given)
    plain = torch.autograd.grad(o.sum(), given, retain_graph=True)
    small = torch.autograd.grad(o.sum() * 1e-25, given)
    for one, other in zip(small, plain, strict=True):
        torch.testing.assert_close(one * 1e25, other, atol=1e-5, rtol=1e-5)
