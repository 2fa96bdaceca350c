"""Compression of each block to one key or value: the mean of its tokens, or a small network."""

from enum import StrEnum, auto

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lra.models.linear_map import projection
from lra.models.mixer import Roles
from lra.models.ops.sparse.block_table import block_means


class BlockCompression(StrEnum):
    """How a block is compressed to one key and one value."""

    mean = auto()
    network = auto()
    """A two-layer network on the whole block, with an embedding of each position within it."""


class BlockMean(nn.Module):
    """The mean of the tokens of each block."""

    def forward(
        self, x: Float[Tensor, "b g m c k"], filled: Bool[Tensor, "#b m c"] | None
    ) -> Float[Tensor, "b g m k"]:
        """Return the mean of each block over slots that are True in `filled`; None: over all."""
        return block_means(x, filled).to(x.dtype)


class BlockNetwork(Roles):
    """A network of two layers that maps each block to one vector.

    Args:
        groups: Number of key heads, each with separate position vectors.
        block: Number of tokens of a block, C.
        width: Number of channels of a head.
    """

    no_matrices = ("positions",)

    def __init__(self, groups: int, block: int, width: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(groups, block, width))
        self.inner = projection(block * width, 4 * width, bias=True)
        self.outer = projection(4 * width, width, bias=True)

    def forward(
        self, x: Float[Tensor, "b g m c k"], filled: Bool[Tensor, "#b m c"] | None
    ) -> Float[Tensor, "b g m k"]:
        """Return the network's output for each block; `filled` is False for empty slots."""
        placed = x + self.positions[:, None].to(x.dtype)
        if filled is not None:
            placed = placed.masked_fill(~filled[:, None, ..., None], 0)
        compressed: Tensor = self.outer(self.inner(placed.flatten(3)).relu())
        return compressed
