"""LightConv: Wu et al. 2019, arXiv:1901.10430; the sum over taps, which all tokens share."""

from typing import Any

from torch import Tensor

from tests.literal.convolutions import convolution
from tests.literal.heads import joined, split

GRIDS = [
    {"width": [12], "heads": [3], "causal": [False, True], "kernel": [[1], [2], [5], [6]],
     "inner_width": [None, 6, 15], "glu": [True, False],
     "masks": ["", "keep"]},
]  # fmt: skip


def values(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Return the channels of every head behind the gate, 0 at padding."""
    y = mixer.in_proj(x)
    if case.glu:
        a, b = y.chunk(2, dim=-1)
        y = a * b.sigmoid()
    return split(y if case.keep is None else y * case.keep[..., None], mixer.heads)


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """y_i = sum_t softmax(w)_t z_(i + t - left)."""
    z = values(mixer, x, case)
    taps = mixer.weight[None].softmax(-1).expand(len(x), mixer.heads, x.shape[1], mixer.taps)
    left = mixer.taps - 1 if case.causal else (mixer.taps - 1) // 2
    return mixer.out_proj(joined(convolution(z, taps, left)))
