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
    """Return y_i = sum_t weight_i,t x_(i + t - left) for each head, in float32 or float64.

    Args:
        x: Inputs, which must be 0 at padding.
        weight: A kernel of t taps for each token and head.
        left: Number of taps that read earlier tokens.
    """
    y: Tensor = _DynamicConvolution.apply(x, weight.to(sum_dtype(x)), left)  # type: ignore[no-untyped-call]
    return y


def _cut_kernels(weight: Float[Tensor, "b h l t"], blocks_of_head: int) -> Float[Tensor, "h m c t"]:
    """Return the kernels in m blocks of c tokens, for all examples; missing tokens get zeros."""
    batch, heads, length, taps = weight.shape
    # The third axis has the slots of one example: its number of blocks times BLOCK.
    padded = weight.new_zeros(heads, batch, blocks_of_head // batch * BLOCK, taps)
    padded[:, :, :length] = weight.transpose(0, 1)
    return padded.view(heads, blocks_of_head, BLOCK, taps)


class _DynamicConvolution(torch.autograd.Function):
    """`apply(x, weight, left)` of `dynamic_convolution`; half precision is computed in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, left: int) -> Tensor:
        """Multiply each block of inputs by a matrix whose diagonals are the kernels."""
        ctx.left = left
        ctx.save_for_backward(x, weight)
        taps = weight.shape[-1]
        with full_precision(x):
            inputs = input_blocks(lay(x, taps, left), taps)
            kernels = _cut_kernels(weight, inputs.shape[1])
            out = inputs.new_empty(*inputs.shape[:2], BLOCK, x.shape[-1])
            band = inputs.new_zeros(inputs.shape[1], BLOCK, BLOCK + taps - 1)
            for head in range(x.shape[1]):
                diagonals(band).copy_(kernels[head])
                torch.bmm(band, inputs[head], out=out[head])
            return lift(out, x.shape[0], x.shape[2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x and of the kernels, head by head."""
        x, weight = ctx.saved_tensors
        (batch, heads, length, width), taps = x.shape, weight.shape[-1]
        with full_precision(gradient):
            inputs = input_blocks(lay(x, taps, ctx.left), taps)
            blocks = inputs.shape[1]
            kernels = _cut_kernels(weight, blocks)
            # Output i of a block reads inputs from index i of the block on.
            doutputs = input_blocks(lay(gradient, taps, 0), taps)[:, :, :BLOCK]
            band = inputs.new_zeros(blocks, BLOCK, BLOCK + taps - 1)
            dkernels = torch.empty_like(kernels)
            # Inputs of the last block end `taps` - 1 slots after its outputs.
            drows = inputs.new_zeros(heads, (blocks + -(-(taps - 1) // BLOCK)) * BLOCK, width)
            for head in range(heads):
                dkernels[head] = diagonals(torch.bmm(doutputs[head], inputs[head].mT))
                diagonals(band).copy_(kernels[head])
                _add_windows(drows[head], torch.bmm(band.mT, doutputs[head]))
            dx = drows[:, : blocks * BLOCK].view(heads, batch, -1, width)
            dx = dx[:, :, ctx.left : ctx.left + length].transpose(0, 1)
            dweight = dkernels.view(heads, batch, -1, taps)[:, :, :length].transpose(0, 1)
        return dx.to(x.dtype), dweight.to(weight.dtype), None


def _add_windows(rows: Float[Tensor, "n v"], windows: Float[Tensor, "m w v"]) -> None:
    """Add the gradients of the w inputs of each of m blocks to `rows`, in place.

    The inputs of a block begin `BLOCK` rows after those of the block before and overlap them.
    """
    blocks, inputs, width = windows.shape
    # Each step adds at most BLOCK inputs of every block, which do not overlap.
    for first in range(0, inputs, BLOCK):
        part = windows[:, first : first + BLOCK]
        target = rows[first : first + blocks * BLOCK].view(blocks, BLOCK, width)
        target[:, : part.shape[1]] += part
