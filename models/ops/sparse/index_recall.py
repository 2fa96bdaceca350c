"""How much attention goes to what an index chooses, against the most that a choice could get."""

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lra.models.mixer import Layout
from lra.models.ops.numerics import full_precision
from lra.models.ops.sparse.index_loss import IndexTarget
from lra.models.ops.sparse.index_scores import BlockRule, Index


class Recall(NamedTuple):
    """Shares of exact attention to blocks, a mean over the heads of each of i choices."""

    chosen: Float[Tensor, "b i l"]
    """Attention to the chosen blocks."""
    best: Float[Tensor, "b i l"]
    """Attention to as many blocks, those with the most attention."""
    chose: Bool[Tensor, "b i l"]
    """Whether there were more blocks than a query may choose."""


@runtime_checkable
class Recalls(Protocol):
    """A mixer whose queries read what an index chooses."""

    def recall(self, x: Float[Tensor, "b l d"], layout: Layout) -> Recall:
        """Return how much attention the choice of each query gets."""
        ...


@torch.no_grad()
def recall_of_choice(
    index: Index, rule: BlockRule, q: Float[Tensor, "b h l k"], keys: Float[Tensor, "b g s k"]
) -> Recall:
    """Return the attention to what each query chooses, computed for a part of them at a time.

    Blocks that have no score, such as the unfinished one of a query, do not count.

    Args:
        index: The index.
        rule: How blocks are chosen.
        q: Queries of attention.
        keys: Keys of attention in the slots of the rule's table.
    """
    lists, rows = index.q.shape[1] if index.by_head else 1, q.new_ones(len(q), q.shape[2])
    target, found = IndexTarget(rule, q, keys, index.by_head, rows, None, None), list[Recall]()
    with full_precision(q):
        for some in index.parts():
            hidden = rule.scores(index, some) == -torch.inf
            masses = target.of_all(some, lists).masked_fill(hidden, 0) / (q.shape[1] // lists)
            chosen = rule.choose(index, some)[..., : min(rule.top, masses.shape[-1])]
            got = masses.gather(-1, chosen.clamp(min=0)).masked_fill(chosen < 0, 0).sum(-1)
            best = masses.topk(chosen.shape[-1]).values.sum(-1)
            found.append(Recall(got, best, (~hidden).sum(-1) > rule.top))
    return Recall(*(torch.cat(parts, 2) for parts in zip(*found, strict=True)))
