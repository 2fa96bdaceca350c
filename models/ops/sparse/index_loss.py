"""The loss of an index: how far its scores are from the attention that it should predict.

    KL(p_t || softmax_s I_ts),    p_ts = sum_h a_hts / sum_s' sum_h a_hts'

over the entries s that query t has chosen, or over all visible ones, with attention weights a_hts
of the heads, added up over the tokens of a block. Attention gets no gradient. Scores are computed
for a part of the queries at a time, and again for the gradient; they are not stored.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra.models.ops.numerics import NEVER, full_precision, sum_dtype
from lra.models.ops.sparse.chosen_blocks import chosen_masses
from lra.models.ops.sparse.index_scores import BlockRule, Index


class IndexTarget(NamedTuple):
    """The attention that an index should predict."""

    rule: BlockRule
    q: Float[Tensor, "b h l k"]
    keys: Float[Tensor, "b g s k"]
    """Keys in the slots of the rule's table."""
    by_head: bool
    """Whether the heads of the index choose separately."""
    share: Float[Tensor, "b l"]
    """Weight of each query in the loss."""
    chosen: Int[Tensor, "b i l t"] | None
    """Blocks that each query has chosen; None: all visible blocks."""
    masses: Float[Tensor, "b i l t"] | None
    """Attention to each of these blocks, added up over the heads that share a choice."""

    def loss(self, index: Index, some: slice) -> Float[Tensor, ""]:
        """Return the part of the loss of the queries `some`, which `index` has alone."""
        scores = self.rule.by_block(index.scores(slice(None)), some)
        if self.chosen is None or self.masses is None:
            masses = self.of_all(some, scores.shape[1])
        else:
            masses, lists = self.masses[:, :, some], self.chosen[:, :, some]
            scores = scores.gather(-1, lists.clamp(min=0)).masked_fill(lists < 0, -torch.inf)
        return (divergence(scores, masses) * self.share[:, None, some]).sum()

    def of_all(self, some: slice, lists: int) -> Float[Tensor, "b i l m"]:
        """Return the attention of the queries `some` to each block, with all tokens visible."""
        table, precise = self.rule.table, sum_dtype(self.q)
        q = torch.unflatten(self.q[:, :, some].to(precise), 1, (self.keys.shape[1], -1))
        scores = q @ self.keys.to(precise)[:, :, None].mT * q.shape[-1] ** -0.5
        visible = table.visible(some, causal=self.rule.causal, stride=1)
        weights = scores.masked_fill(~visible[:, None, None], NEVER).softmax(-1)
        weights = torch.unflatten(weights.flatten(1, 2), 1, (lists, -1)).sum(2)
        return torch.unflatten(weights, -1, (-1, table.block)).sum(-1)


class IndexLoss(torch.autograd.Function):
    """`apply(q, keys, weights, target)` computes the loss in passes, and again for its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Float[Tensor, "b i l c"],
        keys: Float[Tensor, "b s c"],
        weights: Float[Tensor, "b i l"] | None,
        target: IndexTarget,
    ) -> Float[Tensor, ""]:
        """Return the loss."""
        ctx.target = target
        ctx.save_for_backward(q, keys, weights)
        index, total = Index(q, keys, weights, target.by_head), target.share.new_zeros(())
        for some in index.parts():
            total += target.loss(index.of_queries(some), some)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, ""]) -> tuple[Tensor | None, ...]:
        """Return the gradients of queries, keys and weights of the index."""
        q, keys, weights = ctx.saved_tensors
        whole, of_queries = Index(q, keys, weights, ctx.target.by_head), list[list[Tensor]]()
        d_keys = torch.zeros_like(keys)
        with full_precision(q):
            for some in whole.parts():
                own_q, own_keys, own_weights, by_head = whole.of_queries(some)
                used = [own_q.detach().requires_grad_(), own_keys.detach().requires_grad_()]
                if own_weights is not None:
                    own_weights = own_weights.detach().requires_grad_()
                    used.append(own_weights)
                with torch.enable_grad():
                    loss = ctx.target.loss(Index(used[0], used[1], own_weights, by_head), some)
                d_q, d_part, *d_weights = torch.autograd.grad(loss, used, gradient)
                d_keys += d_part
                of_queries.append([d_q, *d_weights])
        d_q, *rest = (torch.cat(parts, 2) for parts in zip(*of_queries, strict=True))
        return d_q, d_keys, rest[0] if rest else None, None


def divergence(
    scores: Float[Tensor, "b i l t"], masses: Float[Tensor, "b i l t"]
) -> Float[Tensor, "b i l"]:
    """Return KL(masses || softmax of scores) of each query; 0 without an entry.

    Entries with a score of -inf do not count; the other masses are divided by their sum.
    """
    hidden = scores == -torch.inf
    masses = masses.to(scores.dtype).masked_fill(hidden, 0)
    masses = masses / masses.sum(-1, keepdim=True).clamp(min=torch.finfo(masses.dtype).tiny)
    logs = scores.masked_fill(hidden, NEVER).log_softmax(-1)
    total: Tensor = (torch.special.xlogy(masses, masses) - masses * logs).sum(-1)
    return total


def index_loss(
    index: Index,
    rule: BlockRule,
    q: Float[Tensor, "b h l k"],
    keys: Float[Tensor, "b g s k"],
    *,
    chosen: Int[Tensor, "b n l t"] | None,
    keep: Bool[Tensor, "b l"] | None,
    masses: Float[Tensor, "b i l t"] | None = None,
) -> Float[Tensor, ""]:
    """Return the loss of an index: a mean over rows, and over the heads that choose separately.

    The loss of a row is the mean over its real tokens.

    Args:
        index: The index, with a gradient.
        rule: How blocks are chosen.
        q: Queries of attention, without a gradient.
        keys: Keys of attention in their slots, without a gradient.
        chosen: Blocks that each query has chosen; None: the loss is that over all visible blocks.
        keep: True for real tokens; None: all.
        masses: Attention to the chosen blocks, added up over heads; None: it is computed.
    """
    lists = index.q.shape[1] if index.by_head else 1
    with full_precision(q), torch.no_grad():
        if chosen is not None:
            if masses is None:
                masses = chosen_masses(q, keys, chosen, rule.table, causal=rule.causal)
                masses = torch.unflatten(masses, 1, (lists, -1)).sum(2)
            chosen = chosen[:, :: chosen.shape[1] // lists]
        real = torch.ones_like(q[:, 0, :, 0], dtype=torch.bool) if keep is None else keep
        share = real.to(sum_dtype(q)) / real.sum(1, keepdim=True).clamp(min=1) / (len(q) * lists)
        target = IndexTarget(rule, q, keys, index.by_head, share, chosen, masses)
    with full_precision(q):
        parts = [None if x is None else x.to(sum_dtype(q)) for x in index[:3]]
        loss: Tensor = IndexLoss.apply(*parts, target)  # type: ignore[no-untyped-call]
    return loss
