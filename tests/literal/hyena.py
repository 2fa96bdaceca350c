"""Hyena: Poli et al. 2023, arXiv:2302.10866, from its parameters, token by token."""

import math
from typing import Any

import torch
from torch import Tensor

from tests.literal.convolutions import implicit, long_convolution, short_convolution

GRIDS = [
    {"width": [6], "heads": [2], "max_length": [20], "filter_width": [8], "order": [2, 3, 4],
     "causal": [True], "bands": [1, 3], "inner_layers": [2, 0], "frequency": [1.0, 10.0],
     "shift": [0.0, 0.1], "slow_decay": [1.5, 1.0], "target": [0.01, 0.1], "convolution": [3, 1],
     "train_positions": [True, False], "length": [1, 2, 3, 4, 13, 20]},
    {"width": [6], "heads": [2], "max_length": [20], "filter_width": [8], "order": [2, 3],
     "bidirectional": [True], "length": [1, 2, 13, 20]},
]  # fmt: skip
TOLERANCE = {"rtol": 1e-8}


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Compute a layer from its parameters, token by token."""
    options = vars(case)
    own, order = mixer.kernel, options.get("order", 2)
    ends = [
        math.log(options.get("target", 0.01)) / options.get(name, share)
        for name, share in (("slow_decay", 1.5), ("fast_decay", 0.3))
    ]
    count = (order - 1) * 6
    rates = [ends[0] + (ends[1] - ends[0]) * k / (count - 1) for k in range(count)]
    rates = torch.tensor(rates, dtype=torch.float64)
    layers = [(layer.weight, layer.bias) for layer in own.layers]
    shift = options.get("shift", 0.0)
    kernels = [
        implicit(own.positions, layers, own.frequency, last, (rates, shift))[:, : x.shape[1]]
        for last in own.last.weight.split(count)
    ]
    u = short_convolution(mixer.in_proj(x), mixer.taps, mixer.taps_bias)
    *gates, v = u.mT.split(6, dim=1)
    for step, gate in enumerate(reversed(gates[1:])):
        v = v * gate
        here = [kernel[step * 6 : (step + 1) * 6] for kernel in kernels]
        v = long_convolution(v, *here) + mixer.skip[step, :, None] * v
    return mixer.out_proj((v * gates[0]).mT)
