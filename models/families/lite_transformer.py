"""Lite Transformer: attention on half of the channels, convolution on the other half.

    x = [x_a ; x_c],   y = [attention(x_a) ; convolution(x_c)]

This is long-short range attention. The first d_a channels go through multi-head softmax attention.
The other d_c = d - d_a channels go through the convolution of `light_conv` or `dynamic_conv`. Both
have separate projections and the same number of heads; the channels are split before any
projection. In the paper the feed-forward network is as wide as the model ("flattened"): set
`model.backbone.feed_forward_width` to the width.

Cost       If d_a = d / 2, attention takes 2 n d^2 + 2 n^2 d operations, and a gated convolution of
           K taps takes 1.5 n d^2 and about n (K + 31) d more.
Source     Wu et al. 2020, arXiv:2004.11886, section 4; mit-han-lab/lite-transformer
           (modules/multibranch.py and configs/).
Published  The paper's models have 4 heads and kernels 3, 7, 15, 31, 31, 31 in six layers. They use
           `dynamic` with a gate for translation from English, and `light` without a gate for
           IWSLT'14.
Differs    `attention_dropout` applies to the weights of both branches; the released code has one
           rate for each branch. Positions inside attention, such as rotary ones, apply to the
           attention branch alone.
"""

from dataclasses import replace
from enum import StrEnum, auto
from typing import cast

import torch

from lra.models.mixer import Family, Flow, Growth, Layout, Site, State, Traits
from lra.models.multi_head import MultiHead
from lra.models.ops.convolution.layer import DynamicConvolution, GatedConvolution, LightConvolution
from lra.models.ops.exact import ExactCore, sdpa


class Branch(StrEnum):
    """Kind of convolution: one kernel per head (light), or one per token and head (dynamic)."""

    light = auto()
    dynamic = auto()


class LongShortRangeAttention(Family):
    """Attention on some of the channels and a convolution on the others, with the same heads.

    Args:
        attention_width: Number of channels of attention, the first channels of each token; None:
            half of the channels.
        convolution: Kind of convolution for the channels without attention.
        kernel: Kernel size of the convolution, one number or one per layer.
        glu: Whether a gated linear unit precedes the convolution.
        bias: Whether the projections of attention have biases.

    Raises:
        ValueError: A branch would have no channels, or heads do not divide its channels.
    """

    attention: MultiHead
    convolution: GatedConvolution

    def __init__(
        self,
        site: Site,
        *,
        attention_width: int | None = None,
        convolution: Branch = Branch.dynamic,
        kernel: list[int] = [31],  # noqa: B006  read, never written; the schema is this signature
        glu: bool = True,
        bias: bool = True,
    ) -> None:
        """Make attention on the first channels and a convolution on the others."""
        super().__init__()
        width = site.width // 2 if attention_width is None else attention_width
        if not 0 < width < site.width or width % site.heads or (site.width - width) % site.heads:
            raise ValueError(
                "attention has attention_width channels and the convolution has the others, and "
                f"heads={site.heads} must divide both numbers: got attention_width={width}, "
                f"width={site.width}; set model.backbone.width to a multiple of {2 * site.heads}, "
                "or another attention_width"
            )
        self.widths = [width, site.width - width]
        kind = {Branch.light: LightConvolution, Branch.dynamic: DynamicConvolution}[convolution]
        narrow = replace(site, width=width)
        core = ExactCore(narrow, sdpa, memory=Growth(1.0))
        self.attention = MultiHead(narrow, core, bias=bias)
        self.convolution = kind(replace(site, width=site.width - width), kernel=kernel, glu=glu)
        attention_traits, convolution_traits = self.attention.traits, self.convolution.traits
        self.traits = Traits(
            supports=attention_traits.supports & convolution_traits.supports,
            positions=attention_traits.positions,
            causal=site.causal,
            operations=Growth(2.0),
            weight_dropout=True,
            sees_order=attention_traits.sees_order or convolution_traits.sees_order,
        )

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Run both branches on their channels, each from its part of `flow.state` (or None)."""
        x_attention, x_convolution = torch.split(flow.x, self.widths, dim=-1)
        old_attention, old_convolution = cast(tuple[State, State], flow.state or (None, None))
        attended = self.attention.extend(Flow(x_attention, old_attention), layout)
        convolved = self.convolution.extend(Flow(x_convolution, old_convolution), layout)
        state = None if flow.state is None else (attended.state, convolved.state)
        return flow._replace(x=torch.cat((attended.x, convolved.x), dim=-1), state=state)

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return the empty states of both branches."""
        attention = self.attention.initial_state(batch_size, memory)
        return attention, self.convolution.initial_state(batch_size, memory)
