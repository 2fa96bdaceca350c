"""A kernel as long as the sequence that a small network draws: it answers each lag with weights.

    z_t = [t', cos(f w_t), -sin(f w_t)]       t' = t / (n - 1), w_t = 2 pi t / n, for B numbers f
    K_t = W sin(a (W_i ... sin(a (W_0 z_t + b_0)) ... + b_i)) (exp(-|delta| t') + shift)

a are frequencies, one a unit, the same in every layer. delta is spread evenly over channels:
exp(-|delta| t') is `target` at the share `slow` of the lags in the first, at `fast` in the last.

Source     Poli et al. 2023, arXiv:2302.10866, section 3.3; HazyResearch/safari.
"""

import math
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lra.models.ops.numerics import full_precision
from lra.models.ops.state_space.float32_parameters import Float32Parameters

LOWEST = 1e-4
"""The lowest of the frequencies f; the highest is B - 1."""


class ImplicitKernel(Float32Parameters):
    """The network, and the table of what it is asked with.

    Args:
        channels: Kernels.
        longest: Lags, n. Another n is another kernel, not a longer one.
        copies: Kernels of each channel, which decay alike.
        width: Units of each layer.
        bands: B.
        inner_layers: Layers between the first and the last.
        frequency: a at the start.
        slow: Share of the lags after which the first channel has decayed to `target`.
        fast: The same of the last.
        target: What is left there.
        shift: What is left of every lag.
        train_positions: Whether z is trained.
    """

    def __init__(
        self,
        channels: int,
        longest: int,
        *,
        copies: int,
        width: int,
        bands: int,
        inner_layers: int,
        frequency: float,
        slow: float,
        fast: float,
        target: float,
        shift: float,
        train_positions: bool,
    ) -> None:
        super().__init__()
        self.positions: Tensor
        self.channels, self.copies, self.longest, self.shift = channels, copies, longest, shift
        self.ends = math.log(target) / slow, math.log(target) / fast
        angle = torch.arange(longest)[:, None] * (2 * math.pi / longest)
        angle = angle * torch.linspace(LOWEST, bands - 1, bands)
        place = torch.linspace(0, 1, longest)[:, None]
        table = torch.cat((place, angle.cos(), -angle.sin()), dim=1)
        if train_positions:
            self.positions = nn.Parameter(table)
        else:
            self.register_buffer("positions", table)
        sizes = [1 + 2 * bands, *[width] * (1 + inner_layers)]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        self.frequency = nn.Parameter(torch.full((width,), frequency))
        self.last = nn.Linear(width, copies * channels, bias=False)

    def forward(self, length: int) -> Float[Tensor, "s d n"]:
        """Return the kernels of every channel, with as many lags as rows of `length` need."""
        with full_precision(self.positions):
            h = self.positions[:length]
            for layer in self.layers:
                h = (self.frequency * layer(h)).sin()
            dtype, device = h.dtype, h.device
            place = torch.linspace(0, 1, self.longest, dtype=dtype, device=device)[:length]
            rates = torch.linspace(*self.ends, self.channels, dtype=dtype, device=device).abs()
            decay = (-rates[:, None] * place).exp()
            weights: Tensor = self.last(h).mT.reshape(self.copies, self.channels, -1)
            return weights * (decay + self.shift)
