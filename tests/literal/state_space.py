"""State spaces as their papers write them: token by token, and power by power."""

import torch
from jaxtyping import Complex, Float, Inexact
from torch import Tensor


def exponential(
    p: Float[Tensor, "*b d s"], q: Float[Tensor, "d s"], length: int
) -> Float[Tensor, "*b d l"]:
    """sum_s p_s q_s^t, one power after the other."""
    power, kernel = torch.ones_like(q), []
    for _ in range(length):
        kernel.append((p * power).sum(-1))
        power = power * q
    return torch.stack(kernel, dim=-1)


def moving_average(
    x: Float[Tensor, "b d l"],
    q: Float[Tensor, "d s"],
    entry: Float[Tensor, "d s"],
    readout: Float[Tensor, "d s"],
) -> Float[Tensor, "b d l"]:
    """h_t = q h_{t-1} + entry x_t,  y_t = sum_s readout_s h_t,s, from h = 0."""
    h, outputs = torch.zeros_like(x[:, :, :1] * q), []
    for t in range(x.shape[-1]):
        h = q * h + entry * x[:, :, t, None]
        outputs.append((readout * h).sum(-1))
    return torch.stack(outputs, dim=-1)


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


def low_rank(
    u: Float[Tensor, "b l"],
    vectors: Complex[Tensor, "4 p"],
    step: Float[Tensor, ""],
) -> Float[Tensor, "b l"]:
    """A = Lambda - P P* with both of each pair, discretised by solving; one channel, from x = 0.

    Args:
        u: Inputs.
        vectors: Lambda, P, B and C.
        step: dt.
    """
    rates, p, b, c = torch.cat((vectors, vectors.conj()), dim=1)
    a, one = torch.diag(rates) - torch.outer(p, p.conj()), torch.eye(len(p), dtype=p.dtype)
    forward, backward = one + step / 2 * a, one - step / 2 * a
    transition, driven = (torch.linalg.solve(backward, x) for x in (forward, step * b))
    x, outputs = p.new_zeros(u.shape[0], len(p)), []
    for t in range(u.shape[1]):
        x = x @ transition.T + u[:, t, None] * driven
        outputs.append((x @ c).real)
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
