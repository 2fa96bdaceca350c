"""The memory of segment recurrence: a layer's last inputs, or their keys and values.

The latest row comes last; rows without a token are zeros. The state is `(parts…, seen)`. While
training, it has one tensor of inputs (b, memory, d), so that projections get gradients. In
evaluation, it has keys and values (b, h, memory, k), which gives the same numbers without
projecting inputs again. `seen` (b,) counts all tokens so far.

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
    """Number of the first remembered rows that are still empty; None: no row is empty."""
    state: State


def empty_memory(parts: tuple[Tensor, ...]) -> State:
    """Return the state before the first token; `parts` are its zero tensors, batch first."""
    return (*parts, torch.zeros(len(parts[0]), dtype=torch.int64, device=parts[0].device))


def append_inputs(state: State, x: Float[Tensor, "b l d"]) -> Segment:
    """Return the remembered inputs followed by `x`, and the state with the last inputs.

    The context has shape (memory + l, b, d), because heads of its projections then need no copy.
    """
    memory_rows, token_count = cast(tuple[Tensor, Tensor], state)
    context = torch.cat((memory_rows.to(x.dtype).transpose(0, 1), x.transpose(0, 1)))
    after = context[x.shape[1] :].transpose(0, 1).to(memory_rows.dtype).contiguous()
    return Segment(
        (context,),
        _count_empty(token_count, memory_rows.shape[1]),
        (after, token_count + x.shape[1]),
    )


def append_segment(state: State, new: tuple[Tensor, ...]) -> Segment:
    """Return the remembered keys and values followed by `new`, and the state with the last ones."""
    *old, token_count = cast(tuple[Tensor, ...], state)
    length, memory = new[0].shape[-2], old[0].shape[-2]
    context = tuple(
        torch.cat((before.to(part.dtype), part), dim=-2)
        for before, part in zip(old, new, strict=True)
    )
    # A copy, because a view would keep the whole context in memory.
    after = tuple(
        part[..., length:, :].to(before.dtype).clone()
        for before, part in zip(old, context, strict=True)
    )
    return Segment(context, _count_empty(token_count, memory), (*after, token_count + length))


def _count_empty(seen: Int[Tensor, " b"], memory: int) -> Int[Tensor, " b"] | None:
    """Return the number of empty rows of a memory after `seen` tokens; None: known to be 0."""
    return none_if_full((memory - seen).clamp(min=0))


def begins(seen: Int[Tensor, " b"], length: int) -> bool:
    """Return whether a segment of 2 or more tokens is known to have no tokens before it."""
    # Only on a CPU, because reading `seen` from another device would wait for it.
    return length > 1 and seen.device.type == "cpu" and not bool(seen.any())


def none_if_full(empty: Int[Tensor, " b"]) -> Int[Tensor, " b"] | None:
    """Return the numbers `empty` of empty rows; None if all are known to be 0."""
    # Only on a CPU, because reading `empty` from another device would wait for it.
    return None if empty.device.type == "cpu" and not bool(empty.any()) else empty


def visibility(
    length: int,
    keys: int,
    empty: Int[Tensor, " b"] | None,
    *,
    same_length: bool,
    device: torch.device,
) -> Bool[Tensor, "#b 1 l s"]:
    """Return True where a new token may attend to a row of memory and segment.

    Args:
        length: Number of new tokens.
        keys: Number of rows of memory and segment together.
        empty: Number of the first rows that are empty, by example; None: no row is empty.
        same_length: Whether each token attends to as many rows as the memory has, including itself.
        device: Device of the mask.
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
