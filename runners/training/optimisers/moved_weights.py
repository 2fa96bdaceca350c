"""Shared by the optimisers of lra: groups of weights that have gradients, and their state."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor


class MovedWeights(NamedTuple):
    """Weights of one group that have gradients."""

    options: dict[str, Any]
    """Options of the group, such as the learning rate."""
    weights: list[Tensor]
    gradients: list[Tensor]
    memory: list[dict[str, Any]]
    """The optimiser's state of each weight, by name."""


def moved_groups(
    optimiser: torch.optim.Optimizer, begin: Callable[[Tensor], dict[str, Any]]
) -> Iterator[MovedWeights]:
    """Yield each group with gradients and its states; `begin` makes the first state of a weight."""
    for group in optimiser.param_groups:
        weights = [p for p in group["params"] if p.grad is not None]
        for weight in weights:
            if not optimiser.state[weight]:
                optimiser.state[weight] = begin(weight)
        if weights:
            memory = [optimiser.state[p] for p in weights]
            yield MovedWeights(group, weights, [p.grad for p in weights], memory)
