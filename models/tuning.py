"""What a module says of its parameters to whatever optimises them."""

from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

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
class TunedModule(Protocol):
    """A module with parameters of special treatment."""

    def tuning(self) -> Mapping[str, Tuning]:
        """Return the special treatment by local parameter name."""
        ...


class Roles(nn.Module):
    """A module that names those of its parameters, as far as it has them, that are no matrices."""

    no_matrices: ClassVar[tuple[str, ...]] = ()
    undecayed: ClassVar[tuple[str, ...]] = ()
    """Those that never decay, and are no matrices either: what says how fast a memory forgets and
    how strongly it takes in (rates, sizes of steps, biases of its gates), where 0 is one value
    among others, and what the released code excludes besides."""

    def tuning(self) -> Mapping[str, Tuning]:
        """Return the special treatment by local parameter name."""
        special = dict.fromkeys(self.no_matrices, Tuning(matrix=False))
        special |= dict.fromkeys(self.undecayed, Tuning(weight_decay=0.0, matrix=False))
        there = dict(self.named_parameters())
        return {name: tuning for name, tuning in special.items() if name in there}
