"""A linear map in groups: contiguous parts of the channels, each with a matrix of its own.

    y = [x_1 W_1 ; … ; x_g W_g] + b,   W_i: in / g -> out / g

It is a linear map whose matrix is block-diagonal, with a g-th of the weights and of the products.
Source: Jiang et al. 2020, arXiv:2008.02496, section 3.2 (ConvBERT's grouped linear operator).
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn


class GroupedLinear(nn.Module):
    """Each part of the channels by its own matrix; Xavier weights by group, zero biases if any.

    Args:
        inputs: Channels that come in.
        outputs: Channels that go out.
        groups: How many parts both are cut into.
        bias: Whether there is one, over all outputs.

    Raises:
        ValueError: `groups` does not divide both.
    """

    def __init__(self, inputs: int, outputs: int, groups: int, *, bias: bool = True) -> None:
        super().__init__()
        if inputs % groups or outputs % groups:
            raise ValueError(
                f"groups={groups} must divide what comes in and what goes out: got {inputs} and "
                f"{outputs}"
            )
        self.weight = nn.Parameter(torch.empty(groups, outputs // groups, inputs // groups))
        for matrix in self.weight.unbind():
            nn.init.xavier_uniform_(matrix)
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x: Float[Tensor, "*items d"]) -> Float[Tensor, "*items k"]:
        """Map every part."""
        groups, out, wide = self.weight.shape
        parts = x.reshape(math.prod(x.shape[:-1]), groups, wide).transpose(0, 1)
        y = torch.bmm(parts, self.weight.mT).transpose(0, 1)
        y = y.reshape(*x.shape[:-1], groups * out)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def extra_repr(self) -> str:
        """Return what it maps, for a printed model."""
        groups, out, wide = self.weight.shape
        return f"{groups * wide}, {groups * out}, groups={groups}, bias={self.bias is not None}"
