"""Keys and values of the last `memory` tokens: the state of exact attention along time.

The token at position p is stored in slot p mod memory and replaces the token that was there. So a
query attends to itself and the `memory` - 1 tokens before it. Each row of the batch has its own
count of tokens, so that rows may be reset or joined. The state is `(keys, values, seen)` with
shapes (b, h, memory, k), (b, h, memory, v) and (b,); zeros mean empty, and `seen` counts all tokens
so far. Appending returns new tensors: an older state stays valid, and gradients pass through it.
"""

from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lra.models.mixer import State


class CacheView(NamedTuple):
    """The keys and values for new tokens; some of the s slots may be empty or hidden."""

    keys: Float[Tensor, "b g s k"]
    values: Float[Tensor, "b c s v"]
    query: Int[Tensor, "b 1 l 1"]
    """Position of each query."""
    key_position: Int[Tensor, "b s"]
    """Position of each key; negative for empty slots."""
    begins: bool
    """Whether the memories were empty, so that the keys are exactly the new tokens, in order."""
    state: State

    @property
    def distance(self) -> Int[Tensor, "b 1 l s"]:
        """Position of the query minus that of the key; meaningless for empty slots."""
        return self.query - self.key_position[:, None, None]

    @property
    def visible(self) -> Bool[Tensor, "b 1 l s"]:
        """True where a query may attend to a key."""
        distance, (keys, *_) = self.distance, cast(tuple[Tensor, ...], self.state)
        has_token = (self.key_position >= 0)[:, None, None]
        return has_token & (distance >= 0) & (distance < keys.shape[2])

    @property
    def mask(self) -> Bool[Tensor, "b 1 l s"] | None:
        """The mask `visible`; None if it equals `causal=True`, for which kernels are faster."""
        return None if self.begins else self.visible


def empty_cache(
    shape: tuple[int, int, int, int, int], like: Tensor, *, value_heads: int | None = None
) -> State:
    """Return the state before the first token.

    Args:
        shape: (b, h, memory, k, v).
        like: A tensor with the dtype and device of the state.
        value_heads: Number of value heads; None: h, as many as key heads.
    """
    batch, heads, memory, key_width, value_width = shape
    if memory < 1:
        raise ValueError(f"memory is a number of tokens, at least 1: got {memory}")
    return (
        like.new_zeros(batch, heads, memory, key_width),
        like.new_zeros(batch, heads if value_heads is None else value_heads, memory, value_width),
        torch.zeros(batch, dtype=torch.int64, device=like.device),
    )


def fits(state: State, length: int) -> bool:
    """Return whether every row's memory can store `length` more tokens without replacing any."""
    keys, _, token_count = cast(tuple[Tensor, Tensor, Int[Tensor, " b"]], state)
    return token_count.device.type == "meta" or int(token_count.max()) + length <= keys.shape[2]


def begins(state: State, length: int) -> bool:
    """Return whether all memories are empty and `length` is at least 2 and fits into them.

    If so, the new tokens attend only to each other. The state may also be that of `window_cache`.
    """
    keys, _, token_count = cast(tuple[Tensor, Tensor, Int[Tensor, " b"]], state)
    fits_several = 1 < length <= keys.shape[2] and token_count.device.type != "meta"
    return fits_several and not bool(token_count.any())


def append_keys(
    state: State, k: Float[Tensor, "b g l k"], v: Float[Tensor, "b c l v"]
) -> CacheView:
    """Return the keys and values that l new queries attend to, and the state with the new tokens.

    Each query attends to at most `memory` tokens.
    """
    keys, values, token_count = cast(tuple[Tensor, Tensor, Int[Tensor, " b"]], state)
    memory, length = keys.shape[2], k.shape[2]
    k, v = k.to(keys.dtype), v.to(values.dtype)
    token_position = token_count[:, None] + torch.arange(length, device=k.device)
    last = slice(max(0, length - memory), None)  # earlier new tokens would be replaced
    index = (token_position[:, last] % memory)[:, None, :, None]
    new_keys = keys.scatter(2, index.expand_as(k[:, :, last]), k[:, :, last])
    new_values = values.scatter(2, index.expand_as(v[:, :, last]), v[:, :, last])
    after = (new_keys, new_values, token_count + length)
    was_empty = begins(state, length)
    if was_empty:
        key_position, keys, values = token_position, k, v
    elif length == 1 or fits(state, length):
        # No token that a new query attends to was replaced by another new token.
        key_position = _slot_positions(token_count + length, memory)
        keys, values = new_keys, new_values
    else:  # new tokens may replace tokens that the first new queries attend to
        key_position = torch.cat((_slot_positions(token_count, memory), token_position), dim=1)
        keys, values = torch.cat((keys, k), dim=2), torch.cat((values, v), dim=2)
    query = token_position[:, None, :, None]
    return CacheView(keys, values, query, key_position, was_empty, after)


def _slot_positions(seen: Int[Tensor, " b"], memory: int) -> Int[Tensor, "b memory"]:
    """Return the position of the token in each slot after `seen` tokens; negative if empty."""
    newest = seen[:, None] - 1
    slot = torch.arange(memory, device=seen.device)
    return newest - (newest - slot) % memory
