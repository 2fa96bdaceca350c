"""Softmax attention whose positions are accumulated reflections, some queries at a time.

    o_i = sum_(j <= i) p_ij v_j,   p_ij = softmax_j(q_i^T H_i H_(i-1) ... H_(j+1) k_j / sqrt(k))
    H_t = I - beta_t w_t w_t^T

In chunks of C tokens, with the unit lower triangle T = (1 + tril(diag(beta) W W^T, -1))^-1 and
U = T diag(beta) W (the WY form), a product of the H of tokens up to and with i is I - W^T U, by the
first i rows. So in each chunk

    scores inside   Q K^T - tril(Q W^T) T tril(diag(beta) W K^T, -1)
    queries, as the chunk's first token sees them   Q' = Q - tril(Q W^T) U
    keys, as after its last token                   K' = K - (T tril(diag(beta) W K^T, -1))^T W
    what takes queries to the chunk before          M = I - W^T U

Queries go back from chunk to chunk: scores with K' of a chunk, then times its M. Backward computes
scores again.

Cost       a head's l^2 k multiply-adds of causal attention, and l^2 k^2 / (2 C) for M; memory in
           proportion to l.
"""

from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lra.models.kernels.door import door
from lra.models.ops.exact import weighted_values
from lra.models.ops.gated.fades import Fades
from lra.models.ops.kv_cache import begins
from lra.models.ops.linear.features import block_rows
from lra.models.ops.numerics import full_precision, row_slices, sum_dtype

ROWS = 128
"""Queries whose scores a CPU computes together. Fewer tokens keep their scores for backward."""


class Reflections(NamedTuple):
    """What n chunks of c tokens need of their queries, keys and reflections."""

    scores: Float[Tensor, "b h n c c"]
    """Inside each chunk, scaled; -inf for later keys."""
    queries: Float[Tensor, "b h n c k"]
    """Q', scaled."""
    keys: Float[Tensor, "b h n c k"]
    """K'."""
    moves: Float[Tensor, "b h before k k"]
    """M, of all chunks but the last."""
    axes: Float[Tensor, "b h n c k"]
    """W."""
    erased: Float[Tensor, "b h n c k"]
    """U."""


def reflections(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    w: Float[Tensor, "b h l k"],
    beta: Float[Tensor, "b h l"],
    *,
    chunk: int,
) -> Reflections:
    """Return the chunks of l tokens, the last one filled with tokens that change nothing.

    Args:
        q: Queries.
        k: Keys.
        w: Axes of the reflections, of length 1 or 0.
        beta: 0 leaves keys as they are, 1 erases their part along w, and 2 reflects it.
        chunk: Number of tokens per chunk.
    """
    missing = -q.shape[2] % chunk
    q, k, w, weighted = (
        torch.unflatten(F.pad(x.to(sum_dtype(x)), (0, 0, 0, missing)), 2, (-1, chunk))
        for x in (q * q.shape[3] ** -0.5, k, w, beta[..., None] * w)
    )
    along_keys, triangle = (weighted @ k.mT).tril(-1), (weighted @ w.mT).tril(-1)
    solved = torch.linalg.solve_triangular(
        triangle, torch.cat((weighted, along_keys), -1), upper=False, unitriangular=True
    )
    erased, along_keys = solved.split((q.shape[-1], chunk), -1)
    along_queries = (q @ w.mT).tril()
    later = q.new_full((chunk, chunk), -torch.inf).triu(1)
    return Reflections(
        q @ k.mT - along_queries @ along_keys + later,
        q - along_queries @ erased,
        k - along_keys.mT @ w,
        # Nothing comes back through the last chunk.
        torch.eye(q.shape[-1], dtype=q.dtype, device=q.device)
        - w[:, :, :-1].mT @ erased[:, :, :-1],
        w,
        erased,
    )


@door
def reflected_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    w: Float[Tensor, "b h l k"],
    beta: Float[Tensor, "b h l"],
    *,
    chunk: int,
    g: Float[Tensor, "b h l"] | None = None,
    visible: Bool[Tensor, "#b 1 l l"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "b h l v"]:
    """Return the attention of l queries to their keys up to themselves.

    Arguments are those of `reflections` and `path_attention`.
    """
    with full_precision(q):
        new = reflections(q, k, w, beta, chunk=chunk)
    return path_attention(new, v, g=g, visible=visible, dropout=dropout)


