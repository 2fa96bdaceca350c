"""The Reformer's attention written from the paper, and exact attention with shared keys."""

import torch
from torch import Tensor

from models.ops.hashing.lsh import Rules


def drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def drawn_buckets(*shape: int, count: int, seed: int = 0) -> Tensor:
    return torch.randint(count, shape, generator=torch.Generator().manual_seed(seed))


def logits(u: Tensor, rules: Rules, slope: float = 0.0) -> Tensor:
    """All scores of one head, a token's score with itself far below."""
    keys = u * (u.square().sum(-1, keepdim=True) + 1e-6 * u.shape[-1]).rsqrt()
    place = torch.arange(u.shape[0])
    s = rules.scale * u @ (keys if rules.unit_keys else u).T
    s = s - slope * (place[:, None] - place).abs()
    return s.masked_fill(torch.eye(u.shape[0], dtype=torch.bool), -1e3) if rules.exclude_self else s


def exact(u: Tensor, v: Tensor, rules: Rules, keep: Tensor | None = None) -> Tensor:
    """Softmax attention of (b, h, l, k) with shared queries and keys."""
    real = torch.ones(u.shape[0], u.shape[2], dtype=torch.bool) if keep is None else keep
    out = torch.zeros_like(v)
    for b in range(u.shape[0]):
        for h in range(u.shape[1]):
            sees = real[b].expand(u.shape[2], -1)
            sees = sees.tril() if rules.causal else sees
            s = logits(u[b, h], rules).masked_fill(~sees, -1e30)
            out[b, h] = torch.where(real[b, :, None], s.softmax(-1) @ v[b, h], 0)
    return out


def meetings(buckets: list[list[int]], real: list[int], rules: Rules) -> Tensor:
    """How often a query meets a key in each round: (r, l, l)."""
    rings: list[list[list[tuple[int, int]]]] = []  # chunks of (round, token)
    for r, bucket in enumerate(buckets):
        order = sorted(real, key=lambda i, bucket=bucket: (bucket[i], i))
        firsts = range(0, len(order), rules.chunk)
        cut = [[(r, i) for i in order[first : first + rules.chunk]] for first in firsts]
        if rules.joint and rings:
            rings[0] += cut
        else:
            rings.append(cut)
    times = torch.zeros(len(buckets), len(buckets[0]), len(buckets[0]), dtype=torch.float64)
    for ring in rings:
        for place, chunk in enumerate(ring):
            near = {(place + step) % len(ring) for step in range(-rules.before, rules.after + 1)}
            around = [pair for other in near for pair in ring[other]]
            for r, i in chunk:
                for s, j in around:
                    alike = r == s and buckets[r][i] == buckets[s][j]
                    times[r, i, j] += rules.across_buckets or alike
    return times.tril() if rules.causal else times


def one_head(u: Tensor, v: Tensor, times: Tensor, rules: Rules, slope: float) -> Tensor:
    """Softmax in every round, rounds weighed by their sums."""
    real = times.sum((0, 2)) > 0
    s = logits(u, rules, slope)
    if not rules.duplicates:
        s = s - times.sum(0).clamp(min=1).log()
    s = (s + times.log())[:, real]  # (r, l, l), a key as often as it is met
    z = s.logsumexp(-1, keepdim=True)
    o = torch.zeros_like(v)
    o[real] = ((z - z.logsumexp(0)).exp() * ((s - z).exp() @ v)).sum(0)
    return o


def literal(u, v, buckets, rules: Rules, *, keep=None, slopes=None) -> Tensor:
    """The paper's equations, one head after another."""
    heads = []
    for b in range(u.shape[0]):
        real = list(range(u.shape[2])) if keep is None else keep[b].nonzero()[:, 0].tolist()
        for h in range(u.shape[1]):
            slope = 0.0 if slopes is None else slopes[h].item()
            times = meetings(buckets[b, h].tolist(), real, rules)
            heads.append(one_head(u[b, h], v[b, h], times, rules, slope))
    return torch.stack(heads).view(v.shape)
