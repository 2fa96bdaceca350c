"""An average of the weights, stored in addition to the trained weights.

An exponential moving average starts with the weights after the first update. Buffers are not
averaged; the current ones are used. The average equals `torch.optim.swa_utils.AveragedModel` with
`get_ema_multi_avg_fn`, but needs no copy of the module. The decay may warm up as in TensorFlow's
ExponentialMovingAverage.

A uniform average starts when validation stops improving: non-monotonically triggered averaged SGD
(NT-ASGD, Merity et al. 2017, arXiv:1708.02182, algorithm 1), as in the code of AWD-LSTM.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lra.runners.training.parallel.shards import local_part


class WeightAverage:
    """The average of a model's trainable parameters.

    Args:
        model: The model, which has the parameters.
        decay: Factor of the old average in an update.
        warmup: Whether the factor in update t, counted from 0, is min(decay, (1 + t) / (10 + t)).
    """

    taken = 0
    """Number of updates in the average; several batches may make one update."""

    def __init__(self, model: nn.Module, decay: float, *, warmup: bool) -> None:
        self.weights: dict[str, Tensor] = {
            n: p for n, p in model.named_parameters() if p.requires_grad
        }
        self.decay, self.warmup = decay, warmup
        self.averages = {name: weight.detach().clone() for name, weight in self.weights.items()}

    @property
    def begun(self) -> bool:
        """Return whether the average is evaluated instead of the trained weights."""
        return True

    def decay_now(self) -> float:
        """Return the factor of the old average in the next update."""
        t = self.taken
        return min(self.decay, (1 + t) / (10 + t)) if self.warmup else self.decay

    @torch.no_grad()
    def update(self) -> None:
        """Add the model's weights to the average; call this after each update."""
        weights = [local_part(weight) for weight in self.weights.values()]
        averages = [local_part(average) for average in self.averages.values()]
        if self.taken:
            torch._foreach_lerp_(averages, weights, 1 - self.decay_now())
        else:
            torch._foreach_copy_(averages, weights)
        self.taken += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the averaged weights in the `with` block, then the trained ones again."""
        trained = [weight.detach().clone() for weight in self.weights.values()]
        self.settle()
        try:
            yield
        finally:
            _copy(trained, self.weights)

    def settle(self) -> None:
        """Copy the average into the weights of the model."""
        _copy(list(self.averages.values()), self.weights)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, except the average itself (`averages`)."""
        return {"taken": self.taken}

    def restore(self, averages: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Continue from the average of an earlier process and from what `state` returned there."""
        _copy([averages[name] for name in self.averages], self.averages)
        self.taken = state["taken"]


class TriggeredAverage(WeightAverage):
    """The mean of all weights since validation stopped improving.

    Args:
        model: The model, which has the parameters.
        patience: The mean starts when a validation score is worse than the best score of all
            validations except the last `patience` ones.
    """

    def __init__(self, model: nn.Module, patience: int) -> None:
        super().__init__(model, 0.0, warmup=False)  # `decay_now` does not use this decay
        self.patience = patience
        self.scores: list[float] = []
        self.taken = -1  # until `see` starts the mean

    @property
    def begun(self) -> bool:
        """Return whether the mean has weights, so that it is evaluated instead of the last ones."""
        return self.taken > 0

    def see(self, score: float) -> None:
        """Record the score of a validation; higher is better."""
        if self.taken < 0 and score < max(self.scores[: -self.patience], default=score):
            self.taken = 0
        self.scores.append(score)

    def decay_now(self) -> float:
        """Return the factor of the old mean in the next mean."""
        return self.taken / (self.taken + 1)

    def update(self) -> None:
        """Add the weights after an update, once the mean has started."""
        if self.taken >= 0:
            super().update()

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, except the mean itself (`averages`)."""
        return super().state() | {"scores": list(self.scores)}

    def restore(self, averages: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Continue from the mean of an earlier process and from what `state` returned there."""
        super().restore(averages, state)
        self.scores = list(state["scores"])


@torch.no_grad()
def _copy(values: list[Tensor], to: Mapping[str, Tensor]) -> None:
    for value, target in zip(values, to.values(), strict=True):
        target.copy_(value)
