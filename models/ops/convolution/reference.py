"""Convolutions as their papers write them, token by token and tap by tap."""

import torch
from jaxtyping import Float
from torch import Tensor


def convolution(
    x: Float[Tensor, "b h l v"], weight: Float[Tensor, "b h l t"], left: int
) -> Float[Tensor, "b h l v"]:
    """y_i = sum_t w_i,t x_(i + t - left), with x = 0 outside the sequence."""
    length = x.shape[2]
    found = []
    for i in range(length):
        y = torch.zeros_like(x[:, :, 0])
        for tap in range(weight.shape[-1]):
            j = i + tap - left
            if 0 <= j < length:
                y = y + weight[:, :, i, tap, None] * x[:, :, j]
        found.append(y)
    return torch.stack(found, dim=2)


def long_convolution(
    u: Float[Tensor, "*b d l"],
    kernel: Float[Tensor, "d l"],
    backward_kernel: Float[Tensor, "d l"] | None = None,
) -> Float[Tensor, "*b d l"]:
    """y_t = sum_{j <= t} K_{t-j} u_j, and sum_{j > t} K'_{j-t-1} u_j besides."""
    length, outputs = u.shape[-1], []
    for t in range(length):
        y = torch.zeros_like(u[..., 0])
        for j in range(length):
            if j <= t:
                y = y + kernel[:, t - j] * u[..., j]
            elif backward_kernel is not None:
                y = y + backward_kernel[:, j - t - 1] * u[..., j]
        outputs.append(y)
    return torch.stack(outputs, dim=-1)
