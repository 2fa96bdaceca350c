"""Based's linear attention against its paper, written out."""

import torch

from lra.models.families.based import Based, TaylorFeatures
from tests.attention import builder, drawn

LENGTH, WIDTH, HEADS = 21, 12, 3


def built(*, causal=True, **options) -> Based:
    """Return a mixer, in chunks of 8 where it looks back alone."""
    chunk = {"chunk": 8} if causal else {}
    usual = builder(Based, feature_width=6, bias=True, moved=0.3, **chunk)
    return usual(causal=causal, **options)


def test_products_of_features_are_the_polynomial():
    x, y = drawn(5, 16), drawn(7, 16, seed=1)
    (phi_x, _), (phi_y, _) = TaylorFeatures()(x), TaylorFeatures()(y)
    assert phi_x.shape == (5, 153)
    s = x @ y.T / 4
    torch.testing.assert_close(phi_x @ phi_y.T, 1 + s + s**2 / 2, atol=1e-12, rtol=0)


def test_features_pull_gradients_as_autograd_does():
    x = drawn(2, 3, 5).requires_grad_()
    first, second = torch.triu_indices(5, 5)
    scale = torch.tensor(
        [(10 if a == b else 5) ** -0.5 for a, b in zip(first, second, strict=True)], dtype=x.dtype
    )
    parts = torch.ones(2, 3, 1), x * 5**-0.25, x[..., first] * x[..., second] * scale
    phi, given = torch.cat(parts, -1), drawn(2, 3, 21, seed=2)
    (wanted,) = torch.autograd.grad(phi, x, given)
    seen = TaylorFeatures().pull(given.clone(), phi.detach(), x.detach())
    torch.testing.assert_close(seen, wanted, atol=1e-12, rtol=0)
