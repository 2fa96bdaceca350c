"""A state along time, carried from one training batch to the next.

Gradients end at the batch's first token (truncated back-propagation through time); what a model
remembers does not. Rows that start a new text (`Batch.reset`) start from an empty state.
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
    """Return how many tokens a state remembers: as the model says, else as the task does."""
    memory = config.memory
    if not training and config.evaluation_memory is not None:
        memory = config.evaluation_memory
    return task.spec.memory if memory is None else memory


def initial_state(model: Backbone, rows: int, memory: int) -> State:
    """Return the state before the first token; like weights that are shared out, it is whole."""
    return map_state(full_tensor, model.initial_state(rows, memory))


class RecurrentStates:
    """The state of a batch's streams.

    Args:
        model: Whose state it is.
        memory: Tokens that it remembers, where a family wants a limit.
    """

    def __init__(self, model: Backbone, memory: int) -> None:
        self.model, self.memory = model, memory
        self.state: State = None
        self.stage_memory: int | None = None
        """Of a stage, in place of `memory`."""
        self._parts: list[State] = []

    def begin(self, fresh: Bool[Tensor, " b"] | None) -> None:
        """Take a new batch, whose rows in `fresh` start a new text; None: it has no streams."""
        if fresh is None:
            self.state = None
            return
        if self.state is None or bool(fresh.any()):
            empty = self.empty(len(fresh), self.stage_memory)
            self.state = empty if self.state is None else reset(self.state, empty, fresh)

    def empty(self, rows: int, memory: int | None = None) -> State:
        """Return the state of so many rows before their first token.

        Args:
            rows: Of a batch.
            memory: In place of the usual one.
        """
        return initial_state(self.model, rows, memory or self.memory)

    def rows_of(self, rows: slice) -> State:
        """Return what some rows of the batch remember."""
        return None if self.state is None else select(self.state, rows)

    def add(self, state: State) -> None:
        """Take what the rows of one micro-batch remember now; micro-batches come in order."""
        self._parts.append(detach(state))

    def end(self) -> None:
        """Close the batch."""
        self.state = None if self.state is None else join(*self._parts)
        self._parts.clear()

    def forget(self) -> None:
        """Begin with other rows."""
        self.state = None

    def restore(self, state: State) -> None:
        """Go on from a state of an earlier process."""
        device = self.model.embedding.weight.device
        self.state = map_state(lambda part: part.to(device), state)
