"""Products with a state that are worked on block by block, and keep one state for each block.

Forward goes from the first block to the last, backward from the last to the first, where what the
chunks of a block hold is made once more. A product says what its chunks are, what they read and
what gradients they hand on.
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
    """Return slices of whole chunks, so that each holds a bounded number of values.

    `held` is how many values one token holds.
    """
    uncut = math.prod(q.shape[:3]) * held <= FEW
    return spans(q.shape[2], chunk, block_rows(q, held), uncut=uncut)


def blocks_forward(  # noqa: PLR0917 (called from autograd functions, by position)
    ctx: Any,
    inputs: tuple[Tensor, ...],
    state: Float[Tensor, "b h k v"],
    cuts: Sequence[tuple[slice, int]],
    chunks: Chunks,
    read: Callable[[Any], Tensor],
    *,
    solves: bool = False,
) -> tuple[Float[Tensor, "b h l v"], Float[Tensor, "b h k v"]]:
    """Run `read` block by block; return the outputs and the last state.

    With `solves`, backward finds what was read in the place of the first input.
    """
    v = inputs[-2]
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
    dstate: Float[Tensor, "b h k v"],
    chunks: Chunks,
    pull: Callable[[Any, Tensor, Tensor], list[Tensor]],
) -> tuple[list[Tensor], Float[Tensor, "b h k v"]]:
    """Return the gradients of the inputs, as many as `pull` gives, and of the first state."""
    saved = ctx.saved_tensors
    number = len(saved) - len(ctx.cuts)
    inputs, states = saved[:number], saved[number:]
    gradients = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs]
    with full_precision(do):
        for (rows, size), state in zip(reversed(ctx.cuts), reversed(states), strict=True):
            block = chunks(inputs, rows, size, state)
            # The gradient of a sum stands in one number, and products would copy it one by one.
            here = do[:, :, rows].to(state.dtype).reshape(-1, size, do.shape[3]).contiguous()
            *parts, dstate = pull(block, here, dstate)
            for index, part in enumerate(parts):
                shape = (*do.shape[:2], -1, *inputs[index].shape[3:])
                gradients[index] = write_rows(gradients[index], rows, part.reshape(shape))
    return gradients, dstate


def first_state(
    q: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    state: Float[Tensor, "b h k v"] | None,
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
    """Return `g` with 0 at padding, so that padding decays nothing."""
    if g.ndim == 4:
        return without_padding(g, keep)
    return g if keep is None else g.masked_fill(~keep[:, None], 0)
