"""What a module says of its parameters to whatever optimises them."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from torch import nn


class Tuning(NamedTuple):
    """How one parameter departs from the run's optimiser settings."""

    learning_rate_scale: float = 1.0
    weight_decay: float | None = None
    clip: float | None = None
    matrix: bool = True
    """Whether it maps vectors, and so decays under `decayed_weights=matrices` where it has two
    dimensions or more. What is looked up by token, slot, position or distance, is added as biases
    are or multiplies as gains do, is none."""


@runtime_checkable
class Tuned(Protocol):
    """A module with parameters of special treatment."""

    def tuning(self) -> Mapping[str, Tuning]:
        """Return the special treatment by local parameter name."""
        ...


def no_matrices(module: nn.Module, *names: str) -> dict[str, Tuning]:
    """Return the tuning of the parameters of these names, as far as they are there: no matrices."""
    parameters = dict(module.named_parameters())
    return {name: Tuning(matrix=False) for name in names if name in parameters}
