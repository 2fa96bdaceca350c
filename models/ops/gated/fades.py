"""How forget gates lower scores of attention.

They add F_i - F_j, where F is the running sum of logarithms of gates.
"""

from enum import StrEnum, auto
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra.models.ops.gated.pairs import crossing_sums


class ForgetScale(StrEnum):
    """What multiplies the logarithms of forget gates in scores."""

    none = auto()
    """1, as in the Forgetting Transformer."""
    head = auto()
    """1 / sqrt(k), as in the public code of PaTH."""


def levels(g: Float[Tensor, "b h s"], token: int) -> Float[Tensor, "b h s"]:
    """Return F_j - F_token for each token j, where F is the running sum of `g`.

    It is summed outwards from `token`, so that numbers near it, which matter most, are exact.
    """
    before = g[..., 1 : token + 1].flip(-1).cumsum(-1).flip(-1)
    after = g[..., token + 1 :].cumsum(-1)
    return torch.cat((-before, torch.zeros_like(g[..., :1]), after), -1)


class Fades(torch.autograd.Function):
    """`apply(g, first, rows, ahead)` returns a bias for scores of `rows` queries from `first` on.

    That is F_i - F_j for query i and key j, and -inf for later keys; with `ahead`, it is
    -|F_i - F_j| for all keys.
    """

    @staticmethod
    def forward(ctx: Any, g: Tensor, first: int, rows: int, ahead: bool) -> Tensor:
        """Return the bias, [b h rows s]; backward needs only `first` and `ahead`, no tensor."""
        ctx.first, ctx.ahead = first, ahead
        exact, queries = levels(g.double(), first), slice(first, first + rows)
        # F in the precision of g, and its rounding error: both differences together are exact.
        level = exact.to(g.dtype)
        rest = (exact - level).to(g.dtype)
        fade = level[..., queries, None] - level[..., None, :]
        fade.add_(rest[..., queries, None]).sub_(rest[..., None, :])
        if ahead:
            return fade.abs_().neg_()
        # Adding -inf takes a tenth of the time of filling by a mask that heads share.
        fade[..., first:] += fade.new_full((rows, rows), -torch.inf).triu_(1)
        return fade

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dfade: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of g: g_t enters each F_i - F_j with j < t <= i."""
        dg = crossing_sums(dfade, ctx.first)
        if ctx.ahead:  # later keys: the same sums from the other end
            keys_after = dfade.shape[-1] - dfade.shape[-2] - ctx.first
            dg[..., 1:] += crossing_sums(dfade.flip(-2, -1), keys_after)[..., 1:].flip(-1)
        return dg, None, None, None
