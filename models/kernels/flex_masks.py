"""Which keys a query attends to, in the form that FlexAttention asks for.

A `RowSight` says, by the indices of a query and a key in their row, whether the query attends to
the key and how many tokens they are apart. FlexAttention's `mask_mod` and `score_mod` follow from
it, and so do the blocks with visible pairs, which depend on shapes and options alone: they are
listed once. Padding and the positions of global keys are left to `mask_mod`, which hides single
keys inside of the listed blocks. So no value of a tensor is read on the host, but blocks of padding
are computed.

FlexAttention's `create_block_mask` evaluates all pairs at once, with several integers for each; at
65,536 tokens that needs more memory than a GPU has. Here they are evaluated a part at a time.
"""

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from lra.models.ops.sparse.block_lists import Lists
from lra.models.ops.sparse.key_sets import Blocks, KeySet, in_reach

MODULE = "torch.nn.attention.flex_attention"
"""Imported when first used: it takes a second."""
BLOCK = 128
"""Queries and keys of a block; the tiles of all of FlexAttention's kernels divide it."""
PASS_ELEMENTS = 1 << 26
"""Pairs of queries and keys that are evaluated at once."""
CACHED = 64
"""Sights and block masks that are remembered."""

Pairs: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From indices of queries and keys, which are broadcast, to a number of each pair."""


class RowSight(NamedTuple):
    """What queries see of the keys in their row."""

    visible: Pairs
    """Whether a query attends to a key."""
    distance: Pairs
    """By how many tokens they are apart."""


class GlobalPlace(NamedTuple):
    """Where global keys are, which come behind the keys of every row."""

    positions: Int[Tensor, "b g"]
    causal: bool
    """Whether queries attend to earlier global keys only."""


@lru_cache(maxsize=CACHED)
def window_sight(past: int, behind: int, ahead: int, dilation: int) -> RowSight:
    """Return the sight of a window; keys begin `past` steps of `dilation` tokens before queries."""

    def visible(q: Tensor, k: Tensor) -> Tensor:
        offset = q + past - k
        return (offset <= behind) & (offset >= -ahead)

    def distance(q: Tensor, k: Tensor) -> Tensor:
        return (q + past - k).abs() * dilation

    return RowSight(visible, distance)


@lru_cache(maxsize=CACHED)
def set_sight(keyset: KeySet, device: torch.device) -> RowSight:
    """Return the sight of a set of keys, as the set itself says it."""
    causal, least, most = keyset.causal, keyset.least, keyset.most
    if isinstance(keyset, Blocks):
        block, back, forward = keyset.block, keyset.look_back, keyset.look_forward

        def visible_in_blocks(q: Tensor, k: Tensor) -> Tensor:
            blocks = q // block - k // block
            near = in_reach(q - k, causal=causal, least=least, most=most)
            return (blocks <= back) & (blocks >= -forward) & near

        return RowSight(visible_in_blocks, lambda q, k: (q - k).abs())
    with torch.inference_mode(False):  # autograd saves no tensors of inference
        query_units, key_units, queries, keys = keyset.coordinates(device)

    def visible(q: Tensor, k: Tensor) -> Tensor:
        return in_reach(query_units[q] - key_units[k], causal=causal, least=least, most=most)

    return RowSight(visible, lambda q, k: (queries[q] - keys[k]).abs())


def mask_of(
    sight: RowSight,
    keys: int,
    classes: int,
    real: Bool[Tensor, "#b c w"] | None,
    beyond: GlobalPlace | None,
) -> Callable[..., Tensor]:
    """Return FlexAttention's `mask_mod`: whether a query attends to a key.

    Args:
        sight: What queries see of the first `keys` keys of their row.
        keys: Number of keys of a row without global keys.
        classes: Number c of rows that each head was cut into, one per remainder of the position.
        real: False for hidden keys, global ones included; None: none is hidden.
        beyond: The global keys behind the others.
    """
    examples = 1 if real is None else len(real)

    def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen = sight.visible(q, k)
        if beyond is not None and beyond.causal:
            earlier = beyond.positions[b, (k - keys).clamp(min=0)] <= q * classes + h % classes
            seen = torch.where(k < keys, seen, earlier)
        elif beyond is not None:
            seen = seen | (k >= keys)
        return seen if real is None else seen & real[b % examples, h % classes, k]

    return mask


def slope_of(
    sight: RowSight,
    keys: int,
    classes: int,
    slopes: Float[Tensor, " h"] | None,
    beyond: GlobalPlace | None,
) -> Callable[..., Tensor] | None:
    """Return FlexAttention's `score_mod`: ALiBi's bias; None without `slopes`.

    The other arguments are those of `mask_of`.
    """
    if slopes is None:
        return None

    def lowered(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        distance = sight.distance(q, k)
        if beyond is not None:
            position = beyond.positions[b, (k - keys).clamp(min=0)]
            far = (q * classes + h % classes - position).abs()
            distance = torch.where(k < keys, distance, far)
        return score - slopes[h // classes] * distance

    return lowered


def _block_mask(
    partial: Bool[Tensor, "#b #h r c"],
    full: Bool[Tensor, "#b #h r c"] | None,
    queries: int,
    keys: int,
) -> Any:
    """Return FlexAttention's `BlockMask` for blocks that are masked and blocks that are not."""
    flex: Any = import_module(MODULE)
    lists = [_ordered(dense) for dense in (partial, full) if dense is not None]
    return flex.BlockMask.from_kv_blocks(
        *chain(*lists), BLOCK_SIZE=BLOCK, seq_lengths=(queries, keys)
    )


