"""The Reformer: Kitaev et al. 2020, arXiv:2001.04451; the Long Range Arena's code.

Axis letters besides the project's: r rounds, f columns of a rotation.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tests.literal.heads import joined, rotated, slopes, split

USUAL = {"causal": [False, True], "masks": ["", "keep"], "length": [1, 17, 29],
         "positions": ["none", "rotary", "alibi"], "small": [False, True]}  # fmt: skip
CUT = {"chunk": [4, 64], "logit_scale": ["unit", "rsqrt_d"], "bias": [False, True],
       "attend_across_buckets": [True, False],
       "buckets": [None, [4, 2]]}  # fmt: skip
GRIDS = [
    {**USUAL, **CUT, "rounds": [1, 3], "before": [1, 2, 0], "after": [0, 1, 2]},
    {
        **USUAL,
        **CUT,
        "rounds": [2, 3],
        "before": [1, 2],
        "wrap": ["joint", "per_round"],
        "allow_duplicates": [True, False],
    },
    {"variant": ["lra"], "length": [1, 30, 37]},
]


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


def hashed(mixer: Any, u: Float[Tensor, "b h l k"]) -> Int[Tensor, "b h r l"]:
    """Return each round's bucket: the nearest direction of every factor, or its negative."""
    turns, total, stride, first = mixer.rotations.to(u), 0, 1, 0
    for factor in mixer.factors:
        part = turns[..., first : first + factor // 2]
        there = torch.einsum("bhlk,rhkf->bhrlf", u, part)
        total = total + stride * torch.cat((there, -there), -1).argmax(-1)
        stride, first = stride * factor, first + factor // 2
    return total


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Attend among tokens that hash alike."""
    length, lra = x.shape[1], case.variant == "lra"
    if lra:  # zeros fill up to the next multiple of 10
        x = torch.cat((x, x.new_zeros(len(x), 10 - length % 10, x.shape[2])), dim=1)
    u, v = (split(layer(x), mixer.heads) for layer in (mixer.qk_proj, mixer.v_proj))
    if lra:
        o = lra_reformer_attention(u, v, mixer.rotations[0, 0].to(u))
        return o.reshape(*x.shape)[:, :length]  # heads and tokens trade places, as there
    if case.positions == "rotary":
        u = rotated(u)
    o = lsh_attention(
        u, v, hashed(mixer, u), chunk=case.chunk, before=case.before, after=case.after,
        causal=case.causal, scale=u.shape[-1] ** -0.5 if case.logit_scale == "rsqrt_d" else 1.0,
        joint=case.wrap == "joint", across_buckets=case.attend_across_buckets,
        duplicates=case.allow_duplicates, keep=case.keep,
        slopes=slopes(mixer.heads) if case.positions == "alibi" else None,
    )  # fmt: skip
    return mixer.out_proj(joined(o))
