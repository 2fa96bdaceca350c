"""Indexed attention: DeepSeek-V3.2, arXiv:2512.02556, and three others; which keys a query sees.

qsa and kpool are written from the code of Qwen4-Exp and GLM-5-next, msa from MiniMax-M3,
arXiv:2606.13392.
"""

import math
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from tests.literal.heads import attention_in_sight, merged, of_parts, projected, rotated

MASKS = {"masks": ["", "keep", "document", "keep document"], "causal": [False, True]}
HEADS: dict[str, list[Any]] = {"width": [16], "heads": [4]}
GRIDS = [
    {"scores": ["dsa"], "budget": [1, 5, 40], "index_heads": [1, 3], "length": [19], **MASKS},
    {"scores": ["qsa", "kpool"], "block": [4, 3], "budget": [12, 24], "index_heads": [1, 3],
     "length": [19, 24], **MASKS},
    {"scores": ["msa"], "block": [4], "budget": [4, 8, 24], "key_value_heads": [1, 2, None],
     "length": [19, 24], **HEADS, **MASKS},
    {"scores": ["qsa", "msa"], "block": [4], "budget": [8], "positions": ["rotary"],
     "index_width": [8, 6], "index_rotary": [None, 2], "causal": [False, True], **HEADS},
    {"scores": ["dsa"], "budget": [5], "positions": ["rotary"],
     "index_width": [8, 6], "index_rotary": [None, 2], "causal": [False, True],
     **HEADS},
    {"scores": ["qsa", "msa"], "block": [2], "budget": [6], "key_value_heads": [2], **HEADS,
     "causal": [True], "small": [False, True], "output_gate": [False, True],
     "qk_norm": [False, True], "bias": [False, True]},
]  # fmt: skip


def normed_index(x: Tensor, norm: Any, form: str) -> Tensor:
    """Return keys after LayerNorm (dsa, kpool) or RMSNorm, in the last channels' axis."""
    if form in {"dsa", "kpool"}:
        x = x - x.mean(-1, keepdim=True)
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight + norm.bias
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight


def turned(x: Tensor, channels: int) -> Tensor:
    """Rotate the first channels of each head by the place of the token."""
    return torch.cat((rotated(x[..., :channels]), x[..., channels:]), -1) if channels else x


def index_lists(mixer: Any, x: Tensor, case: Any) -> list[list[list[int]]]:
    """Return the tokens that each query of one row attends to, for each choice."""
    index, form, block, (_, length, _) = mixer.index, str(case.scores), mixer.block, x.shape
    width = index.k_norm.weight.shape[0]
    channels = index.rotary if case.positions == "rotary" else 0
    q, raw = index.queries(x)[0].unflatten(-1, (-1, width)), index.keys(x)[0]
    spans = [range(m, min(m + block, length)) for m in range(0, length, block)]
    if form in {"qsa", "msa"}:
        q = normed_index(q, index.q_norm, form)
    q = turned(q.transpose(0, 1)[None], channels)[0]
    keys = normed_index(raw, index.k_norm, form) if form != "qsa" else raw
    if form in {"dsa", "msa"}:
        keys = turned(keys[None, None], channels)[0, 0]

    def of_span(span: range) -> Tensor:
        if form == "qsa":
            mean = normed_index(sum(raw[j] for j in span) / len(span), index.k_norm, form)
            placed = torch.stack([mean] * (span[0] + 1))  # row j stands at place j
            return turned(placed[None, None], channels)[0, 0, span[0]]
        if form == "kpool":
            gates = torch.stack([index.gate(x)[0, j] + index.place[j - span[0]] for j in span])
            shares = gates.exp() / gates.exp().sum(0)
            return sum(share * keys[j] for share, j in zip(shares, span, strict=True))
        return keys[span[0]]

    by_span = [of_span(span) for span in spans]
    choices = []
    for heads in [[h] for h in range(len(q))] if form == "msa" else [[*range(len(q))]]:
        rows = []
        for t in range(length):
            home, scores = t // block, dict[int, float]()
            for m, span in enumerate(spans):
                if form == "msa":
                    seen = [j for j in span if j <= t or not case.causal]
                    if seen:
                        scores[m] = max(float(q[heads[0], t] @ keys[j]) for j in seen)
                    continue
                if case.causal and span[0] + block - 1 > t:
                    continue
                products = [float(q[h, t] @ by_span[m]) / math.sqrt(width) for h in heads]
                weights = [1.0] * len(heads)
                if form != "qsa":
                    weights = (index.weights(x)[0, t] / math.sqrt(len(heads))).tolist()
                pairs = zip(weights, products, strict=True)
                scores[m] = sum(w * max(0.0, product) for w, product in pairs)
            forced = {home} if form == "msa" else set()
            order = sorted(
                scores, key=lambda m: (m not in forced, -scores[m], abs(home - m), m > home)
            )
            chosen = {*order[: case.budget // block]}
            if form != "msa" and case.causal and home not in scores:
                chosen.add(home)
            rows.append([j for m in chosen for j in spans[m] if j <= t or not case.causal])
        choices.append(rows)
    return choices


def sees(mixer: Any, x: Tensor, case: Any) -> Bool[Tensor, "1 h l l"]:
    """Return who sees whom in one row."""
    with torch.no_grad():
        choices = index_lists(mixer, x, case)
    sight = torch.zeros(1, len(choices), x.shape[1], x.shape[1], dtype=torch.bool)
    for number, rows in enumerate(choices):
        for t, tokens in enumerate(rows):
            sight[0, number, t, tokens] = True
    return sight.repeat_interleave(mixer.heads // len(choices), 1)


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Choose among the real tokens of a document, which stand as if alone."""

    def alone(tokens: Tensor) -> Tensor:
        q, k, v = projected(mixer, tokens, case)
        o = attention_in_sight(q, k, v, sees(mixer, tokens, case))
        return merged(mixer, o, tokens)

    return of_parts(alone, x, case)
