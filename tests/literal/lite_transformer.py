"""Lite Transformer: Wu et al. 2020, arXiv:2004.11886; attention and a convolution side by side."""

from typing import Any

import torch
from torch import Tensor

from tests.literal import dynamic_conv, light_conv
from tests.literal.heads import attended

GRIDS = [
    {"width": [12], "heads": [2], "causal": [False, True], "convolution": ["light", "dynamic"],
     "attention_width": [None, 4, 8], "kernel": [[5], [2]], "glu": [True, False],
     "masks": ["", "keep"]},
]  # fmt: skip


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Some channels are attended, the others convolved."""
    width = case.attention_width or 6
    convolved = {"light": light_conv, "dynamic": dynamic_conv}[case.convolution].literal
    parts = (
        attended(mixer.attention, x[..., :width], case),
        convolved(mixer.convolution, x[..., width:], case),
    )
    return torch.cat(parts, dim=-1)
