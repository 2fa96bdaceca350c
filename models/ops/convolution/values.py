"""A convolution along the length, added to attention: one kernel per head, for all its widths.

    y_i = sum_t w_h,t v_(i + t - (K-1)/2),    v = 0 outside the sequence and at padding

The Nystromformer and YOSO add it to their outputs, where it restores what a low rank or hashing
loses about neighbours.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lra.models.ops.convolution.shared_kernel import shared_convolution


class ValueConvolution(nn.Module):
    """K weights per head, drawn as PyTorch draws those of a convolution."""

    def __init__(self, heads: int, kernel: int) -> None:
        super().__init__()
        if kernel < 1 or kernel % 2 == 0:
            raise ValueError(
                "conv_kernel must be odd, so that the convolution has a middle, or 0 for no "
                f"convolution: got {kernel}; use {max(0, kernel) + 1}"
            )
        self.weight = nn.Parameter(torch.empty(heads, kernel))
        nn.init.uniform_(self.weight, -1 / math.sqrt(kernel), 1 / math.sqrt(kernel))

    def forward(
        self, v: Float[Tensor, "b h l v"], keep: Bool[Tensor, "b l"] | None
    ) -> Float[Tensor, "b h l v"]:
        """Return the convolution of the values that are True in `keep`, in float32 or float64."""
        return shared_convolution(v, self.weight, self.weight.shape[1] // 2, keep)
