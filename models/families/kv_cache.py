"""Keys and values of the tokens seen so far: the state of exact attention along time.

Slots are filled from the left; each row of the batch has a count of its own, so that rows may be
reset or joined. The state is `(keys, values, filled)` with shapes (b, h, memory, k),
(b, h, memory, v) and (b,), zeros = empty. Appending returns new tensors: an older state stays
valid, whatever is appended to it later, and gradients reach through it.
"""

from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from models.mixer import State


def empty(shape: tuple[int, int, int, int, int], like: Tensor) -> State:
    """Return the state of no tokens; `shape` = (b, h, memory, k, v)."""
    batch, heads, memory, key_width, value_width = shape
    return (
        like.new_zeros(batch, heads, memory, key_width),
        like.new_zeros(batch, heads, memory, value_width),
        torch.zeros(batch, dtype=torch.int64, device=like.device),
    )


def append(
    state: State, k: Float[Tensor, "b h l k"], v: Float[Tensor, "b h l v"]
) -> tuple[
    Float[Tensor, "b h memory k"],
    Float[Tensor, "b h memory v"],
    Bool[Tensor, "b 1 l memory"],
    State,
]:
    """Return all keys, all values, which of them each new token may see, and the new state.

    Raises:
        ValueError: the tokens do not fit into the memory of the state.
    """
    keys, values, filled = cast(tuple[Tensor, Tensor, Int[Tensor, " b"]], state)
    memory, length = keys.shape[2], k.shape[2]
    if filled.device.type != "meta" and (most := int(filled.max())) + length > memory:
        raise ValueError(
            f"the key-value memory is full: it holds {most} of {memory} tokens and {length} more "
            "came; ask for a larger memory (of initial_state, or task.memory of a run)"
        )
    slot = filled[:, None] + torch.arange(length, device=k.device)
    index = slot[:, None, :, None]
    keys = keys.scatter(2, index.expand_as(k), k.to(keys.dtype))
    values = values.scatter(2, index.expand_as(v), v.to(values.dtype))
    visible = torch.arange(memory, device=k.device) <= slot[:, None, :, None]
    return keys, values, visible, (keys, values, filled + length)
