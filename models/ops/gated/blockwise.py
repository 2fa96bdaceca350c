"""Forward and backward passes of recurrent products, block by block, saving one state per block.

Forward goes from the first block to the last. Backward goes from the last to the first and computes
the chunks of each block again. Each product supplies functions that make its chunks, their outputs
and their gradients.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lra.models.ops.chunks import spans, write_rows
from lra.models.ops.linear.features import CPU_BLOCK, block_rows
from lra.models.ops.numerics import full_precision, sum_dtype, without_padding

FEW = 2 * CPU_BLOCK
"""Numbers that a sequence of all heads may hold in one block: a CPU takes half as long for it as
for four, up to here, where both take as long."""


class Block(Protocol):
    """The tensors of one block: its chunks, and the states before each chunk."""

    @property
    def last(self) -> Tensor:
        """The state after the block."""
        ...


Chunks = Callable[[tuple[Tensor, ...], slice, int, Tensor], Any]
"""Makes a block of the inputs, its rows, the size of its chunks and the state before it."""


def cuts(q: Float[Tensor, "b h l k"], chunk: int, held: int) -> list[tuple[slice, int]]:
    """Cut the l tokens of `q` into blocks of bounded size; return their slices and chunk sizes.

    `held` is the number of values per token and head that a block needs in memory.
    """
    uncut = math.prod(q.shape[:3]) * held <= FEW
    return spans(q.shape[2], chunk, block_rows(q, held), uncut=uncut)


def blocks_forward(  # noqa: PLR0917 (called from autograd functions, by position)
    ctx: Any,
    inputs: tuple[Tensor, ...],
    state: Float[Tensor, "b h m w"],
    cuts: Sequence[tuple[slice, int]],
    chunks: Chunks,
    read: Callable[[Any], Tensor],
    *,
    solves: bool = False,
) -> tuple[Float[Tensor, "b h l v"], Float[Tensor, "b h m w"]]:
    """Return the outputs of all blocks and the last state, and save what backward needs in `ctx`.

    Args:
        ctx: The context of the autograd function.
        inputs: Tensors (b, h, l, ...); the last but one has the shape of the outputs.
        state: The state before the first token.
        cuts: The slice of each block, and its chunk size.
        chunks: Makes the chunks of a block from inputs, slice, chunk size and state.
        read: Returns the outputs of a block.
        solves: Whether backward needs the outputs in place of the first input.
    """
    v = inputs[-2]  # the outputs have its shape
    o, states = torch.empty_like(v), []
    with full_precision(v):
        for rows, size in cuts:
            states.append(state)
            block: Block = chunks(inputs, rows, size, state)
            o = write_rows(o, rows, read(block).view(*v.shape[:2], -1, v.shape[3]))
            state = block.last
    ctx.cuts = cuts
    ctx.save_for_backward(o if solves else inputs[0], *inputs[1:], *states)
    return o, state


def blocks_backward(
    ctx: Any,
    do: Float[Tensor, "b h l v"],
    dstate: Float[Tensor, "b h m w"],
    chunks: Chunks,
    pull: Callable[[Any, Tensor, Tensor], list[Tensor]],
) -> tuple[list[Tensor], Float[Tensor, "b h m w"]]:
    """Return the gradients of the inputs and of the first state, from the last block backwards.

    Args:
        ctx: The context in which `blocks_forward` saved tensors.
        do: Gradient of the outputs.
        dstate: Gradient of the last state.
        chunks: Makes the chunks of a block, as in `blocks_forward`.
        pull: Returns the gradients of a block's inputs and of the state before the block.
    """
    # Read once, because a checkpoint counts how often its saved tensors are read.
    saved = ctx.saved_tensors
    input_count = len(saved) - len(ctx.cuts)
    inputs, states = saved[:input_count], saved[input_count:]
    gradients = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs]
    with full_precision(do):
        for (rows, size), state in zip(reversed(ctx.cuts), reversed(states), strict=True):
            block = chunks(inputs, rows, size, state)
            # A copy, because the gradient of a sum is an expanded view, which multiplies slowly.
            block_gradient = (
                do[:, :, rows].to(state.dtype).reshape(-1, size, do.shape[3]).contiguous()
            )
            *parts, dstate = pull(block, block_gradient, dstate)
            for index, part in enumerate(parts):
                shape = (*do.shape[:2], -1, *inputs[index].shape[3:])
                gradients[index] = write_rows(gradients[index], rows, part.reshape(shape))
    return gradients, dstate


def first_state(
    q: Float[Tensor, "b h l k"], v: Float[Tensor, "b h l v"], state: Float[Tensor, "b h k v"] | None
) -> Float[Tensor, "b h k v"]:
    """Return `state`, or zeros if it is None, in float32 or float64."""
    dtype = sum_dtype(v)
    if state is None:
        return v.new_zeros(*q.shape[:2], q.shape[3], v.shape[3], dtype=dtype)
    return state.to(dtype)


def decays_of_tokens(
    g: Float[Tensor, "b h l"] | Float[Tensor, "b h l k"] | Float[Tensor, " h"],
    keep: Bool[Tensor, "b l"] | None,
) -> Float[Tensor, "b h l"] | Float[Tensor, "b h l k"] | Float[Tensor, " h"]:
    """Return the log decays `g` with 0 at padding, so that padding leaves the state unchanged."""
    if g.ndim == 4:
        return without_padding(g, keep)
    return g if keep is None else g.masked_fill(~keep[:, None], 0)
