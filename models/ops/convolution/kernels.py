"""Kernels as long as the sequence from few parameters, or from many of which small ones are 0.

    piecewise        K = [w_0 up(P_0, f), w_1 up(P_1, f), ... w_i up(P_i, 2^(i-1) f), ...]
    soft_threshold   sign(K) max(|K| - lambda, 0)

`up` interpolates linearly to so many times as many points, whose ends repeat the first and the last
parameter: P_i has k parameters for 2^(i-1) f k lags. The result is float32, or float64 where the
parameters are.
"""

from enum import StrEnum, auto
from math import pi

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.ops.numerics import sum_dtype

SPREAD = 0.002
"""Standard deviation of free kernels at the start."""


def piecewise(
    parts: Float[Tensor, "s c d k"], scale: Float[Tensor, "s d"], first: int = 1
) -> Float[Tensor, "c d n"]:
    """Return a kernel of `first` k 2^(s-1) lags.

    Args:
        parts: Parameters of each piece, the nearest to lag 0 first.
        scale: What each piece is multiplied by.
        first: Lags for each parameter of the first two pieces, a power of two.
    """
    dtype = sum_dtype(parts)
    weighted = parts.to(dtype) * scale.to(dtype)[:, None, :, None]
    numbered = enumerate(weighted.unbind())
    pieces = [upsample(part, first << max(0, number - 1)) for number, part in numbered]
    return torch.cat(pieces, dim=-1)


def upsample(x: Float[Tensor, "*b k"], times: int) -> Float[Tensor, "*b n"]:
    """Return `times` k points on the lines between neighbours; `times` is 1 or even.

    By sums alone, whose gradient is the same in every run, as that of PyTorch's interpolation is
    not on a GPU.
    """
    if times == 1:
        return x
    place = torch.arange(times, dtype=x.dtype, device=x.device)
    away = (place + 0.5) / times - 0.5  # from the parameter in the middle of its points
    step = x.diff(dim=-1)
    none = torch.zeros_like(x[..., :1])
    fall, rise = torch.cat((none, step), dim=-1), torch.cat((step, none), dim=-1)
    lines = fall[..., None] * away.clamp(max=0) + rise[..., None] * away.clamp(min=0)
    return (x[..., None] + lines).flatten(-2)


def soft_threshold(kernel: Float[Tensor, "*b n"], least: float) -> Float[Tensor, "*b n"]:
    """Return values moved towards 0 by `least`; smaller values become 0."""
    return kernel.sign() * (kernel.abs() - least).clamp(min=0)


class Decay(StrEnum):
    """Which weights decay: those of pieces, or those of lags."""

    piece = auto()
    lag = auto()


class Start(StrEnum):
    """What pieces start from: normal numbers, or a cosine of another frequency in each channel."""

    normal = auto()
    cosine = auto()


class PiecewiseKernel(nn.Module):
    """Pieces that decay, divided by the norm of the kernel that they start as.

    Args:
        shape: Kernels of each channel, in all directions; channels.
        smallest: Parameters of a piece.
        longest: Lags that the pieces reach at least.
        stretch: Lags for each parameter of the first piece.
        decay: What decays.
        ends: Base of the pieces' weights, or exponent of the lags', in the first and last channel.
        init: Initial values of the pieces.
    """

    norm: Tensor

    def __init__(
        self,
        shape: tuple[int, int],
        smallest: int,
        longest: int,
        *,
        stretch: int,
        decay: Decay,
        ends: tuple[float, float],
        init: Start,
    ) -> None:
        super().__init__()
        self.stretch, self.decay, self.ends = stretch, decay, ends
        number = 1 + (-(-longest // (stretch * smallest)) - 1).bit_length()
        self.parts = nn.Parameter(torch.empty(number, *shape, smallest))
        if init == Start.normal:
            nn.init.normal_(self.parts)
        else:
            width = shape[1]
            turns = torch.linspace(0, 2 * pi, smallest) * torch.arange(width)[:, None]
            waves = torch.stack([turns.cos()[torch.randperm(width)] for _ in range(number)])
            with torch.no_grad():
                self.parts.copy_(waves[:, None])
        with torch.no_grad():
            self.register_buffer("norm", self._kernel().norm(dim=-1, keepdim=True))

    def forward(self, length: int) -> Float[Tensor, "c d n"]:
        """Return the kernels of every channel for rows of `length`, at most all lags."""
        kernel = self._kernel()[..., :length]
        return kernel / self.norm.to(kernel.dtype)

    def _kernel(self) -> Float[Tensor, "c d n"]:
        number, _, width, _ = self.parts.shape
        dtype, device = sum_dtype(self.parts), self.parts.device
        rates = torch.linspace(*self.ends, width, dtype=dtype, device=device)
        if self.decay == Decay.piece:
            powers = torch.arange(number - 1, -1, -1, dtype=dtype, device=device)
            return piecewise(self.parts, rates ** powers[:, None], self.stretch)
        kernel = piecewise(self.parts, torch.ones_like(rates).expand(number, -1), self.stretch)
        lags = torch.arange(1, kernel.shape[-1] + 1, dtype=dtype, device=device)
        return kernel * lags ** -rates[:, None]


class FreeKernel(nn.Module):
    """A parameter for each lag, of which those near 0 are 0.

    Args:
        shape: Kernels of each channel, in all directions; channels.
        longest: Lags.
        threshold: Below it a parameter gives 0.
        dropout: Share of the lags that a training pass drops.
    """

    def __init__(
        self, shape: tuple[int, int], longest: int, threshold: float, dropout: float
    ) -> None:
        super().__init__()
        self.threshold, self.dropout = threshold, dropout
        self.values = nn.Parameter(torch.empty(*shape, longest))
        nn.init.normal_(self.values, std=SPREAD)

    def forward(self, length: int) -> Float[Tensor, "c d n"]:
        """Return the kernels of every channel for rows of `length`, at most all lags."""
        kernel = soft_threshold(self.values[..., :length], self.threshold)
        return F.dropout(kernel, self.dropout, self.training)
