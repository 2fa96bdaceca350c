"""The random blocks of Big Bird in the Long Range Arena code, drawn as in that code.

numpy's generator is seeded with the number of the layer and permutes the candidates of each head
and row, of which the first ones are used. Candidates end at token 1,024 for any length.
"""

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lra.models.ops.sparse.big_bird_plan import FORMER_REACH, BigBirdPlan


def candidates(row: int, count: int, last: int) -> Int[np.ndarray, " n"]:
    """Return the blocks from which block `row` draws its random blocks.

    `row` and its neighbours are excluded. The branches have the limits of that code, which differ
    for the first rows, the last rows and rows near `last`.

    Args:
        row: Number of the block of queries, 1 ... count - 2.
        count: Number of blocks of the sequence.
        last: Where candidates end, as an index into the blocks 1 ... count - 2.
    """
    blocks = np.arange(1, count - 1)
    if row in {1, 2}:
        return blocks[row + 1 : last]
    if row >= count - 3:
        return blocks[: last - 1 - (count - row)]
    start = min(row - 2, last)
    if row - 2 > last or row + 1 == last:
        return blocks[:start]
    return np.concatenate((blocks[:start], blocks[row + 1 : last]))


def released_blocks(
    heads: int, count: int, *, block: int, drawn: int, seed: int
) -> Int[Tensor, "h m t"]:
    """Return the `drawn` random blocks of each head and block of queries; -1: none is left.

    The released code fails if a row has fewer than `drawn` candidates.
    """
    random, reach = np.random.RandomState(seed), min(count * block, FORMER_REACH)
    last = (reach // block if reach > 2 * block else count) - 1
    drawn_blocks = np.full((heads, count, drawn), -1, np.int32)
    for head in range(heads):
        for row in range(1, count - 1):
            picked = random.permutation(candidates(row, count, last))[:drawn]
            drawn_blocks[head, row, : len(picked)] = picked
    return torch.from_numpy(drawn_blocks)


class ReleasedPlan(BigBirdPlan):
    """The plan of the released code, whose draws are numbers of blocks."""

    def chosen(
        self, draws: Int[Tensor, "h m t"], count: Int[Tensor, " b"], rows: Int[Tensor, " r"]
    ) -> tuple[Int[Tensor, "b h r t"], Bool[Tensor, "b h r t"]]:
        """Return the random blocks of `rows`, and False for draws of -1, which are no blocks."""
        blocks = draws[:, rows].long().expand(len(count), -1, -1, -1)
        return blocks.clamp(min=0), blocks >= 0
