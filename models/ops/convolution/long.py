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
    """Convolve every channel; the result is float32, or float64 where `u` is.

    Args:
        u: What is convolved, 0 at padding.
        kernel: From lag 0 on; what is longer than the sequence is not read, what is shorter ends.
        backward_kernel: What later tokens weigh, from lag 1 on; None: nothing.
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
    """Convolve behind the m inputs before; return the outputs, and the last m inputs.

    Every token sees m inputs before its own, of any segment, and none further away. A single token
    takes m d products, more take transforms of m + l points.

    Args:
        u: Inputs of a segment.
        kernel: From lag 0 on.
        before: The latest last; zeros where there is none.
    """
    past, length = before.shape[-1], u.shape[-1]
    whole = torch.cat((before.to(u.dtype), u), dim=-1)
    kernel = kernel[:, : past + 1].to(sum_dtype(u))
    if length == 1:
        seen = whole[..., past + 1 - kernel.shape[1] :].to(kernel.dtype)
        with full_precision(u):
            y = torch.einsum("bdk,dk->bd", seen, kernel.flip(1))[..., None]
    else:
        y = long_convolution(whole, kernel)[..., past:]
    # Cloned: a view would hold the whole segment.
    return y, whole[..., length:].to(before.dtype).clone()


def check_length(length: int, longest: int | None) -> None:
    """Raise ValueError if there are more tokens than the kernel has lags."""
    if longest is not None and length > longest:
        raise ValueError(
            f"the kernel was built for up to {longest} tokens: got {length}; build the model for "
            "longer inputs (task.max_length), or make the state with a smaller memory"
        )


class _CyclicConvolution(torch.autograd.Function):
    """`apply(u, kernel, points)`: of rows and a kernel behind which zeros follow, cut as the rows.

    Its gradients are products of the same transforms, differentiable in turn.
    """

    @staticmethod
    def forward(ctx: Any, u: Tensor, kernel: Tensor, points: int) -> Tensor:
        ctx.points = points
        ctx.save_for_backward(u, kernel)
        product = torch.fft.rfft(u, points) * torch.fft.rfft(kernel, points)
        y: Tensor = torch.fft.irfft(product, points)[..., : u.shape[-1]]
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (u, kernel), points = ctx.saved_tensors, ctx.points
        with full_precision(gradient):
            direction = torch.fft.rfft(gradient, points)
            by_u = by_kernel = None
            if ctx.needs_input_grad[0]:
                product = direction * torch.fft.rfft(kernel, points).conj()
                by_u = torch.fft.irfft(product, points)[..., : u.shape[-1]]
            if ctx.needs_input_grad[1]:
                product = direction * torch.fft.rfft(u, points).conj()
                product = product.flatten(0, -3).sum(0) if product.dim() > 2 else product
                by_kernel = torch.fft.irfft(product, points)[..., : kernel.shape[-1]]
        return by_u, by_kernel, None


@cache
def fast_points(least: int) -> int:
    """Return the smallest even product of twos, threes and fives that is at least `least`."""
    bits = range(least.bit_length())
    odd = [math.prod((3,) * threes + (5,) * fives) for threes in bits for fives in bits]
    return min(each << max(1, (-(-least // each) - 1).bit_length()) for each in odd)
