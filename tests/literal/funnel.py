"""Funnel's attention: Dai et al. 2020, arXiv:2006.03236, appendix A.2, pair by pair."""

import math
from typing import Any

import torch
from torch import Tensor

GRIDS = [
    {"positions": ["transformer_xl"], "cls": [False, True], "length": [1, 7],
     "bias": [True, False]},
    {"positions": ["transformer_xl"], "cls": [False], "masks": ["keep"], "length": [7]},
]  # fmt: skip


def sinusoid(distance: int) -> Tensor:
    """All sines stand before all cosines."""
    angles = [distance / 10000 ** (2 * i / 12) for i in range(12 // 2)]
    values = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
    return torch.tensor(values, dtype=torch.float64)


def of_row(
    mixer: Any, x: Tensor, source: Tensor, at: list[int], source_at: list[int], *, cls: bool
) -> Tensor:
    """Return what each token of one row gets, pair by pair."""
    relative = mixer.core.relative
    q = mixer.q_proj(x).view(-1, 3, 4)
    k, v = (layer(source).view(-1, 3, 4) for layer in (mixer.k_proj, mixer.v_proj))
    rows = []
    for i, here in enumerate(at):
        heads = []
        for h in range(3):
            scores = []
            for j, there in enumerate(source_at):
                score = (q[i, h] + relative.biases.content[h]) @ k[j, h]
                if not (cls and (i == 0 or j == 0)):
                    r = (relative.r_proj.weight @ sinusoid(here - there)).view(3, 4)[h]
                    score = score + (q[i, h] + relative.biases.position[h]) @ r
                    if cls:
                        score = score + (
                            (q[i, h] + relative.kind_bias[h]) @ relative.kind_vector[h]
                        )
                scores.append(score / math.sqrt(4))
            weights = torch.stack(scores).softmax(0)
            heads.append(sum(w * v[j, h] for j, w in enumerate(weights)))
        rows.append(mixer.out_proj(torch.cat(heads)))
    return torch.stack(rows)


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Return a sequence that attends to itself; padding is no key."""
    rows = []
    for row, tokens in enumerate(x):
        place = torch.arange(len(tokens))
        real = place if case.keep is None else place[case.keep[row]]
        at = place.tolist()
        rows.append(of_row(mixer, tokens, tokens[real], at, real.tolist(), cls=case.cls))
    return torch.stack(rows)
