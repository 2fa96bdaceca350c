"""Whether a cell's model can be built, asked beforehand: without weights, in milliseconds."""

import logging

import torch

from lra.composition.compose import are_bundled, build_model, facts
from lra.composition.run import Run
from lra.models.backbone.model import Backbone
from lra.models.mixer import Unsupported
from lra.runners.records import text_of

log = logging.getLogger(__name__)


class TrialBuilds:
    """Asks each kind of model once: seeds and rates share the answer.

    A mixer from elsewhere may do anything while it is built, so it is left to its own process.
    """

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def check(self, run: Run, length: int) -> None:
        """Refuse a cell whose model cannot be built.

        Args:
            run: Of the cell.
            length: Tokens of its longest sequences.

        Raises:
            Unsupported: With the reason and the way out.
        """
        if not run.runner.models or not are_bundled(run.mixers, run.stack):
            return
        task_facts = facts(run, length if run.runner.by_length else None)
        key = repr((run.model, run.mixer_options, run.backbone, task_facts))
        if key not in self._reasons:
            self._reasons[key] = _reason(run, length)
        if self._reasons[key]:
            raise Unsupported(self._reasons[key])


def without_weights(run: Run, length: int) -> Backbone | None:
    """Return the model of a cell on the device `meta`; None where it wants to read weights.

    Args:
        run: Of the cell.
        length: Tokens of its sequences.

    Raises:
        Unsupported: It cannot be built like this.
    """
    try:
        with torch.device("meta"):
            return build_model(run, max_length=length if run.runner.by_length else None)
    except Unsupported:
        raise
    except Exception as error:  # noqa: BLE001 - a constructor may read weights, which are not there
        log.debug("not tried without weights: %s: %s", type(error).__name__, text_of(error))
        return None


def _reason(run: Run, length: int) -> str:
    """Return why a cell is refused; "" where it is not."""
    try:
        without_weights(run, length)
    except Unsupported as error:
        return str(error)
    return ""
