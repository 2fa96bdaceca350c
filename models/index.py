"""What a mixer offers whose queries read what a small index chooses."""

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from lra.models.mixer import Layout


@runtime_checkable
class TrainsAlone(Protocol):
    """A mixer that computes something else while a stage of the training trains one part alone."""

    alone: str
    """Name of the part that is trained alone; "": all parameters are trained."""


@runtime_checkable
class Recalls(Protocol):
    """A mixer whose queries read what an index chooses."""

    def recalled(self, x: Float[Tensor, "b l d"], layout: Layout) -> Any:
        """Return shares of exact attention, as `lra.models.ops.sparse.index_recall.Recall`."""
        ...
