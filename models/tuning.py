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
    """Whether the parameter is a matrix that maps vectors: under `decayed_weights=matrices`, weight
    decay applies to it if it has two dimensions or more. False for tables that are looked up by
    token, slot, position or distance, and for biases and gains."""


@runtime_checkable
class TunedModule(Protocol):
    """A module with parameters that the optimiser treats differently from the others."""

    def tuning(self) -> Mapping[str, Tuning]:
        """Return the different settings by local parameter name."""
        ...


@runtime_checkable
class TrainsAlone(Protocol):
    """A mixer that computes something else while a stage of the training trains one part alone."""

    alone: str
    """Name of the part that is trained alone; "": all parameters are trained."""


class Roles(nn.Module):
    """A module that lists its parameters without weight decay; a listed name may be absent."""

    no_matrices: ClassVar[tuple[str, ...]] = ()
    """Names of parameters that are no matrices: see `Tuning.matrix`."""
    undecayed: ClassVar[tuple[str, ...]] = ()
    """Names of parameters that never decay, and are no matrices. They decide how fast a memory
    forgets or how strongly it is written (rates, step sizes, biases of gates), so pulling them to 0
    would change the model; or the released code excludes them from decay."""

    def tuning(self) -> Mapping[str, Tuning]:
        """Return settings for the parameters in `no_matrices` and `undecayed` that exist."""
        special = dict.fromkeys(self.no_matrices, Tuning(matrix=False))
        special |= dict.fromkeys(self.undecayed, Tuning(weight_decay=0.0, matrix=False))
        parameters = dict(self.named_parameters())
        return {name: tuning for name, tuning in special.items() if name in parameters}
