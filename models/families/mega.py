"""Mega: an exponential moving average of each channel, then single-head gated attention.

    h_t = q h_{t-1} + p beta x_t,   p = sigma(delta),  q = 1 - p sigma(alpha)       N numbers
    mx = silu(sum_N gamma h_t / sqrt(N) + omega x_t)
    [u, z, r, c] = W mx + b,   u = sigma(u),  z = silu(z),  r = silu(r)     widths d, z, e, d
    q, k = z gamma_1 + beta_1, z gamma_2 + beta_2,   v = silu(W_v x + b_v)          v: width e
    A = softmax(q k^T / sqrt(z) + B)   or   laplace(q k^T / len + B)
    g = silu(c + W_h (r A v) + b_h),   y = x + u (g - x)

laplace(s) = (1 + erf((s - 1 / sqrt(2)) / (sqrt(2) / sqrt(4 pi)))) / 2, and len counts the keys that
a query may attend to. B_ij is a table of i - j (`simple`) or the product of two learned vectors,
rotated to the positions i and j (`rotary`). In the bidirectional form, a second average runs from
the end; both averages include the token itself. With chunks of C tokens, attention stays within a
chunk, and the average carries information across chunks.

Cost       The average takes O(n d (N + log n)) operations. The maps take n d (3 e + z + 2 d)
           products, and attention n^2 (z + e), or n C (z + e) in chunks. Memory is O(n^2), or O(n
           C) in chunks or with `query_block`.
State      The state stores h, N d numbers in float32, and keys and values, z + e numbers per token.
           These are of the incomplete chunk, or of all remembered tokens if there are no chunks.
Source     Ma et al. 2022, arXiv:2209.10655; code: facebookresearch/mega.
Notation   N is `ema_states`, z `key_width`, e `value_width`, C `chunk_length`. The output above is
           the block's: the mixer adds u (g - x) to x. x is the residual where the block norms
           first, and v and the average then use the normed x. The dropout of the block applies to
           mx and g instead of to the sum.
Published  The paper's models have a feed-forward network with SiLU of width e (feed_forward=silu)
           and no positions (positions=none). They use post-norm and softmax on texts, and batch
           norm before each layer and laplace on images.
Differs    The constants of laplace are exact; the released code rounds them to six digits. A query
           without keys gives 0.
"""

from collections.abc import Callable
from enum import StrEnum, auto
from math import pi
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lra.models.mixer import (
    Count,
    Family,
    Flow,
    Growth,
    Layout,
    Need,
    Site,
    State,
    Traits,
    Unsupported,
    blanked,
)
from lra.models.ops import window_cache
from lra.models.ops.exact import weighted_values
from lra.models.ops.numerics import full_precision, row_slices, sum_dtype
from lra.models.ops.recurrent.layer import BOTH_WAYS
from lra.models.ops.state_space.moving_average import MovingAverage
from lra.models.positions import Spacing, rotate

LAPLACE_MEAN, LAPLACE_DEVIATION = 0.5**0.5, (4 * pi) ** -0.5


class Weighting(StrEnum):
    """Function that turns scores into weights."""

    softmax = auto()
    laplace = auto()


class Relative(StrEnum):
    """Relative position bias: a number added to scores, which depends on the distance."""

    simple = auto()
    rotary = auto()
    none = auto()


def laplace(scores: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """Return the probability that a normal variable is below each score; it is near relu(s)^2."""
    return (1 + torch.erf((scores - LAPLACE_MEAN) / (LAPLACE_DEVIATION * 2**0.5))) / 2


def linear(inputs: int, outputs: int) -> nn.Linear:
    """Return a linear map with weights from N(0, 0.02) and a bias of zeros."""
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=0.02)
    nn.init.zeros_(layer.bias)
    return layer


