"""Attention to a window of tokens and to entries, in which one vector is both key and value.

    o_i = sum_j p_ij c_j,   p_ij = exp(s_ij) / (exp(z) + sum_t exp(s_it))

over the tokens j of a window and the visible entries, or the entries that an index chooses, with
s_ij = q_i c_j / sqrt(k). The sink z is one learned number for each head. All heads share the
vectors c, so their queries are multiplied with them in one product.

Scores are computed for a few queries at a time; if there are more, backward computes them again.

Source: DeepSeek-AI 2026, DeepSeek-V4, section 2.3.
"""

from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lra.models.ops.numerics import NEVER, row_slices, sum_dtype
from lra.models.ops.sparse.block_pooling import BlockPlaces
from lra.models.ops.sparse.block_table import BlockTable
from lra.models.ops.sparse.entry_index import EntryChoice

ROWS = 64
"""Queries whose scores are computed together."""


class EntrySight(NamedTuple):
    """Which tokens and entries each of l queries, the last l tokens, attends to."""

    window: int
    """Number of tokens, the query's included."""
    block: int
    """Number of tokens after which there is another entry."""
    begin: Int[Tensor, "#b l"]
    """The first visible token."""
    low: Int[Tensor, "#b l"]
    """The first visible entry."""
    high: Int[Tensor, "#b l"]
    """The first hidden entry after the visible ones."""
    older: int = 0
    """Number of entries before those that the queries' tokens complete."""

    def reached(self, some: slice, past: int, entries: int) -> tuple[slice, int]:
        """Return the tokens, and how many of the first entries, the queries `some` may attend to.

        There are `past` tokens before the first query, and `entries` in all.
        """
        count = min(entries, self.older + -(-some.stop // self.block))
        return slice(max(0, past + some.start - self.window + 1), past + some.stop), count

    def hidden_tokens(self, some: slice, tokens: slice, past: int) -> Bool[Tensor, "#b r s"]:
        """Return which of `tokens` each query of `some` does not attend to."""
        begin = self.begin[:, some, None]
        token = torch.arange(tokens.start, tokens.stop, device=begin.device)
        place = torch.arange(some.start, some.stop, device=begin.device)[:, None] + past
        return (token > place) | (token <= place - self.window) | (token < begin)

    def hidden_entries(self, some: slice, count: int) -> Bool[Tensor, "#b r n"]:
        """Return which of the first `count` entries each query of `some` does not attend to."""
        entry = torch.arange(count, device=self.low.device)
        return (entry < self.low[:, some, None]) | (entry >= self.high[:, some, None])


def sight_of_rows(blocks: BlockPlaces, window: int, table: BlockTable | None) -> EntrySight:
    """Return what tokens of whole rows attend to, in the slots of `table`; None: one document."""
    high = blocks.finished()
    if table is None:
        low = torch.zeros_like(high)
    else:
        low = (table.numbers - table.rank).repeat_interleave(blocks.size, 1)
    return EntrySight(window, blocks.size, low * blocks.size, low, high.expand_as(low))


def sight_in_stream(blocks: BlockPlaces, window: int, stored: int) -> EntrySight:
    """Return what new tokens attend to, after a window and `stored` entries of a state."""
    shift = stored - blocks.seen // blocks.size
    high = blocks.finished() + shift[:, None]
    begin = (window - 1 - blocks.seen).clamp(min=0)[:, None].expand_as(high)
    low = torch.maximum(high - stored, shift[:, None])
    return EntrySight(window, blocks.size, begin, low, high, stored)


def entry_attention(
    q: Float[Tensor, "b l h k"],
    tokens: Float[Tensor, "b s k"],
    entries: Float[Tensor, "b n k"],
    sink: Float[Tensor, " h"],
    sight: EntrySight,
    *,
    choice: EntryChoice | None = None,
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "b l h k"], Float[Tensor, ""]]:
    """Return the attention of the last l of s tokens to their windows and to visible entries.

    Also return the loss of the index, 0 without one: see `EntryChoice.loss`.

    Args:
        q: Queries.
        tokens: One vector for each token, key and value at once.
        entries: One vector for each entry.
        sink: z of each head.
        sight: What each query may attend to.
        choice: How queries choose among these entries; None: they attend to all.
        dropout: Probability that a weight is set to 0; the others are divided by 1 - dropout.
    """
    past, parts, losses = tokens.shape[1] - q.shape[1], [], []
    for some in row_slices(q.shape[1], ROWS):
        near, count = sight.reached(some, past, entries.shape[1])
        hidden = sight.hidden_tokens(some, near, past), sight.hidden_entries(some, count)
        rule = None if choice is None else choice.of(some, count)
        chosen = None if rule is None else rule.choose(hidden[1])
        attend = partial(_attend, hidden=hidden, chosen=chosen, dropout=dropout)
        part = q[:, some], tokens[:, near], entries[:, :count], sink, rule
        o, loss = (
            checkpoint(attend, *part, use_reentrant=False, preserve_rng_state=dropout > 0)
            if torch.is_grad_enabled() and q.shape[1] > ROWS
            else attend(*part)
        )
        parts.append(o)
        losses.append(loss)
    return (parts[0] if len(parts) == 1 else torch.cat(parts, 1)), torch.stack(losses).sum()


def _attend(
    q: Float[Tensor, "b r h k"],
    tokens: Float[Tensor, "b s k"],
    entries: Float[Tensor, "b n k"],
    sink: Float[Tensor, " h"],
    rule: EntryChoice | None,
    *,
    hidden: tuple[Bool[Tensor, "#b r s"], Bool[Tensor, "#b r n"]],
    chosen: Int[Tensor, "b r t"] | None,
    dropout: float,
) -> tuple[Float[Tensor, "b r h k"], Float[Tensor, ""]]:
    """Return the attention of r queries to tokens and entries that are not `hidden`, and the loss.

    With `chosen`, queries attend to these entries alone.
    """
    queries, heads, near = q * q.shape[-1] ** -0.5, q.shape[1:3], tokens.shape[1]
    if chosen is None:  # all heads of all queries multiply the same keys
        keys, mask = torch.cat((tokens, entries), 1), torch.cat(hidden, -1)
        scores = torch.unflatten(queries.flatten(1, 2) @ keys.mT, 1, heads)
    else:
        index = chosen.clamp(min=0).flatten(1)[..., None].expand(-1, -1, entries.shape[2])
        picked = torch.unflatten(entries.gather(1, index), 1, chosen.shape[1:])
        scores = torch.unflatten(queries.flatten(1, 2) @ tokens.mT, 1, heads)
        scores = torch.cat((scores, queries @ picked.mT), -1)
        mask = torch.cat((hidden[0].expand(len(chosen), -1, -1), chosen < 0), -1)
    scores = scores.to(sum_dtype(scores)).masked_fill(mask[:, :, None], NEVER)
    sinks = sink.to(scores.dtype)[:, None].expand(*scores.shape[:3], 1)
    weights = torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]
    loss = weights.new_zeros(())
    if rule is not None:
        loss = rule.loss(weights[..., near:], hidden[1], chosen)
    weights = (F.dropout(weights, dropout) if dropout else weights).to(tokens.dtype)
    if chosen is None:
        return torch.unflatten(weights.flatten(1, 2) @ keys, 1, heads), loss
    o = torch.unflatten(weights[..., :near].flatten(1, 2) @ tokens, 1, heads)
    return o + weights[..., near:] @ picked, loss
