"""Causal content of lambda layers: a softmax over the past, separately for each key channel.

    y_i = sum_u lambda_iu^T q_i,   lambda_iu = sum_(j <= i) softmax_j(k_ju) v_ju^T

arXiv:2102.08602 has the bidirectional form. With L_i the logarithm of a channel's sum of
exponentials up to i, every weight is exp(k_j - L_i) for j <= i: at most 1, independently of later
tokens. Within a chunk of C tokens, all pairs are computed. From chunk to chunk, the maps lambda are
rescaled to the new L, by the recurrence of `lra.models.ops.recurrent`.

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
"""Number of tokens in a chunk."""


class CausalContent(NamedTuple):
    """The state of causal content after some tokens; all zeros before the first token."""

    content: Float[Tensor, "b u k v"]
    """The maps lambda."""
    level: Float[Tensor, "b u k"]
    """L, the logarithm of the sum of exponentials."""
    seen: Float[Tensor, "b u k"]
    """1 where there was a real token, else 0."""


def causal_content(
    q: Float[Tensor, "b h l k"],
    logits: Float[Tensor, "b u l k"],
    v: Float[Tensor, "b u l v"],
    keep: Bool[Tensor, "b l"] | None,
    past: CausalContent,
) -> tuple[Float[Tensor, "b h l v"], CausalContent]:
    """Return y_i = sum_u lambda_iu^T q_i, lambda_iu = sum_(j <= i) softmax_j(k_ju) v_ju^T.

    Also return the state after the last token.

    Args:
        q: Queries of h heads, which share the maps.
        logits: Keys k_ju of each of u maps, before the softmax.
        v: Values of each map, 0 at padding.
        keep: True for real tokens; None: all are real.
        past: The state before the first token, float32 or float64.
    """
    length = q.shape[2]
    if keep is not None:
        logits = logits.masked_fill(~keep[:, None, :, None], NEVER)
    before = past.level.masked_fill(past.seen == 0, NEVER)[:, :, None]
    missing = -length % CHUNK
    q, v = (F.pad(x, (0, 0, 0, missing)) for x in (q, v))
    logits = F.pad(logits, (0, 0, 0, missing), value=NEVER)
    level = torch.cat((before, logits), dim=2).logcumsumexp(2)[:, :, 1:]
    q, logits, v, levels = (torch.unflatten(x, 2, (-1, CHUNK)) for x in (q, logits, v, level))
    end = levels[:, :, :, -1]
    begin = torch.cat((before, end[:, :, :-1]), dim=2)
    # Each chunk adds `chunk_maps` to the map, and decays the map before it.
    chunk_maps = (logits - end[:, :, :, None]).exp().mT @ v
    decays = (begin - end).exp()[..., None].expand_as(chunk_maps)
    factors, terms = (x.transpose(1, 2).flatten(2) for x in (decays, chunk_maps))
    maps = linear_recurrence(factors, terms, past.content.flatten(1))
    maps = torch.unflatten(maps, 2, past.content.shape[1:]).transpose(1, 2)
    earlier = torch.cat((past.content[:, :, None], maps[:, :, :-1]), dim=2)
    # First the part of earlier chunks, then that of earlier tokens in the chunk.
    past_weights = (begin[:, :, :, None] - levels).exp()
    y = torch.einsum("bhmik,bumik,bumkv->bhmiv", q, past_weights, earlier)
    lower_triangle = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()[..., None]
    exponents = logits[:, :, :, None] - levels[:, :, :, :, None]
    weights = exponents.masked_fill(~lower_triangle, -torch.inf).exp()
    pair_weights = torch.einsum("bhmik,bumijk->buhmij", q, weights)
    y = y + (pair_weights @ v[:, :, None]).sum(1)
    last_level = level[:, :, length - 1]
    has_token = (last_level > NEVER / 2).to(last_level.dtype)
    return y.flatten(2, 3)[:, :, :length], CausalContent(
        maps[:, :, -1].clone(), last_level * has_token, has_token
    )
