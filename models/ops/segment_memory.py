"""The last inputs of a layer, or their keys and values: a memory that segments are read behind.

The latest stands at the right, zeros where none has come yet. The state is `(parts…, seen)`: one
tensor of inputs (b, memory, d) while training, whose projections then have gradients, or keys and
values (b, h, memory, k) in evaluation, which gives the same numbers and projects nothing twice.
`seen` (b,) counts all tokens so far.

Source: Dai et al. 2019, arXiv:1901.02860, section 3.2.
"""

from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lra.models.mixer import State


class Segment(NamedTuple):
    """The context of l new tokens: remembered rows followed by new rows."""

    context: tuple[Tensor, ...]
    """Of each part, the remembered rows and then the new ones; inputs along their first axis."""
    empty: Int[Tensor, " b"] | None
    """How many remembered rows, the first ones, hold nothing yet; None: all rows hold something."""
    state: State


def empty_memory(parts: tuple[Tensor, ...]) -> State:
    """Return the state of no tokens; `parts` are zeros, batch first."""
    return (*parts, torch.zeros(len(parts[0]), dtype=torch.int64, device=parts[0].device))


def append_inputs(state: State, x: Float[Tensor, "b l d"]) -> Segment:
    """Return remembered and new inputs together, length first, and the inputs to remember.

    With the length before the batch, heads of projected rows need no copy.
    """
    old, seen = cast(tuple[Tensor, Tensor], state)
    context = torch.cat((old.to(x.dtype).transpose(0, 1), x.transpose(0, 1)))
    after = context[x.shape[1] :].transpose(0, 1).to(old.dtype).contiguous()
    return Segment((context,), _vacant(seen, old.shape[1]), (after, seen + x.shape[1]))


def append_segment(state: State, new: tuple[Tensor, ...]) -> Segment:
    """Return remembered and new keys and values together, and those to remember."""
    *old, seen = cast(tuple[Tensor, ...], state)
    length, memory = new[0].shape[-2], old[0].shape[-2]
    context = tuple(
        torch.cat((before.to(part.dtype), part), dim=-2)
        for before, part in zip(old, new, strict=True)
    )
    # Cloned: a view would hold the whole context.
    after = tuple(
        part[..., length:, :].to(before.dtype).clone()
        for before, part in zip(old, context, strict=True)
    )
    return Segment(context, _vacant(seen, memory), (*after, seen + length))


def _vacant(seen: Int[Tensor, " b"], memory: int) -> Int[Tensor, " b"] | None:
    return none_if_full((memory - seen).clamp(min=0))


def begins(seen: Int[Tensor, " b"], length: int) -> bool:
    """Tell whether a segment of several tokens surely has no tokens before it."""
    # Elsewhere than on a CPU a look would wait for the device.
    return length > 1 and seen.device.type == "cpu" and not bool(seen.any())


def none_if_full(empty: Int[Tensor, " b"]) -> Int[Tensor, " b"] | None:
    """Return how many remembered rows are empty; None if it is known that no row is."""
    # Elsewhere than on a CPU a look would wait for the device.
    return None if empty.device.type == "cpu" and not bool(empty.any()) else empty


def visibility(
    length: int,
    keys: int,
    empty: Int[Tensor, " b"] | None,
    *,
    same_length: bool,
    device: torch.device,
) -> Bool[Tensor, "#b 1 l s"]:
    """Return which rows of memory and segment each new token attends to.

    Args:
        length: New tokens.
        keys: Rows of memory and segment.
        empty: How many of these, the first ones, hold nothing; None: all hold something.
        same_length: Whether a token sees as many as memory holds, itself included, and no more.
        device: Where.
    """
    memory = keys - length
    key = torch.arange(keys, device=device)
    distance = key[memory:, None] - key
    visible = distance >= 0
    if same_length and memory:
        visible = visible & (distance < memory)
    if empty is None:
        return visible[None, None]
    return visible & (key >= empty[:, None, None, None])
