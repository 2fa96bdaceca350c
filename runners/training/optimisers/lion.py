"""Lion: the sign of a running mean of gradients, and decoupled weight decay.

    c = beta1 m + (1 - beta1) g;    w = w - rate (sign(c) + decay w);    m = beta2 m + (1 - beta2) g

Source: Chen et al. 2023, arXiv:2302.06675, algorithm 2. PyTorch 2.13 has no Lion.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lra.runners.training.optimisers.moved_weights import moved_groups


class Lion(torch.optim.Optimizer):
    """Lion over groups of parameters; the state of a parameter is the running mean `exp_avg`.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate: the size of each entry's step.
        betas: Decay of the mean that gives the step (beta1), and of the stored mean m (beta2).
        weight_decay: The rate times this is the fraction that each weight loses in a step.
    """

    def __init__(
        self, params: ParamsT, *, lr: float, betas: tuple[float, float], weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update the weights by their gradients; a closure is not supported."""
        assert closure is None
        for group, weights, gradients, memory in moved_groups(self, _start_memory):
            means = [state["exp_avg"] for state in memory]
            (beta1, beta2), rate = group["betas"], group["lr"]
            torch._foreach_mul_(weights, 1 - rate * group["weight_decay"])
            steps = torch._foreach_lerp(means, gradients, 1 - beta1)
            torch._foreach_sign_(steps)
            torch._foreach_add_(weights, steps, alpha=-rate)
            torch._foreach_lerp_(means, gradients, 1 - beta2)


def _start_memory(weight: Tensor) -> dict[str, Any]:
    return {"exp_avg": torch.zeros_like(weight)}
