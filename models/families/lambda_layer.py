"""Lambda layer: each token's context becomes a small linear map, which is applied to its queries.

    lambda_n = sum_u sum_m (k_mu + E_(m - n),u) v_mu^T        key width x value width
    y_n = [lambda_n^T q_n1 ; ... ; lambda_n^T q_nh]

where q = N(x W_q) for h heads, k is the softmax of x W_k over the positions, v = N(x W_v), and N is
a norm. There are u pairs of keys and values, and a vector E for each distance. All heads apply the
same map. The content part of the map is the same for all tokens. Its position part, within `window`
tokens,

    sum_u sum_m (q_n . E_(m - n),u) v_mu,

is a convolution of the values; each query computes its taps from the distances. Without a window
every distance has a vector. In the causal form m <= n, and the softmax for token n is over the
positions up to n.

Cost       With keys of k and values of v = d / h channels, projections take 2 n d (h k + u k + u v)
           operations and content takes 2 n k (u + h) v. Positions take 2 n u h (r k + (r + 31) v)
           in a window of r tokens, or 2 n^2 u h (2 k + v) without a window. Memory is O(n (d + u h
           r)), or O(n^2 u h) without a window. State: the map, its normaliser and maximum, and r -
           1 values.
Source     Bello 2021, arXiv:2102.08602, sections 2 and 3, in one dimension.
Notation   the paper's |k|, |u|, |v|, |h|, r are `key_width`, `intra_depth`, d / h, heads, `window`.
Published  The paper uses k = 16, u = 1, h = 4 and windows of 23 x 23, on images.
Differs    The norm N is LayerNorm instead of batch normalisation; `norm=none` omits it. The causal
           form is an addition of this project, since the paper has images. E is drawn from N(0, 1 /
           (k u r)), where r is the number of distances in the sum.
"""

from enum import StrEnum, auto
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.linear_map import projection
from lra.models.mixer import (
    Count,
    Family,
    Flow,
    Growth,
    Layout,
    Site,
    State,
    Traits,
    Unsupported,
    blanked,
    options,
)
from lra.models.ops.convolution.dynamic import dynamic_convolution
from lra.models.ops.linear.causal_content import CausalContent, causal_content
from lra.models.ops.numerics import NEVER, full_precision, sum_dtype

WINDOW = 31
"""Tokens by default, for inputs of any length."""


def content_lambda(
    q: Float[Tensor, "b h l k"],
    logits: Float[Tensor, "b u l k"],
    v: Float[Tensor, "b u l v"],
    keep: Bool[Tensor, "b l"] | None,
) -> Float[Tensor, "b h l v"]:
    """Apply to the queries the content part of the map: sum_u softmax(logits_u)^T v_u.

    The softmax is over the positions that `keep` allows; None: all. Values `v` at padding are 0.
    """
    if keep is not None:
        logits = logits.masked_fill(~keep[:, None, :, None], NEVER)
    content = (logits.softmax(2).mT @ v).sum(1)
    return q @ content[:, None]


def local_lambda(
    q: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b u s v"],
    offsets: Float[Tensor, "u r k"],
    left: int,
) -> Float[Tensor, "b h l v"]:
    """Apply to each query the position part of its map, within a window of r values.

    `left` values of the window come before the query. The l queries belong to the last l of the s
    values; `offsets` are the vectors E of the r distances.
    """
    past, heads = v.shape[2] - q.shape[2], q.shape[1]
    # The `past` values before the first query get taps of 0, and their outputs are cut off below.
    taps = F.pad(q[:, None] @ offsets[:, None].mT, (0, 0, past, 0))
    values = v[:, :, None].expand(-1, -1, heads, -1, -1)
    y = dynamic_convolution(values.flatten(1, 2), taps.flatten(1, 2), left)
    return torch.unflatten(y, 1, (-1, heads)).sum(1)[:, :, past:]


def global_lambda(
    q: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b u l v"],
    offsets: Float[Tensor, "u r k"],
    *,
    causal: bool,
) -> Float[Tensor, "b h l v"]:
    """Apply to each query the position part of its map, over all values.

    `offsets` has one vector per distance; that of distance 0 is last if causal, else central.
    """
    length, middle = q.shape[2], offsets.shape[1] - 1 if causal else offsets.shape[1] // 2
    used = offsets[:, middle + 1 - length : (middle + length if not causal else None)]
    # One vector of zeros in front makes each row one entry longer, which the shift below needs.
    scores = q[:, None] @ F.pad(used, (0, 0, 1, 0))[:, None].mT
    # Each row must start one entry further left than the row before: drop the first l entries of
    # the flattened rows of w + 1 scores, and read the rest as rows of w.
    width = scores.shape[-1] - 1
    shifted = scores.flatten(-2)[..., length:]
    scores = shifted.view(*scores.shape[:-1], width)[..., :length]
    scores = scores.tril() if causal else scores
    return (scores @ v[:, :, None]).sum(1)


class LambdaNorm(StrEnum):
    """Norm of queries and values."""

    layer = auto()
    """LayerNorm over the channels of all heads."""
    none = auto()


