"""Values summed up to each token under a softmax over the past of each key channel by itself.

    y_i = sum_u lambda_iu^T q_i,   lambda_iu = sum_(j <= i) softmax_j(k_ju) v_ju^T

The causal content of lambda layers (arXiv:2102.08602 has the form that sees all). With L_i the
logarithm of a channel's sum of exponentials up to i, every weight is exp(k_j - L_i), j <= i: at
most 1, whatever comes later. Tokens of a chunk of C weigh each other directly; chunks hand on their
maps, rescaled from L to L, by the recurrence of `lra.models.ops.recurrent`.

Cost: 2 u h C (k + v) + 4 k (u + h) v operations and u C k exponentials for each token, of h queries
and u maps of k x v; autograd keeps u C (k + h) numbers a token, and a map for each chunk.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from lra.models.ops.numerics import NEVER
from lra.models.ops.recurrent.linear_recurrence import linear_recurrence

CHUNK = 16
"""Tokens that weigh each other directly."""


class CausalContent(NamedTuple):
    """What causal content keeps of the tokens so far; all zeros: there were none."""

    content: Float[Tensor, "b u k v"]
    """The content's map."""
    level: Float[Tensor, "b u k"]
    """The logarithm of its normaliser."""
    seen: Float[Tensor, "b u k"]
    """1 where there is one."""


def causal_content(
    q: Float[Tensor, "b h l k"],
    logits: Float[Tensor, "b u l k"],
    v: Float[Tensor, "b u l v"],
    keep: Bool[Tensor, "b l"] | None,
    past: CausalContent,
) -> tuple[Float[Tensor, "b h l v"], CausalContent]:
    """Apply to each query the maps of the tokens up to it; return the sums after the last token.

    Args:
        q: Queries of h heads, which share the maps.
        logits: Of the keys, by map.
        v: Values by map, 0 at padding.
        keep: True for real tokens.
        past: What came before, of the type of the sums.
    """
    length = q.shape[2]
    if keep is not None:
        logits = logits.masked_fill(~keep[:, None, :, None], NEVER)
    before = past.level.masked_fill(past.seen == 0, NEVER)[:, :, None]
    more = -length % CHUNK
    q, v = (F.pad(x, (0, 0, 0, more)) for x in (q, v))
    logits = F.pad(logits, (0, 0, 0, more), value=NEVER)
    level = torch.cat((before, logits), dim=2).logcumsumexp(2)[:, :, 1:]
    q, logits, v, levels = (torch.unflatten(x, 2, (-1, CHUNK)) for x in (q, logits, v, level))
    end = levels[:, :, :, -1]
    begin = torch.cat((before, end[:, :, :-1]), dim=2)
    # What each chunk gives the map at its end, and what of the map before it is left there.
    given = (logits - end[:, :, :, None]).exp().mT @ v
    left = (begin - end).exp()[..., None].expand_as(given)
    factors, terms = (x.transpose(1, 2).flatten(2) for x in (left, given))
    maps = linear_recurrence(factors, terms, past.content.flatten(1))
    maps = torch.unflatten(maps, 2, past.content.shape[1:]).transpose(1, 2)
    earlier = torch.cat((past.content[:, :, None], maps[:, :, :-1]), dim=2)
    # From the past, then from the tokens of the chunk up to each.
    share = (begin[:, :, :, None] - levels).exp()
    y = torch.einsum("bhmik,bumik,bumkv->bhmiv", q, share, earlier)
    order = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()[..., None]
    gap = logits[:, :, :, None] - levels[:, :, :, :, None]
    weights = gap.masked_fill(~order, -torch.inf).exp()
    among = torch.einsum("bhmik,bumijk->buhmij", q, weights)
    y = y + (among @ v[:, :, None]).sum(1)
    last = level[:, :, length - 1]
    seen = (last > NEVER / 2).to(last.dtype)
    return y.flatten(2, 3)[:, :, :length], CausalContent(maps[:, :, -1], last * seen, seen)
