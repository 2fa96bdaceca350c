"""Attention over compressed vectors, with expanded keys and values or by absorbed maps.

    k_i = [U_i c ; r],   v_i = W_i c,   o_i = softmax(q_i k_i' / sqrt(k + r)) v_i
        = W_i (sum_t p_t c_t),   p = softmax(((U_i' q_i) . c + q'_i . r) / sqrt(k + r))

for head i; all heads share c and r.

Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1.2.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from lra.models.ops.exact import sdpa, weighted_values
from lra.models.ops.numerics import sum_dtype


def padded_sdpa(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b #h s v"],
    *,
    causal: bool = False,
    visible: Bool[Tensor, "#b 1 #l s"] | None = None,
    dropout: float = 0.0,
    bias: Float[Tensor, "#b h l s"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Return `sdpa` with values padded to the width of keys, which fast kernels need."""
    width = v.shape[-1]
    v = F.pad(v, (0, max(0, q.shape[-1] - width))).expand(-1, q.shape[1], -1, -1)
    o = sdpa(q, k, v, causal=causal, visible=visible, dropout=dropout, bias=bias)
    return o[..., :width]


def absorbed_attention(
    q: Float[Tensor, "b h l k"],
    rotary: Float[Tensor, "b 1 s r"],
    latent: Float[Tensor, "b 1 s c"],
    keys_map: Float[Tensor, "h w c"],
    values_map: Float[Tensor, "h v c"],
    *,
    visible: Bool[Tensor, "#b 1 #l s"] | None = None,
    dropout: float = 0.0,
    bias: Float[Tensor, "#b h l s"] | None = None,
    sinks: Float[Tensor, " h"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Return attention to the compressed vectors c, without making keys and values from them.

    U is applied to the queries, and W to the weighted means of c.

    Args:
        q: Queries of width k = w + r: the part for U c, then the part for r.
        rotary: r, the rotary part of the keys, which all heads share.
        latent: The compressed vectors c.
        keys_map: U of each head.
        values_map: W of each head.
        visible: True where a query may attend to a key; None: everywhere.
        dropout: Dropout rate of the weights.
        bias: Added to the scaled scores.
        sinks: A logit of each head in the denominator of its softmax; None: there is none.
    """
    q = q * q.shape[-1] ** -0.5
    content, rotated = torch.split(q, [keys_map.shape[1], rotary.shape[-1]], -1)
    absorbed = torch.cat((content @ keys_map, rotated), -1)
    # All heads form one longer sequence of queries, so that the shared keys need no copies.
    scores = absorbed.flatten(1, 2) @ torch.cat((latent, rotary), -1)[:, 0].mT
    scores = scores.to(sum_dtype(scores)).view(*q.shape[:3], -1)
    if sinks is not None:  # one more key, whose value is 0
        logits = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
        scores, latent = torch.cat((logits, scores), -1), F.pad(latent, (0, 0, 1, 0))
        visible = None if visible is None else F.pad(visible, (1, 0), value=True)
        bias = None if bias is None else F.pad(bias, (1, 0))
    means = weighted_values(
        scores, latent, causal=False, visible=visible, dropout=dropout, bias=bias
    )
    return means @ values_map.mT


def absorbs(new: int, seen: int, *, width: int, rotary: int, latent: int) -> bool:
    """Return whether absorbed attention takes no more products than expanded keys and values.

    Args:
        new: Number of queries.
        seen: Number of keys.
        width: Width of a head, without the rotary part.
        rotary: Width of the rotary part.
        latent: Width of the compressed vectors.
    """
    expanded = 2 * seen * latent * width + new * seen * 2 * (width + rotary)
    return 2 * new * latent * width + new * seen * (2 * latent + rotary) <= expanded
