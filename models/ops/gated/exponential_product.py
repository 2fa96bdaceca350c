"""Linear attention whose input gate is an exponential without upper bound (mLSTM).

    S_t = exp(f_t) S_(t-1) + exp(i_t) k_t v_t^T,   z_t = exp(f_t) z_(t-1) + exp(i_t) k_t
    o_t = S_t^T q_t / max(|z_t · q_t|, 1)

Both are kept times exp(-m_t), m_t = max(f_t + m_(t-1), i_t), so that nothing overflows. Any m gives
the same o: with it, decays become f_t + m_(t-1) - m_t <= 0 and keys exp(i_t - m_t) k_t, which a
`decayed_product` takes, z being one more channel of values that are all 1. The maximum is a sum and
a running maximum, f_1 + ... + f_t + max_j (i_j - f_1 - ... - f_j), in float64.

Cost       that of `decayed_product` with a decay of each head and one more channel of values.
           State: k (v + 1) + 1 numbers.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lra.models.ops.gated.decayed_product import decayed_product
from lra.models.ops.numerics import full_precision, sum_dtype

FORGOTTEN = -1e4
"""Stands for a decay of -inf in m, which may be any number."""


def exponential_product(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    forget: Float[Tensor, "b h l"],
    enter: Float[Tensor, "b h l"],
    *,
    state: tuple[Float[Tensor, "b h k v1"], Float[Tensor, "b h"]] | None = None,
    chunk: int = 32,
    keep: Bool[Tensor, "b l"] | None = None,
) -> tuple[Float[Tensor, "b h l v"], tuple[Float[Tensor, "b h k v1"], Float[Tensor, "b h"]]]:
    """Return o_t = S_t^T q_t / max(|z_t · q_t|, 1), in the dtype of `v`, and the last [S z] and m.

    S_t = exp(f_t) S_(t-1) + exp(i_t) k_t v_t^T, and z_t likewise with 1 in place of v_t.

    Args:
        q: Queries.
        k: Keys, already scaled.
        v: Values.
        forget: f, logarithms of the factor by which a token decays the state; at most 0, or -inf.
        enter: i, logarithms of the input gate.
        state: [S z] and m after earlier tokens; None or zeros: there are none.
        chunk: Number of tokens per chunk of the parallel form; it affects only speed and memory.
        keep: False for padding, which leaves the state as it was.
    """
    dtype = sum_dtype(v)
    with full_precision(v):
        forget, enter = forget.to(dtype), enter.to(dtype)
        if keep is not None:
            real = keep[:, None]
            forget, enter = forget.masked_fill(~real, 0), enter.masked_fill(~real, FORGOTTEN)
        sums_before, level_before = (None, None) if state is None else state
        with torch.no_grad():
            sums = forget.double().clamp(min=FORGOTTEN).cumsum(-1)
            first_level = (
                sums.new_zeros(sums.shape[:2]) if level_before is None else level_before.double()
            )
            highest = torch.maximum(
                (enter.double() - sums).cummax(-1).values, first_level[..., None]
            )
            levels = (sums + highest).to(dtype)
            before = torch.cat((first_level[..., None].to(dtype), levels[..., :-1]), -1)
        decays = forget + (before - levels)
        ones = torch.ones_like(v[..., :1])
        scaled = k.to(dtype) * (enter - levels).exp()[..., None]
        read, after = decayed_product(
            q.to(dtype), scaled, torch.cat((v, ones), -1).to(dtype), decays,
            state=sums_before, chunk=chunk, keep=keep,
        )  # fmt: skip
        values, total = read[..., :-1], read[..., -1:]
        floor = (-levels).exp()[..., None]  # the 1 of max(|z · q|, 1), times exp(-m)
        o = values / torch.maximum(total.abs(), floor)
    return o.to(v.dtype), (after, levels[..., -1].clone())
