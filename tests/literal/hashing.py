"""Attention among tokens that hash alike as the papers write it, by loops and over all pairs.

What tests compare the fast forms of this folder with: it forms the n x n weights, finds by loops
which tokens meet, and imports none of ours.

Axis letters besides the project's: r rounds, m hashes, f columns of a rotation.

Sources: Reformer, Kitaev et al. 2020, arXiv:2001.04451; the code of the Long Range Arena, Tay et
al. 2021, arXiv:2011.04006; YOSO, Zeng et al. 2021, arXiv:2111.09714.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F


def shared_scores(
    u: Float[Tensor, "l k"],
    *,
    scale: float = 1.0,
    unit_keys: bool = True,
    exclude_self: bool = True,
    slope: float = 0.0,
) -> Float[Tensor, "l l"]:
    """Return all scores of one head whose vectors are queries and keys.

    Args:
        u: one vector for each token.
        scale: factor of the products.
        unit_keys: keys are u / |u|, with 1e-6 added to the mean square.
        exclude_self: a token's score with itself lies far below all others.
        slope: what a token of distance takes off.
    """
    keys = u * (u.square().sum(-1, keepdim=True) + 1e-6 * u.shape[-1]).rsqrt()
    position = torch.arange(u.shape[0])
    s = scale * u @ (keys if unit_keys else u).T
    s = s - slope * (position[:, None] - position).abs()
    return s.masked_fill(torch.eye(u.shape[0], dtype=torch.bool), -1e3) if exclude_self else s


def shared_attention(
    u: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    *,
    causal: bool = False,
    scale: float = 1.0,
    unit_keys: bool = True,
    exclude_self: bool = True,
    keep: Bool[Tensor, "b l"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Return exact softmax attention with shared queries and keys, which hashing approaches."""
    real = torch.ones(u.shape[0], u.shape[2], dtype=torch.bool) if keep is None else keep
    out = torch.zeros_like(v)
    for b in range(u.shape[0]):
        for h in range(u.shape[1]):
            sees = real[b].expand(u.shape[2], -1)
            sees = sees.tril() if causal else sees
            s = shared_scores(u[b, h], scale=scale, unit_keys=unit_keys, exclude_self=exclude_self)
            s = s.masked_fill(~sees, -1e30)
            out[b, h] = torch.where(real[b, :, None], s.softmax(-1) @ v[b, h], 0)
    return out


def meetings(
    buckets: Sequence[Sequence[int]],
    real: Sequence[int],
    *,
    chunk: int,
    before: int = 1,
    after: int = 0,
    causal: bool = False,
    joint: bool = True,
    across_buckets: bool = True,
) -> Float[Tensor, "r l l"]:
    """Return how often a query (row) meets a key (column) in each round.

    Sorted by bucket and position, tokens are cut into chunks, which see themselves and chunks
    before and behind them on a ring.

    Args:
        buckets: bucket of every token, round by round.
        real: tokens that are no padding, in order.
        chunk: tokens of a chunk.
        before: chunks seen before a token's own.
        after: chunks seen behind it.
        causal: meet no later token.
        joint: one ring for all rounds instead of one for each.
        across_buckets: meet tokens of other buckets (and rounds) in the chunks seen.
    """
    rings: list[list[list[tuple[int, int]]]] = []  # chunks of (round, token)
    for r, bucket in enumerate(buckets):
        order = sorted((bucket[i], i) for i in real)
        firsts = range(0, len(order), chunk)
        cut = [[(r, i) for _, i in order[first : first + chunk]] for first in firsts]
        if joint and rings:
            rings[0] += cut
        else:
            rings.append(cut)
    times = torch.zeros(len(buckets), len(buckets[0]), len(buckets[0]), dtype=torch.float64)
    for ring in rings:
        for number, members in enumerate(ring):
            near = {(number + step) % len(ring) for step in range(-before, after + 1)}
            around = [pair for other in near for pair in ring[other]]
            for r, i in members:
                for s, j in around:
                    alike = r == s and buckets[r][i] == buckets[s][j]
                    times[r, i, j] += across_buckets or alike
    return times.tril() if causal else times


def attention_by_meetings(
    scores: Float[Tensor, "l l"],
    v: Float[Tensor, "l v"],
    times: Float[Tensor, "r l l"],
    *,
    duplicates: bool = True,
) -> Float[Tensor, "l v"]:
    """Return one head: a softmax in every round, rounds weighed by their sums of exponentials.

    Args:
        scores: of all pairs.
        v: values.
        times: how often a query meets a key in each round; a query that meets no key gets 0.
        duplicates: a key that is met several times weighs that often.
    """
    real = times.sum((0, 2)) > 0
    if not duplicates:
        scores = scores - times.sum(0).clamp(min=1).log()
    s = (scores + times.log())[:, real]  # (r, l, l), a key as often as it is met
    z = s.logsumexp(-1, keepdim=True)
    o = torch.zeros_like(v)
    o[real] = ((z - z.logsumexp(0)).exp() * ((s - z).exp() @ v)).sum(0)
    return o


