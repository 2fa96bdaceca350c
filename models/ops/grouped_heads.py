"""Exact attention of heads of queries that share heads of keys and values."""

from jaxtyping import Bool, Float
from torch import Tensor

from lra.models.ops.exact import sdpa


def grouped_sdpa(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b g s k"],
    v: Float[Tensor, "b g s v"],
    *,
    causal: bool = False,
    visible: Bool[Tensor, "#b 1 #l s"] | None = None,
    dropout: float = 0.0,
    bias: Float[Tensor, "#b h l s"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Let h heads of queries attend to g heads of keys, where g divides h; adjacent heads share.

    The other arguments are those of `lra.models.ops.exact.softmax_attention`.
    """
    groups, group_size = k.shape[1], q.shape[1] // k.shape[1]
    # A bias of each head, or a causal kernel without a mask, needs the heads one by one.
    if group_size == 1 or bias is not None or (causal and visible is None):
        k, v = (x.repeat_interleave(group_size, 1) if group_size > 1 else x for x in (k, v))
        return sdpa(q, k, v, causal=causal, visible=visible, dropout=dropout, bias=bias)
    # The queries of a group form one longer sequence, so that keys and values need no copies.
    batch, heads, length, width = q.shape
    group_queries = q.reshape(batch, groups, group_size * length, width)
    if visible is not None and visible.shape[2] > 1:
        visible = visible.repeat(1, 1, group_size, 1)
    o = sdpa(group_queries, k, v, visible=visible, dropout=dropout)
    return o.reshape(batch, heads, length, -1)
