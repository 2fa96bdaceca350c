"""MultiresConv: Shi et al. 2023, arXiv:2305.01638, level by level and token by token."""

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from tests.literal.convolutions import dilated_tree

GRIDS = [
    {"width": [6], "heads": [2], "max_length": [20], "causal": [True, False], "taps": [2, 4],
     "levels": [None, 2], "wide_skip": [False, True], "mixing": ["glu", "linear"],
     "length": [1, 2, 3, 4, 13, 20, 25], "masks": ["", "document"]},
]  # fmt: skip


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Compute a layer from its parameters, level by level and token by token."""
    z = dilated_tree(x, mixer.low, mixer.high, mixer.weights, case.document)
    y = mixer.out_proj(F.gelu(z))
    return y[..., :6] * y[..., 6:].sigmoid() if mixer.mixing == "glu" else y
