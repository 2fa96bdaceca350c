"""Attention among tokens that hash alike: chunked attention and the merging of rounds.

`lra.models.ops.hashing.lsh_lists` says where queries, keys and values lie once they are sorted.

Every round has a softmax of its own. With z_r the logarithm of a token's sum of exp(score) in round
r, the round's share is exp(z_r) / sum_r exp(z_r): all shares together make one softmax over all
rounds. Shares are kept for backward and the scores made again: what autograd keeps does not grow
with C, and with the rounds by three numbers per token and head.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra.models.ops.hashing.lsh_lists import LAST, Frame, Order, Rules, arrange
from lra.models.ops.numerics import NEVER, add_product, full_precision

__all__ = ["Rules", "lsh_attention"]

ALONE = -1e5
"""Score of a token with itself: below every other score, above what may not be seen."""
TINY = 1e-6
"""Added to the mean square of a key, so that gradients stay small where it is almost zero."""


class LshInputs(NamedTuple):
    """Queries, keys and values of one pass."""

    tokens: Int[Tensor, " p"]
    """Whose queries they are."""
    queries: Float[Tensor, "m c k"]
    keys: Float[Tensor, "m w k"]
    values: Float[Tensor, "m w v"]


class SortedLists:
    """Queries, keys and values in sorted lists, and the masks and biases of their scores.

    `u` has the shared queries and keys. `count` is the number of real tokens of each row (None:
    all), and `slopes` are ALiBi's factors (None: no ALiBi). All passes use the same buffers: the
    tensors of a pass are invalid in the next pass.
    """

    def __init__(  # noqa: PLR0917  everything that a pass is given
        self,
        u: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        order: Order,
        count: Int[Tensor, " b"] | None,
        slopes: Float[Tensor, " h"] | None,
        frame: Frame,
    ) -> None:
        self.frame, self.order = frame, order
        self.u, self.v = by_rows(u), by_rows(v)
        self.lengths = self.u.square().sum(-1, keepdim=True).add_(TINY * u.shape[-1]).sqrt_()
        self.list_layout = frame.list_layout(count, u.device)
        C, step = frame.rules.chunk, frame.step(u.device)
        scores = (step, C, (frame.sides + 1) * C)
        self.score_buffer, self.spare_buffer = self.u.new_empty(scores), self.u.new_empty(scores)
        slots = (step + frame.sides) * C
        self.buffers = [x.new_empty(slots, x.shape[1]) for x in (self.u, self.u, self.v)]
        self.lowered = list(self._score_changes(count is not None, slopes))  # masks and biases

    def pass_inputs(self, part: slice) -> LshInputs:
        """Return the queries, keys and values of the m chunks in `part`."""
        frame, rules = self.frame, self.frame.rules
        seen_tokens = self.order.tokens[frame.covered(part)]
        x, k, v = (buffer[: seen_tokens.shape[0]] for buffer in self.buffers)
        torch.index_select(self.u, 0, seen_tokens, out=x)
        torch.index_select(self.v, 0, seen_tokens, out=v)
        if rules.unit_keys:
            torch.div(x, self.lengths.index_select(0, seen_tokens), out=k)
        keys = frame.seen(k if rules.unit_keys else x)
        queries = frame.slots_by_chunk(x)
        first = rules.before * rules.chunk  # slots before it are only read as keys
        tokens = seen_tokens[first : first + queries.shape[0] * queries.shape[1]]
        return LshInputs(tokens, queries, keys, frame.seen(v))

    def _score_changes(
        self, padded: bool, slopes: Float[Tensor, " h"] | None
    ) -> Iterator[Callable[[Tensor, slice], object]]:
        """Yield functions (scores, part) that mask or lower the scores of a pass, in place.

        Masks are computed in float32, which on a CPU is several times faster than with booleans.
        """
        frame, rules, list_layout, like = self.frame, self.frame.rules, self.list_layout, self.u
        # Not a method: a reference to self would be a cycle.
        pairs = partial(_subtract_pairs, frame, self.spare_buffer)
        if padded or frame.length % rules.chunk:  # some slots have no real token
            hidden = frame.by_list(list_layout.hidden).flatten()
            gaps = frame.seen(like.new_zeros(hidden.shape).masked_fill_(hidden, NEVER))
            yield lambda s, part: s.add_(gaps[part, None])
        if padded or frame.per_list * frame.chunks <= frame.sides:
            # In a ring with fewer chunks than a query reads, each chunk counts only once.
            offset = torch.arange(-rules.before, rules.after + 1, device=like.device)
            back = list_layout.ring[:, None].sub(1).clamp(max=rules.before)
            is_repeated = (offset < -back) | (offset + back >= list_layout.ring[:, None])
            repeated_mask = frame.by_chunk(is_repeated).to(like.dtype).mul_(NEVER)[:, None, :, None]
            C = rules.chunk
            yield lambda s, part: s.view(*s.shape[:2], -1, C).add_(repeated_mask[part])
        position = (self.order.tokens // frame.heads % frame.length).to(like.dtype)
        if slopes is not None:
            head = torch.arange(frame.lists, device=like.device)
            head = head // (frame.rounds // frame.per_list) % frame.heads
            slope = slopes.to(like)[head, None].repeat_interleave(frame.stretch, 0)[..., None]
            slope = frame.attending(slope)
            yield lambda s, part: s.sub_(pairs(position, part).abs_().mul_(slope[part]))
        if not rules.duplicates:  # a key that is read in n rounds weighs 1 / n in each
            repeats = self._repeats()
            yield lambda s, part: s.sub_(repeats(part).log_())
        if rules.exclude_self and frame.per_list == 1:
            C, first = rules.chunk, rules.before * rules.chunk
            yield lambda s, _: s[..., first : first + C].diagonal(dim1=1, dim2=2).fill_(ALONE)
        elif rules.exclude_self:
            # A query may also read its own copy of another round.
            yield lambda s, part: s.add_(
                pairs(position, part).abs_().clamp_(max=1).sub_(1), alpha=-ALONE
            )
        if rules.causal:  # the difference of positions is above 0 for later keys
            yield lambda s, part: s.add_(pairs(position, part).clamp_(0, 1), alpha=NEVER)
        if self.order.buckets is not None:  # keys of other buckets are hidden
            bucket = self.order.buckets.to(like.dtype)
            yield lambda s, part: s.add_(pairs(bucket, part).abs_().clamp_(max=1), alpha=NEVER)

    def _repeats(self) -> Callable[[slice], Float[Tensor, "m c w"]]:
        """Return a function that counts, for `part`, the rounds in which a query reads each key."""
        frame, rules, like = self.frame, self.frame.rules, self.u
        slot = self.order.inverse.index_select(1, self.order.tokens)  # in each round
        chunk = (slot // rules.chunk % frame.stretch).to(like.dtype)
        bucket = None if self.order.buckets is None else self.order.buckets[slot].to(like.dtype)
        ring = frame.by_chunk(self.list_layout.ring[:, None, None]).to(like.dtype)
        back = (ring - 1).clamp(max=rules.before)  # chunks before its own that a query reads
        width = ring.clamp(max=frame.sides + 1)  # chunks that a query reads

        def count(part: slice) -> Tensor:
            total = like.new_zeros(())
            for query_round in range(frame.rounds):
                for key_round in range(frame.rounds) if rules.joint else (query_round,):
                    distance = (
                        frame.seen(chunk[key_round])[part, None]
                        - frame.slots_by_chunk(chunk[query_round])[part, :, None]
                    )
                    is_read = distance.add_(back[part]).remainder_(ring[part]) < width[part]
                    if bucket is not None:
                        query_bucket, key_bucket = (
                            frame.slots_by_chunk(bucket[query_round]),
                            frame.seen(bucket[key_round]),
                        )
                        is_read &= query_bucket[part, :, None] == key_bucket[part, None]
                    total = total + is_read
            return total.clamp(min=1)

        return count

    def weights(self, part: slice, taken: LshInputs) -> tuple[Tensor, Float[Tensor, "m c 1"]]:
        """Return the softmax weights of the chunks in `part`, and each query's largest score."""
        s = self.score_buffer[: part.stop - part.start]
        add_product(s, taken.queries, taken.keys.mT, self.frame.rules.scale, overwrite=True)
        for lower in self.lowered:
            lower(s, part)
        top = s.amax(-1, keepdim=True)
        torch.softmax(s, -1, out=s)
        return s, top

    def weight_shares(self, tops: Float[Tensor, "n 1"], totals: Float[Tensor, "n 1"]) -> Tensor:
        """Return, for each of n slots, the share of its round in the softmax over all rounds.

        `tops` are the largest scores, and `totals` the sums of exp(score - top). Copies and padding
        have a share of 0.
        """
        tokens, inverse = self.order.tokens, self.order.inverse
        top = torch.stack([tops.index_select(0, slots) for slots in inverse]).amax(0)
        sizes = tops.sub(top.index_select(0, tokens)).exp_().mul_(totals)
        sizes = sizes / self.gather(sizes).index_select(0, tokens)
        return sizes.masked_fill_(self.frame.by_list(self.list_layout.mute).flatten()[:, None], 0.0)

    def fold(self, x: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """Add the gradients of copied chunks to the chunks that they copy, in place."""
        frame, rules = self.frame, self.frame.rules
        by_chunk = x.view(frame.lists, frame.stretch, -1)
        ring = frame.by_list(self.list_layout.ring)
        all_lists = torch.arange(frame.lists, device=x.device)
        # Copies of the ring's last chunks precede it (step < 0), and of its first chunks follow it.
        for step in (*range(-rules.before, 0), *range(rules.after)):
            slot = ring + step if step >= 0 else torch.full_like(ring, step)
            by_chunk[all_lists, slot.remainder(ring) + rules.before] += by_chunk[
                all_lists, slot + rules.before
            ]
        return x

    def gather(self, x: Float[Tensor, "n k"]) -> Float[Tensor, "t k"]:
        """Sum over the rounds: return one row per token from the rows of slots."""
        first, *others = self.order.inverse
        total = x.index_select(0, first)
        for slots in others:
            total += x.index_select(0, slots)
        return total


def _subtract_pairs(
    frame: Frame, buffer: Float[Tensor, "p c w"], x: Float[Tensor, " n"], part: slice
) -> Float[Tensor, "m c w"]:
    """Return x of the key minus x of the query for every score of `part`, in `buffer`."""
    of_keys, of_queries = frame.seen(x)[part, None], frame.slots_by_chunk(x)[part, :, None]
    return torch.sub(of_keys, of_queries, out=buffer[: part.stop - part.start])


def by_rows(x: Float[Tensor, "b h l k"]) -> Float[Tensor, "t k"]:
    """Return `x` as t = b l h rows, the heads of a token one after another, at least in float32."""
    return (
        x.transpose(1, 2).reshape(-1, x.shape[-1]).to(torch.promote_types(x.dtype, torch.float32))
    )


def by_heads(x: Float[Tensor, "t k"], frame: Frame, dtype: torch.dtype) -> Float[Tensor, "b h l k"]:
    """Return the rows of `by_rows` as heads again, in `dtype`."""
    return x.view(frame.batch, frame.length, frame.heads, -1).transpose(1, 2).to(dtype)


class LshAttention(torch.autograd.Function):
    """`apply(u, v, keep, slopes, *order, frame, dropout, remember)`."""

    @staticmethod
    def forward(  # noqa: PLR0917  autograd functions have no keywords
        ctx: Any,
        u: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        keep: Bool[Tensor, "b l"] | None,
        slopes: Float[Tensor, " h"] | None,
        tokens: Int[Tensor, " n"],
        inverse: Int[Tensor, "r t"],
        buckets: Int[Tensor, " n"] | None,
        frame: Frame,
        dropout: float,
        remember: bool,
    ) -> Float[Tensor, "b h l v"]:
        """Return attention of all rounds, joined by shares; `remember`: save for backward."""
        ctx.frame, ctx.dropout = frame, dropout
        count = None if keep is None else keep.sum(1)
        dropout_masks: list[Tensor] = []
        with full_precision(u):
            order = Order(tokens, inverse, buckets)
            lists = SortedLists(u, v, order, count, slopes, frame)
            outputs = lists.v.new_zeros(frame.size, v.shape[-1])
            tops, totals = torch.zeros_like(outputs[:, :1]), torch.ones_like(outputs[:, :1])
            for part in frame.passes(u.device):
                inputs = lists.pass_inputs(part)
                weights, frame.slots_by_chunk(tops)[part] = lists.weights(part, inputs)
                # The weight of the largest score is exp(0) / total.
                frame.slots_by_chunk(totals)[part] = weights.amax(-1, keepdim=True).reciprocal_()
                if dropout:
                    dropout_masks.append(torch.empty_like(weights, dtype=torch.bool))
                    weights *= dropout_masks[-1].bernoulli_(1 - dropout)
                    weights *= 1 / (1 - dropout)
                torch.bmm(weights, inputs.values, out=frame.slots_by_chunk(outputs)[part])
            shares = lists.weight_shares(tops, totals)
            o = lists.gather(outputs.mul_(shares))
            if keep is not None:
                o.masked_fill_(~by_token(keep, frame), 0.0)
        out = by_heads(o, frame, v.dtype)
        if remember:
            ctx.save_for_backward(
                u, v, keep, slopes, tokens, inverse, buckets, out, shares, *dropout_masks
            )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "b h l v"]) -> tuple[Tensor | None, ...]:
        """Return the gradients of u and v."""
        frame: Frame = ctx.frame
        u, v, keep, slopes, tokens, inverse, buckets, out, shares, *dropout_masks = (
            ctx.saved_tensors
        )
        rules, C = frame.rules, frame.rules.chunk
        count = None if keep is None else keep.sum(1)
        with full_precision(gradient):
            lists = SortedLists(u, v, Order(tokens, inverse, buckets), count, slopes, frame)
            g = by_rows(gradient)
            mean = (g * by_rows(out)).sum(-1, keepdim=True)  # mean gradient of a token's weights
            share_of = frame.slots_by_chunk(shares)
            dq = lists.u.new_empty(frame.size, u.shape[-1])
            dk, dv = torch.zeros_like(dq), lists.v.new_zeros(frame.size, v.shape[-1])
            for number, part in enumerate(frame.passes(u.device)):
                inputs = lists.pass_inputs(part)
                share = share_of[part]
                weighted_gradient = (
                    g.index_select(0, inputs.tokens).view(*share.shape[:2], -1).mul_(share)
                )
                weighted_mean = mean.index_select(0, inputs.tokens).view_as(share).mul_(share)
                dropped_weights = weights = lists.weights(part, inputs)[0]
                dscores = lists.spare_buffer[: part.stop - part.start]  # their gradient
                torch.bmm(weighted_gradient, inputs.values.mT, out=dscores)
                if ctx.dropout:
                    factor = dropout_masks[number] * (1 / (1 - ctx.dropout))
                    dropped_weights = weights * factor
                    dscores *= factor
                dscores.sub_(weighted_mean).mul_(weights)
                torch.bmm(dscores, inputs.keys, out=frame.slots_by_chunk(dq)[part])
                first = frame.covered(part).start  # the first slot of the pass
                for step in range(frame.sides + 1):
                    rows = slice(first + step * C, first + step * C + len(inputs.tokens))
                    columns = slice(step * C, (step + 1) * C)
                    for target, w, x, alpha in (
                        (dk, dscores, inputs.queries, rules.scale),
                        (dv, dropped_weights, weighted_gradient, 1.0),
                    ):
                        add_product(target[rows].view(x.shape), w[:, :, columns].mT, x, alpha)
            du, by_key = lists.gather(dq), lists.gather(lists.fold(dk))
            du *= rules.scale
            if rules.unit_keys:  # the gradient through keys u / |u|
                unit = lists.u / lists.lengths
                by_key.addcmul_(unit, (unit * by_key).sum(-1, keepdim=True), value=-1)
                by_key /= lists.lengths
            du += by_key
            by_value = lists.gather(lists.fold(dv))
            if keep is not None:
                for x in (du, by_value):
                    x.masked_fill_(~by_token(keep, frame), 0.0)
        no_gradients = (None,) * 8  # of the arguments after u and v
        return by_heads(du, frame, u.dtype), by_heads(by_value, frame, v.dtype), *no_gradients


