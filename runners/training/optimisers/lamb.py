"""LAMB: Adam's step with weight decay, scaled to the norm of each parameter.

    m = beta1 m + (1 - beta1) g;    v = beta2 v + (1 - beta2) g g
    r = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + decay w
    w = w - rate |w| / |r| r

Source: You et al. 2020, arXiv:1904.00962, algorithm 2 with phi(z) = z, as in its experiments. If
one of the two norms is 0, their ratio counts as 1. PyTorch 2.13 has no LAMB.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lra.runners.training.optimisers.moved_weights import moved_groups


class Lamb(torch.optim.Optimizer):
    """LAMB over groups of parameters; the state of a parameter has the names of Adam.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate: the norm of a step, divided by the norm of the parameter.
        betas: Decay of the running means of the gradient and of its square.
        eps: Is added to the root of the second mean.
        weight_decay: Factor of the weight that is added to the step before it is scaled.
    """

    def __init__(
        self,
        params: ParamsT,
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update the weights by their gradients; a closure is not supported."""
        assert closure is None
        for group, weights, gradients, memory in moved_groups(self, _start_memory):
            means = [state["exp_avg"] for state in memory]
            squares = [state["exp_avg_sq"] for state in memory]
            beta1, beta2 = group["betas"]
            torch._foreach_lerp_(means, gradients, 1 - beta1)
            torch._foreach_mul_(squares, beta2)
            torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
            updates = [int(state["step"].add_(1)) for state in memory]
            roots = torch._foreach_div(squares, [1 - beta2**t for t in updates])
            torch._foreach_sqrt_(roots)
            torch._foreach_add_(roots, group["eps"])
            steps = torch._foreach_div(means, [1 - beta1**t for t in updates])
            torch._foreach_div_(steps, roots)
            torch._foreach_add_(steps, weights, alpha=group["weight_decay"])
            sizes = zip(torch._foreach_norm(weights), torch._foreach_norm(steps), strict=True)
            ratios = [torch.where((w > 0) & (r > 0), w / r, 1.0) for w, r in sizes]
            torch._foreach_mul_(steps, ratios)
            torch._foreach_add_(weights, steps, alpha=-group["lr"])


def _start_memory(weight: Tensor) -> dict[str, Any]:
    return {
        "step": torch.zeros(()),  # on the CPU, so that reading it does not wait for a device
        "exp_avg": torch.zeros_like(weight),
        "exp_avg_sq": torch.zeros_like(weight),
    }
