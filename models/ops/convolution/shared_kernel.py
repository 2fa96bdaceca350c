"""A convolution along the length with one kernel per head, for all tokens and all its widths.

    y_i = sum_t w_h,t x_(i + t - left),    x = 0 outside the sequence and at padding

Cost: 2 n (C + K - 1) D operations forward, three times that with backward, for K taps and blocks of
C outputs (`lra.models.ops.convolution.blocks`); x and nothing else is kept.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra.models.ops.convolution.blocks import BLOCK, diagonals, input_blocks, lay, lift
from lra.models.ops.numerics import full_precision, sum_dtype


def shared_convolution(
    x: Float[Tensor, "b h l v"],
    weight: Float[Tensor, "h t"],
    left: int,
    keep: Bool[Tensor, "b l"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Convolve what is kept; the result is float32, or float64 where `x` is.

    Args:
        x: What is convolved.
        weight: A kernel for each head.
        left: Taps before a token's own.
        keep: False where `x` counts as 0.
    """
    y: Tensor = _SharedConvolution.apply(x, weight.to(sum_dtype(x)), left, keep)  # type: ignore[no-untyped-call]
    return y


def _convolve(x: Float[Tensor, "b h l v"], weight: Float[Tensor, "h t"], left: int) -> Tensor:
    heads, taps = weight.shape
    inputs = input_blocks(lay(x, taps, left), taps)
    band = inputs.new_zeros(heads, BLOCK, BLOCK + taps - 1)
    diagonals(band).copy_(weight[:, None])
    out = inputs.new_empty(*inputs.shape[:2], BLOCK, x.shape[-1])
    for head in range(heads):
        torch.bmm(band[head].expand(inputs.shape[1], -1, -1), inputs[head], out=out[head])
    return lift(out, x.shape[0], x.shape[2])


class _SharedConvolution(torch.autograd.Function):
    """`apply(x, weight, left, keep)`; half precision is computed in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, left: int, keep: Tensor | None) -> Tensor:
        ctx.left = left
        ctx.save_for_backward(x, weight, keep)
        with full_precision(x):
            return _convolve(_masked(x, keep), weight, left)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, keep = ctx.saved_tensors
        taps = weight.shape[1]
        with full_precision(gradient):
            by_x = _masked(_convolve(gradient, weight.flip(1), taps - 1 - ctx.left), keep)
            inputs = input_blocks(lay(_masked(x, keep), taps, ctx.left), taps)
            # An output's place in its block is that of its first input.
            outputs = input_blocks(lay(gradient, taps, 0), taps)[:, :, :BLOCK]
            by_band = torch.stack(
                [torch.bmm(g, x.mT).sum(0) for g, x in zip(outputs, inputs, strict=True)]
            )
            by_weight = diagonals(by_band).sum(1)
        return by_x.to(x.dtype), by_weight.to(weight.dtype), None, None


def _masked(x: Float[Tensor, "b h l v"], keep: Tensor | None) -> Float[Tensor, "b h l v"]:
    return x if keep is None else x * keep[:, None, :, None]
