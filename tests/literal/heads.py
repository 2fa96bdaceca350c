"""What literal forms of attention share: heads, positions, who sees whom, a softmax over it.

A case has the options of its family and of the site by name, and masks (None where there are none):
`keep`, `start`, `document`, `prefix`, `is_global`; `source` holds the tokens that are attended to.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def split(x: Float[Tensor, "b l d"], heads: int) -> Float[Tensor, "b h l k"]:
    """Return each head's channels."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined(o: Float[Tensor, "b h l v"]) -> Float[Tensor, "b l d"]:
    """Return all heads of a token side by side."""
    return o.transpose(1, 2).flatten(2)


def normed(
    x: Float[Tensor, "*b k"], weight: Tensor | float, epsilon: float
) -> Float[Tensor, "*b k"]:
    """Divide by the root of the mean square."""
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * weight


def rotated(
    x: Float[Tensor, "b h l k"],
    start: Int[Tensor, " b"] | None = None,
    base: float | None = None,
    share: float | None = None,
) -> Float[Tensor, "b h l k"]:
    """Turn channels c and c + k / 2 of a token together, by its position over base^(2 c / k).

    The base is 10,000 if it is None; with a share, only the first channels turn.
    """
    if share is not None:
        first = 2 * int(share * x.shape[-1] / 2)
        return torch.cat((rotated(x[..., :first], start, base), x[..., first:]), -1)
    half = x.shape[-1] // 2
    place = torch.arange(x.shape[2], dtype=torch.float64)
    place = place if start is None else start[:, None, None] + place
    angle = place[..., None] * (base or 10_000.0) ** (
        -torch.arange(half, dtype=torch.float64) / half
    )
    turned = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag), -1)


def slopes(heads: int) -> Float[Tensor, " h"]:
    """Return ALiBi's (arXiv:2108.12409): 2^(-8 i / h), between them where h is no power of two."""
    lower = 2 ** int(math.log2(heads))
    steps = [8 * (i + 1) / lower for i in range(lower)]
    steps += [4 * (2 * i + 1) / lower for i in range(heads - lower)]
    return torch.tensor([2.0**-step for step in steps], dtype=torch.float64)


def lowered(case: Any, heads: int, length: int) -> Float[Tensor, "h l l"] | float:
    """Return what distance takes off scores."""
    if case.positions != "alibi":
        return 0.0
    place = torch.arange(length)
    return slopes(heads)[:, None, None] * (place[:, None] - place).abs()


def projected(mixer: Any, x: Float[Tensor, "b l d"], case: Any) -> list[Tensor]:
    """Return queries, keys and values of the four projections; groups of heads share the latter."""
    source = x if case.source is None else case.source
    widths = mixer.key_width, mixer.key_width, mixer.head_width
    layers = (mixer.q_proj, x), (mixer.k_proj, source), (mixer.v_proj, source)
    joint = getattr(mixer, "joint_norm", False)
    maps = [layer(given) for layer, given in layers]
    if joint:
        maps[0] = normed(maps[0], mixer.q_norm.weight, 1e-6)
        maps[1] = normed(maps[1], mixer.k_norm.weight, 1e-6)
    q, k, v = (split(y, y.shape[-1] // width) for y, width in zip(maps, widths, strict=True))
    if mixer.q_norm is not None and not joint:
        q, k = normed(q, mixer.q_norm.weight, 1e-6), normed(k, mixer.k_norm.weight, 1e-6)
    if case.positions == "rotary":
        turn = case.start, case.rotary_base, case.rotary_share
        q, k = rotated(q, *turn), rotated(k, *turn)
    return [q, *(each.repeat_interleave(q.shape[1] // each.shape[1], 1) for each in (k, v))]


def merged(
    mixer: Any, o: Float[Tensor, "b h l v"], x: Float[Tensor, "b l d"]
) -> Float[Tensor, "b l d"]:
    """Return what the heads read behind their gates, projected back."""
    o = joined(o)
    return mixer.out_proj(o if mixer.gate_proj is None else o * mixer.gate_proj(x).sigmoid())


def in_sight(case: Any, length: int) -> Bool[Tensor, "2 1 l s"]:
    """Return which keys the masks and the direction leave in sight of which query, of two rows."""
    keys = length if case.source is None else case.source.shape[1]
    i, j = torch.arange(length)[:, None], torch.arange(keys)
    sees = torch.ones(2, 1, length, keys, dtype=torch.bool)
    if case.causal:
        inside = torch.zeros_like(sees)
        if case.prefix is not None:
            inside = torch.maximum(i, j) < case.prefix[:, None, None, None]
        sees = sees & ((j <= i) | inside)
    if case.document is not None:
        sees = sees & (case.document[:, None, :, None] == case.document[:, None, None])
    return sees if case.keep is None else sees & case.keep[:, None, None]


def softmax_over(
    scores: Float[Tensor, "b h l s"],
    sees: Bool[Tensor, "*any l s"],
    sinks: Float[Tensor, " h"] | None = None,
) -> Float[Tensor, "b h l s"]:
    """Return weights over what each query sees; 0 where it sees nothing.

    With `sinks`, exp of a head's number is added to the sums.
    """
    scores = scores.masked_fill(~sees, -1e300)
    if sinks is not None:
        weights = scores.exp() * sees
        return weights / (weights.sum(-1, keepdim=True) + sinks.exp()[:, None, None])
    weights = (scores - scores.amax(-1, keepdim=True)).exp() * sees
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)


def attention_in_sight(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    sees: Bool[Tensor, "*any l s"],
    low: Tensor | float = 0.0,
    *,
    sinks: Float[Tensor, " h"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Return softmax(q k^T / sqrt(d) - low) v over what each query sees; 0 where nothing."""
    return softmax_over(q @ k.mT / math.sqrt(q.shape[-1]) - low, sees, sinks) @ v


def attended(
    mixer: Any, x: Float[Tensor, "b l d"], case: Any, sees: Tensor | None = None
) -> Float[Tensor, "b l d"]:
    """Return softmax attention over what both `sees` (None: all) and the case leave in sight."""
    q, k, v = projected(mixer, x, case)
    sight = in_sight(case, x.shape[1])
    sight = sight if sees is None else sight & sees
    low = lowered(case, q.shape[1], x.shape[1]) if case.source is None else 0.0
    sinks = getattr(mixer.core, "sinks", None)
    return merged(mixer, attention_in_sight(q, k, v, sight, low, sinks=sinks), x)


def of_parts(
    alone: Callable[[Tensor], Tensor], x: Float[Tensor, "b l d"], case: Any
) -> Float[Tensor, "b l d"]:
    """Return what the real tokens of each document give alone; 0 at padding."""
    parts = torch.zeros(x.shape[:2], dtype=torch.long) if case.document is None else case.document
    if case.keep is not None:
        parts = parts.masked_fill(~case.keep, -1)
    y = torch.zeros_like(x)
    for row, numbers in enumerate(parts):
        for number in numbers[numbers >= 0].unique():
            here = (numbers == number).nonzero()[:, 0]
            y = y.index_put((torch.tensor(row), here), alone(x[row : row + 1, here])[0])
    return y
