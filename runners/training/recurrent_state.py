"""The recurrent state of a model, carried from one training batch to the next.

Gradients end at the first token of a batch (truncated back-propagation through time), but the state
continues. Rows that start a new text (`Batch.reset`) start with an empty state.
"""

from jaxtyping import Bool
from torch import Tensor

from lra.models.backbone.config import BackboneConfig
from lra.models.backbone.model import Backbone
from lra.models.mixer import State
from lra.models.state import detach, join, map_state, reset, select
from lra.runners.training.parallel.shards import full_tensor
from lra.tasks.task import Task


def remembered_tokens(config: BackboneConfig, task: Task, *, training: bool) -> int:
    """Return how many tokens a state remembers: the option of the model, or else of the task."""
    memory = config.memory
    if not training and config.evaluation_memory is not None:
        memory = config.evaluation_memory
    return task.spec.memory if memory is None else memory


def initial_state(model: Backbone, rows: int, memory: int) -> State:
    """Return the state of `rows` rows before their first token; sharded parts are gathered."""
    return map_state(full_tensor, model.initial_state(rows, memory))


class RecurrentStates:
    """The recurrent state of all rows of a batch.

    For each batch, call `begin`, then `rows_of` and `add` for each micro-batch, then `end`.

    Args:
        model: The model.
        memory: How many tokens a state remembers, for families whose state grows.
    """

    def __init__(self, model: Backbone, memory: int) -> None:
        self.model, self.memory = model, memory
        self.state: State = None
        self.stage_memory: int | None = None
        """Value of the training stage that replaces `memory`; None: `memory`."""
        self._parts: list[State] = []

    def begin(self, fresh: Bool[Tensor, " b"] | None) -> None:
        """Start a batch; rows in `fresh` get an empty state. None: the task has no state."""
        if fresh is None:
            self.state = None
            return
        if self.state is None or bool(fresh.any()):
            empty = self.empty(len(fresh), self.stage_memory)
            self.state = empty if self.state is None else reset(self.state, empty, fresh)

    def empty(self, rows: int, memory: int | None = None) -> State:
        """Return an empty state for `rows` rows; `memory` replaces the usual number of tokens."""
        return initial_state(self.model, rows, memory or self.memory)

    def rows_of(self, rows: slice) -> State:
        """Return the state of some rows of the batch; None if the task has no state."""
        return None if self.state is None else select(self.state, rows)

    def add(self, state: State) -> None:
        """Store the new state of the rows of one micro-batch; call this in the order of rows."""
        self._parts.append(detach(state))

    def end(self) -> None:
        """End a batch: join the states of its micro-batches."""
        self.state = None if self.state is None else join(*self._parts)
        self._parts.clear()

    def forget(self) -> None:
        """Forget the state, because the next batch has other rows."""
        self.state = None

    def restore(self, state: State) -> None:
        """Continue from a state of an earlier process."""
        device = self.model.embedding.weight.device
        self.state = map_state(lambda part: part.to(device), state)
