"""mLSTM: Beck et al. 2024, arXiv:2405.04517, in plain exponentials."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.literal.gated import convolved, exponential_product
from tests.literal.heads import joined, split

GRIDS = [
    {"causal": [True], "chunk": [8], "length": [1, 7, 8, 9, 29], "expansion": [2, 1],
     "block_size": [4, 2, 1], "convolution": [4, None], "bias": [False, True],
     "small": [False, True]},
]  # fmt: skip


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """S = exp(f) S + exp(i) k v^T and what is read of it, normed, beside a skip."""
    u = mixer.input_proj(x)
    c = convolved(mixer, 0, u)
    parts = (mixer.query_map, c), (mixer.key_map, c), (mixer.value_map, u)
    q, k, v = (y @ torch.block_diag(*layer.weight).mT for layer, y in parts)
    together = torch.cat((q, k, v), -1)
    enter, forget = (gate(together).transpose(1, 2) for gate in (mixer.enter, mixer.forget))
    q, k, v = (split(each, 3) for each in (q, k, v))
    o = exponential_product(q, k / k.shape[-1] ** 0.5, v, F.logsigmoid(forget), enter)
    y = joined(F.layer_norm(o, o.shape[-1:])) * mixer.norm_weight + mixer.skip * c
    return mixer.out_proj(y * F.silu(mixer.gate_proj(x)))
