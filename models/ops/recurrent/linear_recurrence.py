"""The elementwise recurrence c_t = a_t c_{t-1} + b_t, in chunks that are computed in parallel.

n tokens are cut into m chunks of C tokens. C steps over all chunks give the end of each chunk from
c = 0, and the product of its factors. m steps then give the start of each chunk, and C more steps
give every c. That is about 3 sqrt(n) steps instead of n, with two to three times the operations.
There is no division and no logarithm, so factors can be zero, negative or complex.
"""

import math
from typing import Any

import torch
from jaxtyping import Inexact
from torch import Tensor


def linear_recurrence(
    a: Inexact[Tensor, "b l d"] | Inexact[Tensor, " d"],
    b: Inexact[Tensor, "b l d"],
    start: Inexact[Tensor, "b d"],
) -> Inexact[Tensor, "b l d"]:
    """Return c_t = a_t c_{t-1} + b_t for every token, with `start` before the first token.

    If `a` is the same for all tokens and rows, [d], fewer numbers are saved for the backward pass.
    """
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), start.dtype)
    a, b, start = a.to(dtype), b.to(dtype), start.to(dtype)
    if b.shape[1] == 1:  # one token, as in generation
        return torch.addcmul(b, a, start[:, None])
    kind = _ConstantRecurrence if a.dim() == 1 else _LinearRecurrence
    c: Tensor = kind.apply(a, b, start)  # type: ignore[no-untyped-call]
    return c


class _LinearRecurrence(torch.autograd.Function):
    """The recurrence; for backward it saves factors and results, and runs from the end."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, start: Tensor) -> Tensor:
        c = _scan_in_chunks(a, b, start)
        ctx.save_for_backward(a, c, start)
        return c

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of a, b and start."""
        a, c, start = ctx.saved_tensors
        # The gradient of c_t is g_t = gradient_t + conj(a_{t+1}) g_{t+1}.
        factors = torch.cat((torch.zeros_like(a[:, :1]), a[:, 1:].flip(1)), dim=1).conj()
        empty = torch.zeros_like(start)
        g = linear_recurrence(factors, gradient.flip(1), empty).flip(1)
        before = torch.cat((start[:, None], c[:, :-1]), dim=1)
        return g * before.conj(), g, g[:, 0] * a[:, 0].conj()


class _ConstantRecurrence(torch.autograd.Function):
    """The same recurrence with factors that are equal for all tokens."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, start: Tensor) -> Tensor:
        c = _scan_in_chunks(a.expand(b.shape), b, start)
        ctx.save_for_backward(a, c, start)
        return c

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of a, b and start, by g_t = gradient_t + conj(a) g_{t+1}."""
        a, c, start = ctx.saved_tensors
        g = linear_recurrence(a.conj(), gradient.flip(1), torch.zeros_like(start)).flip(1)
        before = torch.cat((start[:, None], c[:, :-1]), dim=1)
        return (g * before.conj()).sum((0, 1)), g, g[:, 0] * a.conj()


def _scan_in_chunks(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
    """Return every c of factors `a` and terms `b`, (b, l, d), in chunks of about sqrt(l) tokens."""
    length = a.shape[1]
    size = math.isqrt(length - 1) + 1
    chunks = length // size
    whole_length = chunks * size
    c = torch.empty_like(b)
    cut = (a.shape[0], chunks, size, a.shape[2])
    factors, terms, out = (x.narrow(1, 0, whole_length).view(cut) for x in (a, b, c))
    end, product = terms[:, :, 0], factors[:, :, 0]
    for step in range(1, size):  # the end of every chunk, from c = 0
        end = torch.addcmul(terms[:, :, step], factors[:, :, step], end)
        product = product * factors[:, :, step]
    ends = [start]  # c before each chunk
    for chunk in range(chunks):
        ends.append(torch.addcmul(end[:, chunk], product[:, chunk], ends[-1]))
    current = torch.stack(ends[:-1], dim=1)
    for step in range(size):  # every c, from the start of its chunk
        current = torch.addcmul(
            terms[:, :, step], factors[:, :, step], current, out=out[:, :, step]
        )
    last = ends[-1]
    for step in range(whole_length, length):  # tokens after the last chunk
        last = torch.addcmul(b[:, step], a[:, step], last, out=c[:, step])
    return c
