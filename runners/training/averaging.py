"""An exponential moving average of the weights, beside the weights that are trained.

It begins as the weights after the first update; buffers have no average, the model's own hold.
That is `torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn`, without a copy of the
module. The decay may warm up as in TensorFlow's ExponentialMovingAverage.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """The average of a model's trainable parameters.

    Args:
        model: Whose parameters.
        decay: What stays of the average in an update.
        warmup: Whether update t, the first being 0, has min(decay, (1 + t) / (10 + t)).
    """

    def __init__(self, model: nn.Module, decay: float, *, warmup: bool) -> None:
        self.weights: dict[str, Tensor] = {
            n: p for n, p in model.named_parameters() if p.requires_grad
        }
        self.decay, self.warmup = decay, warmup
        self.averages = {name: weight.detach().clone() for name, weight in self.weights.items()}

    @torch.no_grad()
    def update(self, updates: int) -> None:
        """Take the weights after an update in.

        Args:
            updates: Taken in before.
        """
        decay = min(self.decay, (1 + updates) / (10 + updates)) if self.warmup else self.decay
        weights, averages = list(self.weights.values()), list(self.averages.values())
        if updates:
            torch._foreach_lerp_(averages, weights, 1 - decay)
        else:
            torch._foreach_copy_(averages, weights)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the average for a while; then it has its weights again, to the bit."""
        trained = [weight.detach().clone() for weight in self.weights.values()]
        self.settle()
        try:
            yield
        finally:
            _copy(trained, self.weights)

    def settle(self) -> None:
        """Give the model the average for good."""
        _copy(list(self.averages.values()), self.weights)

    def restore(self, averages: Mapping[str, Tensor]) -> None:
        """Go on from an average of an earlier process."""
        _copy([averages[name] for name in self.averages], self.averages)


@torch.no_grad()
def _copy(values: list[Tensor], to: Mapping[str, Tensor]) -> None:
    for value, target in zip(values, to.values(), strict=True):
        target.copy_(value)
