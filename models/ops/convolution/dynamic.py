"""A convolution along the length whose kernels are the tokens' own: one per token and head.

    y_i = sum_t w_h,i,t x_(i + t - left),    x = 0 outside the sequence

Cost: 2 n (C + K - 1) D operations forward, three times that with backward, for K taps and blocks of
C outputs (`lra.models.ops.convolution.blocks`); x and the kernels are kept, and one head's banded
matrices exist at a time, (C + K - 1) numbers a token.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra.models.ops.convolution.blocks import BLOCK, diagonals, input_blocks, lay, lift
from lra.models.ops.numerics import full_precision, sum_dtype


def dynamic_convolution(
    x: Float[Tensor, "b h l v"], weight: Float[Tensor, "b h l t"], left: int
) -> Float[Tensor, "b h l v"]:
    """Convolve; the result is float32, or float64 where `x` is.

    Args:
        x: What is convolved, 0 at padding.
        weight: A kernel for each token and head.
        left: Taps before a token's own.
    """
    y: Tensor = _DynamicConvolution.apply(x, weight.to(sum_dtype(x)), left)  # type: ignore[no-untyped-call]
    return y


def _kernels(weight: Float[Tensor, "b h l t"], blocks_of_head: int) -> Float[Tensor, "h m c t"]:
    """Copy the kernels into blocks, in the order of their tokens; missing tokens get zeros."""
    batch, heads, length, taps = weight.shape
    laid = weight.new_zeros(heads, batch, blocks_of_head // batch * BLOCK, taps)
    laid[:, :, :length] = weight.transpose(0, 1)
    return laid.view(heads, blocks_of_head, BLOCK, taps)


class _DynamicConvolution(torch.autograd.Function):
    """`apply(x, weight, left)`; half precision is computed in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, left: int) -> Tensor:
        ctx.left = left
        ctx.save_for_backward(x, weight)
        taps = weight.shape[-1]
        with full_precision(x):
            inputs = input_blocks(lay(x, taps, left), taps)
            kernels = _kernels(weight, inputs.shape[1])
            out = inputs.new_empty(*inputs.shape[:2], BLOCK, x.shape[-1])
            band = inputs.new_zeros(inputs.shape[1], BLOCK, BLOCK + taps - 1)
            for head in range(x.shape[1]):
                diagonals(band).copy_(kernels[head])
                torch.bmm(band, inputs[head], out=out[head])
            return lift(out, x.shape[0], x.shape[2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        (batch, heads, length, width), taps = x.shape, weight.shape[-1]
        with full_precision(gradient):
            inputs = input_blocks(lay(x, taps, ctx.left), taps)
            number = inputs.shape[1]
            kernels = _kernels(weight, number)
            # An output's place in its block is that of its first input.
            outputs = input_blocks(lay(gradient, taps, 0), taps)[:, :, :BLOCK]
            band = inputs.new_zeros(number, BLOCK, BLOCK + taps - 1)
            by_kernels = torch.empty_like(kernels)
            by_rows = inputs.new_zeros(heads, (number + -(-(taps - 1) // BLOCK)) * BLOCK, width)
            for head in range(heads):
                by_kernels[head] = diagonals(torch.bmm(outputs[head], inputs[head].mT))
                diagonals(band).copy_(kernels[head])
                _add_windows(by_rows[head], torch.bmm(band.mT, outputs[head]))
            by_x = by_rows[:, : number * BLOCK].view(heads, batch, -1, width)
            by_x = by_x[:, :, ctx.left : ctx.left + length].transpose(0, 1)
            by_weight = by_kernels.view(heads, batch, -1, taps)[:, :, :length].transpose(0, 1)
        return by_x.to(x.dtype), by_weight.to(weight.dtype), None


def _add_windows(rows: Float[Tensor, "n v"], windows: Float[Tensor, "m w v"]) -> None:
    """Add the gradient of each block's inputs to `rows`; blocks begin `BLOCK` rows apart."""
    number, wide, width = windows.shape
    for first in range(0, wide, BLOCK):
        part = windows[:, first : first + BLOCK]
        target = rows[first : first + number * BLOCK].view(number, BLOCK, width)
        target[:, : part.shape[1]] += part