def lsh_attention(
    u: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    buckets: Int[Tensor, "b h r l"],
    *,
    chunk: int,
    before: int = 1,
    after: int = 0,
    causal: bool = False,
    scale: float = 1.0,
    joint: bool = True,
    unit_keys: bool = True,
    exclude_self: bool = True,
    across_buckets: bool = True,
    duplicates: bool = True,
    keep: Bool[Tensor, "b l"] | None = None,
    slopes: Float[Tensor, " h"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Return the Reformer's attention, one head after another. Kitaev et al. 2020, section 2.

    o_i = sum_rj exp(s_ij) v_j / sum_rj exp(s_ij) over what i meets in any round r. The options are
    those of `shared_scores`, `meetings` and `attention_by_meetings`.
    """
    heads = []
    for b in range(u.shape[0]):
        real = list(range(u.shape[2])) if keep is None else keep[b].nonzero()[:, 0].tolist()
        for h in range(u.shape[1]):
            slope = 0.0 if slopes is None else slopes[h].item()
            times = meetings(
                buckets[b, h].tolist(), real, chunk=chunk, before=before, after=after,
                causal=causal, joint=joint, across_buckets=across_buckets,
            )  # fmt: skip
            s = shared_scores(
                u[b, h], scale=scale, unit_keys=unit_keys, exclude_self=exclude_self, slope=slope
            )
            heads.append(attention_by_meetings(s, v[b, h], times, duplicates=duplicates))
    return torch.stack(heads).view(v.shape)


def lra_reformer_attention(
    u: Float[Tensor, "b h l k"], v: Float[Tensor, "b h l v"], rotation: Float[Tensor, "k f"]
) -> Float[Tensor, "b h l v"]:
    """Return what the Long Range Arena's code calls the Reformer's attention, head by head.

    One round of 10 chunks; a token sees its chunk and the one before, itself too, with scores
    multiplied by sqrt(d).

    Args:
        u: queries and keys; their number is a multiple of 10.
        v: values.
        rotation: the bucket is argmax [u R, -u R].
    """
    total = u.shape[2]
    out = torch.zeros_like(v)
    for b in range(u.shape[0]):
        for h in range(u.shape[1]):
            turned = u[b, h] @ rotation
            order = torch.cat((turned, -turned), -1).argmax(-1).argsort(stable=True)
            chunk = torch.empty_like(order).scatter_(0, order, torch.arange(total) * 10 // total)
            back = (chunk[:, None] - chunk) % 10
            scores = (u[b, h] @ u[b, h].T * math.sqrt(u.shape[-1])).masked_fill(back > 1, -1e30)
            out[b, h] = scores.softmax(-1) @ v[b, h]
    return out


def cosines(q: Float[Tensor, "b h l k"], k: Float[Tensor, "b h s k"]) -> Float[Tensor, "b h l s"]:
    """Return the cosine of the angle between every query and every key."""
    return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT


def collision_chance(cosine: Float[Tensor, "..."], tau: int) -> Float[Tensor, "..."]:
    """Return (1 - acos(x) / pi)^tau: the chance that tau random planes part no two vectors."""
    return (1 - torch.acos(cosine.clamp(-1, 1)) / math.pi) ** tau


def collision_share(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    directions: Float[Tensor, "h k p"],
    tau: int,
) -> Float[Tensor, "b h l s"]:
    """Return the share of hashes in which all tau signs of query and key agree, in float64.

    `directions` are the normals of the planes, hash after hash: p = m tau.
    """
    signs = [
        (x @ directions.to(x)).gt(0).reshape(*x.shape[:3], -1, tau).transpose(2, 3) for x in (q, k)
    ]  # b h m l t
    equal: Tensor = (signs[0][..., :, None, :] == signs[1][..., None, :, :]).all(-1)
    return equal.double().mean(2)


def yoso_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    weights: Float[Tensor, "b h l s"],
    *,
    tau: int,
    keep: Bool[Tensor, "b s"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Return y_i / |y_i| with y_i = sum_j P_ij v_j, over all pairs; rows that find nothing are 0.

    Zeng et al. 2021. Backward takes tau / 2 P as the derivative of P by the cosine of query and
    key, the paper's surrogate.

    Args:
        q: queries.
        k: keys.
        v: values.
        weights: P, `collision_chance` or `collision_share`.
        tau: bits of a code.
        keep: which keys are no padding.
    """
    cosine, weights = cosines(q, k), weights.detach()
    weights = weights * (1 + tau / 2 * (cosine - cosine.detach()))  # the value stays
    if keep is not None:
        weights = weights * keep[:, None, None]
    y = weights @ v
    length: Tensor = torch.where((y == 0).all(-1, keepdim=True), 1, y).norm(dim=-1, keepdim=True)
    return y / length
