"""A decaying product whose weights depend on how far back a token stands, level by level.

    o_i = sum_(j <= i) lambda_i^(n(i, j)) (q_i · k_j) exp(g_(j+1) + ... + g_i) v_j

With w, the same of a delta rule: w writes, and k is where later tokens correct what was written,

    o_i = sum_(j <= i) lambda_i^(n(i, j)) (q_i · M_i ... M_(j+1) w_j) v_j,
    M_t = exp(g_t) (1 - w_t k_t^T)

The level n(i, j) is 0 for a token itself, else the number of binary digits of i XOR j: the past of
a token is cut into blocks of 1, 2, 4, ... tokens (a Fenwick tree), and each has a weight of the
reader's choice. Levels beyond the last lambda count as the last.

Within a chunk of a power of two all weights are formed; with w, from the triangle of
`delta_product`, solved for what tokens read and for what they leave. Above, a chunk whose number
has the digit m reads the block of 2^m chunks before it: its state, made of two states of the level
below, through what the chunks between leave of it. Behind a state chunks go one after the other: it
holds a sum for each level as the next token sees it, and that token's place.

Cost       per token and head, forward: C (k + v) + 2 k v (1 + log2(n / C) / 2) operations, and with
           w C (C + 5 k) / 2 + k^2 (2 + log2(n / C)) + 2 k^2 (k + v) / C more; behind a state 2 k v
           for each level. State: a sum of k v numbers for each level but 0, and the place of the
           next token.
Source     Guo et al. 2025, arXiv:2506.04761, sections 3.1 to 3.4.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from lra.models.ops.gated.blockwise import decays_of_tokens
from lra.models.ops.gated.pairs import decays
from lra.models.ops.numerics import full_precision, sum_dtype, without_padding


def level_count(tokens: int) -> int:
    """Return the number of levels for rows of `tokens` tokens, at least 2."""
    return max((tokens - 1).bit_length(), 1) + 1


def levels(i: Int[Tensor, "*n"], j: Int[Tensor, "*m"], number: int) -> Int[Tensor, "*r"]:
    """Return the level at which token i reads token j, below `number`."""
    return torch.frexp((i ^ j).double())[1].long().clamp(max=number - 1)


def log_linear_product(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    g: Float[Tensor, "b h l"],
    weights: Float[Tensor, "b h l n"],
    *,
    w: Float[Tensor, "b h l k"] | None = None,
    chunk: int = 64,
    keep: Bool[Tensor, "b l"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Return what queries read of rows that begin with their first token, in float32 at least.

    Args:
        q: Queries, scaled as the family wants them.
        k: Keys.
        v: Values.
        g: Logarithms of what a token leaves of earlier ones; at most 0.
        weights: lambda of each level.
        w: Keys that write in place of `k`, which then corrects, as in `delta_product`.
        chunk: Tokens whose weights are formed directly, rounded up to a power of two; changes the
            cost alone.
        keep: False for padding, which stands behind all tokens.
    """
    length, number, dtype = q.shape[2], weights.shape[3], sum_dtype(v)
    size = 1 << (min(chunk, length) - 1).bit_length()
    k, g = without_padding(k, keep), decays_of_tokens(g, keep)
    streams = [q, k, v, g[..., None], weights]
    if w is not None:
        streams.append(without_padding(w, keep))
    behind = -length % size
    parts = (F.pad(x.to(dtype), (0, 0, 0, behind)) for x in streams)
    q, k, v, g, weights, *more = (x.reshape(*x.shape[:2], -1, size, x.shape[3]) for x in parts)
    with full_precision(q):
        here = _chunks(q, k, g[..., 0], *more)
        place = torch.arange(size, device=q.device)
        near = levels(place[:, None], place, number)
        o = here.within(v, weights, near)
        # What chunks read of those before them: at first all from their own start.
        reads, left, states = here.reads, here.left, here.ends.mT @ v
        above = size.bit_length()
        for digit in range((q.shape[2] - 1).bit_length()):
            numbers = [chunk for chunk in range(q.shape[2]) if chunk >> digit & 1]
            readers = torch.tensor(numbers, device=q.device)
            first = (readers >> digit) - 1
            from_here = reads[:, :, readers]
            factor = weights[:, :, readers, :, min(above + digit, number - 1), None]
            o = o.index_add(2, readers, from_here @ states[:, :, first] * factor)
            reads = reads.index_copy(2, readers, _times(from_here, left[:, :, first]))
            whole = states.shape[2] // 2 * 2
            earlier, later = slice(0, whole, 2), slice(1, whole, 2)
            states = _times(left[:, :, later], states[:, :, earlier]) + states[:, :, later]
            left = _times(left[:, :, later], left[:, :, earlier])
    return o.flatten(2, 3)[:, :, :length]


