"""Attention within a learned span, a block of queries at a time.

Scores and weights are a band of w columns; column c is for the key at distance c - `behind` from
the query. One product gives the scores of a block of B queries and w + B keys. Reading this matrix
with rows of w + B + 1 numbers, instead of w + B, gives the band, and the reverse step undoes it.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F


def ramps(spans: Float[Tensor, " h"], columns: int, behind: int, ramp: int) -> Float[Tensor, "h w"]:
    """Return (ramp + z - x) / ramp for each head's span z and each key, x + 1 tokens away.

    Clamped to the range from 0 to 1, this is the factor of the key's weight. A band has `columns`
    keys, of which `behind` come before the query.
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
    """Return the attention of each query to a band of w keys around it, weighted by a ramp.

    Args:
        q: Queries of the last l of s tokens.
        k: Keys.
        v: Values.
        table: Position vector of each key of a band, added to the key.
        ramp: The result of `ramps`: factors of weights before they are clamped to 0 and 1.
        behind: Number of keys of the band before the query itself.
        visible: False for hidden keys; None: all are visible.
        dropout: Probability that a weight is set to 0; the others are divided by 1 - dropout.
        persistent: Keys and values that all queries also attend to, in the same softmax; None:
            there are none.
        block: Number of queries computed together; None: w, at least 64.
    """
    batch, heads, length, width = q.shape
    columns = len(table)
    size = min(length, block or max(columns, 64))
    missing = -length % size
    # Negative padding drops keys outside all bands; positive padding adds zeros for missing keys.
    padding = (behind - (k.shape[2] - length), missing + columns - behind)
    key_count = k.shape[2]
    k, v = (F.pad(part, (0, 0, *padding)) for part in (k, v))
    blocks = (length + missing) // size
    queries = F.pad(q, (0, 0, 0, missing)).view(batch, heads, blocks, size, width)
    queries = queries * width**-0.5
    keys = k.unfold(2, columns + size, size)
    scores = square_to_band(queries @ keys, columns) + queries @ table.mT
    band_visible = visible
    if band_visible is None and (padding[0] > 0 or padding[1] > missing):
        band_visible = torch.ones(1, key_count, dtype=torch.bool, device=k.device)
    if band_visible is not None:
        band_visible = F.pad(band_visible, padding).unfold(1, columns, 1)[:, : length + missing]
        band_visible = band_visible.reshape(-1, 1, blocks, size, columns)
    # Keys with a factor of 0 are excluded from the softmax: if one had a large score, all other
    # weights would be rounding errors, and the gradient of the span could be huge.
    counted = (ramp > 0)[:, None, None]
    counted = counted if band_visible is None else counted & band_visible
    scores = scores.masked_fill(~counted, torch.finfo(scores.dtype).min)
    if persistent is not None:  # sqrt(k) undoes the keys' initial deviation, 1 / sqrt(k)
        persistent_scores = queries @ (persistent[0] * width**0.5)[:, None].mT
        scores = torch.cat((scores, persistent_scores), dim=-1)
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    span_weights, persistent_share = (
        weights[..., :columns] * (ramp.clamp(0, 1)[:, None, None] * counted),
        weights[..., columns:],
    )
    total = span_weights.sum(-1, keepdim=True) + persistent_share.sum(-1, keepdim=True)
    total = total.where(total > 0, 1.0)  # queries without a visible key
    span_weights = F.dropout(span_weights / total, dropout).to(v.dtype)
    values = v.unfold(2, columns + size, size)
    o = band_to_square(span_weights, size) @ values.mT
    if persistent is not None:  # the same for the p values: 1 / sqrt(p)
        number = persistent[1].shape[1]
        persistent_weights = F.dropout(persistent_share / total, dropout).to(v.dtype)
        o = o + persistent_weights @ (persistent[1] * number**0.5)[:, None]
    return o.flatten(2, 3)[:, :, :length]


def square_to_band(square: Float[Tensor, "*n r s"], window: int) -> Float[Tensor, "*n r w"]:
    """Return, for each row i of `square`, its `window` entries from column i on.

    Read as rows of s + 1 instead of s numbers, each row of the matrix begins one column later.
    """
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
    """Return False for the first `empty` keys of each row, which have no token; None if all do."""
    return None if empty is None else torch.arange(keys, device=device) >= empty[:, None]
