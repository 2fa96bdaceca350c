"""State spaces as their papers write them: token by token, and power by power."""

import torch
from jaxtyping import Float, Inexact
from torch import Tensor


def vandermonde(
    c: Inexact[Tensor, "*b d p"], factor: Inexact[Tensor, "d p"], length: int
) -> Float[Tensor, "*b d l"]:
    """2 Re sum_p c_p lambda_p^t, from the table of all powers."""
    power, kernel = torch.ones_like(factor), []
    for _ in range(length):
        kernel.append(2 * (c * power).sum(-1).real)
        power = power * factor
    return torch.stack(kernel, dim=-1)


def polynomial(
    u: Float[Tensor, "*b d l"], factor: Inexact[Tensor, "d p"]
) -> Inexact[Tensor, "*b d p"]:
    """sum_t u_t lambda_p^t, by Horner's rule."""
    total = torch.zeros_like(u[..., :1] * factor)
    for t in reversed(range(u.shape[-1])):
        total = total * factor + u[..., t, None]
    return total


def diagonal(
    u: Float[Tensor, "b d l"],
    factor: Inexact[Tensor, "d p"],
    entry: Inexact[Tensor, "d p"],
    readout: Inexact[Tensor, "d p"],
) -> Float[Tensor, "b d l"]:
    """x_t = lambda x_{t-1} + B u_t,  y_t = 2 Re sum_p C_p x_t,p, from x = 0."""
    x, outputs = torch.zeros_like(u[:, :, :1] * factor), []
    for t in range(u.shape[-1]):
        x = factor * x + entry * u[:, :, t, None]
        outputs.append(2 * (readout * x).sum(-1).real)
    return torch.stack(outputs, dim=-1)


def dense(
    u: Float[Tensor, "b l"],
    transition: Float[Tensor, "n n"],
    entry: Float[Tensor, " n"],
    readout: Float[Tensor, " n"],
) -> Float[Tensor, "b l"]:
    """x_t = A x_{t-1} + B u_t,  y_t = C x_t of one channel, from x = 0, with A as a matrix."""
    x, outputs = u.new_zeros(u.shape[0], len(entry)), []
    for t in range(u.shape[1]):
        x = x @ transition.T + u[:, t, None] * entry
        outputs.append(x @ readout)
    return torch.stack(outputs, dim=-1)


def legs(states: int) -> tuple[Float[Tensor, "n n"], Float[Tensor, " n"], Float[Tensor, " n"]]:
    """A, B and P of HiPPO-LegS, entry by entry."""
    transition = torch.zeros(states, states, dtype=torch.float64)
    entry, low_rank = (torch.zeros(states, dtype=torch.float64) for _ in range(2))
    for n in range(states):
        entry[n], low_rank[n] = (2 * n + 1) ** 0.5, (n + 0.5) ** 0.5
        for k in range(n):
            transition[n, k] = -(((2 * n + 1) * (2 * k + 1)) ** 0.5)
        transition[n, n] = -(n + 1)
    return transition, entry, low_rank
