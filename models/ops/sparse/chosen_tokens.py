"""Softmax attention in which every query has a separate list of tokens, the same for all heads.

Keys and values are copied for a part of the queries at a time. They are not stored: backward copies
them again.
"""

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lra.models.ops.numerics import NEVER, full_precision, sum_dtype
from lra.models.ops.sparse.block_choice import passes


def chosen_tokens(
    q: Float[Tensor, "b h l k"],
    keys: Float[Tensor, "b g s k"],
    values: Float[Tensor, "b g s v"],
    chosen: Int[Tensor, "b 1 l t"],
    *,
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "b h l v"], Float[Tensor, "b 1 l t"]]:
    """Return attention to chosen tokens, and the weight of each, added up over heads, detached.

    Args:
        q: Queries of l tokens; heads that share keys are adjacent.
        keys: Keys of s tokens.
        values: Values of s tokens.
        chosen: Numbers of the t different tokens that each query reads; -1: no token.
        dropout: Probability that a weight is set to 0; the others are divided by 1 - dropout.
    """
    groups, length, top = keys.shape[1], q.shape[2], chosen.shape[3]
    each = len(q) * top * groups * (q.shape[-1] + values.shape[-1])
    precise, outputs, masses = sum_dtype(q), [], []
    with full_precision(q):
        by_token = [x.to(precise).transpose(1, 2).contiguous() for x in (keys, values)]
        by_group = torch.unflatten(q.to(precise), 1, (groups, -1))
        for some in passes(length, each, q.device):
            attend = partial(_attend, chosen=chosen[:, 0, some], dropout=dropout)
            if torch.is_grad_enabled():
                attend = partial(
                    checkpoint, attend, use_reentrant=False, preserve_rng_state=dropout > 0
                )
            o, mass = attend(by_group[:, :, :, some], *by_token)
            outputs.append(o)
            masses.append(mass)
        o = torch.cat(outputs, 3).flatten(1, 2)
    return o.to(values.dtype), torch.cat(masses, 1)[:, None]


def _attend(
    q: Float[Tensor, "b g j n k"],
    keys: Float[Tensor, "b s g k"],
    values: Float[Tensor, "b s g v"],
    chosen: Int[Tensor, "b n t"],
    dropout: float,
) -> tuple[Float[Tensor, "b g j n v"], Float[Tensor, "b n t"]]:
    """Return the outputs and weights of n queries."""
    row = torch.arange(len(q), device=q.device)[:, None, None] * keys.shape[1]
    number = (chosen.clamp(min=0) + row).flatten()
    k, v = (
        x.flatten(0, 1).index_select(0, number).view(*chosen.shape, *x.shape[2:]).transpose(2, 3)
        for x in (keys, values)
    )
    queries = q.permute(0, 3, 1, 2, 4)  # b n g j k
    scores = queries @ k.mT * q.shape[-1] ** -0.5
    weights = scores.masked_fill(chosen[:, :, None, None] < 0, NEVER).softmax(-1)
    mass = weights.detach().sum((2, 3)).masked_fill(chosen < 0, 0)
    o = F.dropout(weights, dropout) @ v
    return o.permute(0, 2, 3, 1, 4), mass
