"""Kernels as long as the sequence: from few parameters, or with small weights set to 0.

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
    """Return kernels of n = `first` k 2^(s-1) lags, which join s interpolated pieces.

    Args:
        parts: k parameters of each piece, for c kernels of d channels. The first piece begins at
            lag 0.
        scale: Factor of each piece and channel.
        first: Number of lags per parameter in the first two pieces, a power of two. Each later
            piece has twice as many lags as the piece before.
    """
    dtype = sum_dtype(parts)
    weighted = parts.to(dtype) * scale.to(dtype)[:, None, :, None]
    numbered = enumerate(weighted.unbind())
    pieces = [upsample(part, first << max(0, number - 1)) for number, part in numbered]
    return torch.cat(pieces, dim=-1)


def upsample(x: Float[Tensor, "*b k"], times: int) -> Float[Tensor, "*b n"]:
    """Interpolate k values linearly to n = `times` k points; `times` is 1 or even.

    Before the first and after the last value, the result is constant. PyTorch's interpolation is
    not used, because its gradient on a GPU differs from run to run.
    """
    if times == 1:
        return x
    place = torch.arange(times, dtype=x.dtype, device=x.device)
    offset = (place + 0.5) / times - 0.5  # each value stands in the middle of its `times` points
    step = x.diff(dim=-1)
    zero = torch.zeros_like(x[..., :1])
    from_previous, to_next = torch.cat((zero, step), dim=-1), torch.cat((step, zero), dim=-1)
    change = from_previous[..., None] * offset.clamp(max=0) + to_next[..., None] * offset.clamp(
        min=0
    )
    return (x[..., None] + change).flatten(-2)


def soft_threshold(kernel: Float[Tensor, "*b n"], least: float) -> Float[Tensor, "*b n"]:
    """Return values moved towards 0 by `least`; smaller values become 0."""
    return kernel.sign() * (kernel.abs() - least).clamp(min=0)


class Decay(StrEnum):
    """Whether weights decay from piece to piece, or from lag to lag."""

    piece = auto()
    lag = auto()


class Start(StrEnum):
    """Initial values of pieces: normal random numbers, or one cosine per channel."""

    normal = auto()
    cosine = auto()


class PiecewiseKernel(nn.Module):
    """A kernel of decaying pieces, divided by the norm of its initial value.

    Args:
        shape: Number of kernels per channel (all directions together), and number of channels.
        smallest: Number of parameters of each piece.
        longest: Number of lags that the kernel must have at least.
        stretch: Number of lags per parameter of the first piece.
        decay: Whether weights decay from piece to piece or from lag to lag.
        ends: Base of the decay by pieces, or exponent of the decay by lags, in the first and in
            the last channel.
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
        # s pieces have `stretch` * `smallest` * 2^(s-1) lags; this is the least s for `longest`.
        number = 1 + (-(-longest // (stretch * smallest)) - 1).bit_length()
        self.parts = nn.Parameter(torch.empty(number, *shape, smallest))
        if init == Start.normal:
            nn.init.normal_(self.parts)
        else:
            # Each piece has cosines with 0, 1, 2, ... periods, in random order of the channels.
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
        """Return kernels before division: rate^(s-1-i) times piece i, or (t+1)^(-rate) K_t."""
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
    """A kernel with one parameter for each lag, moved towards 0 by a soft threshold.

    Args:
        shape: Number of kernels per channel (all directions together), and number of channels.
        longest: Number of lags.
        threshold: Size up to which a parameter gives the weight 0.
        dropout: Fraction of the lags that are dropped in training.
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