class DistanceTable(nn.Module):
    """A learned number for each distance, drawn from N(0, 0.02).

    Args:
        longest: Number of tokens of the longest span; distances are below it.
        causal: Whether queries have no later keys, so that distances are 0 or more.
    """

    def __init__(self, longest: int, *, causal: bool) -> None:
        """Draw the table from the smallest distance, `least`, to longest - 1."""
        super().__init__()
        self.least = 0 if causal else 1 - longest
        self.weight = nn.Parameter(torch.empty(longest - self.least))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, distances: Spacing, number: int) -> Float[Tensor, " t"]:
        """Return the learned numbers of `number` distances; any number for hidden keys."""
        row = distances.ids(number, self.weight.device) - self.least
        return self.weight[row.clamp(0, len(self.weight) - 1)]


class RotaryScores(nn.Module):
    """The product of two learned vectors, of which the first is rotated by the distance.

    Args:
        width: Width of both vectors, an even number; they are drawn from N(0, 0.02).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = (nn.Parameter(torch.empty(width)) for _ in range(2))
        for vector in (self.query, self.key):
            nn.init.normal_(vector, std=0.02)

    def forward(self, distances: Spacing, number: int) -> Float[Tensor, " t"]:
        """Return the scores of `number` distances: rotated first vector times second vector."""
        return rotate(self.query.expand(1, 1, number, -1), distances)[0, 0] @ self.key


class Mega(Family):
    """The gated attention of Mega, without the feed-forward network that follows it.

    Args:
        ema_states: Dimensions of each channel's moving average, N.
        value_width: Width of values, e; None: twice the width of the model.
        key_width: Width of queries and keys, z; relative=rotary needs an even number.
        attention: Function that turns scores into weights.
        chunk_length: Number of tokens of a chunk, within which tokens attend to each other; None:
            the whole sequence.
        relative: Relative position bias of scores.
        truncation: Largest number of tokens that the moving average reads back or ahead; None:
            unlimited.
        query_block: Number of queries whose scores are in memory at the same time; smaller values
            save memory and take more time, because backward computes the scores again. None: all
            queries.
    """

    no_matrices = ("scale", "shift")
    needs = (
        BOTH_WAYS,
        Need("truncation", causal=False),
        Need("truncation", bidirectional=True),
    )

    def __init__(
        self,
        site: Site,
        *,
        ema_states: Count = 16,
        value_width: Count | None = None,
        key_width: Count = 64,
        attention: Weighting = Weighting.softmax,
        chunk_length: Count | None = None,
        relative: Relative = Relative.simple,
        bidirectional: bool = True,
        truncation: Count | None = None,
        query_block: Count | None = None,
    ) -> None:
        """Make the moving average, the maps of gates and attention, and the position bias."""
        super().__init__()
        width, value_width = site.width, 2 * site.width if value_width is None else value_width
        if relative == Relative.rotary and key_width % 2:
            raise ValueError(
                "relative=rotary rotates pairs of channels, so key_width must be even: got "
                f"key_width={key_width}; change it, or set relative=simple"
            )
        causal = site.causal or not bidirectional
        self.attention, self.chunk_length, self.query_block = attention, chunk_length, query_block
        self.attention_dropout = site.attention_dropout
        self.widths = width, key_width, value_width, width  # of u, z, r and c
        self.average = MovingAverage(width, ema_states, 1 if causal else 2, truncation)
        self.v_proj = linear(width, value_width)
        self.mx_proj = linear(width, sum(self.widths))
        self.h_proj = linear(value_width, width)
        self.scale, self.shift = (nn.Parameter(torch.zeros(2, key_width)) for _ in range(2))
        nn.init.normal_(self.scale, std=0.02)
        self.longest = site.max_length if chunk_length is None else chunk_length
        self.relative: nn.Module | None = None
        if relative == Relative.simple:
            self.relative = DistanceTable(self.longest, causal=causal)
        elif relative == Relative.rotary:
            self.relative = RotaryScores(key_width)
        unchunked = chunk_length is None
        self.limited = unchunked and relative == Relative.simple
        self.traits = Traits(
            supports=frozenset({"keep", "start"}),
            causal=causal,
            max_length=site.max_length if self.limited else None,
            operations=Growth(2.0) if unchunked else Growth(1.0, log=True),
            memory=Growth(2.0 if unchunked and query_block is None else 1.0),
            weight_dropout=True,
            summarises=causal and unchunked,
        )

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Continue from `flow.state`; with state None, start from an empty state."""
        return self.gated_extend(flow, layout, flow.x, nn.Identity())

    def gated_extend(
        self,
        flow: Flow,
        layout: Layout,
        residual: Float[Tensor, "b l d"],
        dropout: Callable[[Tensor], Tensor],
    ) -> Flow:
        """Return u (g - residual), see the module's docstring; `dropout` applies to mx and g."""
        x = blanked(flow.x, layout, self.traits)
        before, window = (
            (None, None) if flow.state is None else cast(tuple[Tensor, State], flow.state)
        )
        with full_precision(x):
            y, after = self.average(x.to(sum_dtype(x)), before)
        mx = dropout(F.silu(y).to(x.dtype))
        u, z, r, c = self.mx_proj(mx).split(self.widths, dim=-1)
        q, k = (F.silu(z)[..., None, :] * self.scale + self.shift).unbind(-2)
        v = F.silu(self.v_proj(x))
        q, k, v = (part[:, None] for part in (q, k, v))  # one head
        o, window = self._attend(q, k, v, layout.keep, window)
        g = dropout(F.silu(c + self.h_proj(F.silu(r) * o[:, 0])))
        state = None if after is None else (after, window)
        return flow._replace(x=u.sigmoid() * (g - residual), state=state)

    def _attend(
        self,
        q: Float[Tensor, "b 1 l z"],
        k: Float[Tensor, "b 1 l z"],
        v: Float[Tensor, "b 1 l e"],
        keep: Bool[Tensor, "b l"] | None,
        state: State,
    ) -> tuple[Float[Tensor, "b 1 l e"], State]:
        """Return the weighted values of each token, and the next state (None if none is given).

        The length is cut into pieces, each with all keys to which one of its queries may attend.
        Without a state, the pieces are the chunks.
        """
        length, chunk = q.shape[2], self.chunk_length
        if self.limited and state is None and length > self.longest:
            raise ValueError(
                f"relative=simple has a bias for each distance within {self.longest} tokens: got "
                f"a sequence of {length} tokens; truncate it, build the model with a larger "
                "max_length, or set chunk_length"
            )
        size = length if chunk is None else min(length, chunk)
        pieces = -(-length // size)
        spare = pieces * size - length
        past, visible = 0, None
        if state is None:
            position = torch.arange(size, device=q.device)
            if self.traits.causal:
                visible = (position <= position[:, None])[None, None]
            # What fills up the last chunk must be hidden; a causal mask hides it already.
            if keep is None and spare and visible is None:
                keep = torch.ones(len(q), length, dtype=torch.bool, device=q.device)
            if keep is not None:
                real = F.pad(keep, (0, spare)).view(-1, 1, 1, size)
                visible = real if visible is None else real & visible
        else:
            k, v, read_count, (keys, values) = window_cache.append_window(state, k, v)
            state, past = (keys, values, read_count + length), keys.shape[2]
            # Positions in the text: of each piece's first query, of its queries, and of its keys.
            step = size * torch.arange(pieces, device=q.device)[:, None]
            begin = read_count[:, None, None] + step
            query = (begin + torch.arange(size, device=q.device))[..., None]
            key = (begin + torch.arange(-past, size, device=q.device))[..., None, :]
            visible = (key >= 0) & (key <= query) & (query - key <= past)
            if chunk is not None:
                visible &= query // chunk == key // chunk
            visible = visible.flatten(0, 1)[:, None]

        def cut(x: Tensor, width: int) -> Tensor:
            """Return windows of `width` tokens, one piece after another along the batch."""
            x = F.pad(x, (0, 0, 0, spare))
            return x.unfold(2, width, size).permute(0, 2, 1, 4, 3).flatten(0, 1)

        o = self._weigh_values(cut(q, size), cut(k, past + size), cut(v, past + size), visible)
        o = o.view(len(q), 1, pieces * size, -1)
        return o[:, :, :length], state

    def _weigh_values(
        self,
        q: Float[Tensor, "b 1 l z"],
        k: Float[Tensor, "b 1 s z"],
        v: Float[Tensor, "b 1 s e"],
        visible: Bool[Tensor, "#b 1 #l s"] | None,
    ) -> Float[Tensor, "b 1 l e"]:
        """Return the weighted values for each query; the last query is at the last key's position.

        With `query_block`, this many queries are processed at a time, and again in backward.
        """
        length, keys = q.shape[2], k.shape[2]
        # All distances, from that of the last query and first key down to the opposite pair's.
        bias = None if self.relative is None else self.relative(
            Spacing(keys - 1, -1), length + keys - 1
        )  # fmt: skip
        if self.query_block is None:
            return self._attend_rows(q, k, v, bias, visible)
        parts = []
        for rows in row_slices(length, self.query_block):
            # Query i and key j use entry length - 1 - i + j of `bias`.
            row_bias = (
                None if bias is None else bias[length - rows.stop : length + keys - 1 - rows.start]
            )
            mask = visible if visible is None or visible.shape[2] == 1 else visible[:, :, rows]
            part = q[:, :, rows], k, v, row_bias, mask
            parts.append(
                checkpoint(self._attend_rows, *part, use_reentrant=False)
                if torch.is_grad_enabled()
                else self._attend_rows(*part)
            )
        return torch.cat(parts, 2)

    def _attend_rows(
        self,
        q: Float[Tensor, "b 1 r z"],
        k: Float[Tensor, "b 1 s z"],
        v: Float[Tensor, "b 1 s e"],
        distances: Float[Tensor, " t"] | None,
        visible: Bool[Tensor, "#b 1 #r s"] | None,
    ) -> Float[Tensor, "b 1 r e"]:
        """Return the weighted values for r queries, given s keys and values.

        `distances` has the bias of each of the t = r + s - 1 distances, from the largest down.
        """
        keys = k.shape[2]
        dropout = self.attention_dropout if self.training else 0.0
        scaled = self.attention == Weighting.softmax
        scores = (q * q.shape[-1] ** -0.5 if scaled else q) @ k.mT
        scores = scores.to(sum_dtype(scores))
        bias = None
        if distances is not None:
            # Window w of `keys` entries belongs to the w-th query from the end.
            bias = distances.unfold(0, keys, 1).flip(0)[None, None].to(scores.dtype)
        if scaled:
            return weighted_values(
                scores, v, causal=False, visible=visible, dropout=dropout, bias=bias
            )
        # Laplace weights: scores are divided by the number of keys that the query may attend to.
        count = keys if visible is None else visible.sum(-1, keepdim=True).clamp(min=1)
        weights = laplace(scores / count if bias is None else scores / count + bias)
        if visible is not None:
            weights = weights.masked_fill(~visible, 0.0)
        return F.dropout(weights, dropout).to(v.dtype) @ v

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return an empty moving average, and empty keys and values of the incomplete chunk.

        Without chunks, the keys and values are those of the last `memory` tokens.
        """
        if memory < 1:
            raise ValueError(f"memory, a number of tokens, must be at least 1: got {memory}")
        if self.limited and memory > self.longest:
            raise Unsupported(
                f"relative=simple has a bias for each distance within {self.longest} tokens: got a "
                f"memory of {memory} tokens; set a smaller memory, build the model with a larger "
                "max_length, or set chunk_length"
            )
        _, key_width, value_width, _ = self.widths
        like = self.average.gamma
        shape = (batch_size, 1, memory, key_width, value_width)
        # A query reads its own key and those before it that are remembered.
        remembered = (memory if self.chunk_length is None else self.chunk_length) - 1
        return (
            like.new_zeros(batch_size, *like.shape[1:]),
            window_cache.empty_window(shape, remembered, self.scale),
        )
