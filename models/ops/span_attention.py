"""Attention to the past within a learned span, a block of queries at a time.

A query sees the W tokens before it, itself not: scores and weights are a band of W columns, column
c for the key W - c back. A block of B queries meets its W + B keys by one product; reading rows of
W + B + 1 in place of W + B turns that square into the band, and back.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F


def ramps(spans: Float[Tensor, " h"], window: int, ramp: int) -> Float[Tensor, "h w"]:
    """Return (ramp + z - x) / ramp for the keys x + 1 = window … 1 back, by head.

    What a key weighs is this within 0 and 1.
    """
    x = torch.arange(window - 1, -1, -1, dtype=spans.dtype, device=spans.device)
    return (ramp + spans[:, None] - x) / ramp


def span_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    table: Float[Tensor, "w k"],
    ramp: Float[Tensor, "h w"],
    *,
    visible: Bool[Tensor, "b s"] | None = None,
    dropout: float = 0.0,
    persistent: tuple[Float[Tensor, "h p k"], Float[Tensor, "h p v"]] | None = None,
    block: int | None = None,
) -> Float[Tensor, "b h l v"]:
    """Attend to the window before each query.

    Args:
        q: Queries of the last l of s tokens.
        k: Keys.
        v: Values.
        table: What the key w, w - 1, … 1 tokens back gains.
        ramp: What each of these weighs, in the same order, before it is cut to 0 and 1.
        visible: False for keys that nobody sees.
        dropout: Probability that a weight is set to 0; the others grow by 1 / (1 - dropout).
        persistent: Keys and values that all queries see besides, in the same softmax.
        block: Queries worked on together; None: as many as the window holds, at least 64.
    """
    batch, heads, length, width = q.shape
    window = len(table)
    size = min(length, block or max(window, 64))
    missing, spare = window - (k.shape[2] - length), -length % size
    # Keys before the window are dropped, or zeros stand for those that are not there.
    k, v = (F.pad(part, (0, 0, missing, spare)) for part in (k, v))
    blocks = (length + spare) // size
    queries = F.pad(q, (0, 0, 0, spare)).view(batch, heads, blocks, size, width)
    queries = queries * width**-0.5
    keys = k.unfold(2, window + size, size)
    scores = banded(queries @ keys, window) + queries @ table.mT
    sight = visible
    if sight is None and missing > 0:
        sight = torch.ones(1, k.shape[2] - missing - spare, dtype=torch.bool, device=k.device)
    if sight is not None:
        sight = F.pad(sight, (missing, spare)).unfold(1, window, 1)[:, : length + spare]
        sight = sight.reshape(-1, 1, blocks, size, window)
    # Keys behind the ramp take no part in the softmax, so that the rest sums to more than rounding.
    # One at its very end does: its weight is 0, and its span's gradient is not.
    weighed = (ramp >= 0)[:, None, None]
    weighed = weighed if sight is None else weighed & sight
    scores = scores.masked_fill(~weighed, torch.finfo(scores.dtype).min)
    if persistent is not None:
        beside = queries @ (persistent[0] * width**0.5)[:, None].mT
        scores = torch.cat((scores, beside), dim=-1)
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    own, rest = (
        weights[..., :window] * (ramp.clamp(0, 1)[:, None, None] * weighed),
        weights[..., window:],
    )
    total = own.sum(-1, keepdim=True) + rest.sum(-1, keepdim=True)
    total = total.clamp(min=torch.finfo(total.dtype).tiny)
    own = F.dropout(own / total, dropout).to(v.dtype)
    values = v.unfold(2, window + size, size)
    o = squared(own, size) @ values.mT
    if persistent is not None:
        number = persistent[1].shape[1]
        beside = F.dropout(rest / total, dropout).to(v.dtype)
        o = o + beside @ (persistent[1] * number**0.5)[:, None]
    return o.flatten(2, 3)[:, :, :length]


def banded(square: Float[Tensor, "*n r s"], window: int) -> Float[Tensor, "*n r w"]:
    """Return row i from column i on, `window` columns of it."""
    rows, columns = square.shape[-2:]
    flat = F.pad(square.flatten(-2), (0, rows))
    return flat.view(*square.shape[:-2], rows, columns + 1)[..., :window]


def squared(band: Float[Tensor, "*n r w"], size: int) -> Float[Tensor, "*n r s"]:
    """Return the square with row i of the band from column i on, and zeros elsewhere."""
    rows, window = band.shape[-2:]
    wide = F.pad(band, (0, size + 1)).flatten(-2)[..., : rows * (window + size)]
    return wide.view(*band.shape[:-2], rows, window + size)


def spans_kept(spans: Float[Tensor, " h"], ramp: int, limit: int, step: int = 64) -> int:
    """Return the window up to the end of the longest ramp, a multiple of `step`."""
    longest = int(spans.detach().max().ceil()) + ramp + 1
    return min(limit, -(-longest // step) * step)


def empty_slots(
    empty: Int[Tensor, " b"] | None, keys: int, device: torch.device
) -> Bool[Tensor, "b s"] | None:
    """Say which keys hold something, where the first `empty` do not."""
    return None if empty is None else torch.arange(keys, device=device) >= empty[:, None]