def path_attention(
    new: Reflections,
    v: Float[Tensor, "b h s v"],
    old: Float[Tensor, "b h m k"] | None = None,
    *,
    g: Float[Tensor, "b h s"] | None = None,
    visible: Bool[Tensor, "#b 1 l s"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "b h l v"]:
    """Return the attention of l queries to s keys: m old ones, and their own up to themselves.

    Scores of fewer than `ROWS` keys are stored for backward.

    Args:
        new: The chunks of the queries and their keys.
        v: Values of all keys.
        old: Earlier keys, as the token before the queries rewrote them; None: m = 0.
        g: Logarithms of forget gates, at most 0, in the unit of scores; None: no gates.
        visible: False where query i may not attend to key j.
        dropout: Probability that a weight is set to 0.
    """
    chunk = new.scores.shape[3]
    rows = ROWS if v.device.type == "cpu" else block_rows(v, 2 * v.shape[2])
    attend = partial(_attend, new=new, v=v, old=old, g=g, visible=visible, dropout=dropout)
    if torch.is_grad_enabled() and v.shape[2] >= ROWS:
        attend = partial(checkpoint, attend, use_reentrant=False, preserve_rng_state=dropout > 0)
    groups = row_slices(new.scores.shape[2], max(1, rows // chunk))
    return torch.cat([attend(group) for group in groups], 2)


def stream_attention(
    new: Reflections,
    v: Float[Tensor, "b h l v"],
    state: tuple[Tensor, ...],
    *,
    g: Float[Tensor, "b h l"] | None = None,
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "b h l v"], tuple[Tensor, ...]]:
    """Return the attention of l new tokens to the last m tokens up to themselves, and a new state.

    The state has m keys, as its last token rewrote them, m values, the number of tokens and, with
    `g`, m logarithms of gates. The latest token comes last.
    """
    old, values, seen, *gates = state
    length, memory = v.shape[2], old.shape[2]
    place = torch.arange(memory + length, device=v.device)
    distance = place[memory:, None] - place
    # A slot more than `seen` tokens before the first query is still empty.
    visible = (distance < memory) & (place >= memory - seen[:, None, None])
    skip = memory if begins((old, values, seen), length) else 0  # nothing is remembered
    all_v = torch.cat((values.to(v.dtype), v), 2)
    all_g = None if g is None else torch.cat((*gates, g), 2)
    o = path_attention(
        new, all_v[:, :, skip:], old[:, :, skip:],
        g=None if all_g is None else all_g[:, :, skip:],
        visible=visible[:, None, :, skip:], dropout=dropout,
    )  # fmt: skip
    earlier, through = [], None
    for key, move in zip(new.keys.unbind(2)[-2::-1], new.moves.unbind(2)[::-1], strict=True):
        earlier.append(key if through is None else key @ through.mT)
        through = move if through is None else through @ move
    old = old[:, :, skip:]
    keys = torch.cat((old if through is None else old @ through.mT, *earlier[::-1]), 2)
    keys = keys - (keys @ new.erased[:, :, -1].mT) @ new.axes[:, :, -1]
    keys = F.pad(torch.cat((keys, new.keys[:, :, -1]), 2), (0, 0, skip, 0))[:, :, : memory + length]
    # Copies, because a view would keep the whole segment in memory.
    kept = (x[:, :, length:].clone() for x in (keys, all_v.to(values.dtype)))
    return o, (*kept, seen + length, *([] if all_g is None else [all_g[:, :, length:].clone()]))


def _attend(
    group: slice,
    *,
    new: Reflections,
    v: Float[Tensor, "b h s v"],
    old: Float[Tensor, "b h m k"] | None,
    g: Float[Tensor, "b h s"] | None,
    visible: Bool[Tensor, "#b 1 l s"] | None,
    dropout: float,
) -> Float[Tensor, "b h r v"]:
    """Return `path_attention` of the queries of a group of chunks; later keys are left out."""
    before, chunk = 0 if old is None else old.shape[2], new.scores.shape[3]
    first, end = (before + chunk * at for at in (group.start, group.stop))
    end = min(end, v.shape[2])
    inside, queries, keys, moves = (x.unbind(2) for x in new[:4])
    with full_precision(v):
        going, tables = queries[0][:, :, :0], list[Tensor]()
        for number in reversed(range(group.stop)):
            table = going @ keys[number].mT
            going = going @ moves[number] if tables else going
            if number >= group.start:
                table = torch.cat((inside[number], table), 2)
                earlier = chunk * (number - group.start)  # queries before these keys
                table = F.pad(table, (0, 0, earlier, 0), value=-torch.inf)
                going = torch.cat((queries[number], going), 2)
            tables.append(table)
        if old is not None:
            tables.append(going @ old.to(going.dtype).mT)
        scores = torch.cat(tables[::-1], 3)[:, :, : end - first, :end]
        bias = (
            None
            if g is None
            else Fades.apply(  # type: ignore[no-untyped-call]
                g[..., :end], first, end - first, False
            )
        )
        if visible is not None:
            visible = visible[:, :, first - before : end - before, :end]
        return weighted_values(
            scores, v[:, :, :end], causal=False, visible=visible, dropout=dropout, bias=bias
        )
