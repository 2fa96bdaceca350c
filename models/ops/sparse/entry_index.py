"""The index of compressed attention: how queries choose among entries, and the index's loss.

    I_tn = sum_h w_th relu(q_th . e_n) / sqrt(c h_I)

The entries e of the index are compressed as those of attention are, but with c channels. Queries
read the compressed queries of attention. What they read is detached: only the loss trains the
index, and trains nothing else.

Source: DeepSeek-AI 2026, DeepSeek-V4, section 2.3.1.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lra.models.linear_map import projection
from lra.models.ops.numerics import full_precision, sum_dtype
from lra.models.ops.sparse.block_pooling import BlockPooling
from lra.models.ops.sparse.block_table import BlockTable
from lra.models.ops.sparse.index_loss import divergence
from lra.models.ops.sparse.index_scores import Index, best_entries


class EntryIndex(nn.Module):
    """The maps of the index: to entries, to queries, and to the weights of heads.

    Args:
        width_in: Channels of a token.
        query_width: Channels of the compressed queries.
        heads: Number of heads, h_I.
        width: Channels of a head, c.
        block: Tokens of a block.
    """

    def __init__(
        self, width_in: int, *, query_width: int, heads: int, width: int, block: int
    ) -> None:
        super().__init__()
        self.pooling = BlockPooling(width_in, width, block, overlap=True)
        self.q_up = projection(query_width, heads * width, bias=False)
        self.weights = projection(width_in, heads, bias=False)

    def queries(self, latent: Float[Tensor, "b l r"]) -> Float[Tensor, "b l i c"]:
        """Return the queries of all heads, not yet rotated."""
        q: Tensor = self.q_up(latent.detach())
        return torch.unflatten(q, -1, (-1, self.pooling.width))

    def scorer(
        self,
        x: Float[Tensor, "b l d"],
        q: Float[Tensor, "b l i c"],
        keys: Float[Tensor, "b n c"],
    ) -> Index:
        """Return the index of the tokens `x`, with rotated queries and entries."""
        weights = self.weights(x.detach()).mT * q.shape[2] ** -0.5
        return Index(q.transpose(1, 2), keys, weights)


class EntryChoice(NamedTuple):
    """The rule by which each query chooses some of its visible entries, and what trains it."""

    scorer: Index
    """One key for each entry, and one head of scores."""
    top: int
    """Number of entries to choose."""
    share: Float[Tensor, "#b l"] | None = None
    """Weight of each query in the loss of the index; None: no loss is computed."""

    def of(self, some: slice, count: int) -> "EntryChoice":
        """Return the rule for the queries `some` and the first `count` entries."""
        q, keys, weights, _ = self.scorer
        weights = None if weights is None else weights[:, :, some]
        share = None if self.share is None else self.share[:, some]
        return EntryChoice(Index(q[:, :, some], keys[:, :count], weights), self.top, share)

    def scores(self, hidden: Bool[Tensor, "#b r n"]) -> Float[Tensor, "b r n"]:
        """Return the scores of all entries, -inf for `hidden` ones."""
        with full_precision(self.scorer.q):
            return self.scorer.scores(slice(None))[:, 0].masked_fill(hidden, -torch.inf)

    @torch.no_grad()
    def choose(self, hidden: Bool[Tensor, "#b r n"]) -> Int[Tensor, "b r t"] | None:
        """Return the chosen entries, the later among equals; -1: no entry; None: all visible."""
        count = hidden.shape[-1]
        if self.top >= count:
            return None
        near = torch.arange(count, device=hidden.device)[None, None, None]
        return best_entries(self.scores(hidden)[:, None], near, self.top)[:, 0]

    def loss(
        self,
        weights: Float[Tensor, "b r h t"],
        hidden: Bool[Tensor, "#b r n"],
        chosen: Int[Tensor, "b r t"] | None,
    ) -> Float[Tensor, ""]:
        """Return the divergence of the index from the attention `weights` of chosen entries.

        It is KL(weights, summed over heads and normalised || softmax of scores), summed over
        queries by their share; 0 where no share is set. A `chosen` of None means all entries.
        """
        if self.share is None:
            return weights.new_zeros(())
        scores, masses = self.scores(hidden), weights.detach().sum(2)
        if chosen is not None:
            scores = scores.gather(-1, chosen.clamp(min=0)).masked_fill(chosen < 0, -torch.inf)
        return (divergence(scores[:, None], masses[:, None])[:, 0] * self.share).sum()


def shares(x: Float[Tensor, "b l d"], table: BlockTable | None) -> Float[Tensor, "b l"]:
    """Return the weights that average over the filled slots of each row, then over rows."""
    filled = x.new_ones(x.shape[:2], dtype=sum_dtype(x))
    if table is not None and table.filled is not None:
        filled = filled * table.filled
    return filled / filled.sum(1, keepdim=True).clamp(min=1) / len(x)
