"""A convolution whose kernel is as long as the sequence, by fast Fourier transforms.

    y_t = sum_{j <= t} K_{t-j} u_j                                  causal
    y_t = the same + sum_{j > t} K'_{j-t-1} u_j                     with a backward kernel

Both directions are one cyclic convolution of at least 2 n - 1 points, so many that they are a
product of small primes: the backward kernel, reversed, fills the upper end of the forward one.

Cost       transforms of 2 n points: forward of the input, of the kernel and back; with backward,
           of the input and the kernel once more, and of three gradients. Kept are the input and
           the kernel themselves; their transforms, and copies with zeros behind them that PyTorch
           would keep besides, are four times as large.
Precision  float32 at least: a transform mixes all tokens, and in half precision late ones would be
           heard in early ones.
"""

import math
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lra.models.ops.numerics import full_precision, sum_dtype


def long_convolution(
    u: Float[Tensor, "*b d l"],
    kernel: Float[Tensor, "d k"],
    backward_kernel: Float[Tensor, "d m"] | None = None,
) -> Float[Tensor, "*b d l"]:
    """Return y_t = sum_{j <= t} kernel_{t-j} u_j for each channel, in float32 or float64.

    Args:
        u: Inputs, which must be 0 at padding.
        kernel: Weights from lag 0 on. Lags beyond the sequence are ignored; missing lags weigh 0.
        backward_kernel: Weights of later tokens, from lag 1 on, whose sum is added to y; None: the
            convolution is causal.
    """
    length, dtype = u.shape[-1], sum_dtype(u)
    points = fast_points(2 * length - 1)
    cyclic = kernel[:, :length].to(dtype)
    with full_precision(u):
        if backward_kernel is not None:
            later = backward_kernel[:, : length - 1].to(dtype).flip(1)
            gap = later.new_zeros(len(later), points - cyclic.shape[1] - later.shape[1])
            cyclic = torch.cat((cyclic, gap, later), dim=1)
        y: Tensor = _CyclicConvolution.apply(u.to(dtype), cyclic, points)  # type: ignore[no-untyped-call]
        return y


def continued_convolution(
    u: Float[Tensor, "b d l"], kernel: Float[Tensor, "d k"], before: Float[Tensor, "b d m"]
) -> tuple[Float[Tensor, "b d l"], Float[Tensor, "b d m"]]:
    """Convolve the inputs `u` after the m inputs `before`; return outputs and the last m inputs.

    Every output reads its own input and at most the m inputs before it. A single token takes m d
    products; a longer segment takes Fourier transforms of m + l points.

    Args:
        u: Inputs of a segment of l tokens.
        kernel: Weights from lag 0 on.
        before: The m inputs before the segment, the latest last; zeros before the first token.
    """
    memory, length = before.shape[-1], u.shape[-1]
    inputs = torch.cat((before.to(u.dtype), u), dim=-1)
    kernel = kernel[:, : memory + 1].to(sum_dtype(u))
    if length == 1:
        read_inputs = inputs[..., memory + 1 - kernel.shape[1] :].to(kernel.dtype)
        with full_precision(u):
            y = torch.einsum("bdk,dk->bd", read_inputs, kernel.flip(1))[..., None]
    else:
        y = long_convolution(inputs, kernel)[..., memory:]
    # A copy, because a view would keep the whole segment in memory.
    return y, inputs[..., length:].to(before.dtype).clone()


def check_length(length: int, longest: int | None) -> None:
    """Raise ValueError if there are more tokens than the kernel has lags."""
    if longest is not None and length > longest:
        raise ValueError(
            f"the kernel was built for up to {longest} tokens: got {length}; build the model for "
            "longer inputs (task.max_length), or make the state with a smaller memory"
        )


class _CyclicConvolution(torch.autograd.Function):
    """`apply(u, kernel, points)`: the first l outputs of a cyclic convolution of `points` points.

    Rows and kernel are padded with zeros to `points`. The gradients use the same transforms and can
    be differentiated again.
    """

    @staticmethod
    def forward(ctx: Any, u: Tensor, kernel: Tensor, points: int) -> Tensor:
        """Return the first l outputs: the inverse transform of a product of transforms."""
        ctx.points = points
        ctx.save_for_backward(u, kernel)
        product = torch.fft.rfft(u, points) * torch.fft.rfft(kernel, points)
        y: Tensor = torch.fft.irfft(product, points)[..., : u.shape[-1]]
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of u and of the kernel, which are correlations, by transforms."""
        (u, kernel), points = ctx.saved_tensors, ctx.points
        with full_precision(gradient):
            dspectrum = torch.fft.rfft(gradient, points)
            du = dkernel = None
            if ctx.needs_input_grad[0]:
                product = dspectrum * torch.fft.rfft(kernel, points).conj()
                du = torch.fft.irfft(product, points)[..., : u.shape[-1]]
            if ctx.needs_input_grad[1]:
                product = dspectrum * torch.fft.rfft(u, points).conj()
                # The sum over all axes before those of channels and frequencies.
                product = product.flatten(0, -3).sum(0) if product.dim() > 2 else product
                dkernel = torch.fft.irfft(product, points)[..., : kernel.shape[-1]]
        return du, dkernel, None


@cache
def fast_points(least: int) -> int:
    """Return the smallest even product of twos, threes and fives that is at least `least`."""
    bits = range(least.bit_length())
    odd = [math.prod((3,) * threes + (5,) * fives) for threes in bits for fives in bits]
    # Each odd number times the smallest power of two that makes the product at least `least`.
    return min(number << max(1, (-(-least // number) - 1).bit_length()) for number in odd)
