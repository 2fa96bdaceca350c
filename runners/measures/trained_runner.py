"""Base of runners that measure a trained model: one that the sweep trains first, or a named one."""

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
    """Base of runners that measure a model with trained weights."""

    incidental: ClassVar[frozenset[str]] = frozenset({"weights"})
    # The identity has the key of the named training instead.

    files: ClassVar[tuple[str, ...]] = ("weights",)

    weights: str | None = None
    """Key or folder of a finished training, or a checkpoint file of the run's model (.safetensors,
    or the index of several files); None: the sweep trains the run's model first."""

    @property
    def stored_weights(self) -> str | None:
        """Return the key or folder of the training that `weights` names; None for a file."""
        return None if is_checkpoint(self.weights) else self.weights

    @property
    def started_from(self) -> str | None:
        """Return the name of the checkpoint file for tables; None if `weights` names no file."""
        return checkpoint_name(self.weights)

    def starts_from(self) -> list[str]:
        """Return `OWN`, which a sweep trains first; an empty list if `weights` names a training."""
        return [OWN] if self.weights is None else []

    def model_of(self, work: Work) -> tuple[Backbone, Iterator[Measurement]]:
        """Return the model with its trained weights, and rows that say where the weights come from.

        Raises:
            Unsupported: The weights of the named training or checkpoint do not fit the model.
        """
        if self.weights is None:
            return work.trained(), iter(())
        model = work.build()
        return model, start_weights(model, self.weights, work.stored)
