"""Operations on a mixer's state, written once for every family as maps over its tensors.

A state is None, a tensor, or a tuple of states; every tensor has the batch as its first axis.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from models.mixer import State


def map_state(function: Callable[..., Tensor], *states: State) -> State:
    """Apply `function` to the tensors that stand at the same place in each of `states`."""
    first = states[0]
    if first is None:
        return None
    if isinstance(first, Tensor):
        return function(*states)
    parts = []
    for group in zip(*states, strict=True):  # type: ignore[arg-type]
        parts.append(map_state(function, *group))
    return tuple(parts)


def detach(state: State) -> State:
    """Cut the history: truncated back-propagation through time."""
    return map_state(Tensor.detach, state)


def select(state: State, rows: Int[Tensor, " r"] | slice) -> State:
    """Return the state of some rows of the batch."""
    return map_state(lambda tensor: tensor[rows], state)


def join(*states: State) -> State:
    """Concatenate states along the batch."""
    return map_state(lambda *tensors: torch.cat(tensors), *states)


def reset(state: State, fresh: State, rows: Bool[Tensor, " b"]) -> State:
    """Replace the state of the rows where `rows` is True by that of `fresh`."""

    def choose(old: Tensor, new: Tensor) -> Tensor:
        return torch.where(rows.view(-1, *(1,) * (old.ndim - 1)), new, old)

    return map_state(choose, state, fresh)


def size_bytes(state: State) -> int:
    """Return the bytes that the tensors of a state hold."""
    if state is None:
        return 0
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    return sum(size_bytes(part) for part in state)
