"""Keys and values of the last `memory` tokens: the state of exact attention along time.

The token at position p is kept in slot p mod memory, over the token that was there: the memory is a
window that moves with each token, of which a new token is the last one it sees. As long as no more
than `memory` tokens have come, that is everything. Each row of the batch has a count of its own, so
that rows may be reset or joined. The state is `(keys, values, seen)` with shapes (b, h, memory, k),
(b, h, memory, v) and (b,), zeros = empty; `seen` counts all tokens so far. Appending returns new
tensors: an older state stays valid, whatever is appended to it later, and gradients reach through
it.
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
    """Negative: of an empty slot."""
    begins: bool
    """The memories were empty: keys are the new tokens alone, in their order."""
    state: State

    @property
    def distance(self) -> Int[Tensor, "b 1 l s"]:
        """Position of the query minus that of the key; meaningless for empty slots."""
        return self.query - self.key_position[:, None, None]

    @property
    def visible(self) -> Bool[Tensor, "b 1 l s"]:
        """True where a query may attend to a key."""
        distance, (keys, *_) = self.distance, cast(tuple[Tensor, ...], self.state)
        held = (self.key_position >= 0)[:, None, None]
        return held & (distance >= 0) & (distance < keys.shape[2])

    @property
    def mask(self) -> Bool[Tensor, "b 1 l s"] | None:
        """The mask `visible`, or None if `causal` says the same, which makes kernels faster."""
        return None if self.begins else self.visible


def empty_cache(
    shape: tuple[int, int, int, int, int], like: Tensor, *, value_heads: int | None = None
) -> State:
    """Return the state of no tokens.

    Args:
        shape: (b, h, memory, k, v).
        like: Gives type and device.
        value_heads: Heads of values; None: h, as of keys.
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
    """Tell whether every row's memory has room for `length` more tokens, without losing any."""
    keys, _, seen = cast(tuple[Tensor, Tensor, Int[Tensor, " b"]], state)
    return seen.device.type == "meta" or int(seen.max()) + length <= keys.shape[2]


def begins(state: State, length: int) -> bool:
    """Tell whether all memories are empty and 2 or more tokens fit: then no cache is needed.

    The state may be that of `window_cache`.
    """
    keys, _, seen = cast(tuple[Tensor, Tensor, Int[Tensor, " b"]], state)
    several = 1 < length <= keys.shape[2] and seen.device.type != "meta"
    return several and not bool(seen.any())


def append_keys(
    state: State, k: Float[Tensor, "b g l k"], v: Float[Tensor, "b c l v"]
) -> CacheView:
    """Return keys, values and positions for the new tokens, and the new state.

    Each new token attends to at most `memory` tokens.
    """
    keys, values, seen = cast(tuple[Tensor, Tensor, Int[Tensor, " b"]], state)
    memory, length = keys.shape[2], k.shape[2]
    k, v = k.to(keys.dtype), v.to(values.dtype)
    token_position = seen[:, None] + torch.arange(length, device=k.device)
    last = slice(max(0, length - memory), None)
    index = (token_position[:, last] % memory)[:, None, :, None]
    new_keys = keys.scatter(2, index.expand_as(k[:, :, last]), k[:, :, last])
    new_values = values.scatter(2, index.expand_as(v[:, :, last]), v[:, :, last])
    after = (new_keys, new_values, seen + length)
    begun = begins(state, length)
    if begun:
        key_position, keys, values = token_position, k, v
    elif length == 1 or fits(state, length):
        # nothing that a new token sees was written over by another
        key_position = _slot_positions(seen + length, memory)
        keys, values = new_keys, new_values
    else:
        key_position = torch.cat((_slot_positions(seen, memory), token_position), dim=1)
        keys, values = torch.cat((keys, k), dim=2), torch.cat((values, v), dim=2)
    query = token_position[:, None, :, None]
    return CacheView(keys, values, query, key_position, begun, after)


def _slot_positions(seen: Int[Tensor, " b"], memory: int) -> Int[Tensor, "b memory"]:
    """Return the position of the token in each slot after `seen` tokens; negative if empty."""
    newest = seen[:, None] - 1
    slot = torch.arange(memory, device=seen.device)
    return newest - (newest - slot) % memory