class _LevelChunks(NamedTuple):
    """What the values of chunks of c tokens, and the states before them, are multiplied by."""

    table: Float[Tensor, "*m c c"]
    """In what tokens read of their chunk, without weights of levels."""
    reads: Float[Tensor, "*m c k"]
    """In what they read of the state at its start."""
    ends: Float[Tensor, "*m c k"]
    """In the state at its end."""
    left: Float[Tensor, "*m j j"]
    """What is left there of the state at its start: a number, or with w a matrix."""

    def within(
        self,
        v: Float[Tensor, "*m c v"],
        weights: Float[Tensor, "*m c n"],
        near: Int[Tensor, "*s c c"],
    ) -> Float[Tensor, "*m c v"]:
        """Return what tokens read of their chunk; `near` are the levels between its tokens."""
        return self.table * weights.gather(-1, near.expand_as(self.table)) @ v


def _chunks(
    q: Float[Tensor, "*m c k"],
    k: Float[Tensor, "*m c k"],
    g: Float[Tensor, "*m c"],
    w: Float[Tensor, "*m c k"] | None = None,
) -> _LevelChunks:
    shape, size = q.shape[:-2], q.shape[-2]
    q, k, here = q.flatten(0, -3), k.flatten(0, -3), decays(g.flatten(0, -2))
    reads, last = q * here.from_start, here.from_start[:, -1]
    if w is None:
        parts = here.weights(q, k), reads, k * here.to_end, last[..., None]
    else:
        w, starts = w.flatten(0, -3), k * here.from_start
        both = torch.cat((here.weights(q, w), (w * here.to_end).mT), 1)
        triangle = here.weights(k, w).tril(-1)
        solved = torch.linalg.solve_triangular(
            triangle, both, upper=False, left=False, unitriangular=True
        )
        table, ends = solved.split((size, k.shape[2]), 1)
        whole = torch.diag_embed(last.expand(-1, k.shape[2]))
        parts = table, reads - table @ starts, ends.mT, whole - ends @ starts
    return _LevelChunks(*(x.view(*shape, *x.shape[1:]) for x in parts))


def _times(x: Tensor, y: Tensor) -> Tensor:
    """Return the matrix product of x and y, one of which may be a number."""
    numbers = (1, 1) in (x.shape[-2:], y.shape[-2:])
    return x * y if numbers else x @ y


def log_linear_steps(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    g: Float[Tensor, "b h l"],
    weights: Float[Tensor, "b h l n"],
    *,
    state: Float[Tensor, "b h s k v"],
    place: Int[Tensor, " b"],
    w: Float[Tensor, "b h l k"] | None = None,
    chunk: int = 64,
) -> tuple[Float[Tensor, "b h l v"], Float[Tensor, "b h s k v"], Int[Tensor, " b"]]:
    """Continue `log_linear_product`; return outputs, the state after the last token, next place.

    Args:
        q: As those of `log_linear_product`, and so are the others.
        k: Keys.
        v: Values.
        g: Decays.
        weights: lambda of each level.
        state: What the next token sees at each level but 0; it is float32 at least.
        place: How many tokens stand before it.
        w: Keys that write in place of `k`.
        chunk: Tokens that are worked on at once.
    """
    number, dtype = weights.shape[3], state.dtype
    streams = [q, k, v, g, weights] if w is None else [q, k, v, g, weights, w]
    inputs = [torch.split(x.to(dtype), chunk, 2) for x in streams]
    outputs = []
    with full_precision(q):
        for parts in zip(*inputs, strict=True):
            q, k, v, g, weights, *more = parts
            here = _chunks(q, k, g, *more)
            tokens = place[:, None] + torch.arange(g.shape[2], device=g.device)
            near = levels(tokens[:, :, None], tokens[:, None], number)[:, None]
            o = here.within(v, weights, near)
            seen = _levels_of_sums(place, tokens, number)[:, None].expand(*weights.shape[:3], -1)
            held = here.reads[:, :, None] @ state
            o = o + (held * weights.gather(3, seen).mT[..., None]).sum(2)
            outputs.append(o)
            after = place + g.shape[2]
            token_level = levels(after[:, None], tokens, number).clamp(min=1)
            gained = F.one_hot(token_level - 1, number - 1).to(dtype).mT[:, None, ..., None]
            gained = (here.ends[:, :, None] * gained).mT @ v[:, :, None]
            moved = _levels_of_sums(place, after[:, None], number)[:, 0]
            moves = F.one_hot(moved - 1, number - 1).to(dtype)
            left = _times(here.left[:, :, None], state)
            state = gained + torch.einsum("bhskv,bst->bhtkv", left, moves)
            place = after
    return torch.cat(outputs, 2), state, place


def _levels_of_sums(
    place: Int[Tensor, " b"], readers: Int[Tensor, "b c"], number: int
) -> Int[Tensor, "b c s"]:
    """Return the level at which later tokens see what the token at `place` sees at each one."""
    digits = torch.arange(number - 1, device=place.device)
    block = (place[:, None] >> digits) ^ 1
    at = levels(readers[..., None] >> digits, block[:, None], 63)
    seen = (at + digits).clamp(min=1, max=number - 1)
    seen[..., -1] = number - 1  # which holds all that is older, too
    return seen
