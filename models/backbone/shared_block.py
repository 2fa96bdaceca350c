"""One block of attention that several layers use, with the embedding as a second input (Zamba2).

    y = x + mixer(LN(x + W_i c_i)),   c_i = F(LN_2 attention(LN_1 [x ; e]))
    F(h) = W_3 (gelu(W_1 h + A_i h) * (W_2 h + B_i h))

x is the residual stream of layer i and e the input of the stack. Attention, both norms and F have
one set of weights for all layers of one name; W_i, and the low-rank maps A_i and B_i, are those of
a layer. Attention is as wide as [x ; e] and projects back to the width of x; it has no residual.

Cost     Each use costs what one layer of attention of twice the width and one network cost.
Source   Glorioso et al. 2024, arXiv:2411.15242, and transformers, models/zamba2.
Differs  Scores are divided by sqrt(k), there by sqrt(k / 2): a factor sqrt(2) of the queries.
"""

from dataclasses import replace
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.backbone.canon import CanonPass
from lra.models.backbone.config import BackboneConfig, Residual
from lra.models.backbone.layers import site_with
from lra.models.backbone.norms import NORM_EPSILON, PreciseRMSNorm
from lra.models.backbone.parallel import (
    common_traits,
    joint_state,
    keeps_more,
    mixer_at,
    run_mixer,
)
from lra.models.backbone.stack import Blank, KeySource, TransformerBlock
from lra.models.linear_map import projection
from lra.models.mixer import Count, Flow, Layout, Site, State, Unsupported
from lra.models.multi_head import MultiHead


class SharedAttention(nn.Module):
    """The block that layers share: attention over [x ; e], then a gated network.

    Args:
        attention: A mixer of twice the width of the model, with one output projection.
        width: The width of the model.
        hidden: Inner width of the network.
    """

    def __init__(self, attention: MultiHead, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = PreciseRMSNorm(2 * width, NORM_EPSILON)
        biased = attention.out_proj.bias is not None
        self.back = projection(attention.out_proj.in_features, width, bias=biased)
        self.attention = attention
        self.attention.add_module("out_proj", nn.Identity())  # `back` is in its place
        self.network_norm = PreciseRMSNorm(width, NORM_EPSILON)
        self.gate_up = projection(width, 2 * hidden, bias=False)
        self.down = projection(hidden, width, bias=False)

    def forward(self, flow: Flow, layout: Layout, adapter: nn.Module | None) -> Flow:
        """Return c_i for the stream and the embedding side by side, and the state of attention."""
        mixed = self.attention.extend(flow.with_x(self.norm(flow.x)), layout)
        h = self.network_norm(self.back(mixed.x))
        gate, up = (self.gate_up(h) if adapter is None else self.gate_up(h) + adapter(h)).chunk(
            2, -1
        )
        return mixed.with_x(self.down(F.gelu(gate) * up))


class SharedContext(nn.Module):
    """The mixer of a layer, and what it adds to its input: the output of a shared block.

    Args:
        parts: What makes the attention of the shared block, and the layer's own mixer, by name.
        name: The layers that share a block have one name.
        adapter_rank: Rank of the maps A_i and B_i together; None: none.
        expansion: Inner width of the network, as a multiple of the model's width.

    Raises:
        ValueError: The first mixer is no attention with projections of all heads.
    """

    def __init__(
        self,
        site: Site,
        *,
        parts: Any,
        name: str,
        adapter_rank: Count | None = None,
        expansion: Count = 4,
    ) -> None:
        """Make the shared block, unless an earlier layer has made it, and the layer's own parts."""
        super().__init__()
        (make_attention, make_own), width = parts.values(), site.width
        frame = dict(getattr(make_attention, "backbone", {}))
        heads = frame.get("heads", site.heads)
        if (2 * width) % heads or "head_width" in frame:
            raise ValueError(
                "heads of a shared block fill twice the width of the model: got "
                f"width={width}, heads={heads}, head_width={frame.get('head_width')}; set heads "
                "to a divisor of twice the width, and no head_width"
            )
        frame |= {"head_width": 2 * width // heads}
        wide = site_with(site, frame, width=2 * width)

        def make() -> SharedAttention:
            attention = mixer_at(make_attention, wide)
            if not isinstance(attention, MultiHead):
                raise ValueError(
                    "the first of `shared` must be attention with one projection for all heads, "
                    f"such as sdpa: got {type(attention).__name__}"
                )
            return SharedAttention(attention, width, expansion * width)

        self.block = site.share(f"shared block {name}", make)
        own_frame = getattr(make_own, "backbone", {})
        self.own = mixer_at(make_own, site_with(site, own_frame))
        self.map = projection(width, width, bias=False)
        self.adapter: nn.Module | None = None
        if adapter_rank is not None:
            self.adapter = nn.Sequential(
                projection(width, adapter_rank, bias=False),
                projection(adapter_rank, 2 * expansion * width, bias=False),
            )
        both = (self.block.attention.traits, cast(Any, self.own).traits)
        joint = common_traits(both, (frame, own_frame), reversible=False)
        more = keeps_more((self.block.attention, self.own))
        self.traits = replace(joint, summarises=joint.summarises or more)

    def context(self, flow: Flow, layout: Layout) -> Flow:
        """Return W_i c_i and the state of attention; `flow.stream` has the input of the stack."""
        both = torch.cat((flow.x, cast(Tensor, flow.stream)), -1)
        added = self.block(flow.with_x(both), layout, self.adapter)
        return cast(Flow, added.with_x(self.map(added.x)))

    def forward(self, x: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b l d"]:
        """Refuse: only `SharedBlock` has the embedding."""
        return self.extend(Flow(x), layout).x

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Refuse: only `SharedBlock` has the embedding."""
        del flow, layout
        raise Unsupported(
            "a layer with a shared block reads the residual stream and the embedding, so it works "
            "only inside a stack: run the whole model"
        )

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return the empty states of both mixers; `Unsupported` if one of them has none."""
        return joint_state((self.block.attention, self.own), batch_size, memory)


class SharedBlock(TransformerBlock):
    """A block whose mixer also reads what a shared block makes of the stream and the embedding."""

    def mixed(
        self,
        flow: Flow,
        layout: Layout,
        blank: Blank = None,
        source: KeySource | None = None,
        canon: CanonPass | None = None,
    ) -> Flow:
        """Return what the mixer adds to the residual stream, and both states."""
        del source, canon
        mixer = cast(SharedContext, self.mixer)
        states = cast(tuple[State, ...], flow.state or (None, None))
        added = mixer.context(flow._replace(state=states[0]), layout)
        x = self.entering(flow.x + added.x, blank, layout.condition)
        entering = added.with_x(x)._replace(state=states[1])
        own = run_mixer(mixer.own, entering, layout)
        after = None if flow.state is None else (added.state, own.state)
        return own._replace(x=self.dropped(own.x), state=after)


def check_shared_layer(config: BackboneConfig) -> None:
    """Raise ValueError if a layer with a shared block does not fit these options."""
    if config.residual != Residual.pre_norm:
        raise ValueError(
            "a layer with a shared block adds to the residual stream before a norm: got residual="
            f"{config.residual}; set model.backbone.residual=pre_norm"
        )
    if config.canon:
        raise ValueError(
            "a layer with a shared block has no place for Canon layers: got "
            f"canon={config.canon}; leave model.backbone.canon empty"
        )
