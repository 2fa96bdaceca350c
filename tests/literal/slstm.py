"""sLSTM: Beck et al. 2024, arXiv:2405.04517, in plain exponentials."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from tests.literal.gated import both_ends, convolved

GRIDS = [
    {"causal": [True, False], "recurrent": ["uniform"], "convolution": [4, None, 2],
     "forget_bias": ["powerlaw", "linear"], "length": [1, 7, 8, 9, 29], "small": [False, True]},
]  # fmt: skip


def exponential_lstm(
    gates: Float[Tensor, "b l 4 h k"],
    recurrent: Float[Tensor, "h k 4 k2"],
    *,
    keep: Bool[Tensor, "b l"] | None = None,
    begins: Bool[Tensor, "b l"] | None = None,
) -> Float[Tensor, "b l h k"]:
    """Gates + R h; c = sigma(f) c + e^i tanh(z), n = sigma(f) n + e^i, h = sigma(o) c / n.

    In plain exponentials, which float64 holds for gates of ordinary size; from nothing. Padding
    gives 0, and leaves h, c and n as they were.
    """
    rows = []
    for b in range(len(gates)):
        h = c = n = torch.zeros_like(gates[0, 0, 0])
        outputs = []
        for t in range(gates.shape[1]):
            if keep is not None and not keep[b, t]:
                outputs.append(torch.zeros_like(h))
                continue
            if begins is not None and begins[b, t]:
                h = c = n = torch.zeros_like(h)
            i, f, z, o = gates[b, t] + torch.einsum("hk,hkgj->ghj", h, recurrent)
            c = f.sigmoid() * c + i.exp() * z.tanh()
            n = f.sigmoid() * n + i.exp()
            h = o.sigmoid() * c / n
            outputs.append(h)
        rows.append(torch.stack(outputs))
    return torch.stack(rows)


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Norm by head what both ends read."""

    def read(x: Tensor) -> Tensor:
        c = convolved(mixer, 0, x)
        maps = mixer.input_map, mixer.forget_map, mixer.cell_map, mixer.output_map
        pairs = zip((c, c, x, x), maps, strict=True)
        gates = [y @ torch.block_diag(*each.weight).mT for y, each in pairs]
        gates = torch.stack(gates, 2).unflatten(-1, (3, -1)) + mixer.bias
        return exponential_lstm(gates, mixer.recurrent).transpose(1, 2)

    h = both_ends(read, x, case).transpose(1, 2)
    return F.layer_norm(h, h.shape[-1:]).flatten(2) * mixer.norm_weight
