"""Attention within a learned span, a block of queries at a time.

Scores and weights are a band of w columns, column c for the key that stands c - `behind` from the
query. A block of B queries meets its w + B keys by one product; reading rows of w + B + 1 in place
of w + B turns that square into the band, and back.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F


def ramps(spans: Float[Tensor, " h"], columns: int, behind: int, ramp: int) -> Float[Tensor, "h w"]:
    """Return (ramp + z - x) / ramp for each key of a band, which is x + 1 tokens away, by head.

    Clamped to the range from 0 to 1, this is the weight of the key.
    """
    column = torch.arange(columns, dtype=spans.dtype, device=spans.device)
    return (ramp + spans[:, None] - ((column - behind).abs() - 1)) / ramp


def span_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    table: Float[Tensor, "w k"],
    ramp: Float[Tensor, "h w"],
    *,
    behind: int,
    visible: Bool[Tensor, "b s"] | None = None,
    dropout: float = 0.0,
    persistent: tuple[Float[Tensor, "h p k"], Float[Tensor, "h p v"]] | None = None,
    block: int | None = None,
) -> Float[Tensor, "b h l v"]:
    """Attend to a band of keys around each query.

    Args:
        q: Queries of the last l of s tokens.
        k: Keys.
        v: Values.
        table: What the keys of a band gain.
        ramp: What each of these weighs, before it is cut to 0 and 1.
        behind: Keys of the band before the query itself.
        visible: False for keys to hide.
        dropout: Probability that a weight is set to 0; the others are divided by 1 - dropout.
        persistent: Keys and values that all queries see besides, in the same softmax.
        block: Queries computed together; None: as many as the band holds, at least 64.
    """
    batch, heads, length, width = q.shape
    columns = len(table)
    size = min(length, block or max(columns, 64))
    spare = -length % size
    # Keys beyond the bands are dropped, or zeros stand for those that are not there.
    around = (behind - (k.shape[2] - length), spare + columns - behind)
    given = k.shape[2]
    k, v = (F.pad(part, (0, 0, *around)) for part in (k, v))
    blocks = (length + spare) // size
    queries = F.pad(q, (0, 0, 0, spare)).view(batch, heads, blocks, size, width)
    queries = queries * width**-0.5
    keys = k.unfold(2, columns + size, size)
    scores = square_to_band(queries @ keys, columns) + queries @ table.mT
    sight = visible
    if sight is None and (around[0] > 0 or around[1] > spare):
        sight = torch.ones(1, given, dtype=torch.bool, device=k.device)
    if sight is not None:
        sight = F.pad(sight, around).unfold(1, columns, 1)[:, : length + spare]
        sight = sight.reshape(-1, 1, blocks, size, columns)
    # Keys that weigh 0, at the very end of the ramp or behind it, take no part in the softmax: the
    # rest would sum to rounding next to a large score, and the span's gradient grow without bound.
    weighed = (ramp > 0)[:, None, None]
    weighed = weighed if sight is None else weighed & sight
    scores = scores.masked_fill(~weighed, torch.finfo(scores.dtype).min)
    if persistent is not None:
        persistent_scores = queries @ (persistent[0] * width**0.5)[:, None].mT
        scores = torch.cat((scores, persistent_scores), dim=-1)
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    span_weights, rest = (
        weights[..., :columns] * (ramp.clamp(0, 1)[:, None, None] * weighed),
        weights[..., columns:],
    )
    total = span_weights.sum(-1, keepdim=True) + rest.sum(-1, keepdim=True)
    total = total.where(total > 0, 1.0)  # where no key is seen
    span_weights = F.dropout(span_weights / total, dropout).to(v.dtype)
    values = v.unfold(2, columns + size, size)
    o = band_to_square(span_weights, size) @ values.mT
    if persistent is not None:
        number = persistent[1].shape[1]
        persistent_weights = F.dropout(rest / total, dropout).to(v.dtype)
        o = o + persistent_weights @ (persistent[1] * number**0.5)[:, None]
    return o.flatten(2, 3)[:, :, :length]


def square_to_band(square: Float[Tensor, "*n r s"], window: int) -> Float[Tensor, "*n r w"]:
    """Return, from each row i, the `window` columns from column i on."""
    rows, columns = square.shape[-2:]
    flat = F.pad(square.flatten(-2), (0, rows))
    return flat.view(*square.shape[:-2], rows, columns + 1)[..., :window]


def band_to_square(band: Float[Tensor, "*n r w"], size: int) -> Float[Tensor, "*n r s"]:
    """Return a matrix with row i of the band from column i on, and zeros elsewhere."""
    rows, window = band.shape[-2:]
    wide = F.pad(band, (0, size + 1)).flatten(-2)[..., : rows * (window + size)]
    return wide.view(*band.shape[:-2], rows, window + size)


def window_of(longest: float, ramp: int, limit: int) -> int:
    """Return how many tokens the longest span reaches with its ramp, rounded up to 64."""
    return min(limit, -(-(math.ceil(longest) + ramp + 1) // 64) * 64)


def empty_slots(
    empty: Int[Tensor, " b"] | None, keys: int, device: torch.device
) -> Bool[Tensor, "b s"] | None:
    """Return which keys hold a token, where the first `empty` of a row hold none; None: all do."""
    return None if empty is None else torch.arange(keys, device=device) >= empty[:, None]
