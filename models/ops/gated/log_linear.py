"""A decaying product whose weights depend on how far back a token stands, level by level.

    o_i = sum_(j <= i) lambda_i^(n(i, j)) (q_i · k_j) exp(g_(j+1) + ... + g_i) v_j

The level n(i, j) is 0 for a token itself, else the number of binary digits of i XOR j: the past of
a token is cut into blocks of 1, 2, 4, ... tokens (a Fenwick tree), and each has a weight of the
reader's choice. Levels beyond the last lambda count as the last.

Within a chunk of a power of two all weights are formed. Above, a chunk whose number has the digit m
reads the block of 2^m chunks before it: its state, made of two states of the level below, decayed
to the chunk's start. Behind a state chunks go one after the other: it holds a sum for each level
as the next token sees it, and that token's place.

Cost       per token and head, forward: C (k + v) + 2 k v (1 + log2(n / C) / 2) operations; behind
           a state 2 k v for each level. State: a sum of k v numbers for each level but 0, and the
           place of the next token.
Source     Guo et al. 2025, arXiv:2506.04761, sections 3.1 to 3.3.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from lra.models.ops.gated.blockwise import decays_of_tokens
from lra.models.ops.gated.pairs import Decays, decays
from lra.models.ops.numerics import full_precision, sum_dtype, without_padding


def level_count(tokens: int) -> int:
    """Return how many levels rows of so many tokens have, at least 2."""
    return max((tokens - 1).bit_length(), 1) + 1


def levels(i: Int[Tensor, "*n"], j: Int[Tensor, "*m"], number: int) -> Int[Tensor, "*r"]:
    """Return the level at which a token sees another, below `number`."""
    return torch.frexp((i ^ j).double())[1].long().clamp(max=number - 1)


def log_linear_product(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    g: Float[Tensor, "b h l"],
    weights: Float[Tensor, "b h l n"],
    *,
    chunk: int = 64,
    keep: Bool[Tensor, "b l"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Return what queries read of rows that begin with their first token, in the dtype of `v`.

    Args:
        q: Queries, scaled as the family wants them.
        k: Keys.
        v: Values.
        g: Logarithms of what a token leaves of earlier ones; at most 0.
        weights: lambda of each level.
        chunk: Tokens whose weights are formed directly, rounded up to a power of two; changes the
            cost alone.
        keep: False for padding, which stands behind all tokens.
    """
    length, number, dtype = q.shape[2], weights.shape[3], sum_dtype(v)
    size = 1 << (min(chunk, length) - 1).bit_length()
    k, g = without_padding(k, keep), decays_of_tokens(g, keep)
    behind = -length % size
    parts = (F.pad(x.to(dtype), (0, 0, 0, behind)) for x in (q, k, v, g[..., None], weights))
    q, k, v, g, weights = (x.reshape(*x.shape[:2], -1, size, x.shape[3]) for x in parts)
    with full_precision(q):
        here = decays(g.flatten(0, 2)[..., 0])
        place = torch.arange(size, device=q.device)
        near = levels(place[:, None], place, number)
        o = _within(q, k, v, weights, here=here, near=near)
        # What chunks read of those before them: all from their start.
        reads = q * here.from_start.view_as(g)
        states = (k * here.to_end.view_as(g)).mT @ v
        totals = here.from_start[:, -1].view(*g.shape[:3], 1, 1)
        since = torch.ones_like(totals)
        above = size.bit_length()
        for digit in range((q.shape[2] - 1).bit_length()):
            numbers = [chunk for chunk in range(q.shape[2]) if chunk >> digit & 1]
            readers = torch.tensor(numbers, device=q.device)
            first = (readers >> digit) - 1
            held = states[:, :, first] * since[:, :, readers]
            factor = weights[:, :, readers, :, min(above + digit, number - 1), None]
            o = o.index_add(2, readers, reads[:, :, readers] @ held * factor)
            passed = torch.ones_like(since).index_copy(2, readers, totals[:, :, first])
            since = since * passed
            whole = states.shape[2] // 2 * 2
            earlier, later = states[:, :, 0:whole:2], states[:, :, 1:whole:2]
            states = earlier * totals[:, :, 1:whole:2] + later
            totals = totals[:, :, 0:whole:2] * totals[:, :, 1:whole:2]
    return o.flatten(2, 3)[:, :, :length]


def _within(
    q: Float[Tensor, "b h m c k"],
    k: Float[Tensor, "b h m c k"],
    v: Float[Tensor, "b h m c v"],
    weights: Float[Tensor, "b h m c n"],
    *,
    here: Decays,
    near: Int[Tensor, "*s c c"],
) -> Float[Tensor, "b h m c v"]:
    """Return what tokens read of their chunk; `near` are the levels between its tokens."""
    table = here.weights(q.flatten(0, 2), k.flatten(0, 2)).view(*q.shape[:4], -1)
    return table * weights.gather(4, near.expand_as(table)) @ v


def log_linear_steps(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    g: Float[Tensor, "b h l"],
    weights: Float[Tensor, "b h l n"],
    *,
    state: Float[Tensor, "b h s k v"],
    place: Int[Tensor, " b"],
    chunk: int = 64,
    keep: Bool[Tensor, "b l"] | None = None,
) -> tuple[Float[Tensor, "b h l v"], Float[Tensor, "b h s k v"], Int[Tensor, " b"]]:
    """Return the same behind a state, the state behind the last real token, and the next place.

    Args:
        q: As those of `log_linear_product`, and so are the others.
        k: Keys.
        v: Values.
        g: Decays.
        weights: lambda of each level.
        state: What the next token sees at each level but 0; it is float32 at least.
        place: How many tokens stand before it.
        chunk: Tokens that are worked on at once.
        keep: False for padding, which stands behind all tokens.
    """
    number, dtype = weights.shape[3], state.dtype
    k, g = without_padding(k, keep), decays_of_tokens(g, keep)
    real = torch.ones_like(q[:, 0, :, 0], dtype=torch.bool) if keep is None else keep
    inputs = [torch.split(x.to(dtype), chunk, 2) for x in (q, k, v, g, weights)]
    outputs = []
    with full_precision(q):
        for *parts, kept in zip(*inputs, torch.split(real, chunk, 1), strict=True):
            q, k, v, g, weights = parts
            here = decays(g.flatten(0, 1))
            from_start, to_end = (x.view(*g.shape, 1) for x in (here.from_start, here.to_end))
            tokens = place[:, None] + torch.arange(g.shape[2], device=g.device)
            near = levels(tokens[:, :, None], tokens[:, None], number)[:, None, None]
            one = (x[:, :, None] for x in (q, k, v, weights))
            o = _within(*one, here=here, near=near)[:, :, 0]
            seen = _levels_of_sums(place, tokens, number)[:, None].expand(*weights.shape[:3], -1)
            held = (q * from_start)[:, :, None] @ state
            o = o + (held * weights.gather(3, seen).mT[..., None]).sum(2)
            outputs.append(o)
            after = place + kept.sum(1)
            token_level = levels(after[:, None], tokens, number).clamp(min=1)
            gained = F.one_hot(token_level - 1, number - 1).to(dtype).mT[:, None, ..., None]
            gained = ((k * to_end)[:, :, None] * gained).mT @ v[:, :, None]
            moved = _levels_of_sums(place, after[:, None], number)[:, 0]
            moves = F.one_hot(moved - 1, number - 1).to(dtype)
            left = state * from_start[:, :, -1, :, None, None]
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
