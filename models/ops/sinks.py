"""A learned logit of each head in the denominator of the softmax, which takes weight from all keys.

    o_i = sum_j p_ij v_j,    p_ij = exp(a_ij) / (exp(s_h) + sum_j' exp(a_ij'))

It is one more key, in front of all others, whose value is 0. The score of that key is s_h, because
queries get one more channel with s_h, which is 1 in that key and 0 in all others. So any function
of attention computes it, a kernel that allows no bias of scores included. With s_h at -inf, weights
are those without it; a query without a visible key gives 0 as before.

Source: gpt-oss (OpenAI 2025, arXiv:2508.10925) and its released code.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

EXTRA = 8
"""Channels that are added to heads: fast kernels want a width that is a multiple of 8."""


def with_sink_channel(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b g s k"],
    v: Float[Tensor, "b c s v"],
    sinks: Float[Tensor, " h"],
) -> tuple[Tensor, Tensor, Tensor, Float[Tensor, "b g 1 wider"]]:
    """Return q, k and v with `EXTRA` more channels, and the key whose score is `sinks`.

    Scores that are divided by the root of the new width are those of before.
    """
    width, wider = q.shape[-1], q.shape[-1] + EXTRA
    logits = (sinks * wider**0.5).to(q.dtype)[:, None, None].expand(*q.shape[:3], 1)
    q = F.pad(torch.cat((q * (wider / width) ** 0.5, logits), -1), (0, EXTRA - 1))
    key = k.new_zeros(*k.shape[:2], 1, wider)
    key[..., width] = 1
    return q, F.pad(k, (0, EXTRA)), F.pad(v, (0, EXTRA)), key


def sink_attention(
    attend: Callable[..., Tensor],
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b g s k"],
    v: Float[Tensor, "b c s v"],
    sinks: Float[Tensor, " h"],
    *,
    causal: bool,
    visible: Bool[Tensor, "#b #h #l s"] | None,
    dropout: float,
    bias: Float[Tensor, "#b h l s"] | None,
) -> Float[Tensor, "b o l v"]:
    """Return `attend(q, k, v, ...)` with the logits `sinks` in the denominators.

    The other arguments are those of `lra.models.ops.exact.softmax_attention`.
    """
    width = v.shape[-1]
    q, k, v, key = with_sink_channel(q, k, v, sinks)
    k, v = torch.cat((key, k), 2), F.pad(v, (0, 0, 1, 0))
    # A causal kernel without a mask counts queries and keys from the first on.
    before = int(causal and visible is None)
    q = F.pad(q, (0, 0, before, 0))
    bias = None if bias is None else F.pad(bias, (1, 0, before, 0))
    visible = None if visible is None else F.pad(visible, (1, 0), value=True)
    o = attend(q, k, v, causal=causal, visible=visible, dropout=dropout, bias=bias)
    return o[:, :, before:, :width]