@options
class LambdaLayer(Family):
    """A lambda layer: keys and values form a linear map, which is applied to the queries.

    Raises:
        ValueError: Heads do not divide the width, or a number is out of range.
    """

    key_width: Count = 16
    """Width of a head's queries and of the keys."""
    intra_depth: Count = 1
    """Number of lambda maps that are summed, each with separate keys, values and positions."""
    window: int | None = WINDOW
    """Number of tokens around each token (causal: up to it) whose distances have a position vector;
    None: all tokens."""
    norm: LambdaNorm = LambdaNorm.layer
    """Norm of queries and values."""
    no_matrices = ("offsets",)

    def build(self, site: Site) -> None:
        """Make projections, norms and the vectors of distances."""
        if site.width % site.heads:
            raise ValueError(
                "in a lambda layer, the heads' outputs are concatenated to the width, so heads "
                f"must divide width: got heads={site.heads}, width={site.width}; set "
                f"model.backbone.width to a multiple of {site.heads}"
            )
        reach = site.max_length if site.causal else 2 * site.max_length - 1
        check_window(self.window, reach, causal=site.causal)
        self.heads, self.depth = site.heads, self.intra_depth
        self.causal = site.causal
        values = site.width // site.heads
        self.q_proj = projection(site.width, site.heads * self.key_width, bias=False)
        self.k_proj = projection(site.width, self.intra_depth * self.key_width, bias=False)
        self.v_proj = projection(site.width, self.intra_depth * values, bias=False)
        self.q_norm: nn.Module = nn.Identity()
        self.v_norm: nn.Module = nn.Identity()
        if self.norm == LambdaNorm.layer:
            self.q_norm = nn.LayerNorm(site.heads * self.key_width)
            self.v_norm = nn.LayerNorm(self.intra_depth * values)
        rows = reach if self.window is None else self.window
        summed = self.intra_depth * (site.max_length if self.window is None else self.window)
        shape = (self.intra_depth, rows, self.key_width)
        self.offsets = nn.Parameter(torch.empty(shape))
        nn.init.normal_(self.offsets, std=(self.key_width * summed) ** -0.5)
        growth = Growth(2.0 if self.window is None else 1.0)
        self.traits = Traits(
            causal=site.causal,
            max_length=site.max_length if self.window is None else None,
            operations=growth,
            memory=growth,
            sees_order=site.causal or self.window != 1,
        )

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Return outputs and the next state: sums of the content, and values within the window."""
        x, dtype = blanked(flow.x, layout, self.traits), sum_dtype(flow.x)
        q = self._split(self.q_norm(self.q_proj(x)), self.heads)
        logits = self._split(self.k_proj(x), self.depth)
        v = self._split(blanked(self.v_norm(self.v_proj(x)), layout, self.traits), self.depth)
        state = flow.state
        with full_precision(x):
            q, logits, v = (part.to(dtype) for part in (q, logits, v))
            if self.causal:
                past, before = cast(
                    tuple[State, Tensor], state or self._make_empty_state(len(x), v)
                )
                before = before.to(dtype)
                sums = CausalContent(*(part.to(dtype) for part in cast(CausalContent, past)))
                y, after = causal_content(q, logits, v, layout.keep, sums)
                v = torch.cat((before, v), dim=2)
                if state is not None:  # cloned, because a view would keep the whole segment
                    state = (tuple(after), v[:, :, v.shape[2] - before.shape[2] :].clone())
            else:
                y = content_lambda(q, logits, v, layout.keep)
            offsets = self.offsets.to(dtype)
            if self.window is None:
                y = y + global_lambda(q, v, offsets, causal=self.causal)
            else:
                left = self.window - 1 if self.causal else self.window // 2
                y = y + local_lambda(q, v, offsets, left)
        return flow._replace(x=y.transpose(1, 2).flatten(2).to(flow.x.dtype), state=state)

    def _split(self, x: Float[Tensor, "b l w"], parts: int) -> Float[Tensor, "b p l k"]:
        """Split the last axis of `x` into p `parts` of k channels."""
        return torch.unflatten(x, -1, (parts, -1)).transpose(1, 2)

    def _make_empty_state(self, batch_size: int, like: Tensor) -> State:
        """Return an empty state: sums of the content, and the values within the window, all 0."""
        values = self.v_proj.out_features // self.depth
        shape = (batch_size, self.depth, self.key_width)
        past = CausalContent(
            like.new_zeros(*shape, values), like.new_zeros(shape), like.new_zeros(shape)
        )  # fmt: skip
        earlier = 0 if self.window is None else self.window - 1
        return tuple(past), like.new_zeros(batch_size, self.depth, earlier, values)

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return empty sums and an empty window, of one size for any `memory`.

        Raises:
            Unsupported: The mixer is not causal, or has no window.
        """
        del memory
        if self.window is None:
            raise Unsupported(
                "a lambda layer with window=null uses a vector for every distance, so its state "
                "would have to store all earlier values: set model.mixer.window to a number of "
                "tokens"
            )
        weight = self.v_proj.weight
        return self._make_empty_state(batch_size, weight.new_zeros(0, dtype=sum_dtype(weight)))


def check_window(window: int | None, reach: int, *, causal: bool) -> None:
    """Raise ValueError for a window below 1, of even size if bidirectional, or beyond `reach`.

    The default window may exceed `reach`, so that short inputs need no option.
    """
    if window is None:
        return
    if window < 1 or (window > reach and window != WINDOW):
        raise ValueError(
            f"window, a number of tokens, must be 1 to {reach} for inputs of this length, or null "
            f"for all tokens: got {window}"
        )
    if not causal and window % 2 == 0:
        raise ValueError(
            "window must be odd in a bidirectional model, so that it has a middle token: got "
            f"{window}; use {window - 1}"
        )
