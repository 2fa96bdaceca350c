"""DynamicConv: Wu et al. 2019, arXiv:1901.10430; the sum over taps, which each token chooses."""

from typing import Any

import torch
from torch import Tensor

from tests.literal.convolutions import convolution
from tests.literal.heads import joined
from tests.literal.light_conv import GRIDS, values

__all__ = ["GRIDS", "literal"]


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """y_i = sum_t softmax(W z_i)_t z_(i + t - left)."""
    z = values(mixer, x, case)
    weight = mixer.kernel_proj.weight.view(mixer.heads, mixer.taps, -1)
    logits = torch.einsum("bld,htd->bhlt", joined(z), weight)
    left = mixer.taps - 1 if case.causal else (mixer.taps - 1) // 2
    return mixer.out_proj(joined(convolution(z, logits.softmax(-1), left)))
