"""The blocks that each block attends to in Big Bird: fixed blocks, and distinct random blocks."""

from enum import StrEnum, auto
from itertools import product

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lra.models.ops.sparse.block_lists import Lists

FORMER_LENGTHS = (1024, 3072, 4096)
"""Lengths for which the published code draws all random blocks from the first 1,024 tokens."""
FORMER_REACH = 1024
PUBLISHED_SEED = 42
"""Seed of numpy's generator in every layer, by default in the Skyformer code."""


class PlanChoice(StrEnum):
    """How random blocks are drawn."""

    uniform = auto()
    official = auto()
    verbatim = auto()


def choose(
    draws: Int[Tensor, "h r t"],
    start: Int[Tensor, "b r"],
    end: Int[Tensor, "b r"],
    skip: Int[Tensor, "b r"],
    skipped: Int[Tensor, "b r"],
) -> tuple[Int[Tensor, "b h r t"], Bool[Tensor, "b h r t"]]:
    """Return t distinct random blocks for each head and row, by Floyd's algorithm.

    Candidates are the blocks start ... end-1, without the `skipped` blocks from `skip` on. Every
    choice is equally likely. If there are fewer than t candidates, all are chosen, and surplus
    entries are False in the second tensor.

    Args:
        draws: t random numbers for each head and row.
        start: First candidate of each row.
        end: Last candidate plus one.
        skip: First excluded block.
        skipped: Number of excluded blocks.
    """
    number = (end - start - skipped)[:, None]
    picks: list[Tensor] = []
    for index, draw in enumerate(draws.long().unbind(-1)):
        last = number - draws.shape[-1] + index  # Floyd: the next pick is from 0 ... last
        pick = draw % (last + 1).clamp(min=1)
        for earlier in picks:
            pick = torch.where(pick == earlier, -1, pick)
        # A number that was picked before is replaced by `last`, which is new.
        picks.append(torch.where((pick < 0) | (last < 0), last, pick))
    picked = torch.stack(picks, -1)
    blocks = start[:, None, :, None] + picked
    blocks = blocks + torch.where(blocks >= skip[:, None, :, None], skipped[:, None, :, None], 0)
    return blocks.clamp(min=0), picked >= 0


