"""Layers that differ within a stack: their options of the backbone, and layers without a mixer.

A hybrid may have heads of another width in its layers of attention, positions in some layers only,
layers without a network, and layers that are only a network (Nemotron-H, arXiv:2504.03624):

    x + mixer(LN x)          feed_forward=none
    x + network(LN x)        `NoMixer`
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from lra.models.backbone.canon import CanonPass
from lra.models.backbone.config import BackboneConfig, Residual
from lra.models.backbone.networks import WITHOUT_MAPS
from lra.models.backbone.norms import Condition, apply_norm, norm_of
from lra.models.backbone.stack import Blank, KeySource, TransformerBlock, family
from lra.models.idle import defaults
from lra.models.mixer import (
    FACTS,
    INSIDE,
    SITE_OPTIONS,
    Flow,
    Layout,
    MixerFactory,
    Positions,
    Site,
    State,
    Traits,
    Unsupported,
)

OF_NETWORK = (
    "feed_forward_bias", "feed_forward_chunks", "feed_forward_groups", "activation_dropout"
)  # fmt: skip
"""Options that have no effect in a layer without a network."""


def layer_config(config: BackboneConfig, mixer: MixerFactory) -> BackboneConfig:
    """Return the options of the backbone in the layers that `mixer` makes.

    Raises:
        ValueError: They contradict each other, or other options need equal layers.
    """
    own = dict(getattr(mixer, "backbone", {}))
    if not own:
        return config
    if config.pool_blocks > 1 or config.decoder_depth:
        option = "pool_blocks" if config.pool_blocks > 1 else "decoder_depth"
        raise ValueError(
            f"layers with separate options form one stack of one length: got {option}="
            f"{getattr(config, option)}; set it to its default, or remove `backbone` from "
            "model.layer_options"
        )
    if Positions.__members__.get(str(own.get("positions", "none"))) not in {
        Positions.none, *INSIDE
    }:  # fmt: skip
        raise ValueError(
            "positions of a layer are none, or those that a mixer applies itself "
            f"({', '.join(sorted(INSIDE))}): got {own['positions']}; set the others in "
            "model.backbone.positions"
        )
    streams = {Residual.pre_norm, Residual.output_norm, Residual.sandwich}
    kinds = {str(own.get("residual", config.residual)), str(config.residual)}
    if len(kinds) > 1 and not kinds <= streams:
        raise ValueError(
            "the layers of a stack differ in residual only among pre_norm, output_norm and "
            f"sandwich, which share one residual stream: got {' and '.join(sorted(kinds))}"
        )
    if own.get("feed_forward") in WITHOUT_MAPS:
        usual = defaults(BackboneConfig)
        own = {**{name: usual[name] for name in OF_NETWORK}, **own}
    return replace(config, **own)


OF_SITE = {
    "heads": "heads", "positions": "positions", **SITE_OPTIONS
}  # fmt: skip
"""Options of a layer that its mixer reads, each with its field of `Site`."""


def site_with(site: Site, own: Mapping[str, Any], width: int | None = None) -> Site:
    """Return the place of a mixer with its `own` options of the backbone, and another width."""
    facts = {OF_SITE[name]: own[name] for name in own if name in OF_SITE}
    placed = replace(site, width=width or site.width, **facts)
    _ = placed.head_width  # raises an error if heads do not divide width
    return placed


class NoMixer(nn.Module):
    """Stands in a layer that has a network alone."""

    def __init__(self, site: Site) -> None:
        """Promise everything: no token reads another."""
        super().__init__()
        self.traits = Traits(
            supports=frozenset(FACTS),
            positions=frozenset(each.value for each in INSIDE),
            options=frozenset(SITE_OPTIONS),
            causal=site.causal,
            reach=0,
            sees_order=False,
        )

    def forward(self, x: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b l d"]:
        """Return zeros: what this layer adds to the residual stream without its network."""
        del layout
        return x.new_zeros(x.shape)

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Return zeros, and the state unchanged."""
        return flow.with_x(self.forward(flow.x, layout))

    def initial_state(self, batch_size: int, memory: int) -> State:  # noqa: ARG002
        """Return an empty tuple, because the layer remembers nothing."""
        return ()


