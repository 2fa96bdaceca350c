"""MultiresConv: a tree of short dilated convolutions, like a wavelet transform.

    lo_0 = x,  hi_i = h1 * lo_{i-1},  lo_i = h0 * lo_{i-1}      taps of level i: 2^(i-1) tokens off
    z = sum_i w_i hi_i + w_{J+1} lo_J + w_{J+2} x               i = 1, ... J
    out = GLU(W gelu(z) + b),  W: d -> 2 d                      (mixing=linear: d -> d)

h0 and h1 have k taps in each channel, the same at every level. By default there are J =
ceil(log2((n - 1) / (k - 1) + 1)) levels, where n is the length of the longest input; the last token
then depends on all n tokens. The mixer is causal in all models.

Cost       The tree takes O(n d k J) operations, without Fourier transforms, and the output map 4 n
           d^2. Memory is O(n d J).
State      The state stores the last inputs of each level, d (k - 1) (2^J - 1) numbers. Its size
           does not depend on `model.backbone.memory`.
Source     Shi et al. 2023, arXiv:2305.01638. Code: thjashin/multires-conv.
Notation   kernel_size of the released code is `taps` and indep_res_init `wide_skip`; its
           tree_select is always `fading`. In the released code, the weights w have the order
           w_{J+1}, w_J, ... w_1, w_{J+2}.
Published  The paper's models have 10 blocks without a feed-forward network (feed_forward=none),
           with the norm after the residual. On ListOps they have taps=4, wide_skip=true and batch
           norm.
Differs    Wavelet filters as initial values and the memory of equal resolution
           (tree_select=uniform) are unsupported. Distances skip padding inside a sequence and
           tokens of other documents.
"""

from typing import cast

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import (
    Family,
    Flow,
    Growth,
    Layout,
    Share,
    Site,
    State,
    Traits,
    blanked,
    options,
)
from lra.models.ops.channel_map import ChannelMixing, apply_channel_gate, channel_projection
from lra.models.ops.convolution.tree import depth_for, dilated_tree
from lra.models.ops.numerics import full_precision, sum_dtype
from lra.models.ops.recurrent.layer import Reading, locked_dropout, reading_order


def together(layout: Layout) -> tuple[Reading, Int[Tensor, "b l"] | None]:
    """Return an order of tokens (by document, padding last) and their documents in this order.

    In this order, the tokens of a document are adjacent, so distances count only its tokens.
    """
    key, keep = layout.document, layout.keep
    if key is None:
        return reading_order(keep, backwards=False), None
    if keep is not None:
        key = torch.where(keep, key, key.max() + 1)
    place = key.argsort(dim=1, stable=True)
    return Reading(place, backwards=False), key.gather(1, place)


@options
class MultiresConv(Family):
    """A tree of short convolutions and the map behind it."""

    taps: int = 2
    """Kernel size of each filter, k, at least 2."""
    levels: int | None = None
    """Number of levels of the tree, J; None: enough to cover the longest input."""
    wide_skip: bool = False
    """Whether the initial weight of the current token is drawn uniformly between -1 and 1, as for a
    residual; false: between -sqrt(1 / (J + 2)) and sqrt(1 / (J + 2)), like the other weights."""
    mixing: ChannelMixing = ChannelMixing.glu
    """Map over channels after the mixer's activation."""
    dropout: Share = 0.0
    """Dropout rate of the tree's output channels; a channel is dropped at all tokens of a
    sequence."""
    no_matrices = ("low", "high", "weights")

    def build(self, site: Site) -> None:
        """Make filters and weights; ValueError for `taps` or `levels` out of range."""
        if self.taps < 2:
            raise ValueError(
                "taps must be at least 2, because dilation needs a distance between taps: got "
                f"{self.taps}"
            )
        most = max(1, depth_for(site.max_length, self.taps))
        if self.levels is not None and not 1 <= self.levels <= most:
            raise ValueError(
                f"levels must be 1 to {most}, with which the last token depends on all of "
                f"{site.max_length} tokens: got {self.levels}; set null for the largest number"
            )
        width, depth = site.width, most if self.levels is None else self.levels
        self.low = nn.Parameter(torch.empty(width, self.taps))
        self.high = nn.Parameter(torch.empty(width, self.taps))
        self.weights = nn.Parameter(torch.empty(width, depth + 2))
        for filters in (self.low, self.high):
            nn.init.uniform_(filters, -(self.taps**-0.5), self.taps**-0.5)
        nn.init.uniform_(self.weights, -((depth + 2) ** -0.5), (depth + 2) ** -0.5)
        if self.wide_skip:
            nn.init.uniform_(self.weights[:, -1], -1, 1)
        self.out_proj = channel_projection(width, width, self.mixing)
        # By default, the number of levels grows with the logarithm of the length.
        self.traits = Traits(
            supports=frozenset({"keep", "start", "document"}),
            causal=True,
            operations=Growth(1.0, log=self.levels is None),
            memory=Growth(1.0, log=self.levels is None),
            training_noise=self.dropout > 0,
            summarises=True,
        )

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Continue after the inputs in `flow.state`; with state None, start without inputs."""
        if flow.state is not None and layout.document is not None:
            raise ValueError(
                "a state can continue only rows of one document: got a state and document numbers; "
                "begin each document with an empty state, and pass document=None"
            )
        x = blanked(flow.x, layout, self.traits)
        order, document = together(layout)  # tokens of a document side by side, padding last
        before = cast("tuple[Tensor, ...] | None", flow.state)
        with full_precision(x):
            z, after = dilated_tree(
                order.reorder(x), self.low, self.high, self.weights,
                before=before, document=document,
            )  # fmt: skip
        y = F.gelu(blanked(order.back(z.to(x.dtype)), layout, self.traits))
        y = locked_dropout(y, self.dropout, training=self.training)
        y = apply_channel_gate(self.out_proj(y), self.mixing)
        return flow._replace(x=y, state=None if before is None else after)

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return zeros for the earlier inputs that the taps of each level read."""
        del memory
        dtype, (width, taps) = sum_dtype(self.low), self.low.shape
        levels = self.weights.shape[1] - 2  # the other two weigh the lowest band and the input
        return tuple(
            self.low.new_zeros(batch_size, (taps - 1) << level, width, dtype=dtype)
            for level in range(levels)
        )
