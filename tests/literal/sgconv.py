"""SGConv and LongConv: Li et al. 2022, arXiv:2210.09298; Fu et al. 2023, arXiv:2302.06646."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.literal.convolutions import long_convolution, piecewise

USUAL = {"width": [6], "heads": [2], "max_length": [24], "causal": [True, False],
         "kernels": [1, 2], "mixing": ["glu", "linear"], "length": [1, 3, 4, 5, 17]}  # fmt: skip
GRIDS = [
    {**USUAL, "smallest": [4], "decay": ["piece", "lag"], "init": ["normal", "cosine"],
     "stretch": [1, 2], "decay_min": [2.0, 1.0], "decay_max": [2.0, 3.0]},
    {**USUAL, "smallest": [40], "stretch": [1, 2], "init": ["normal", "cosine"]},
    {**USUAL, "kernel": ["free"], "threshold": [0.001, 0.0]},
]  # fmt: skip


def kernel_of(mixer: Any, options: dict[str, Any]) -> Tensor:
    """Return the kernels of all lags, channel by channel."""
    own = mixer.kernel
    if options.get("kernel") == "free":
        least = options["threshold"]
        small = own.values.abs() <= least
        return torch.where(small, 0.0, own.values - least * own.values.sign())
    number, _, width, _ = own.parts.shape
    ends = options.get("decay_min", 2.0), options.get("decay_max", 2.0)
    base = torch.linspace(*ends, width, dtype=torch.float64)
    scale = torch.stack([base ** (number - 1 - piece) for piece in range(number)])
    if options.get("decay") == "lag":
        scale = torch.ones_like(scale)
    kernel = piecewise(own.parts, scale, options.get("stretch", 1))
    if options.get("decay") == "lag":
        kernel = kernel / (torch.arange(kernel.shape[-1]) + 1.0) ** base[:, None]
    return kernel / own.norm


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Compute a layer from its parameters, by a double loop."""
    options = vars(case)
    kernels, u = kernel_of(mixer, options), x.mT
    kernels = F.pad(kernels, (0, u.shape[-1]))[..., : u.shape[-1]]
    each = options.get("kernels", 1)
    read = [
        long_convolution(u, *kernels[number::each]) + mixer.skip[number, :, None] * u
        for number in range(each)
    ]
    y = mixer.out_proj(F.gelu(torch.cat(read, dim=1)).mT)
    return y[..., :6] * y[..., 6:].sigmoid() if mixer.mixing == "glu" else y
