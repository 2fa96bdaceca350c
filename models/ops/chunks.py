"""Sums over the past, in chunks: a state goes from chunk to chunk, all else is batched products.

What the recurrences S_n = D_n S_(n-1) + gained_n over chunks share, whoever makes D and the gain.
"""

from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from lra.models.ops.numerics import row_slices


def spans(length: int, chunk: int, rows: int, *, uncut: bool = False) -> list[tuple[slice, int]]:
    """Return blocks of about `rows` tokens to work on at once, and the size of their chunks.

    They have whole chunks; what is left at the end is a block of one short chunk. `uncut`: one
    block of all others, which takes twice the memory while it is worked on, and fewer calls.
    """
    whole = length - length % chunk
    # A short sequence is cut as well, or its blocks would hold more than all its rows do.
    rows = whole if uncut else max(1, min(rows, length // 4) // chunk) * chunk
    cuts = [(rows_, chunk) for rows_ in row_slices(whole, max(rows, 1))]
    return cuts + ([(slice(whole, length), length - whole)] if whole < length else [])


def scan(
    first: Float[Tensor, "b h m w"],
    gained: Float[Tensor, "b h n m w"],
    decay: Float[Tensor, "b h n #m 1"] | None,
    *,
    backwards: bool = False,
) -> tuple[Float[Tensor, "b h n m w"], Float[Tensor, "b h m w"]]:
    """Return x_i, from which chunk i starts, and x_n after the last.

    x_0 = first and x_(i+1) = decay_i x_i + gained_i; backwards, the last chunk starts from `first`.
    """
    order = range(gained.shape[2])
    if backwards:
        states, order = torch.cat((gained[:, :, 1:], first[:, :, None]), dim=2), order[::-1]
    else:
        states = torch.cat((first[:, :, None], gained[:, :, :-1]), dim=2)
    parts = states.unbind(2)
    factors = None if decay is None else decay.unbind(2)
    for before, here in pairwise(order):
        if factors is None:
            parts[here].add_(parts[before])
        else:
            parts[here].addcmul_(parts[before], factors[before])
    end = order[-1]
    last = parts[end] if factors is None else parts[end] * factors[end]
    return states, last + gained[:, :, end]


def write_rows(whole: Tensor, rows: slice, part: Tensor) -> Tensor:
    """Return `whole` with `part` written to `rows`; `part` itself where that is all of it."""
    if part.shape == whole.shape and whole.is_contiguous() and part.is_contiguous():
        return part.to(whole.dtype)
    whole[:, :, rows] = part
    return whole
