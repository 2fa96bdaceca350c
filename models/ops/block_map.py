"""A linear map within blocks of channels, such as those of a head."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class BlockMap(nn.Module):
    """A linear map within blocks of channels, drawn normally.

    Args:
        width: Channels.
        block: Channels of one block.
        deviation: Of its weights.
    """

    def __init__(self, width: int, block: int, deviation: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width // block, block, block))
        nn.init.normal_(self.weight, std=deviation)

    def forward(self, x: Float[Tensor, "*r e"]) -> Float[Tensor, "*r e"]:
        """Apply its matrix to each block of channels."""
        blocks = x.reshape(*x.shape[:-1], *self.weight.shape[:2])
        return torch.einsum("...ni,noi->...no", blocks, self.weight).flatten(-2)
