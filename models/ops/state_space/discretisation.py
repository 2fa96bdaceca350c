"""How a step of time makes a recurrence of x' = A x + B u with a diagonal A.

zoh       factor = exp(dt A),  gain = (factor - 1) / A          an input that is held
bilinear  factor = (1 + dt A / 2) / (1 - dt A / 2),  gain = dt / (1 - dt A / 2)
x_t = factor x_{t-1} + gain B u_t
"""

from enum import StrEnum, auto

import torch
from jaxtyping import Complex, Float
from torch import Tensor


class Discretisation(StrEnum):
    """How a step of time becomes a factor: a held input, or the trapezoidal rule."""

    zoh = auto()
    bilinear = auto()


def discretise(
    rates: Complex[Tensor, "*s"], step: Float[Tensor, "*#s"], rule: Discretisation
) -> tuple[Complex[Tensor, "*s"], Complex[Tensor, "*s"]]:
    """Return factor and gain of each rate A, for steps dt."""
    change = step * rates
    if rule == Discretisation.zoh:
        # exp(z) - 1 without the difference, which loses what short steps change.
        less = torch.expm1(change)
        return less + 1, less / rates
    below = 1 - change / 2
    return (1 + change / 2) / below, step / below


def check_steps(step_min: float, step_max: float) -> None:
    """Raise ValueError unless 0 < step_min <= step_max."""
    if not 0 < step_min <= step_max:
        raise ValueError(
            f"steps must be positive, and step_min at most step_max: got step_min={step_min}, "
            f"step_max={step_max}"
        )
