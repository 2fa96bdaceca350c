"""Talking heads: Shazeer et al. 2020, arXiv:2003.02436."""

from typing import Any

import torch
from torch import Tensor

from tests.literal.heads import in_sight, joined, lowered, softmax_over, split

KEPT = {"causal": [False, True], "masks": ["", "keep"], "positions": ["none", "alibi"]}
GRIDS = [
    {**KEPT, "mixing": ["identity", "normal"]},
    {**KEPT, "mixing": ["normal"], "key_heads": [4], "value_heads": [2]},
    {"masks": ["source"], "mixing": ["normal"]},
]


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Maps of heads in front of the softmax, and behind it; distances lower what is mixed."""
    source = x if case.source is None else case.source
    layers = (mixer.q_proj, x), (mixer.k_proj, source), (mixer.v_proj, source)
    q, k, v = (split(layer(y), layer.out_features // mixer.head_width) for layer, y in layers)
    before, behind = mixer.core.logits_map, mixer.core.weights_map
    scores = torch.einsum("ha,baij->bhij", before, q @ k.mT / mixer.head_width**0.5)
    scores = scores - lowered(case, len(before), x.shape[1])
    weights = softmax_over(scores, in_sight(case, x.shape[1]))
    return mixer.out_proj(joined(torch.einsum("ch,bhij->bcij", behind, weights) @ v))
