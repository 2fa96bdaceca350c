"""An LSTM whose input gate is an exponential and whose cell is divided by what entered it.

    i, f, z, o = x_t + R h_(t-1)                     R within heads
    c_t = sigma(f) c_(t-1) + e^i tanh(z),   n_t = sigma(f) n_(t-1) + e^i,   h_t = sigma(o) c_t / n_t

c and n are kept times e^-m, m_t = max(log sigma(f) + m_(t-1), i), so that nothing overflows; n is
then 1 at least. Any m gives the same h, so that no gradient passes through it. Tokens follow each
other: there is no form that works on several at once.

Cost       8 k^2 operations a token and head forward, twice that backward, l steps one after the
           other; factors of the backward steps are formed for many tokens at once. Memory: 8 k
           numbers a token and head. State: 4 k numbers a head.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lra.models.ops.numerics import full_precision, row_slices, sum_dtype

CLOSED, OPEN = -1e30, 1e4
"""Input gates that let nothing in, and forget gates that keep all: those of padding."""
TOKENS_AT_ONCE = 256
"""Whose factors are formed together, backward."""


def exponential_lstm(
    gates: Float[Tensor, "b l 4 h k"],
    recurrent: Float[Tensor, "h k 4 k2"],
    state: Float[Tensor, "b 4 h k"],
    *,
    keep: Bool[Tensor, "b l"] | None = None,
    begins: Bool[Tensor, "b l"] | None = None,
) -> tuple[Float[Tensor, "b l h k"], Float[Tensor, "b 4 h k"]]:
    """Return every h, in the dtype of the gates, and h, c, n and m after the last real token.

    Args:
        gates: What the input adds to i, f, z and o.
        recurrent: What the last h adds to them, by head.
        state: h, c, n and m before the first token; zeros are nothing.
        keep: False for padding, which stands behind real tokens and leaves the state as it was.
        begins: Tokens that see nothing of those before.
    """
    dtype = sum_dtype(gates)
    with full_precision(gates):
        x = gates.to(dtype)
        enter, forget, *others = x.unbind(2)
        if begins is not None:
            forget = forget.masked_fill(begins[..., None, None], -torch.inf)
        if keep is not None:
            padding = ~keep[..., None, None]
            enter, forget = enter.masked_fill(padding, CLOSED), forget.masked_fill(padding, OPEN)
        x = torch.stack((enter, forget, *others), 3).permute(1, 2, 0, 3, 4).flatten(3)
        hidden, cell, total, level = state.to(dtype).transpose(0, 2).unbind(1)
        level = level.masked_fill(total == 0, -torch.inf)
        seen = None if begins is None else (~begins).to(dtype).mT[:, None, :, None]
        every, *after = _ExponentialLSTM.apply(  # type: ignore[no-untyped-call]
            x.contiguous(), recurrent.to(dtype).flatten(2), hidden, cell, total, level, seen
        )
        y = every.permute(2, 0, 1, 3)
        last = y[:, -1]
        if keep is not None:
            end = (keep.sum(1) - 1).clamp(min=0)
            last = y[torch.arange(len(y), device=y.device), end]
        behind = torch.stack((last, *(part.transpose(0, 1) for part in after)), 1)
        if keep is not None:
            behind = torch.where(keep.any(1)[:, None, None, None], behind, state.to(dtype))
    return y.to(gates.dtype), behind


class _ExponentialLSTM(torch.autograd.Function):
    """`apply(x, R, h, c, n, m, seen)` of x [l, h, b, 4 k] returns every h, and the last c, n, m."""

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd functions take positions only)
        ctx: Any, x: Tensor, recurrent: Tensor, hidden: Tensor, cell: Tensor, total: Tensor,
        level: Tensor, seen: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        first = torch.stack((hidden, cell, total, level))
        raws, states = [], []
        masks = [None] * len(x) if seen is None else seen.unbind(0)
        for gates, mask in zip(x.unbind(0), masks, strict=True):
            raw = torch.baddbmm(gates, hidden if mask is None else hidden * mask, recurrent)
            i, f, z, o = raw.chunk(4, -1)
            kept = F.logsigmoid(f).add_(level)
            level = torch.maximum(kept, i)
            left, taken = kept.sub_(level).exp_(), (i - level).exp_()
            cell = torch.addcmul(left * cell, taken, z.tanh())
            total = torch.addcmul(taken, left, total)
            hidden = o.sigmoid().mul_(cell).div_(total)
            raws.append(raw)
            states.append(torch.stack((hidden, cell, total, level)))
        every = torch.stack(states)
        ctx.save_for_backward(torch.stack(raws), recurrent, first, every, seen)
        ctx.mark_non_differentiable(level)
        # Cloned: views would hold all of it, and change with what autograd keeps.
        return every[:, 0].clone(), cell, total, level

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dy: Tensor, dcell: Tensor, dtotal: Tensor, dlevel: Tensor
    ) -> tuple[Tensor | None, ...]:
        del dlevel
        raws, recurrent, first, every, seen = ctx.saved_tensors
        before = torch.cat((first[None], every[:-1]))
        back = recurrent.mT.contiguous()
        dx = torch.empty_like(raws)
        both, pulled = torch.stack((dcell, dtotal)), torch.zeros_like(dcell)
        cuts = list(row_slices(len(raws), TOKENS_AT_ONCE))
        for rows in reversed(cuts):
            left, of_hidden, factors = _factors(raws[rows], before[rows], every[rows])
            masks = [None] * len(left) if seen is None else seen[rows].unbind(0)
            steps = zip(
                dy[rows].unbind(0), left.unbind(0), of_hidden.unbind(0), factors.unbind(0),
                dx[rows].unbind(0), masks, strict=True,
            )  # fmt: skip
            for direct, decay, shares, matrix, out, mask in reversed(list(steps)):
                dhidden = pulled + direct
                both = torch.addcmul(both, shares, dhidden)
                three = torch.cat((both, dhidden[None]))
                torch.sum(matrix * three[:, :, :, None], 0, out=out.view(matrix.shape[1:]))
                pulled = torch.bmm(out, back)
                pulled = pulled if mask is None else pulled.mul_(mask)
                both = both * decay
        hidden = before[:, 0] if seen is None else before[:, 0] * seen
        dcell, dtotal = both
        drecurrent = torch.einsum("lhbk,lhbg->hkg", hidden, dx)
        return dx, drecurrent, pulled, dcell, dtotal, None, None


def _factors(
    raws: Float[Tensor, "l h b g"],
    before: Float[Tensor, "l 4 h b k"],
    every: Float[Tensor, "l 4 h b k"],
) -> tuple[Float[Tensor, "l h b k"], Float[Tensor, "l 2 h b k"], Float[Tensor, "l 3 h b 4 k"]]:
    """Return what remains of c and n, what h says of them, and what they say of the gates."""
    i, f, z, o = raws.chunk(4, -1)
    _, cell, total, level = before.unbind(1)
    hidden, _, divisor, highest = every.unbind(1)
    left = (F.logsigmoid(f) + level - highest).exp()
    taken, opened, value = (i - highest).exp(), o.sigmoid(), z.tanh()
    shares = torch.stack((opened / divisor, -hidden / divisor), 1)
    nothing, forgotten = torch.zeros_like(left), left * (-f).sigmoid()
    of_cell = (taken * value, forgotten * cell, taken * (1 - value.square()), nothing)
    of_total = (taken, forgotten * total, nothing, nothing)
    of_hidden = (nothing, nothing, nothing, hidden * (1 - opened))
    factors = torch.stack([torch.stack(each, 3) for each in (of_cell, of_total, of_hidden)], 1)
    return left, shares, factors
