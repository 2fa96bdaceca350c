"""A kernel as long as the sequence, computed by a small network from features of each lag.

    z_t = [t', cos(f w_t), -sin(f w_t)]       t' = t / (n - 1), w_t = 2 pi t / n, for B numbers f
    K_t = W sin(a (W_i ... sin(a (W_0 z_t + b_0)) ... + b_i)) (exp(-|delta| t') + shift)

a are the frequencies of the sine, one per unit, which all layers share. delta is spaced evenly over
channels: exp(-|delta| t') falls to `target` at t' = `slow` in the first channel, and at t' = `fast`
in the last.

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
    """The network that computes the kernels, and the table z of its inputs.

    Args:
        channels: Number of channels.
        longest: Number of lags, n. With another n, the whole kernel changes.
        copies: Number of kernels per channel, all with the same decay.
        width: Number of units of each layer.
        bands: Number of frequencies f, B.
        inner_layers: Number of layers between the first and the last.
        frequency: Initial value of a.
        slow: Fraction of the lags after which the first channel has decayed to `target`.
        fast: Fraction of the lags after which the last channel has decayed to `target`.
        target: Factor to which weights have decayed there.
        shift: Number added to the decay factor of every lag.
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
        # -|delta| of the first and of the last channel: exp(-|delta| slow) = target.
        self.ends = math.log(target) / slow, math.log(target) / fast
        angle = torch.arange(longest)[:, None] * (2 * math.pi / longest)
        angle = angle * torch.linspace(LOWEST, bands - 1, bands)
        lag_fraction = torch.linspace(0, 1, longest)[:, None]
        table = torch.cat((lag_fraction, angle.cos(), -angle.sin()), dim=1)
        if train_positions:
            self.positions = nn.Parameter(table)
        else:
            self.register_buffer("positions", table)
        sizes = [1 + 2 * bands, *[width] * (1 + inner_layers)]  # z, then the units of each layer
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        self.frequency = nn.Parameter(torch.full((width,), frequency))
        self.last = nn.Linear(width, copies * channels, bias=False)

    def forward(self, length: int) -> Float[Tensor, "s d n"]:
        """Return s kernels (`copies`) for each of d channels, with the first `length` lags."""
        with full_precision(self.positions):
            hidden = self.positions[:length]
            for layer in self.layers:
                hidden = (self.frequency * layer(hidden)).sin()
            dtype, device = hidden.dtype, hidden.device
            lag_fraction = torch.linspace(0, 1, self.longest, dtype=dtype, device=device)[:length]
            rates = torch.linspace(*self.ends, self.channels, dtype=dtype, device=device).abs()
            decay = (-rates[:, None] * lag_fraction).exp()  # of each channel at each lag
            weights: Tensor = self.last(hidden).mT.reshape(self.copies, self.channels, -1)
            return weights * (decay + self.shift)
