"""Sliding-window attention: each token sees its neighbours, and nothing else.

    o_i = sum_j p_ij v_j over |i - j| <= w (causal: 0 <= i - j <= w), p = softmax of q k / sqrt(d)

Cost: 4 n D (2w + 1) operations forward in the ideal and (2w + C) / (2w + 1) times that in blocks
of C queries (causal: w + 1 and w + C), twice that backward; memory n H (2w + C). After L layers a
token has seen L w tokens to each side.

Source: Beltagy et al. 2020, arXiv:2004.05150, section 3.1, without dilation and global tokens.
Notation: `window` is the one-sided w of this page; the paper's window counts both sides, 2w.
The same pattern is "local attention" with an exact window in other code.

Differences from the paper: the window includes both ends, so that a token sees 2w + 1 tokens. A
window that covers the sequence is exact attention and runs as such.
"""

from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from models.families.banded import BandedAttention, Fold
from models.families.sdpa import sdpa
from models.mixer import Layout, Site, State, Traits, Unsupported
from models.multi_head import MultiHead


def window_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    *,
    window: int,
    block: int,
    causal: bool,
    keep: Bool[Tensor, "b s"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "b h l v"]:
    """Attend within the window.

    Args:
        q: Queries of the last l of s tokens.
        k: Keys; the first s - l are the past, at most `window` of them.
        v: Values.
        window: Largest distance that is seen.
        block: Queries worked on together; changes the cost alone.
        causal: Whether later tokens are hidden.
        keep: False for keys that nobody sees. A query left without a key gives 0.
        dropout: Probability that a weight is set to 0; the others grow by 1 / (1 - dropout).
    """
    length, past = q.shape[2], k.shape[2] - q.shape[2]
    if window >= k.shape[2] - 1:
        return _all_in_sight(q, k, v, causal=causal, keep=keep, dropout=dropout)
    rows = q.shape[0] * q.shape[1]
    fold = Fold(rows, length, past, window, block, causal)
    remember = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    o: Tensor = BandedAttention.apply(  # type: ignore[no-untyped-call]
        q, k, v, keep, fold, dropout, remember
    )
    if keep is not None:
        o = o.masked_fill(~_sees_any(keep, length, window, causal)[:, None, :, None], 0.0)
    return o


def _all_in_sight(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    *,
    causal: bool,
    keep: Bool[Tensor, "b s"] | None,
    dropout: float,
) -> Float[Tensor, "b h l v"]:
    length, total = q.shape[2], k.shape[2]
    visible = None if keep is None else keep[:, None, None, :]
    if causal and (visible is not None or total > length):
        place = torch.arange(total, device=q.device)
        triangle = (place <= place[-length:, None])[None, None]
        visible = triangle if visible is None else triangle & visible
    return sdpa(q, k, v, causal=causal, visible=visible, dropout=dropout)


def _sees_any(
    keep: Bool[Tensor, "b s"], length: int, window: int, causal: bool
) -> Bool[Tensor, "b l"]:
    total = keep.shape[1]
    before = nn.functional.pad(keep.cumsum(1), (1, 0))
    place = torch.arange(total - length, total, device=keep.device)
    first = (place - window).clamp(min=0)
    behind = (place + (1 if causal else window + 1)).clamp(max=total)
    return before[:, behind] > before[:, first]


def best_block(window: int) -> int:
    """Return the block that was fastest for a window: small blocks waste less of the band."""
    return 64 if window >= 128 else 32


class SlidingWindowCore(nn.Module):
    """Window, block and the state along time."""

    def __init__(self, site: Site, *, window: int, block: int | None) -> None:
        super().__init__()
        if window < 1:
            raise ValueError(
                f"window is the number of tokens seen to each side, at least 1: got {window}; "
                "for none choose model=identity"
            )
        if block is not None and block < 1:
            raise ValueError(f"block must be at least 1, or null for the best: got {block}")
        self.window, self.block = window, block or best_block(window)
        self.dropout = site.attention_dropout
        self.traits = Traits(causal=site.causal, row_stochastic=True, weight_dropout=True)

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s k"],
        v: Float[Tensor, "b h s v"],
        layout: Layout,
    ) -> Float[Tensor, "b h l v"]:
        """Attend; s > l means that the keys begin with tokens of the past."""
        return window_attention(
            q,
            k,
            v,
            window=self.window,
            block=self.block,
            causal=self.traits.causal,
            keep=layout.keep,
            dropout=self.dropout if self.training else 0.0,
        )

    def initial_state(self, shape: tuple[int, int, int, int, int], like: Tensor) -> State:
        """Return an empty state: the last `window` keys and values, and how many are filled.

        They stand at the right, the latest last. However long the memory is asked for, more is
        never seen.
        """
        if not self.traits.causal:
            raise Unsupported("a window that looks ahead has no state along time: set causal")
        batch, heads, _, key_width, value_width = shape
        return (
            like.new_zeros(batch, heads, self.window, key_width),
            like.new_zeros(batch, heads, self.window, value_width),
            torch.zeros(batch, dtype=torch.int64, device=like.device),
        )

    def extend(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        layout: Layout,
        state: State,
    ) -> tuple[Float[Tensor, "b h l v"], State]:
        """Attend to the remembered tokens and to the new ones up to each query."""
        old_keys, old_values, filled = cast(tuple[Tensor, Tensor, Int[Tensor, " b"]], state)
        length, window = q.shape[2], self.window
        keys = torch.cat((old_keys.to(k.dtype), k), dim=2)
        values = torch.cat((old_values.to(v.dtype), v), dim=2)
        age = torch.arange(window + length, 0, -1, device=q.device)
        keep = age <= filled[:, None] + length
        # Cloned: a view would hold the whole segment.
        state = (
            keys[:, :, -window:].to(old_keys.dtype).clone(),
            values[:, :, -window:].to(old_values.dtype).clone(),
            (filled + length).clamp(max=window),
        )
        return self(q, keys, values, layout._replace(keep=keep)), state


class SlidingWindow(MultiHead):
    """Multi-head attention within a window of its own in every layer."""

    def __init__(
        self,
        site: Site,
        *,
        window: list[int] = [128],  # noqa: B006  read, never written; the schema is this signature
        block: int | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__(
            site, SlidingWindowCore(site, window=site.at(window), block=block), bias=bias
        )
