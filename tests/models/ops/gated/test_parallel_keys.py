"""Delta rules whose keys are nearly parallel: the regime that breaks fast inverses of a triangle.

Keys are one direction and some noise, beta is .9 to 1 and decays are e^-.01, as in trained models.
The inverse of the chunk's triangle is small then, and powers of the triangle are huge.
"""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lra.models.ops.gated.delta_product import delta_product
from tests.attention import drawn
from tests.literal import gated

CHUNKS = pytest.mark.parametrize("chunk", [16, 32, 64, 128])
WIDTH, LENGTH = 32, 128


def parallel_keys(noise: float, *, vector: bool, most: float = 1.0) -> list[Tensor]:
    """Return q, k, w, v, g and a state of 2 rows and heads; beta is 0.9 to 1, times `most`."""
    shape = 2, 2, LENGTH
    direction = F.normalize(drawn(2, 2, 1, WIDTH, seed=1), dim=-1)
    k = F.normalize(direction + noise * WIDTH**-0.5 * drawn(*shape, WIDTH, seed=2), dim=-1)
    beta = most * (0.9 + 0.1 * drawn(*shape, 1, seed=3).sigmoid())
    q, v = F.normalize(drawn(*shape, WIDTH), dim=-1), drawn(*shape, WIDTH, seed=4)
    g = torch.full((*shape, WIDTH) if vector else shape, -0.01).double()
    return [q, k, beta * k, v, g, drawn(2, 2, WIDTH, WIDTH, seed=5)]


def error(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> float:
    """Return the largest difference of outputs and states, relative to the largest number."""
    pairs = zip(found, wanted, strict=True)
    return max(float((one - other).abs().max() / other.abs().max()) for one, other in pairs)


@CHUNKS
@pytest.mark.parametrize("vector", [False, True], ids=["scalar", "vector"])
@pytest.mark.parametrize("noise", [0.05, 0.01, 0.0])
@pytest.mark.parametrize(("most", "bound"), [(1.0, 2e-6), (2.0, 2e-5)])
def test_nearly_parallel_keys_leave_float32_exact(noise, vector, chunk, most, bound):
    *given, state = parallel_keys(noise, vector=vector, most=most)
    wanted = gated.delta_product(*given, state=state)
    exact = delta_product(*given, state=state, chunk=chunk)
    assert error(exact, wanted) < 1e-12
    narrow = delta_product(*(x.float() for x in given), state=state.float(), chunk=chunk)
    assert error(narrow, wanted) < bound


@CHUNKS
@pytest.mark.parametrize("vector", [False, True], ids=["scalar", "vector"])
def test_gradients_are_exact_there_too(vector, chunk):
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [x.to(dtype).requires_grad_() for x in parallel_keys(0.05, vector=vector)]
        o, last = delta_product(*leaves[:-1], state=leaves[-1], chunk=chunk)
        results.append(torch.autograd.grad((o.square().sum(), last.square().sum()), leaves))
    assert error(*results) < 2e-5


def test_the_inverse_by_repeated_squaring_would_fail_here():
    """The inverse of 1 + P as (1 - P) (1 + P^2) (1 + P^4) ..., in exact arithmetic the same."""
    _, k, w, _, g, _ = (x[0, 0] for x in parallel_keys(0.05, vector=False))
    decays = torch.exp(g.cumsum(0)[:, None] - g.cumsum(0)).tril()
    errors = []
    for tokens in (16, 32, 64):
        one = torch.eye(tokens)
        power = -((k @ w.T) * decays).tril(-1)[:tokens, :tokens].float()
        wanted = torch.linalg.inv((one - power).double())
        inverse = one + power
        for _ in range(tokens.bit_length() - 2):
            power = power @ power
            inverse = inverse + inverse @ power
        errors.append(float((inverse - wanted).abs().max()))
    assert errors[0] < 1e-2
    assert errors[1] > 1
    assert errors[2] > 1e6
