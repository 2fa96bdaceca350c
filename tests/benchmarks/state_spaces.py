"""Kernels of state spaces beside the tables that they stand for; convolutions beside bare FFTs.

    PYTHONPATH=. python tests/benchmarks/state_spaces.py --json ROWS

One training step (forward, backward) on one thread: 2 rows of 4,096 tokens, width 128, 64 states.
The layer of S4D, and its kernel alone, stand beside the same with the table of all powers in place
of two factors; the kernel of S4 beside the Cauchy products of its paper (and squares of its matrix,
which these need too), both of whose tables are kept; the convolution beside the two transforms and
the product that it is, without gradients' sums; the scan of 64 complex states beside a loop that
cuts tokens by their number, as public ones do. Samples are interleaved, in CPU time of the process;
ratios are time of the other form by time of ours.
"""

import math
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor

from lra.models.families.s4 import S4
from lra.models.mixer import Layout, Site
from lra.models.ops.convolution.long import fast_points, long_convolution
from lra.models.ops.recurrent.linear_recurrence import linear_recurrence
from lra.models.ops.state_space import low_rank
from lra.models.ops.state_space.kernels import vandermonde
from tests.benchmarks.frame import Forms, compare, trained

ROWS, WIDTH, STATES = 2, 128, 64
TWO_FACTORS = "lra.models.ops.state_space.dynamics.vandermonde"


def table(c: Tensor, factor: Tensor, length: int) -> Tensor:
    """Return what `vandermonde` does, by all powers of each eigenvalue."""
    powers = torch.exp(factor.log().unsqueeze(-1) * torch.arange(length))
    return 2 * torch.einsum("...dp,dpl->...dl", c, powers).real


def cauchy(system: low_rank.LowRank, readout: Tensor, length: int) -> Tensor:
    """Return the kernels of S4 by its paper, in a form that float32 holds at every node."""
    rates, column, entry, step = system
    change, _ = low_rank.bilinear(system)
    moved = start = low_rank.as_readout(readout).transpose(0, 1) / 2
    for bit, power in enumerate(low_rank.squares(change, length)):
        if length >> bit & 1:
            moved = moved + moved @ power
    c = low_rank.as_pairs(start - moved).conj()
    angle = torch.arange(length // 2 + 1) * (math.pi / length)
    cosine, sine, scaled = angle.cos(), angle.sin(), step[:, None] * rates
    seen = torch.stack((entry, column), dim=1).unsqueeze(1)
    left = torch.cat((c, column.conj().unsqueeze(1)), dim=1).unsqueeze(2)
    weights = (left * seen * step[:, None, None, None]).flatten(1, 2)
    below = torch.complex(
        scaled.abs().square()[..., None] * cosine**2 - 4 * sine**2,
        -4 * scaled.real[..., None] * sine * cosine,
    )
    each = torch.view_as_real(1 / below).flatten(-2)
    parts = torch.cat((weights.real, (weights * scaled.conj().unsqueeze(1)).real), dim=1) @ each
    first, second = torch.view_as_complex(parts.unflatten(-1, (-1, 2)).contiguous()).chunk(2, 1)
    found = (4j * sine * first - 2 * cosine * second).unflatten(1, (-1, 2))
    b, p = found.unbind(2)
    kernel = b[:, :-1] - cosine * p[:, :-1] * b[:, -1:] / (1 + cosine * p[:, -1:])
    kernel = torch.polar(torch.ones_like(angle), angle) * kernel
    return torch.fft.irfft(kernel, length).transpose(0, 1)


def bare(u: Tensor, kernel: Tensor) -> Tensor:
    """Return the convolution as transforms and their product."""
    points = fast_points(2 * u.shape[-1] - 1)
    product = torch.fft.rfft(u, points) * torch.fft.rfft(kernel, points)
    return torch.fft.irfft(product, points)[..., : u.shape[-1]]


def steps(a: Tensor, b: Tensor) -> Tensor:
    """Return every state of a complex recurrence, token by token, cut by its number."""
    state, states = torch.zeros_like(b[:, 0]), []
    for t in range(b.shape[1]):
        state = a * state + b[:, t]
        states.append(state)
    return torch.stack(states, 1)


def scan(a: Tensor, b: Tensor) -> Tensor:
    """Return the same in chunks."""
    return linear_recurrence(a, b, torch.zeros_like(b[:, 0]))


def real(call: Callable[[], Tensor]) -> Tensor:
    """Return what a complex form gives as pairs of numbers, of which a loss is made."""
    return torch.view_as_real(call())


def comparisons(tokens: int) -> dict[str, Forms]:
    """Return what is compared at a number of tokens."""
    site = Site(width=WIDTH, heads=4, max_length=tokens)
    x = torch.randn(ROWS, tokens, WIDTH)
    diagonal, dense = (S4(site, kernel=kernel) for kernel in ("diagonal", "dplr"))
    layer = partial(trained, lambda: diagonal(x, Layout()), [*diagonal.parameters()])

    def plain() -> None:
        with patch(TWO_FACTORS, table):
            layer()

    c = torch.randn(2, WIDTH, STATES // 2, dtype=torch.complex64, requires_grad=True)
    factor = torch.polar(torch.rand(WIDTH, STATES // 2), torch.randn(WIDTH, STATES // 2))
    factor.requires_grad_()
    rates, entry, step = (each.detach() for each in dense.dynamics.continuous(torch.float32))
    column = torch.view_as_complex(dense.dynamics.low_rank.detach())
    given = low_rank.LowRank(rates, column, entry, step)
    of_s4 = [each.clone().requires_grad_() for each in given]
    u = torch.randn(ROWS, WIDTH, tokens, requires_grad=True)
    kernel = torch.randn(WIDTH, tokens, requires_grad=True)

    def made() -> Tensor:
        system = low_rank.LowRank(*of_s4)
        change, driven = low_rank.bilinear(system)
        powers = low_rank.squares(change, tokens)
        return low_rank.responses(low_rank.as_readout(c), powers, driven[None], tokens)[0]

    def products() -> Tensor:
        return cauchy(low_rank.LowRank(*of_s4), c, tokens)

    near = (made() - products()).abs().max() / made().abs().max()
    if near > 1e-4:
        raise ValueError(f"the two kernels of S4 differ by {near:.2g} of the largest")
    decay = torch.polar(torch.rand(STATES), torch.randn(STATES)).requires_grad_()
    driven = torch.randn(ROWS, tokens, STATES, dtype=torch.complex64, requires_grad=True)
    return {
        "layer of S4D, table": (layer, plain),
        "kernel of S4D, table": tuple(
            partial(trained, partial(form, c, factor, tokens), (c, factor))
            for form in (vandermonde, table)
        ),
        "kernel of S4, Cauchy products": tuple(
            partial(trained, form, (*of_s4, c)) for form in (made, products)
        ),
        "long convolution, bare transforms": tuple(
            partial(trained, partial(form, u, kernel), (u, kernel))
            for form in (long_convolution, bare)
        ),
        "complex scan, step loop": tuple(
            partial(trained, partial(real, partial(form, decay, driven)), (decay, driven))
            for form in (scan, steps)
        ),
    }


if __name__ == "__main__":
    compare(__doc__, comparisons)