class NetworkBlock(TransformerBlock):
    """A position-wise network after a norm, with a residual, and no mixer."""

    def __init__(self, mixer: nn.Module, **options: Any) -> None:
        """Make the block without the norm before the mixer."""
        super().__init__(mixer, **options)
        self.mixer_norm = nn.Identity()

    def forward(
        self, flow: Flow, layout: Layout, blank: Blank = None, source: KeySource | None = None
    ) -> Flow:
        """Apply the network at each position."""
        del blank, source
        return flow.with_x(flow.x + self.by_pieces(flow.x, condition=layout.condition))


class OutputNormBlock(TransformerBlock):
    """One mixer and one position-wise network, each with a norm of its output, and a residual."""

    def __init__(self, mixer: nn.Module, **options: Any) -> None:
        """Make the block; raise `Unsupported` for a mixer that gates the residual itself."""
        super().__init__(mixer, **options)
        if self.gates:
            raise Unsupported(
                f"{family(mixer)} joins its output to the residual stream itself, so no norm can "
                "stand between them: choose model.backbone.residual=pre_norm"
            )

    def entering(
        self, x: Float[Tensor, "b l d"], blank: Blank, condition: Condition = None
    ) -> Float[Tensor, "b l d"]:
        """Return the input of the mixer: the residual stream `x`, 0 where `blank`."""
        del condition
        return x if blank is None else x.masked_fill(blank, 0.0)

    def mix(self, flow: Flow, layout: Layout, source: KeySource | None = None) -> Flow:
        """Return the norm of the mixer's output."""
        mixed = super().mix(flow, layout, source)
        return mixed.with_x(apply_norm(self.mixer_norm, mixed.x, layout.condition))

    def transformed(
        self, x: Float[Tensor, "b l d"], canon: CanonPass | None = None, condition: Condition = None
    ) -> Float[Tensor, "b l d"]:
        """Return what the network adds to the residual stream `x`: the norm of its output."""
        norm: Any = self.network_norm
        return self.dropped(apply_norm(norm, self.computed(x, canon), condition))


class SandwichBlock(OutputNormBlock):
    """One mixer and one position-wise network, each between two norms, with a residual."""

    def __init__(self, mixer: nn.Module, **options: Any) -> None:
        """Make the block, and the norms before mixer and network."""
        super().__init__(mixer, **options)
        kind, width, epsilon = (options[name] for name in ("norm", "width", "norm_epsilon"))
        self.mixer_input_norm = norm_of(kind, width, epsilon)
        self.network_input_norm = None
        if self.network is not None:
            self.network_input_norm = norm_of(kind, width, epsilon)

    def entering(
        self, x: Float[Tensor, "b l d"], blank: Blank, condition: Condition = None
    ) -> Float[Tensor, "b l d"]:
        """Return the input of the mixer: the norm of the residual stream `x`, 0 where `blank`."""
        return super().entering(apply_norm(self.mixer_input_norm, x, condition), blank)

    def transformed(
        self, x: Float[Tensor, "b l d"], canon: CanonPass | None = None, condition: Condition = None
    ) -> Float[Tensor, "b l d"]:
        """Return what the network adds to the residual stream `x`."""
        norm: Any = self.network_input_norm
        return super().transformed(apply_norm(norm, x, condition), canon, condition)


def check_network_layer(config: BackboneConfig) -> None:
    """Raise ValueError if a layer without a mixer does not fit these options."""
    if config.residual != Residual.pre_norm:
        raise ValueError(
            "a layer without a mixer (none in model.layers) is a network after a norm, with a "
            f"residual: got residual={config.residual}; set model.backbone.residual=pre_norm"
        )
    if config.canon:
        raise ValueError(
            "a layer without a mixer (none in model.layers) has no place for Canon layers: got "
            f"canon={config.canon}; leave model.backbone.canon empty"
        )
    if config.feed_forward in WITHOUT_MAPS:
        raise ValueError(
            "a layer without a mixer (none in model.layers) needs a network: got feed_forward="
            f"{config.feed_forward}; set model.backbone.feed_forward, or that of the layer in "
            "model.layer_options"
        )
