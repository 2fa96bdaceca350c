"""Softmax attention through PyTorch's `scaled_dot_product_attention`: exact, without the scores.

The function is that of `models.families.softmax`, the kernel PyTorch's own choice: on a CPU the
flash kernel, on a GPU flash, memory-efficient, cuDNN or plain mathematics.

Cost: 4 n^2 D operations forward; backward about 2.5 times that, because the flash kernels compute
the scores again. Kept for the backward pass: the output and one number per query, so memory grows
as n. Some cases fall back to n^2 bytes: dropout on a CPU, whose flash kernel has none, a mask that
differs from query to query (causal with padding, documents, prefixes), and positions that add to
scores (ALiBi, T5's).

Source: Dao et al. 2022, arXiv:2205.14135, for the flash kernels. Notation and function: see
`models.families.softmax`. Differences from it: none but rounding.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from models.families.softmax import ExactCore
from models.mixer import Growth, Site
from models.multi_head import MultiHead


def sdpa(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    *,
    causal: bool = False,
    visible: Bool[Tensor, "#b 1 #l s"] | None = None,
    dropout: float = 0.0,
    bias: Float[Tensor, "#b h l s"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Attend; arguments as `models.families.softmax.softmax_attention`.

    A row that may see no key gives 0.
    """
    if bias is not None:
        return _biased(q, k, v, bias, causal=causal, visible=visible, dropout=dropout)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, dropout_p=dropout, is_causal=causal and visible is None
    )


def _biased(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    bias: Float[Tensor, "#b h l s"],
    *,
    causal: bool,
    visible: Bool[Tensor, "#b 1 #l s"] | None,
    dropout: float,
) -> Float[Tensor, "b h l v"]:
    if causal and visible is None:
        visible = torch.ones(bias.shape[-2:], dtype=torch.bool, device=q.device).tril_()[None, None]
    if visible is None:
        return F.scaled_dot_product_attention(q, k, v, bias.to(q.dtype), dropout)
    # Finite: a row of -inf alone would be NaN.
    mask = bias.to(q.dtype).masked_fill(~visible, torch.finfo(q.dtype).min / 2)
    o = F.scaled_dot_product_attention(q, k, v, mask, dropout)
    return o.masked_fill(~visible.any(-1, keepdim=True), 0.0)


class SDPA(MultiHead):
    """Multi-head softmax attention through the fastest kernel that PyTorch has here."""

    def __init__(self, site: Site, *, bias: bool = True) -> None:
        super().__init__(site, ExactCore(site, sdpa, memory=Growth(1.0)), bias=bias)
