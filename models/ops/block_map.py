"""A linear map within blocks of channels, such as those of a head."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class BlockMap(nn.Module):
    """A linear map with one matrix for each block of channels; weights are drawn from a normal.

    Args:
        width: Number of channels, a multiple of `block`.
        block: Number of channels of one block.
        deviation: Standard deviation of the initial weights.
    """

    def __init__(self, width: int, block: int, deviation: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width // block, block, block))
        nn.init.normal_(self.weight, std=deviation)

    def forward(self, x: Float[Tensor, "*r e"]) -> Float[Tensor, "*r e"]:
        """Return W_n x_n for each block n of the channels of `x`, joined again."""
        blocks = x.reshape(*x.shape[:-1], *self.weight.shape[:2])
        return torch.einsum("...ni,noi->...no", blocks, self.weight).flatten(-2)
