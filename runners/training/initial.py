"""Initial weights from another model or file, and rows that say where they come from."""

from collections.abc import Callable, Iterator
from pathlib import Path

from lra.models.backbone.model import Backbone
from lra.models.transfer.checkpoints import load_checkpoint
from lra.models.transfer.files import is_checkpoint
from lra.models.transfer.weights import TransferReport, transfer
from lra.runners.records import Measurement


def initial_parameters(report: TransferReport) -> Iterator[Measurement]:
    """Yield, for each origin (copied or drawn), how many parameters have it and in which parts."""
    for origin, count in report.parameters.items():
        names = (name for name, source in report.origins.items() if source is origin)
        parts = dict.fromkeys(name.partition(".")[0] for name in names)
        labels = {"origin": origin.value, **({"parts": ", ".join(parts)} if parts else {})}
        yield Measurement(metric="initial_parameters", value=float(count), labels=labels)


def start_weights(
    model: Backbone, weights: str, stored: Callable[[], Backbone]
) -> Iterator[Measurement]:
    """Copy the weights that `runner.weights` names into a model; yield the origin of parameters.

    Args:
        model: The model that gets the weights.
        weights: A checkpoint file, or the name of a finished training.
        stored: Builds the model of that training, with its weights.

    Raises:
        Unsupported: The weights do not fit the model.
        ValueError: The file cannot be read.
    """
    if is_checkpoint(weights):
        return initial_parameters(load_checkpoint(Path(weights), model))
    return initial_parameters(transfer(stored(), model))
