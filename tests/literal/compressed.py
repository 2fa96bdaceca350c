"""Compressed attention of DeepSeek-V4, query by query: HCA and CSA of section 2.3."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tests.literal.heads import normed, of_parts

USUAL = {
    "causal": [True],
    "positions": ["rotary", "none"],
    "own_head_width": [None, 6],
    "masks": ["", "keep", "document", "keep document"],
    "window": [5, 1, 40],
    "length": [18, 20],
    "small": [False, True],
    "output_groups": [None, 3],
    "query_width": [None, 5],
}
SPARSE = {"form": ["sparse"], "index_heads": [None, 2], "index_width": [None, 3]}
TURNED = {"positions": ["rotary"], "rotary_width": [4], "rotary_base": [100.0]}
GRIDS = [
    {**USUAL, "form": ["heavy"], "block": [3, 1, 128], "output_rank": [None, 5]},
    {**USUAL, **SPARSE, "block": [None, 3, 1], "top": [2, 1, 512]},
    {**USUAL, **TURNED, "form": ["heavy", "sparse"], "block": [3]},
]


def rotated(x: Tensor, place: int, mixer: Any, way: int = 1) -> Tensor:
    """Turn the pairs (c, c + r / 2) of the last r channels by `place`, or the other way."""
    width = mixer.turned_width
    if not width:
        return x
    still, last = x[..., :-width], x[..., -width:]
    frequency = mixer.rotary_base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    turn = torch.polar(torch.ones_like(frequency), way * place * frequency)
    turned = torch.complex(*last.chunk(2, -1)) * turn
    return torch.cat((still, turned.real, turned.imag), -1)


def pooled(pooling: Any, x: Float[Tensor, "n d"], mixer: Any) -> list[Tensor]:
    """Return the entry of each whole block."""
    m, width, whole = len(pooling.places), pooling.width, []
    values, gates = x @ pooling.value_proj.weight.mT, x @ pooling.gate_proj.weight.mT
    for first in range(0, len(x) - m + 1, m):
        own, logits = values[first : first + m], gates[first : first + m] + pooling.places
        if mixer.form == "sparse":
            own, logits = own[:, width:], logits[:, width:]
            if first:
                before = slice(first - m, first)
                own = torch.cat((values[before, :width], own))
                logits = torch.cat(((gates[before] + pooling.places)[:, :width], logits))
        entry = (logits.softmax(0) * own).sum(0)
        whole.append(rotated(normed(entry, pooling.norm.weight, 1e-6), first, mixer))
    return whole


def chosen(mixer: Any, x: Float[Tensor, "n d"], t: int, keys: list[Tensor]) -> list[int]:
    """Return the entries that query t attends to: with the best scores, the later of equals."""
    scores = torch.stack(index_scores(mixer, x, t, keys)).tolist() if keys else []
    best = sorted(range(len(keys)), key=lambda n: (scores[n], n), reverse=True)
    return best[: mixer.top]


def index_scores(mixer: Any, x: Float[Tensor, "n d"], t: int, keys: list[Tensor]) -> list[Tensor]:
    """Return the score of each entry for query t."""
    index, scores = mixer.index, []
    latent = normed(mixer.q_proj.weight @ x[t], mixer.q_norm.weight, 1e-6)
    heads = (index.q_up.weight @ latent).view(-1, index.pooling.width)
    weights = index.weights.weight @ x[t]
    for key in keys:
        total = x.new_zeros(())
        for q, weight in zip(heads, weights, strict=True):
            product = rotated(q, t, mixer) @ key / math.sqrt(len(key))
            total = total + weight * product.clamp(min=0) / math.sqrt(len(heads))
        scores.append(total)
    return scores


def row(mixer: Any, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Return the outputs of one document."""
    heads, m = len(mixer.sink), len(mixer.pooling.places)
    entries = pooled(mixer.pooling, x, mixer)
    keys = pooled(mixer.index.pooling, x, mixer) if mixer.form == "sparse" else entries
    outputs = []
    for t in range(len(x)):
        latent = normed(mixer.q_proj.weight @ x[t], mixer.q_norm.weight, 1e-6)
        queries = (mixer.q_up.weight @ latent).view(heads, -1)
        near = range(max(0, t - mixer.window + 1), t + 1)
        seen = [rotated(normed(mixer.kv_proj.weight @ x[j], mixer.kv_norm.weight, 1e-6), j, mixer)
                for j in near]  # fmt: skip
        done = (t + 1) // m
        which = chosen(mixer, x, t, keys[:done]) if mixer.form == "sparse" else range(done)
        c = torch.stack([*seen, *(entries[n] for n in which)])
        of_heads = []
        for q, sink in zip(queries, mixer.sink, strict=True):
            scores = c @ rotated(normed(q, 1.0, 1e-6), t, mixer) / math.sqrt(len(q))
            weights = torch.cat((scores, sink[None])).softmax(0)[:-1]
            of_heads.append(rotated(weights @ c, t, mixer, -1))
        groups = torch.cat(of_heads).chunk(len(mixer.group_maps))
        ranks = [one @ part for one, part in zip(mixer.group_maps, groups, strict=True)]
        outputs.append(mixer.out_proj.weight @ torch.cat(ranks))
    return torch.stack(outputs)


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Return what the real tokens of each document give alone."""
    return of_parts(lambda rows: row(mixer, rows[0])[None], x, case)
