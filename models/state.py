"""Operations on the state of any mixer, as maps over its tensors.

A state is None, a tensor, or a tuple of states; every tensor has the batch as its first axis.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lra.models.mixer import State


def map_state(function: Callable[..., Tensor], *states: State) -> State:
    """Return a state of the results of `function`, called with the matching tensors of `states`.

    Raises ValueError if the states are nested differently, so they come from different models.
    """
    first = states[0]
    if first is None and all(state is None for state in states):
        return None
    if all(isinstance(state, Tensor) for state in states):
        return function(*states)
    tuples = [state for state in states if isinstance(state, tuple)]
    if len(tuples) < len(states) or len({len(state) for state in tuples}) != 1:
        kinds = ", ".join(_describe(state) for state in states)
        raise ValueError(
            f"states can be joined only if they are nested in the same way: got {kinds}; use "
            "states of one model"
        )
    return tuple(map_state(function, *group) for group in zip(*tuples, strict=True))


def _describe(state: State) -> str:
    """Return the kind of a state for messages, for example "tuple of 2" or "Tensor"."""
    return f"tuple of {len(state)}" if isinstance(state, tuple) else type(state).__name__


def detach(state: State) -> State:
    """Detach the state, as truncated back-propagation through time does between segments."""
    return map_state(Tensor.detach, state)


def select(state: State, rows: Int[Tensor, " r"] | slice) -> State:
    """Return the state of the batch rows with the numbers `rows`."""
    return map_state(lambda tensor: tensor[rows], state)


def join(*states: State) -> State:
    """Concatenate states along the batch."""
    return map_state(lambda *tensors: torch.cat(tensors), *states)


def reset(state: State, fresh: State, rows: Bool[Tensor, " b"]) -> State:
    """Return `state`, but with the state of `fresh` in the rows where `rows` is True."""

    def choose(old: Tensor, new: Tensor) -> Tensor:
        return torch.where(rows.view(-1, *(1,) * (old.ndim - 1)), new, old)

    return map_state(choose, state, fresh)


def size_bytes(state: State) -> int:
    """Return the bytes in the tensors of a state."""
    if state is None:
        return 0
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    return sum(size_bytes(part) for part in state)
