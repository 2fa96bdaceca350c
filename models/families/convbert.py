"""ConvBERT: some heads use softmax attention, the others span-based dynamic convolution.

    h' = h / gamma heads of width e = d / h for each half, d' = h' e
    q, k, v = x W_q, x W_k, x W_v                  d -> d'
    s = depthwise(x) W_s                           a convolution of K taps, then d -> d'
    w_i = softmax_t((q_i * s_i) W_w)               K taps for each token and head
    y_i = sum_t w_it c_(i + t - P),                c = x W_c, d -> d'
    output = [attention(q, k, v) ; y] W_o          2 d' -> d

with P = (K - 1) / 2, or K - 1 where the mixer is causal. Through the span s, the kernel of a token
also depends on its neighbours, so that equal tokens have different kernels at different places.

Cost       The projections take 2 n d' (6 d + K d / d' + h' K) operations, attention 4 n^2 d', and
           the dynamic convolution 2 n (K + 31) d'. State: keys and values, and the last K - 1
           tokens of x and of c.
Source     Jiang et al. 2020, arXiv:2008.02496, section 4; yitu-opensource/ConvBert
           (model/modeling.py), whose depthwise kernels start as N(0, 1 / K).
Published  The paper's models have K = 9 and gamma = 2. The medium-small model also has
           model.backbone.feed_forward_groups=2 and model.backbone.embedding_width=128.
Differs    Both convolutions read padding as 0; in the released code padded tokens influence their
           neighbours. In causal models both convolutions read earlier tokens only; the paper has
           only encoders. The released code draws the other weights from N(0, 0.02).
"""

from dataclasses import replace
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.linear_map import projection
from lra.models.mixer import Count, Family, Flow, Growth, Layout, Need, Site, State, Traits, blanked
from lra.models.multi_head import MultiHead, biases
from lra.models.ops.convolution.dynamic import dynamic_convolution
from lra.models.ops.convolution.layer import TapSoftmax
from lra.models.ops.exact import ExactCore, sdpa

KERNEL = 9
"""Taps by default, for inputs of any length."""


class MixedAttention(Family):
    """Attention and span-based dynamic convolution, with as many heads each.

    W_o is stored as two maps, one for each half, whose outputs are added.

    Args:
        kernel: Kernel size of both convolutions, an odd number.
        head_ratio: Number of heads of the model divided by the number of heads of each half
            (gamma). The largest value is the number of heads; the default gives each half at least
            one head.
        bias: Whether projections have biases, unless the backbone sets this (`qkv_bias`,
            `output_bias`).

    Raises:
        ValueError: The kernel is even or wider than the longest input, or a ratio below 1.
    """

    needs = (
        Need(
            "head_ratio",
            words="at least head_ratio heads",
            holds=lambda site, chosen: site is None or chosen.head_ratio <= site.heads,
        ),
    )

    def __init__(
        self, site: Site, *, kernel: int = KERNEL, head_ratio: Count = 2, bias: bool = True
    ) -> None:
        """Make attention on some heads, and span-based dynamic convolution on as many."""
        reach = site.max_length if site.causal else 2 * site.max_length - 1
        # The default is allowed for any length, so that short inputs need no option.
        too_wide = kernel > reach and kernel != KERNEL
        if kernel < 1 or kernel % 2 == 0 or too_wide:
            raise ValueError(
                "kernel, the number of positions that a convolution reads, must be odd and, for "
                f"inputs of up to {site.max_length} tokens, at most {reach}: got {kernel}"
            )
        super().__init__()
        # Each half has fewer heads than the model, of the same width as those of the model.
        heads = max(1, site.heads // head_ratio)
        half_site = replace(site, heads=heads, own_head_width=site.head_width)
        core = ExactCore(half_site, sdpa, memory=Growth(1.0))
        self.attention = MultiHead(half_site, core, bias=bias)
        self.heads, self.kernel = heads, kernel
        self.margins = (kernel - 1, 0) if site.causal else (kernel // 2, kernel // 2)
        self.normalise = TapSoftmax(self.margins[0])
        width, inner, with_bias = site.width, half_site.inner_width, biases(site, bias).qkv
        self.span = nn.Parameter(torch.empty(width, 1, kernel))
        nn.init.normal_(self.span, std=1 / kernel)
        self.span_proj = projection(width, inner, bias=with_bias)
        self.kernel_proj = projection(inner, heads * kernel, bias=with_bias)
        self.values_proj = projection(width, inner, bias=with_bias)
        self.convolved_proj = projection(inner, width, bias=False)
        traits = self.attention.traits
        self.traits = Traits(
            positions=traits.positions,
            options=traits.options,
            causal=site.causal,
            operations=Growth(2.0),
            weight_dropout=True,
            sees_order=traits.sees_order or kernel > 1,
        )

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Return the layer's output for `flow.x` and the next state; a state of None means zeros.

        The state has three parts: that of attention, and the last `kernel - 1` tokens of x and c.
        """
        memory, old_x, old_c = cast(
            tuple[State, Tensor | None, Tensor | None], flow.state or (None, None, None)
        )
        attended = self.attention.extend(Flow(flow.x, memory), layout)
        x = blanked(flow.x, layout, self.traits)
        c = blanked(self.values_proj(x), layout, self.traits)
        x_context, c_context = (
            self._add_context(before, part) for before, part in ((old_x, x), (old_c, c))
        )
        span = F.conv1d(x_context.mT, self.span, groups=x.shape[-1]).mT
        logits = self.kernel_proj(self.attention.q_proj(x) * self.span_proj(span))
        taps = self.normalise(torch.unflatten(logits, -1, (self.heads, -1)).transpose(1, 2))
        taps = F.pad(taps, (0, 0, *self.margins))  # outputs at the margins are cut off below
        heads = torch.unflatten(c_context, -1, (self.heads, -1)).transpose(1, 2)
        first = self.margins[0]
        y = dynamic_convolution(heads, taps, first)[:, :, first : first + x.shape[1]]
        y = self.convolved_proj(y.transpose(1, 2).flatten(2).to(c.dtype))
        state = flow.state
        if old_x is not None and old_c is not None:
            begin = x_context.shape[1] - (self.kernel - 1)
            # Cloned, because a view would keep the whole segment in memory.
            state = (
                attended.state,
                x_context[:, begin:].to(old_x.dtype).clone(),
                c_context[:, begin:].to(old_c.dtype).clone(),
            )
        return flow._replace(x=attended.x + y, state=state)

    def _add_context(
        self, before: Float[Tensor, "b m w"] | None, x: Float[Tensor, "b l w"]
    ) -> Float[Tensor, "b n w"]:
        """Return `x` with the tokens before and after it that the convolutions read.

        If `before` is None, these are zeros on both sides; else they are the m tokens `before`.
        """
        if before is None:
            return F.pad(x, (0, 0, *self.margins))
        return torch.cat((before.to(x.dtype), x), dim=1)

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return an empty memory for attention, and zeros for the last `kernel - 1` tokens."""
        attended = self.attention.initial_state(batch_size, memory)
        widths = self.values_proj.in_features, self.values_proj.out_features
        like = self.values_proj.weight
        zeros = (like.new_zeros(batch_size, self.kernel - 1, width) for width in widths)
        return (attended, *zeros)
