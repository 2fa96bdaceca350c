"""Discretisation of x' = A x + B u with a diagonal A: a recurrence for steps of time dt.

zoh       factor = exp(dt A),  gain = (factor - 1) / A          a constant input within a step
bilinear  factor = (1 + dt A / 2) / (1 - dt A / 2),  gain = dt / (1 - dt A / 2)
x_t = factor x_{t-1} + gain B u_t
"""

from enum import StrEnum, auto

import torch
from jaxtyping import Complex, Float
from torch import Tensor


class Discretisation(StrEnum):
    """Rule of discretisation: a constant input within a step, or the trapezoidal rule."""

    zoh = auto()
    bilinear = auto()


def discretise(
    rates: Complex[Tensor, "*s"], step: Float[Tensor, "*#s"], rule: Discretisation
) -> tuple[Complex[Tensor, "*s"], Complex[Tensor, "*s"]]:
    """Return factor and gain of x_t = factor x_(t-1) + gain B u_t, for rates A and steps dt.

    With zoh, factor = exp(dt A); with bilinear, factor = (1 + dt A / 2) / (1 - dt A / 2).
    """
    change = step * rates
    if rule == Discretisation.zoh:
        # expm1 is accurate for short steps, unlike exp(change) - 1.
        factor_minus_1 = torch.expm1(change)
        return factor_minus_1 + 1, factor_minus_1 / rates
    denominator = 1 - change / 2
    return (1 + change / 2) / denominator, step / denominator


def check_steps(step_min: float, step_max: float) -> None:
    """Raise ValueError unless 0 < step_min <= step_max."""
    if not 0 < step_min <= step_max:
        raise ValueError(
            f"steps must be positive, and step_min at most step_max: got step_min={step_min}, "
            f"step_max={step_max}"
        )
