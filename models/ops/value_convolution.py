"""A convolution along the length, added to attention: one kernel per head, for all its widths.

    y_i = sum_t w_h,t v_(i + t - (K-1)/2),    v = 0 outside the sequence and at padding

The Nystromformer and YOSO add it to their outputs, where it restores what a low rank or hashing
loses about neighbours.

Rows of all examples lie one after another, each followed by zeros; a block of C outputs is a banded
C x (C + K - 1) matrix times a strided view of them, so that matrix products do the work. Cost:
2 n (C + K - 1) D operations forward, three times that with backward; v and nothing else is kept.
"""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from models.ops.numerics import full_precision, sum_dtype

BLOCK = 32
"""Outputs of one product: the fastest on a CPU for kernels of 33 and 65 taps."""


def _lay(x: Float[Tensor, "b h l v"], taps: int, first: int) -> Float[Tensor, "h n v"]:
    """Copy rows to one buffer per head, each behind `first` zeros and with K - 1 in all."""
    batch, heads, length, width = x.shape
    stride = -(-(length + taps - 1) // BLOCK) * BLOCK
    buffer = x.new_empty(heads, batch * stride + taps - 1, width, dtype=sum_dtype(x))
    rows = buffer[:, : batch * stride].view(heads, batch, stride, width)
    rows[:, :, :first] = 0
    rows[:, :, first : first + length] = x.transpose(0, 1)
    rows[:, :, first + length :] = 0
    buffer[:, batch * stride :] = 0
    return buffer


def _blocks(buffer: Float[Tensor, "h n v"], taps: int) -> Float[Tensor, "h m w v"]:
    """View the inputs of every block; neighbours overlap."""
    heads, rows, width = buffer.shape
    shape = heads, (rows - taps + 1) // BLOCK, BLOCK + taps - 1, width
    return buffer.as_strided(shape, (rows * width, BLOCK * width, width, 1))


def _lift(out: Float[Tensor, "h m c v"], batch: int, length: int) -> Float[Tensor, "b h l v"]:
    """View the outputs as rows."""
    rows = out.view(out.shape[0], batch, -1, out.shape[-1])
    return rows[:, :, :length].transpose(0, 1)


def _convolve(x: Float[Tensor, "b h l v"], weight: Float[Tensor, "h t"]) -> Tensor:
    heads, taps = weight.shape
    blocks = _blocks(_lay(x, taps, taps // 2), taps)
    band = blocks.new_zeros(heads, BLOCK, BLOCK + taps - 1)
    _diagonals(band).copy_(weight[:, None])
    out = blocks.new_empty(*blocks.shape[:2], BLOCK, x.shape[-1])
    for head in range(heads):
        torch.bmm(band[head].expand(blocks.shape[1], -1, -1), blocks[head], out=out[head])
    return _lift(out, x.shape[0], x.shape[2])


def _diagonals(band: Float[Tensor, "h c w"]) -> Float[Tensor, "h c t"]:
    """View the band of its matrix: row c, column c + t."""
    heads, rows, columns = band.shape
    shape = heads, rows, columns - rows + 1
    return band.as_strided(shape, (rows * columns, columns + 1, 1))


class _Convolution(torch.autograd.Function):
    """`apply(v, weight, keep)`; half precision is computed in float32."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, weight: Tensor, keep: Tensor | None) -> Tensor:
        ctx.save_for_backward(v, weight, keep)
        with full_precision(v):
            return _convolve(_masked(v, keep), weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        v, weight, keep = ctx.saved_tensors
        taps = weight.shape[1]
        with full_precision(gradient):
            by_v = _masked(_convolve(gradient, weight.flip(1)), keep)
            blocks = _blocks(_lay(_masked(v, keep), taps, taps // 2), taps)
            # An output's place in its block is that of its first input.
            outputs = _blocks(_lay(gradient, taps, 0), taps)[:, :, :BLOCK]
            by_band = torch.stack(
                [torch.bmm(g, x.mT).sum(0) for g, x in zip(outputs, blocks, strict=True)]
            )
            by_weight = _diagonals(by_band).sum(1)
        return by_v.to(v.dtype), by_weight.to(weight.dtype), None


def _masked(x: Float[Tensor, "b h l v"], keep: Tensor | None) -> Float[Tensor, "b h l v"]:
    return x if keep is None else x * keep[:, None, :, None]


class ValueConvolution(nn.Module):
    """K weights per head, drawn as PyTorch draws those of a convolution."""

    def __init__(self, heads: int, kernel: int) -> None:
        super().__init__()
        if kernel < 1 or kernel % 2 == 0:
            raise ValueError(
                f"conv_kernel must be odd, to have a middle, or 0 for none: got {kernel}; "
                f"use {max(0, kernel) + 1}"
            )
        self.weight = nn.Parameter(torch.empty(heads, kernel))
        nn.init.uniform_(self.weight, -1 / math.sqrt(kernel), 1 / math.sqrt(kernel))

    def forward(
        self, v: Float[Tensor, "b h l v"], keep: Bool[Tensor, "b l"] | None
    ) -> Float[Tensor, "b h l v"]:
        """Convolve the values that are kept; the result is float32, or float64 where `v` is."""
        y: Tensor = _Convolution.apply(v, self.weight.to(sum_dtype(v)), keep)  # type: ignore[no-untyped-call]
        return y
