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

from lra.models.kernels.door import door
from lra.models.ops.gated.blockwise import decays_of_tokens
from lra.models.ops.gated.pairs import decays
from lra.models.ops.numerics import full_precision, sum_dtype, without_padding


def level_count(tokens: int) -> int:
    """Return the number of levels for rows of `tokens` tokens, at least 2."""
    return max((tokens - 1).bit_length(), 1) + 1


def levels(i: Int[Tensor, "*n"], j: Int[Tensor, "*m"], number: int) -> Int[Tensor, "*r"]:
    """Return the level at which token i reads token j, below `number`."""
    digits = torch.frexp((i ^ j).double())[1]  # the exponent is the number of binary digits
    return digits.long().clamp(max=number - 1)


@door
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
    """Return o_i = sum_(j <= i) lambda_i^(n(i, j)) (q_i · k_j) exp(g_(j+1) + ... + g_i) v_j.

    The level n(i, j) is 0 for j = i, else the number of binary digits of i XOR j. Rows must begin
    with their first token; the result is float32 or float64.

    Args:
        q: Queries, already scaled.
        k: Keys.
        v: Values.
        g: Logarithms of the factor by which a token decays earlier ones; at most 0.
        weights: lambda of each token and level, for n levels.
        w: Keys that write, while `k` corrects as in `delta_product`; None: `k` writes.
        chunk: Number of tokens per chunk, rounded up to a power of two; it affects only speed and
            memory.
        keep: False for padding, which comes after all tokens.
    """
    length, level_number, dtype = q.shape[2], weights.shape[3], sum_dtype(v)
    size = 1 << (min(chunk, length) - 1).bit_length()
    k, g = without_padding(k, keep), decays_of_tokens(g, keep)
    streams = [q, k, v, g[..., None], weights]
    if w is not None:
        streams.append(without_padding(w, keep))
    missing = -length % size
    parts = (F.pad(x.to(dtype), (0, 0, 0, missing)) for x in streams)
    q, k, v, g, weights, *writers = (x.reshape(*x.shape[:2], -1, size, x.shape[3]) for x in parts)
    with full_precision(q):
        chunks = _make_chunks(q, k, g[..., 0], *writers)
        position = torch.arange(size, device=q.device)
        token_levels = levels(position[:, None], position, level_number)
        o = chunks.within(v, weights, token_levels)
        # Level by level, pairs of states are joined; `leaves` is what a block leaves of its start.
        reads, leaves, states = chunks.reads, chunks.left, chunks.ends.mT @ v
        chunk_levels = size.bit_length()  # level of the chunk before
        for digit in range((q.shape[2] - 1).bit_length()):
            odd_chunks = [number for number in range(q.shape[2]) if number >> digit & 1]
            readers = torch.tensor(odd_chunks, device=q.device)
            first = (readers >> digit) - 1  # the block of 2^digit chunks before each reader's
            reads_of_readers = reads[:, :, readers]
            factor = weights[:, :, readers, :, min(chunk_levels + digit, level_number - 1), None]
            o = o.index_add(2, readers, reads_of_readers @ states[:, :, first] * factor)
            reads = reads.index_copy(2, readers, _multiply(reads_of_readers, leaves[:, :, first]))
            paired = states.shape[2] // 2 * 2
            earlier, later = slice(0, paired, 2), slice(1, paired, 2)
            states = _multiply(leaves[:, :, later], states[:, :, earlier]) + states[:, :, later]
            leaves = _multiply(leaves[:, :, later], leaves[:, :, earlier])
    return o.flatten(2, 3)[:, :, :length]


class _LevelChunks(NamedTuple):
    """Factors of m chunks of c tokens: of their values, and of the states before them."""

    table: Float[Tensor, "*m c c"]
    """Weight of each value in each output of the chunk, without the weights of levels."""
    reads: Float[Tensor, "*m c k"]
    """Queries that read the state at the chunk's start."""
    ends: Float[Tensor, "*m c k"]
    """Keys that write values to the state at the chunk's end."""
    left: Float[Tensor, "*m j j"]
    """Factor of the state from the chunk's start to its end: a number, or a matrix with w."""

    def within(
        self,
        v: Float[Tensor, "*m c v"],
        weights: Float[Tensor, "*m c n"],
        near: Int[Tensor, "*s c c"],
    ) -> Float[Tensor, "*m c v"]:
        """Return what tokens read from their chunk; `near` is the level of each pair of tokens."""
        return self.table * weights.gather(-1, near.expand_as(self.table)) @ v


