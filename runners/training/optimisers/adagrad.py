"""Adagrad whose rate falls, tensor by tensor, where a gradient is large.

    s = s + g^2;    w = w - rate min(1, c / |g|) g / (sqrt(s) + epsilon)

with |g| the norm of one tensor's gradient and c the limit. The sum takes gradients as they are, so
that this is not Adagrad on clipped gradients. g holds L2 decay.

Source: the code published with Sukhbaatar et al. 2019, arXiv:1905.07799.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lra.runners.training.optimisers.moved_weights import moved_groups


class ClippedAdagrad(torch.optim.Optimizer):
    """Adagrad over groups of parameters; what it keeps of each is as in PyTorch's.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        limit: Norm of a tensor's gradient beyond which its rate falls.
        epsilon: Added to the root.
        initial: Where the sum of squares begins.
        weight_decay: Times the weight, a part of the gradient.
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
        """Take one step; there is no closure to call."""
        assert closure is None
        for group, weights, gradients, memory in moved_groups(self, self._memory):
            decay = group["weight_decay"]
            whole = torch._foreach_add(gradients, weights, alpha=decay) if decay else gradients
            sums = [state["sum"] for state in memory]
            torch._foreach_addcmul_(sums, whole, whole)
            roots = torch._foreach_sqrt(sums)
            torch._foreach_add_(roots, self.epsilon)
            steps = torch._foreach_div(whole, roots)
            norms = torch._foreach_norm(whole)
            torch._foreach_add_(norms, 1e-10)
            shares = [(self.limit / norm).clamp(max=1.0) for norm in norms]
            torch._foreach_mul_(steps, shares)
            torch._foreach_add_(weights, steps, alpha=-group["lr"])
            for state in memory:
                state["step"] += 1

    def _memory(self, weight: Tensor) -> dict[str, Any]:
        return {"step": torch.zeros(()), "sum": torch.full_like(weight, self.initial)}
