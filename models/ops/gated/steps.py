"""Initial steps of gates: where the softplus of a bias begins."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

SHORTEST, LONGEST, FLOOR = 0.001, 0.1, 1e-4


def step_biases(
    number: int, shortest: float = SHORTEST, longest: float = LONGEST
) -> Float[Tensor, " n"]:
    """Return random biases: their softplus, the step, is log-uniform and at least 1e-4.

    Args:
        number: Number of biases.
        shortest: The shortest step, above 0.
        longest: The longest step.

    Raises:
        ValueError: `shortest` is not above 0, or above `longest`.
    """
    if not 0 < shortest <= longest:
        raise ValueError(
            f"steps must be positive, and step_min at most step_max: got step_min={shortest}, "
            f"step_max={longest}"
        )
    ratio = math.log(longest / shortest)
    steps = (torch.rand(number) * ratio + math.log(shortest)).exp().clamp(min=FLOOR)
    # The inverse of softplus, log(e^s - 1), in a form that is accurate for small s.
    return steps + (-torch.expm1(-steps)).log()
