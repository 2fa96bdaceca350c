"""Adagrad that lowers the learning rate of a tensor with a large gradient.

    s = s + g^2;    w = w - rate min(1, c / |g|) g / (sqrt(s) + epsilon)

g is the gradient of one tensor plus L2 decay, |g| its norm and c the limit. The sum s has unclipped
gradients, so this differs from Adagrad on clipped gradients.

Source: the code published with Sukhbaatar et al. 2019, arXiv:1905.07799.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lra.runners.training.optimisers.moved_weights import moved_groups


class ClippedAdagrad(torch.optim.Optimizer):
    """Adagrad over groups of parameters; the state of a parameter is as in PyTorch's Adagrad.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        limit: The rate falls if the norm of a tensor's gradient is larger than this.
        epsilon: Is added to the root.
        initial: First value of the sum of squares.
        weight_decay: Factor of the weight that is added to the gradient.
    """

    def __init__(
        self,
        params: ParamsT,
        *,
        lr: float,
        limit: float,
        epsilon: float,
        initial: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.limit, self.epsilon, self.initial = limit, epsilon, initial

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update the weights by their gradients; a closure is not supported."""
        assert closure is None
        for group, weights, gradients, memory in moved_groups(self, self._memory):
            decay = group["weight_decay"]
            decayed = torch._foreach_add(gradients, weights, alpha=decay) if decay else gradients
            sums = [state["sum"] for state in memory]
            torch._foreach_addcmul_(sums, decayed, decayed)
            roots = torch._foreach_sqrt(sums)
            torch._foreach_add_(roots, self.epsilon)
            steps = torch._foreach_div(decayed, roots)
            norms = torch._foreach_norm(decayed)
            torch._foreach_add_(norms, 1e-10)  # a norm may be 0
            factors = [(self.limit / norm).clamp(max=1.0) for norm in norms]
            torch._foreach_mul_(steps, factors)
            torch._foreach_add_(weights, steps, alpha=-group["lr"])
            for state in memory:
                state["step"] += 1

    def _memory(self, weight: Tensor) -> dict[str, Any]:
        return {"step": torch.zeros(()), "sum": torch.full_like(weight, self.initial)}
