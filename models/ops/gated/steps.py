"""Initial steps of gates: where the softplus of a bias begins."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

SHORTEST, LONGEST, FLOOR = 0.001, 0.1, 1e-4


def step_biases(
    number: int, shortest: float = SHORTEST, longest: float = LONGEST
) -> Float[Tensor, " n"]:
    """Draw biases whose softplus is log-uniform between two steps, and 1e-4 at least.

    Args:
        number: How many.
        shortest: The shortest step, positive.
        longest: The longest.

    Raises:
        ValueError: They are no steps, or in the wrong order.
    """
    if not 0 < shortest <= longest:
        raise ValueError(
            f"steps must be positive, and step_min at most step_max: got step_min={shortest}, "
            f"step_max={longest}"
        )
    ratio = math.log(longest / shortest)
    steps = (torch.rand(number) * ratio + math.log(shortest)).exp().clamp(min=FLOOR)
    # The inverse of softplus, log(e^s - 1), for small s too.
    return steps + (-torch.expm1(-steps)).log()