def _ordered(dense: Bool[Tensor, "#b #h r c"]) -> tuple[Tensor, Tensor]:
    """Return the number of True entries in each row, and the columns, those of True first."""
    order = dense.int().argsort(dim=-1, descending=True, stable=True)
    return dense.sum(-1, dtype=torch.int32), order.int()


@lru_cache(maxsize=CACHED)
def block_mask_of(
    sight: RowSight, queries: int, keys: int, *, beyond: int, exact: bool, device: torch.device
) -> Any:
    """Return FlexAttention's `BlockMask` of a sight; its `mask_mod` is still to be set, in a copy.

    Args:
        sight: What queries see of the first `keys` keys of their row.
        queries: Number of queries of a row.
        keys: Number of keys of a row without global keys.
        beyond: Number of global keys behind them, any of which may be visible.
        exact: Whether `sight` alone decides; otherwise single keys may be hidden in every block.
        device: Device of the mask.
    """
    rows, columns = -(-queries // BLOCK), -(-(keys + beyond) // BLOCK)
    some, every = [], []
    step = max(1, PASS_ELEMENTS // (BLOCK * BLOCK * columns))
    with torch.inference_mode(False):  # autograd saves no tensors of inference
        k = torch.arange(columns * BLOCK, device=device, dtype=torch.int32)
        for first in range(0, rows, step):
            end = min(first + step, rows)
            q = torch.arange(first * BLOCK, end * BLOCK, device=device, dtype=torch.int32)[:, None]
            seen = sight.visible(q.clamp(max=queries - 1), k.clamp(max=keys - 1))
            seen = (seen & (q < queries) & (k < keys)).view(-1, BLOCK, columns, BLOCK)
            some.append(seen.any(3).any(1))
            every.append(seen.all(3).all(1))
        seen, full = torch.cat(some)[None, None], torch.cat(every)[None, None]
        if beyond:
            seen[..., keys // BLOCK :] = True
        partial = seen & ~full if exact else seen
        return _block_mask(partial, full if exact else None, queries, keys + beyond)


def _table(lists: Lists, keys: int) -> Bool[Tensor, "#b h r m"]:
    """Return True where a block of queries has a block of the `keys` keys on its list."""
    count = keys // lists.block
    index = lists.blocks.masked_fill(~lists.seen, count)
    table = index.new_zeros(*index.shape[:3], count + 1, dtype=torch.bool)
    return table.scatter_(-1, index, True)[..., :count].contiguous()


def _joined(table: Bool[Tensor, "#b h r m"], size: int) -> Bool[Tensor, "#b h i j"]:
    """Return where blocks of `BLOCK` tokens have listed blocks of `size`, a part or multiple."""
    if size >= BLOCK:
        parts = size // BLOCK
        return table.repeat_interleave(parts, 2).repeat_interleave(parts, 3)
    parts = BLOCK // size
    table = F.pad(table, (0, -table.shape[3] % parts, 0, -table.shape[2] % parts))
    by_row = torch.unflatten(table, 2, (-1, parts))
    return torch.unflatten(by_row, 4, (-1, parts)).any(5).any(3)


def list_sight(
    lists: Lists,
    queries: int,
    keys: int,
    keep: Bool[Tensor, "#b s"] | None,
    slopes: Float[Tensor, " h"] | None,
) -> tuple[Any, Callable[..., Tensor] | None]:
    """Return FlexAttention's `BlockMask` and `score_mod` of `list_attention`.

    Lists may differ from call to call, so nothing is remembered. A block that is twice on a list
    counts once here, but twice in our own form.
    """
    table, size, numbers = _table(lists, keys), lists.block, lists.rows
    diagonal, drawn = lists.diagonal is not None, len(table)
    examples = 1 if keep is None else len(keep)

    def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        row = q // size
        seen = table[b % drawn, h, row, k // size]
        if diagonal:
            seen = seen & ((k // size != numbers[row]) | (k % size <= q % size))
        return seen if keep is None else seen & keep[b % examples, k]

    def lowered(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        del b
        distance = (numbers[q // size] * size + q % size - k).abs()
        return score - cast(Tensor, slopes)[h] * distance

    block_mask = _block_mask(_joined(table, size), None, queries, keys)
    block_mask.mask_mod = mask
    return block_mask, None if slopes is None else lowered
