"""Sinkhorn attention as loops: what tests compare `lra.models.ops.sorting` with.

Every entry of a sort matrix and every query is computed by itself, padding is left out of every
sum, and none of ours is imported.

Axis letters besides the project's: i query blocks, j source blocks (causal: one more, the null
block, first).

Source: Tay, Bahri, Yang, Metzler, Juan 2020, arXiv:2002.11296, sections 3 and 4.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tests.literal.heads import attention_in_sight, in_sight, merged, projected, split

GRIDS = [
    {
        "block": [4],
        "causal": [False, True],
        "sort": ["topk"],
        "sort_net": ["attention"],
        "masks": ["", "keep"],
        "length": [3, 8, 10],
        "mixture": [False],
    },
    {
        "block": [4],
        "causal": [False, True],
        "sort": ["sinkhorn", "softmax"],
        "sort_net": ["mlp", "attention"],
        "masks": ["", "keep"],
        "length": [3, 8, 10],
        "mixture": [False, True],
        "bias": [True, False],
    },
]


def sort_matrix(
    scores: Float[Tensor, "i j"],
    free: Bool[Tensor, "i j"],
    sort: str,
    *,
    iterations: int,
    causal: bool,
) -> Float[Tensor, "i j"]:
    """Return one head's sort matrix, entry by entry over what is free; elsewhere it is 0.

    Args:
        scores: of each query block for each source block, over the temperature already.
        free: which source block a query block may take.
        sort: sinkhorn divides by the sums of columns and rows in turn, softmax by those of rows,
            topk leaves each row the largest of its probabilities alone.
        iterations: rounds of sinkhorn.
        causal: a column is divided by the sum of the rows so far; column 0 is the null block and
            is never divided.
    """
    rows = scores.shape[0]
    S = torch.where(free, scores.exp(), 0)
    if sort == "topk":
        p = S / S.sum(1, keepdim=True).clamp_min(1e-300)
        return torch.where(p == p.amax(1, keepdim=True), p, 0)
    for _ in range(iterations if sort == "sinkhorn" else 1):
        if sort == "sinkhorn":
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


def sinkhorn_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l k"],
    scores: Float[Tensor, "b h i j"],
    *,
    block: int,
    sort: str,
    iterations: int = 8,
    temperature: float = 0.75,
    null: tuple[Float[Tensor, "h 1 1 k"], Float[Tensor, "h 1 1 k"]] | None = None,
    keep: Bool[Tensor, "b l"] | None = None,
) -> Float[Tensor, "b h l k"]:
    """Return softmax attention of every query to its own block and to the sorted one.

    A sorted block has at each position the mean of what the source blocks have there, by
    the sort matrix; padding is in no mean.

    Args:
        q: queries.
        k: keys.
        v: values, as wide as the keys.
        scores: of each query block for each source block.
        block: tokens of a block.
        sort: see `sort_matrix`.
        iterations: see `sort_matrix`.
        temperature: divides the scores.
        null: key and value of the null block, where causal; None otherwise.
        keep: what is no padding.
    """
    causal = null is not None
    batch, count, length, width = q.shape
    n = -(-length // block)
    out = torch.zeros_like(q)
    for b in range(batch):
        real = [keep is None or bool(keep[b, t]) for t in range(length)]
        used = [any(real[B * block : (B + 1) * block]) for B in range(n)]
        rows = [[used[i] and used[j] and (j < i or not causal) for j in range(n)] for i in range(n)]
        for h in range(count):
            free = torch.tensor(rows)
            if causal:
                free = torch.cat((torch.ones(n, 1, dtype=torch.bool), free), 1)
            S = sort_matrix(
                scores[b, h] / temperature, free, sort, iterations=iterations, causal=causal
            )
            for t in range(length):
                first = t // block * block
                in_block = [s for s in range(first, min(length, first + block)) if real[s]]
                in_block = [s for s in in_block if s <= t or not causal]
                keys, values = [k[b, h, s] for s in in_block], [v[b, h, s] for s in in_block]
                for offset in range(block):
                    terms: list[tuple[Tensor, Tensor]] = []
                    weights: list[Tensor] = []
                    for j in range(S.shape[1]):
                        s = (j - causal) * block + offset
                        weight = S[t // block, j]
                        if null is not None and j == 0:
                            terms.append((null[0][h, 0, 0], null[1][h, 0, 0]))
                        elif s < length and real[s] and weight > 0:
                            terms.append((k[b, h, s], v[b, h, s]))
                        else:
                            continue
                        weights.append(weight)
                    if not weights or sum(weights) == 0:
                        continue
                    shares = torch.stack(weights)
                    shares = shares if sort == "topk" else shares / shares.sum()
                    for mixed, part in ((keys, 0), (values, 1)):
                        mixed.append(shares @ torch.stack([term[part] for term in terms]))
                if keys:
                    p = (torch.stack(keys) @ q[b, h, t] / width**0.5).softmax(0)
                    out[b, h, t] = p @ torch.stack(values)
    return out


def block_scores(mixer: Any, x: Float[Tensor, "b l d"], case: Any) -> Float[Tensor, "b h i j"]:
    """Return the sort net's scores: of pooled tokens by a network, or by their queries and keys."""
    block, length = case.block, x.shape[1]
    n, real = -(-length // block), torch.ones(x.shape[:2], dtype=x.dtype)
    real = real if case.keep is None else case.keep.to(x)

    def pooled(y: Tensor, i: int, *, first: bool, mean: bool) -> Tensor:
        tokens = slice(0 if first else i * block, i * block + 1 if first else (i + 1) * block)
        weight = real[:, tokens, None]
        total = (y[:, tokens] * weight).sum(1)
        return total / (weight.sum(1).clamp(min=1) if mean else block)

    if case.sort_net == "mlp":
        rows = []
        for i in range(n):
            hidden = mixer.sort_in(pooled(x, i, first=case.causal, mean=False)).relu()
            hidden = hidden.view(len(x), -1, 1, mixer.sort_out.shape[1])
            rows.append((hidden @ mixer.sort_out + mixer.sort_bias).relu()[:, :, 0])
        return torch.stack(rows, 2)[..., : n + case.causal]
    q, k = (
        torch.stack([pooled(layer(x), i, first=first, mean=True) for i in range(n)], 1)
        for layer, first in ((mixer.q_proj, case.causal), (mixer.k_proj, False))
    )
    q, k = (split(each, mixer.heads) for each in (q, k))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return torch.nn.functional.pad(scores, (1, 0)) if case.causal else scores


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Attend to a block and its sorted one, and to all besides in a mixture."""
    q, k, v = projected(mixer, x, case)
    null = (mixer.core.null_key, mixer.core.null_value) if case.causal else None
    o = sinkhorn_attention(
        q, k, v, block_scores(mixer, x, case), block=case.block, sort=case.sort, null=null,
        keep=case.keep,
    )  # fmt: skip
    if case.mixture:
        o = o + attention_in_sight(q, k, v, in_sight(case, x.shape[1]))
    return merged(mixer, o, x)
