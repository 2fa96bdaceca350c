"""Gradients of log decays in float32 against float64, from decays that keep all to those of e^-20.

What a strong decay still lets through is small, and so is its gradient: sums that cancel drown it.
"""

import pytest
import torch
from torch.nn import functional as F

from lra.models.families.forgetting import fading_attention
from lra.models.ops.gated.decayed_product import decayed_product
from lra.models.ops.gated.decayed_solve import decayed_solve
from lra.models.ops.gated.delta_product import delta_product
from lra.models.ops.gated.exponential_product import exponential_product
from lra.models.ops.gated.log_linear import log_linear_product
from lra.models.ops.recurrent.linear_recurrence import linear_recurrence
from tests.attention import drawn

LENGTH, WIDTH = 90, 8
SHAPE = (1, 2, LENGTH)
Q, K, V, U = (drawn(*SHAPE, WIDTH, seed=seed) for seed in range(4))
KEY = F.normalize(K, dim=-1)
BETA, ENTER = drawn(*SHAPE, seed=4).sigmoid(), drawn(*SHAPE, seed=5)
WRITE, LEVELS = BETA[..., None] * KEY, drawn(*SHAPE, 8, seed=6).sigmoid()
STATE = drawn(1, 2, WIDTH, WIDTH, seed=7)


FORMS = {
    "plain": (lambda *x: decayed_product(*x[:4], state=x[4])[0], (Q, K, V)),
    "delta": (lambda *x: delta_product(*x[:5], state=x[5])[0], (Q, KEY, WRITE, V)),
    "added": (lambda q, k, w, u, *x: delta_product(q, k, w, *x[:2], u=u, state=x[2])[0],
              (Q, KEY, WRITE, U, V)),
    "solved": (lambda *x: decayed_solve(*x[:4], steps=WIDTH)[0], (Q, KEY, BETA)),
    "exponential": (lambda q, k, v, i, g, _: exponential_product(q, k, v, g, i)[0],
                    (Q, K, V, ENTER)),
    "levels": (lambda q, k, v, n, g, _: log_linear_product(q, k, v, g, n), (Q, K, V, LEVELS)),
    "levels of a delta rule": (
        lambda q, k, v, n, w, g, _: log_linear_product(q, k, v, g, n, w=w),
        (Q, KEY, V, LEVELS, WRITE),
    ),
    "attention": (lambda *x: fading_attention(*x[:4], causal=True), (Q, K, V)),
    "attention both ways": (lambda *x: fading_attention(*x[:4], causal=False), (Q, K, V)),
    "elementwise": (lambda b, g, _: linear_recurrence(g[0].exp(), b, torch.zeros_like(b[:, 0])),
                    (V[0],)),
}  # fmt: skip
BY_CHANNEL = ("plain", "delta", "added", "elementwise")
"""Forms whose gates may be vectors; the last has no others."""
CASES = [(form, False) for form in FORMS if form != "elementwise"]
CASES += [(form, True) for form in BY_CHANNEL]


@pytest.mark.parametrize("log_decay", [0.0, -8.0, -14.0, -20.0])
@pytest.mark.parametrize("rest", [None, -0.05], ids=["always", "at some tokens"])
@pytest.mark.parametrize(("form", "vector"), CASES)
def test_gradients_of_strong_decays_are_as_precise_as_of_weak_ones(
    form, vector, rest, log_decay, monkeypatch
):
    monkeypatch.setattr("lra.models.ops.linear.features.CPU_BLOCK", 1)  # several blocks, too
    monkeypatch.setattr("lra.models.ops.linear.features.MINIMUM_ROWS", 64)
    product, inputs = FORMS[form]
    strong = slice(None) if rest is None else slice(3, None, 5)
    g = torch.full((*SHAPE, WIDTH) if vector else SHAPE, log_decay if rest is None else rest)
    g[:, :, strong] = log_decay
    found = []
    for dtype in (torch.float32, torch.float64):
        *given, state = (x.to(dtype) for x in (*inputs, g, STATE))
        gates = given[-1].requires_grad_()
        o = product(*given, state)
        (gradient,) = torch.autograd.grad(o, gates, drawn(*o.shape, seed=9).to(dtype))
        found.append(gradient[:, :, strong][:, :, int(rest is None) :].double())
    narrow, wide = found
    assert (narrow - wide).norm() < 1e-5 * wide.norm()
