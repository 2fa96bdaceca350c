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
    """Return y_i = sum_t weight_t x_(i + t - left) for each head, in float32 or float64.

    Args:
        x: Inputs.
        weight: A kernel of t taps for each head.
        left: Number of taps that read earlier tokens.
        keep: False where `x` counts as 0; None: nowhere.
    """
    y: Tensor = _SharedConvolution.apply(x, weight.to(sum_dtype(x)), left, keep)  # type: ignore[no-untyped-call]
    return y


def _convolve(x: Float[Tensor, "b h l v"], weight: Float[Tensor, "h t"], left: int) -> Tensor:
    """Return the convolution of every head: a banded matrix times each block of its inputs."""
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
            return _convolve(_mask_padding(x, keep), weight, left)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x (a convolution with the flipped kernel) and of the weight."""
        x, weight, keep = ctx.saved_tensors
        taps = weight.shape[1]
        with full_precision(gradient):
            dx = _mask_padding(_convolve(gradient, weight.flip(1), taps - 1 - ctx.left), keep)
            inputs = input_blocks(lay(_mask_padding(x, keep), taps, ctx.left), taps)
            # Output i of a block reads inputs from index i of the block on.
            doutputs = input_blocks(lay(gradient, taps, 0), taps)[:, :, :BLOCK]
            by_head = zip(doutputs, inputs, strict=True)
            dband = torch.stack(
                [torch.bmm(doutput, head_inputs.mT).sum(0) for doutput, head_inputs in by_head]
            )
            dweight = diagonals(dband).sum(1)
        return dx.to(x.dtype), dweight.to(weight.dtype), None, None


def _mask_padding(x: Float[Tensor, "b h l v"], keep: Tensor | None) -> Float[Tensor, "b h l v"]:
    """Return `x` with 0 for tokens that are False in `keep`; None: `x` itself."""
    return x if keep is None else x * keep[:, None, :, None]
