"""An LSTM with an exponential input gate, and a normaliser by which its cell is divided (sLSTM).

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
"""Input and forget gates of padding, by which the state stays unchanged."""
TOKENS_AT_ONCE = 256
"""Number of tokens whose factors are computed together in backward."""


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
        gates: x_t, the part of i, f, z and o that comes from the input.
        recurrent: R of each head, from the last h to i, f, z and o.
        state: h, c, n and m before the first token; zeros: there are no earlier tokens.
        keep: False for padding, which comes after real tokens and leaves the state unchanged.
        begins: True for tokens that begin a new document, from an empty state.
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
        level = level.masked_fill(total == 0, -torch.inf)  # n = 0: the state is empty
        has_past = None if begins is None else (~begins).to(dtype).mT[:, None, :, None]
        outputs, *after = _ExponentialLSTM.apply(  # type: ignore[no-untyped-call]
            x.contiguous(), recurrent.to(dtype).flatten(2), hidden, cell, total, level, has_past
        )
        y = outputs.permute(2, 0, 1, 3)
        last = y[:, -1]
        if keep is not None:
            end = (keep.sum(1) - 1).clamp(min=0)
            last = y[torch.arange(len(y), device=y.device), end]
        last_state = torch.stack((last, *(part.transpose(0, 1) for part in after)), 1)
        if keep is not None:
            last_state = torch.where(keep.any(1)[:, None, None, None], last_state, state.to(dtype))
    return y.to(gates.dtype), last_state


class _ExponentialLSTM(torch.autograd.Function):
    """`apply(x, R, h, c, n, m, has_past)`, for x [l, h, b, 4 k]: every h, and the last c, n, m."""

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd functions take positions only)
        ctx: Any, x: Tensor, recurrent: Tensor, hidden: Tensor, cell: Tensor, total: Tensor,
        level: Tensor, has_past: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        """Compute i, f, z, o = x_t + R h_(t-1), then c, n, m and h = sigma(o) c / n, by token."""
        first = torch.stack((hidden, cell, total, level))
        raws, states = [], []
        masks = [None] * len(x) if has_past is None else has_past.unbind(0)  # 0: a new document
        for gates, mask in zip(x.unbind(0), masks, strict=True):
            raw = torch.baddbmm(gates, hidden if mask is None else hidden * mask, recurrent)
            i, f, z, o = raw.chunk(4, -1)
            decayed_level = F.logsigmoid(f).add_(level)
            level = torch.maximum(decayed_level, i)
            decay, input_gate = decayed_level.sub_(level).exp_(), (i - level).exp_()
            cell = torch.addcmul(decay * cell, input_gate, z.tanh())
            total = torch.addcmul(input_gate, decay, total)
            hidden = o.sigmoid().mul_(cell).div_(total)
            raws.append(raw)
            states.append(torch.stack((hidden, cell, total, level)))
        all_states = torch.stack(states)
        ctx.save_for_backward(torch.stack(raws), recurrent, first, all_states, has_past)
        ctx.mark_non_differentiable(level)
        # A copy, because a view would keep all states in memory.
        return all_states[:, 0].clone(), cell, total, level

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dy: Tensor, dcell: Tensor, dtotal: Tensor, dlevel: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, R, h, c and n, token by token from the last one."""
        del dlevel
        raws, recurrent, first, all_states, has_past = ctx.saved_tensors
        before = torch.cat((first[None], all_states[:-1]))
        back = recurrent.mT.contiguous()
        dx = torch.empty_like(raws)
        dcell_and_total, dhidden_before = torch.stack((dcell, dtotal)), torch.zeros_like(dcell)
        cuts = list(row_slices(len(raws), TOKENS_AT_ONCE))
        for rows in reversed(cuts):
            decays, of_hidden, factors = _gate_derivatives(
                raws[rows], before[rows], all_states[rows]
            )
            masks = [None] * len(decays) if has_past is None else has_past[rows].unbind(0)
            steps = zip(
                dy[rows].unbind(0), decays.unbind(0), of_hidden.unbind(0), factors.unbind(0),
                dx[rows].unbind(0), masks, strict=True,
            )  # fmt: skip
            for direct, decay, shares, matrix, out, mask in reversed(list(steps)):
                dhidden = dhidden_before + direct
                dcell_and_total = torch.addcmul(dcell_and_total, shares, dhidden)
                dstate = torch.cat((dcell_and_total, dhidden[None]))
                torch.sum(matrix * dstate[:, :, :, None], 0, out=out.view(matrix.shape[1:]))
                dhidden_before = torch.bmm(out, back)
                dhidden_before = dhidden_before if mask is None else dhidden_before.mul_(mask)
                dcell_and_total = dcell_and_total * decay
        hidden = before[:, 0] if has_past is None else before[:, 0] * has_past
        dcell, dtotal = dcell_and_total
        drecurrent = torch.einsum("lhbk,lhbg->hkg", hidden, dx)
        return dx, drecurrent, dhidden_before, dcell, dtotal, None, None


def _gate_derivatives(
    raws: Float[Tensor, "l h b g"],
    before: Float[Tensor, "l 4 h b k"],
    every: Float[Tensor, "l 4 h b k"],
) -> tuple[Float[Tensor, "l h b k"], Float[Tensor, "l 2 h b k"], Float[Tensor, "l 3 h b 4 k"]]:
    """Return the decay of c and n, and derivatives of h by c and n, and of c, n, h by the gates."""
    i, f, z, o = raws.chunk(4, -1)
    _, cell, total, level = before.unbind(1)
    hidden, _, divisor, highest = every.unbind(1)
    decay = (F.logsigmoid(f) + level - highest).exp()  # of c and n, which are relative to e^m
    input_gate, output_gate, value = (i - highest).exp(), o.sigmoid(), z.tanh()
    shares = torch.stack((output_gate / divisor, -hidden / divisor), 1)
    zero, forget_slope = torch.zeros_like(decay), decay * (-f).sigmoid()
    cell_slopes = (input_gate * value, forget_slope * cell, input_gate * (1 - value.square()), zero)
    total_slopes = (input_gate, forget_slope * total, zero, zero)
    hidden_slopes = (zero, zero, zero, hidden * (1 - output_gate))
    factors = torch.stack(
        [torch.stack(part, 3) for part in (cell_slopes, total_slopes, hidden_slopes)], 1
    )
    return decay, shares, factors
