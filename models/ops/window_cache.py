"""Keys and values of the last tokens in order: the state of windows and blocks along time.

The latest token comes last; rows without a token are zeros. The state is `(keys, values, seen)`
with shapes (b, h, memory, k), (b, h, memory, v) and (b,). `seen` is the number of all tokens or of
stored tokens, depending on the core, which updates it.
"""

from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lra.models.mixer import State


class Window(NamedTuple):
    """The keys and values that new tokens attend to, and the state after them."""

    keys: Float[Tensor, "b h s k"]
    """The remembered ones, then the new ones."""
    values: Float[Tensor, "b h s v"]
    seen: Int[Tensor, " b"]
    """The count in the state, without the new tokens."""
    after: tuple[Float[Tensor, "b h m k"], Float[Tensor, "b h m v"]]


def empty_window(shape: tuple[int, int, int, int, int], memory: int, like: Tensor) -> State:
    """Return the state before the first token, for `shape` = (b, h, _, k, v); `memory` may be 0."""
    batch, heads, _, key_width, value_width = shape
    return (
        like.new_zeros(batch, heads, memory, key_width),
        like.new_zeros(batch, heads, memory, value_width),
        torch.zeros(batch, dtype=torch.int64, device=like.device),
    )


def append_window(state: State, k: Float[Tensor, "b h l k"], v: Float[Tensor, "b h l v"]) -> Window:
    """Return the state's tokens followed by l new ones, and the last `memory` of them."""
    old_keys, old_values, token_count = cast(tuple[Tensor, Tensor, Int[Tensor, " b"]], state)
    length = k.shape[2]
    keys = torch.cat((old_keys.to(k.dtype), k), dim=2)
    values = torch.cat((old_values.to(v.dtype), v), dim=2)
    # A copy, because a view would keep the whole segment in memory.
    after = (
        keys[:, :, length:].to(old_keys.dtype).clone(),
        values[:, :, length:].to(old_values.dtype).clone(),
    )
    return Window(keys, values, token_count, after)