def by_token(keep: Bool[Tensor, "b l"], frame: Frame) -> Bool[Tensor, "t 1"]:
    """Return `keep` as a column of t = b l h rows, repeated for each head."""
    return keep[:, :, None].expand(-1, -1, frame.heads).reshape(-1, 1)


def lsh_attention(
    u: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    buckets: Int[Tensor, "b h r l"],
    rules: Rules,
    *,
    keep: Bool[Tensor, "b l"] | None = None,
    slopes: Float[Tensor, " h"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "b h l v"]:
    """Return LSH attention with queries `u` and keys u / |u|, over r rounds of hashing.

    Args:
        u: Shared queries and keys.
        v: Values.
        buckets: The bucket of every token in each round.
        rules: Which tokens a query attends to.
        keep: False for hidden tokens, whose output is 0; None: all tokens are real.
        slopes: ALiBi's factor of each head, by which distances lower scores; None: no ALiBi.
        dropout: Probability that a weight is set to 0; the others are divided by 1 - dropout.
    """
    batch, heads, rounds, length = buckets.shape
    frame = Frame(batch, heads, rounds, length, rules)
    count = None
    if keep is not None:
        count = keep.sum(1)
        buckets = torch.where(keep[:, None, None], buckets, LAST)
    order = arrange(buckets, count, frame)
    remember = torch.is_grad_enabled() and (u.requires_grad or v.requires_grad)
    o: Tensor = LshAttention.apply(  # type: ignore[no-untyped-call]
        u, v, keep, slopes, *order, frame, dropout, remember
    )
    return o