class BigBirdPlan:
    """The rules of a plan: block length, number of random blocks, and their candidates."""

    def __init__(self, *, block: int, drawn: int, causal: bool, plan: PlanChoice) -> None:
        self.block, self.drawn, self.causal, self.plan = block, drawn, causal, plan

    @property
    def least(self) -> int:
        """Smallest number of blocks with which some block attends to only part of the sequence."""
        # Block 1 attends to 4 fixed blocks (0, 1, 2 and the last), a causal block to 3.
        return self.drawn + (4 if self.causal else 5)

    def random(self, count: int) -> bool:
        """Return whether random draws change the result for sequences of `count` blocks."""
        if self.plan == PlanChoice.verbatim:
            return False
        front = self.plan != PlanChoice.uniform and count * self.block in FORMER_LENGTHS
        number = FORMER_REACH // self.block - 1 if front else count
        return 0 < self.drawn < number and count >= self.least

    def end(self, count: Int[Tensor, " b"], rows: Int[Tensor, " r"]) -> Int[Tensor, "b r"]:
        """Return the last candidate plus one for each of `rows`, in sequences of `count` blocks."""
        if self.causal:
            return (rows[None] - 1).clamp(min=1)
        end = count - 1
        reach = FORMER_REACH // self.block  # blocks from which `former` lengths draw
        if self.plan != PlanChoice.uniform:
            former = self.former(count)
            later = torch.where(count > 2 * self.drawn + 5, 2 * self.drawn + 4, end)
            end = torch.minimum(end, torch.where(former, reach, later))
        return end.clamp(min=1)[:, None].expand(-1, len(rows))

    def former(self, count: Int[Tensor, " b"]) -> Bool[Tensor, " b"]:
        """Return True for lengths in `FORMER_LENGTHS`, given as numbers of blocks."""
        return torch.stack([count * self.block == n for n in FORMER_LENGTHS]).any(0)

    def lists(
        self, draws: Int[Tensor, "h m t"], count: Int[Tensor, " b"], rows: Int[Tensor, " r"]
    ) -> Lists:
        """Return the blocks that each of `rows` attends to, in sequences of `count` blocks."""
        last = (count - 1)[:, None]
        # Pairs of a fixed block and whether each row attends to it; `0 * rows` is the first block.
        if self.causal:
            fixed = [(rows - 1, rows >= 1), (rows, rows >= 0), (0 * rows, rows >= 2)]
        else:
            fixed = [
                (rows - 1, rows >= 1),
                (rows, rows >= 0),
                (rows + 1, rows < last),
                (0 * rows, rows >= 2),
                (last, last > rows + 1),
            ]
        shape = (len(count), len(rows))
        parts = [(x.expand(shape), visible.expand(shape)) for x, visible in fixed]
        blocks, visible = (torch.stack(part, -1)[:, None] for part in zip(*parts, strict=True))
        blocks = torch.where(visible, blocks, 0).expand(-1, len(draws), -1, -1)
        visible = visible.expand_as(blocks)
        if self.drawn:
            chosen = self.chosen(draws, count, rows)
            blocks, visible = (
                torch.cat(x, -1) for x in zip((blocks, visible), chosen, strict=True)
            )
        return Lists(blocks, visible, rows, self.block, diagonal=1 if self.causal else None)

    def chosen(
        self, draws: Int[Tensor, "h m t"], count: Int[Tensor, " b"], rows: Int[Tensor, " r"]
    ) -> tuple[Int[Tensor, "b h r t"], Bool[Tensor, "b h r t"]]:
        """Return the random blocks of `rows`, and False where there is no such block."""
        return choose(draws[:, rows % draws.shape[1]], *self.candidates(count, rows))

    def candidates(
        self, count: Int[Tensor, " b"], rows: Int[Tensor, " r"]
    ) -> tuple[Int[Tensor, "b r"], Int[Tensor, "b r"], Int[Tensor, "b r"], Int[Tensor, "b r"]]:
        """Return the candidates of `rows`: start, end, first excluded block, number excluded."""
        end = self.end(count, rows)
        skip = torch.minimum((rows - 1).clamp(min=1), end)
        skipped = 0 * skip if self.causal else torch.minimum(rows + 2, end) - skip
        skipped, start = skipped.clamp(min=0), torch.ones_like(end)
        if self.plan == PlanChoice.verbatim:  # exceptions of the published code
            former, top = self.former(count)[:, None], 2 * self.drawn + 3
            later = ~former & (count[:, None] > top + 2)
            start = start + (later & (rows == top)).int()
            end = end - (later & (rows == 1)).int()
            skipped = skipped.masked_fill(former & (rows >= count[:, None] - 3), 0)
        return start, end, skip, skipped

    def published_draws(self, heads: int, count: int) -> Int[Tensor, "h m t"]:
        """Return draws with which `choose` gives the blocks of the Skyformer code.

        For each head and row of `count` blocks, they are indices of candidates in rising order,
        which `choose` leaves unchanged.
        """
        random, blocks = np.random.RandomState(PUBLISHED_SEED), torch.tensor([count], device="cpu")
        bounds = self.candidates(blocks, torch.arange(count, device="cpu"))
        spans = torch.cat(bounds).T.tolist()
        former = bool(self.former(blocks))
        turns = [*product(range(heads), range(1, count - 1))]
        if not former:  # here that code also draws for the last row, and ignores the result
            turns = [(head, row) for row, head in product(range(1, count), range(heads))]
        draws = np.zeros((heads, count, self.drawn), np.int32)
        for head, row in turns:
            start, end, skip, skipped = spans[row]
            legal = [*range(start, skip), *range(skip + skipped, end)]
            permuted = random.permutation(legal if former else 2 * self.drawn + 5).tolist()
            drawn = [legal.index(block) for block in permuted if block in legal][: self.drawn]
            draws[head, row, : len(drawn)] = sorted(drawn)
        return torch.from_numpy(draws)
