"""Base of runners that measure a trained model: that of the run's training, or a named one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from lra.models.backbone.model import Backbone
from lra.models.transfer.files import checkpoint_name, is_checkpoint
from lra.runners.records import Measurement
from lra.runners.runner import OWN, Runner, Work
from lra.runners.training.initial import start_weights


@dataclass(frozen=True, kw_only=True)
class TrainedRunner(Runner):
    """Base of runners whose model comes with trained weights."""

    incidental: ClassVar[frozenset[str]] = frozenset({"weights"})
    # The key of what it names stands in the identity.

    files: ClassVar[tuple[str, ...]] = ("weights",)

    weights: str | None = None
    """Key or folder of a finished training, or a checkpoint of the run's model (.safetensors, or
    the index of several); None: the run's model, trained first."""

    @property
    def stored_weights(self) -> str | None:
        """Key or folder of a finished training whose weights a run starts from."""
        return None if is_checkpoint(self.weights) else self.weights

    @property
    def started_from(self) -> str | None:
        """The name of a checkpoint, for tables."""
        return checkpoint_name(self.weights)

    def starts_from(self) -> list[str]:
        """Return the training that must exist: that of the run's model, unless one is named."""
        return [OWN] if self.weights is None else []

    def model_of(self, work: Work) -> tuple[Backbone, Iterator[Measurement]]:
        """Return the model with its weights, and rows about their source.

        Raises:
            Unsupported: Weights of the named training, or checkpoint, have no place in the model.
        """
        if self.weights is None:
            return work.trained(), iter(())
        model = work.build()
        return model, start_weights(model, self.weights, work.stored)
