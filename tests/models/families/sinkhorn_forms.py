"""Sinkhorn attention as loops: what its tests compare with."""

import pytest
import torch
from torch import Tensor

from models.families.sinkhorn import Sinkhorn, Sort, SortNet
from models.mixer import Site

DIRECTIONS = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
SORTS = pytest.mark.parametrize("sort", list(Sort))
NETS = pytest.mark.parametrize("sort_net", list(SortNet))
BLOCK = 4


def drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def heads(length: int, width: int = 5) -> list[Tensor]:
    return [drawn(2, 3, length, width, seed=s).requires_grad_() for s in range(3)]


def built(length: int = 64, *, causal: bool = False, dropout: float = 0.0, **options) -> Sinkhorn:
    torch.manual_seed(1)
    site = Site(width=12, heads=3, max_length=length, causal=causal, attention_dropout=dropout)
    return Sinkhorn(site, **({"block": BLOCK} | options)).double().eval()


def padding(length: int) -> Tensor:
    keep = torch.rand(2, length, generator=torch.Generator().manual_seed(5)) > 0.4
    keep[0, :BLOCK] = keep[0, 2 * BLOCK : 3 * BLOCK] = False  # whole blocks
    return keep


def literal_sort(scores: Tensor, free: Tensor, sort: Sort, iterations: int, causal: bool) -> Tensor:
    """One head's sort matrix, entry by entry over what is free; causal: column 0 is the null."""
    rows = scores.shape[0]
    S = torch.where(free, scores.exp(), 0)
    if sort is Sort.topk:
        p = S / S.sum(1, keepdim=True).clamp_min(1e-300)
        return torch.where(p == p.amax(1, keepdim=True), p, 0)
    for _ in range(iterations if sort is Sort.sinkhorn else 1):
        if sort is Sort.sinkhorn:
            divided = []
            for i in range(rows):
                seen = S[: i + 1] if causal else S
                total = seen.sum(0)
                if causal:
                    total = torch.cat((torch.ones_like(total[:1]), total[1:]))
                divided.append(torch.where(free[i], S[i] / torch.where(total > 0, total, 1), 0))
            S = torch.stack(divided)
        total = S.sum(1, keepdim=True)
        S = S / torch.where(total > 0, total, 1)
    return S


def literal(mixer: Sinkhorn, qkv: list[Tensor], scores: Tensor, keep: Tensor | None = None):
    """Every query by itself: sort, mix the blocks place by place, one softmax over both halves."""
    (q, k, v), causal, sort = qkv, mixer.causal, mixer.core.options.sort
    batch, count, length, width = q.shape
    n = -(-length // BLOCK)
    out = torch.zeros_like(q)
    for b in range(batch):
        real = [keep is None or bool(keep[b, t]) for t in range(length)]
        used = [any(real[B * BLOCK : (B + 1) * BLOCK]) for B in range(n)]
        for h in range(count):
            free = torch.tensor(
                [
                    [used[i] and used[j] and (j < i or not causal) for j in range(n)]
                    for i in range(n)
                ]
            )
            if causal:
                free = torch.cat((torch.ones(n, 1, dtype=torch.bool), free), 1)
            S = literal_sort(scores[b, h] / 0.75, free, sort, 8, causal)
            for t in range(length):
                own = range(t // BLOCK * BLOCK, min(length, (t // BLOCK + 1) * BLOCK))
                own = [s for s in own if real[s] and (s <= t or not causal)]
                keys, values = [k[b, h, s] for s in own], [v[b, h, s] for s in own]
                for place in range(BLOCK):
                    terms, weights = [], []
                    for j in range(S.shape[1]):
                        s = (j - causal) * BLOCK + place
                        weight = S[t // BLOCK, j]
                        if causal and j == 0:
                            null = mixer.core.null_key, mixer.core.null_value
                            terms.append([x[h, 0, 0] for x in null])
                        elif s < length and real[s] and weight > 0:
                            terms.append([k[b, h, s], v[b, h, s]])
                        else:
                            continue
                        weights.append(weight)
                    if weights and sum(weights) > 0:
                        total = 1 if sort is Sort.topk else sum(weights)
                        for mixed, part in ((keys, 0), (values, 1)):
                            x = sum(w * pair[part] for w, pair in zip(weights, terms, strict=True))
                            mixed.append(x / total)
                if keys:
                    p = (torch.stack(keys) @ q[b, h, t] / width**0.5).softmax(0)
                    out[b, h, t] = p @ torch.stack(values)
    return out