def _make_chunks(
    q: Float[Tensor, "*m c k"],
    k: Float[Tensor, "*m c k"],
    g: Float[Tensor, "*m c"],
    w: Float[Tensor, "*m c k"] | None = None,
) -> _LevelChunks:
    """Return the factors of m chunks of c tokens; with `w`, by solving a triangular system."""
    shape, size = q.shape[:-2], q.shape[-2]
    q, k, chunk_decays = q.flatten(0, -3), k.flatten(0, -3), decays(g.flatten(0, -2))
    reads, last = q * chunk_decays.from_start, chunk_decays.from_start[:, -1]
    if w is None:
        parts = chunk_decays.weights(q, k), reads, k * chunk_decays.to_end, last[..., None]
    else:
        w, starts = w.flatten(0, -3), k * chunk_decays.from_start
        right_sides = torch.cat((chunk_decays.weights(q, w), (w * chunk_decays.to_end).mT), 1)
        triangle = chunk_decays.weights(k, w).tril(-1)
        solved = torch.linalg.solve_triangular(
            triangle, right_sides, upper=False, left=False, unitriangular=True
        )
        table, ends = solved.split((size, k.shape[2]), 1)
        whole_decay = torch.diag_embed(last.expand(-1, k.shape[2]))
        parts = table, reads - table @ starts, ends.mT, whole_decay - ends @ starts
    return _LevelChunks(*(x.view(*shape, *x.shape[1:]) for x in parts))


def _multiply(x: Tensor, y: Tensor) -> Tensor:
    """Return the matrix product of x and y, or x * y if one of them is a 1 x 1 matrix."""
    has_number = (1, 1) in (x.shape[-2:], y.shape[-2:])
    return x * y if has_number else x @ y


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
    """Continue `log_linear_product` after `state`; return outputs, last state and next place.

    Args:
        q: Queries, already scaled.
        k: Keys.
        v: Values.
        g: Logarithms of decays.
        weights: lambda of each token and level.
        state: For each level except 0, the sum that the next token reads; float32 at least.
        place: Position of the first token of each row, the number of tokens before it.
        w: Keys that write, while `k` corrects; None: `k` writes.
        chunk: Number of tokens that are computed together.
    """
    number, dtype = weights.shape[3], state.dtype
    streams = [q, k, v, g, weights] if w is None else [q, k, v, g, weights, w]
    inputs = [torch.split(x.to(dtype), chunk, 2) for x in streams]
    outputs = []
    with full_precision(q):
        for parts in zip(*inputs, strict=True):
            q, k, v, g, weights, *writers = parts
            chunks = _make_chunks(q, k, g, *writers)
            tokens = place[:, None] + torch.arange(g.shape[2], device=g.device)
            token_levels = levels(tokens[:, :, None], tokens[:, None], number)[:, None]
            o = chunks.within(v, weights, token_levels)
            state_levels = _find_state_levels(place, tokens, number)[:, None].expand(
                *weights.shape[:3], -1
            )
            from_state = chunks.reads[:, :, None] @ state
            o = o + (from_state * weights.gather(3, state_levels).mT[..., None]).sum(2)
            outputs.append(o)
            after = place + g.shape[2]
            token_level = levels(after[:, None], tokens, number).clamp(min=1)
            gained = F.one_hot(token_level - 1, number - 1).to(dtype).mT[:, None, ..., None]
            gained = (chunks.ends[:, :, None] * gained).mT @ v[:, :, None]
            # Each old sum moves to the level at which the next token reads it.
            new_levels = _find_state_levels(place, after[:, None], number)[:, 0]
            moves = F.one_hot(new_levels - 1, number - 1).to(dtype)
            decayed = _multiply(chunks.left[:, :, None], state)
            state = gained + torch.einsum("bhskv,bst->bhtkv", decayed, moves)
            place = after
    return torch.cat(outputs, 2), state, place


def _find_state_levels(
    place: Int[Tensor, " b"], readers: Int[Tensor, "b c"], number: int
) -> Int[Tensor, "b c s"]:
    """Return the level at which each reader reads each sum of the state of the token at `place`."""
    digits = torch.arange(number - 1, device=place.device)
    # The token at `place` reads the sum n as level n + 1: the block of 2^n tokens beside its own.
    block = (place[:, None] >> digits) ^ 1
    block_levels = levels(readers[..., None] >> digits, block[:, None], 63)  # 63: no limit
    reader_levels = (block_levels + digits).clamp(min=1, max=number - 1)
    reader_levels[..., -1] = number - 1  # the last level also contains all older tokens
    return reader_levels
