"""What a task of ours hands to a model for given rows: through its own reading, as in training."""

import numpy as np
from torch import Tensor, nn

from lra.composition.run import Run
from lra.tasks.classification.gray import GrayTask
from lra.tasks.data.storage import from_rows
from lra.tasks.task import Batch


def handed(run: Run, ids: Tensor) -> Batch:
    """Return a batch of rows [b p l] of tokens with zeros behind them, or of levels of gray.

    No row is cut; where the protocol pads to one length, rows are padded to that of `ids`.
    """
    task = run.task
    rows = [part.numpy() for part in ids.flatten(0, 1)]
    if not isinstance(task, GrayTask):
        rows = [part[part > 0] - task.shift for part in rows]
    split = from_rows(rows, np.ones(len(ids), np.int64))
    task.split = lambda _: split  # type: ignore[method-assign]
    task.max_length = ids.shape[-1]
    task.padded_length = ids.shape[-1] if task.padded_length else None
    (batch,) = task.read("test", [np.arange(len(ids))], 0)
    return batch


def answered(model: nn.Module, batch: Batch) -> np.ndarray:
    """Return a model's logits, its weights being float64."""
    tokens = batch.tokens.double() if batch.tokens.is_floating_point() else batch.tokens
    logits: np.ndarray = model.predict(tokens, batch.keep)[0].detach().numpy()
    return logits
