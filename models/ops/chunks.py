"""Recurrences over chunks of a sequence, S_n = D_n S_(n-1) + gained_n.

A state S goes from chunk to chunk; everything within chunks is computed by batched products. The
callers compute the decay D_n and the gain of each chunk.
"""

from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from lra.models.ops.numerics import row_slices


def spans(length: int, chunk: int, rows: int, *, uncut: bool = False) -> list[tuple[slice, int]]:
    """Cut `length` tokens into blocks of about `rows` tokens; return their slices and chunk sizes.

    Each block has whole chunks of `chunk` tokens. Remaining tokens form one last block with one
    shorter chunk. With `uncut`, all whole chunks form one block, which needs fewer calls but twice
    the memory.
    """
    whole_length = length - length % chunk
    # At least 4 blocks, because the temporary tensors of one block take more memory than its rows.
    rows = whole_length if uncut else max(1, min(rows, length // 4) // chunk) * chunk
    blocks = [(block, chunk) for block in row_slices(whole_length, max(rows, 1))]
    return blocks + (
        [(slice(whole_length, length), length - whole_length)] if whole_length < length else []
    )


def scan(
    first: Float[Tensor, "b h m w"],
    gained: Float[Tensor, "b h n m w"],
    decay: Float[Tensor, "b h n #m 1"] | None,
    *,
    backwards: bool = False,
) -> tuple[Float[Tensor, "b h n m w"], Float[Tensor, "b h m w"]]:
    """Return the states x_0 ... x_(n-1) before each of n chunks, and x_n after the last chunk.

    x_0 = first and x_(i+1) = decay_i x_i + gained_i; a `decay` of None means 1. With `backwards`,
    chunks are read from the last to the first, so that the last chunk starts from `first`.
    """
    order = range(gained.shape[2])
    if backwards:
        states, order = torch.cat((gained[:, :, 1:], first[:, :, None]), dim=2), order[::-1]
    else:
        states = torch.cat((first[:, :, None], gained[:, :, :-1]), dim=2)  # x_0, then gains
    state_of_chunk = states.unbind(2)
    decay_of_chunk = None if decay is None else decay.unbind(2)
    for previous, current in pairwise(order):
        if decay_of_chunk is None:
            state_of_chunk[current].add_(state_of_chunk[previous])
        else:
            state_of_chunk[current].addcmul_(state_of_chunk[previous], decay_of_chunk[previous])
    end = order[-1]
    last = (
        state_of_chunk[end] if decay_of_chunk is None else state_of_chunk[end] * decay_of_chunk[end]
    )
    return states, last + gained[:, :, end]


def write_rows(whole: Tensor, rows: slice, part: Tensor) -> Tensor:
    """Write `part` to the tokens `rows` of `whole`, (b, h, l, ...), and return `whole`.

    If `part` covers all tokens, return `part` without copying.
    """
    if part.shape == whole.shape and whole.is_contiguous() and part.is_contiguous():
        return part.to(whole.dtype)
    whole[:, :, rows] = part
    return whole
