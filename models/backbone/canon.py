"""Canon layers in a block: at which places, and what each remembers of a row.

    A  mixer(canon(norm(x)))         before the mixer
    B  canon([q; k; v])              inside it, after their norms and before rotary positions
    C  network(canon(norm(x)))       before the network
    D  W_2 act(canon(W_1 x))         on the network's wide vector: two gated maps, concatenated

`lra.models.canon` defines the layer. B is a part of the mixer; a block has the others.
"""

from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lra.models.backbone.choices import Residual
from lra.models.backbone.networks import WITHOUT_MAPS, GatedMaps
from lra.models.canon import Canon
from lra.models.mixer import Idle, Layout, State, Unsupported

PLACES = "ABCD"


def check_canon(config: Any) -> None:
    """Raise ValueError if the places of Canon layers in `config` contradict other options."""
    places = config.canon
    if not places:
        return
    if "".join(each for each in PLACES if each in places) != places:
        raise ValueError(
            "canon lists places of Canon layers, each of A, B, C and D at most once and in this "
            f'order, as in canon=ABCD: got "{places}"; leave it empty for none'
        )
    conflicts = {
        f"residual={Residual.reversible}": config.residual == Residual.reversible,
        f"pool_blocks={config.pool_blocks}": config.pool_blocks > 1,
        f"decoder_depth={config.decoder_depth}": config.decoder_depth > 0,
    }
    for option, conflicting in conflicts.items():
        if conflicting:
            raise ValueError(
                "a Canon layer reads the tokens before each token of a stack of ordinary layers, "
                f"which {option} does not have: got canon={places}; leave canon empty, or {option} "
                "at its default"
            )
    inside = {"C", "D"} & {*places}
    if inside and config.feed_forward in WITHOUT_MAPS:
        raise ValueError(
            "the places C and D of Canon layers are in the feed-forward network: got "
            f"canon={places} with feed_forward={config.feed_forward}; use A and B alone, or set "
            "feed_forward=gelu"
        )
    if inside and config.feed_forward_chunks > 1:
        raise ValueError(
            "the places C and D of Canon layers read neighbouring tokens, which may be in another "
            f"piece of the length: got canon={places} with feed_forward_chunks="
            f"{config.feed_forward_chunks}; use A and B alone, or set feed_forward_chunks=1"
        )


def check_canon_mixer(mixer: nn.Module, places: str, *, ordered: bool) -> None:
    """Raise `Unsupported` if Canon layers at these `places` fit neither mixer nor task.

    `ordered`: whether tokens are predicted in a random order.
    """
    if places and ordered:
        raise Unsupported(
            "a Canon layer reads the tokens before each token, which objective=permutation may "
            f"hide: got model.backbone.canon={places}; leave it empty, or choose another objective"
        )
    if "B" in places and getattr(mixer, "canon", None) is None:
        raise Idle(
            f"{type(mixer).__name__} has no projections to queries, keys and values that a Canon "
            f"layer could follow with these options: got model.backbone.canon={places}; omit B, "
            "or choose a family of attention such as softmax or sdpa",
            "backbone.canon",
        )


class CanonPlaces(nn.ModuleDict):
    """The Canon layers of a block, at those of the places A, C and D that it has.

    Args:
        places: Letters of the places.
        width: Channels of the model.
        wide: Channels of the network's wide vector.
    """

    def __init__(self, places: str, width: int, wide: int) -> None:
        widths = {"A": width, "C": width, "D": wide}
        super().__init__({each: Canon(widths[each]) for each in places if each in widths})

    def empty(self, batch_size: int) -> State:
        """Return zeros for what each layer remembers of `batch_size` rows."""
        return tuple(cast(Canon, layer).empty(batch_size) for layer in self.values())

    def over(self, layout: Layout, state: State) -> "CanonPass":
        """Return a pass over tokens with this `layout`, which continues from `state`."""
        return CanonPass(self, layout, state)


class CanonPass:
    """One pass of a block's Canon layers over a batch.

    Args:
        layers: The layers.
        layout: Facts of the tokens.
        state: What `CanonPlaces.empty` returns, after earlier tokens; None: there are none.
    """

    def __init__(self, layers: CanonPlaces, layout: Layout, state: State) -> None:
        self.layers, self.layout = layers, layout
        self.before = dict(zip(layers, cast(tuple[Tensor, ...], state or ()), strict=False))
        self.after: dict[str, Tensor] = {}

    def at(self, place: str, x: Float[Tensor, "b l e"]) -> Float[Tensor, "b l e"]:
        """Return `x` after the Canon layer at this place; without one, `x` itself."""
        if place not in self.layers:
            return x
        y, self.after[place] = self.layers[place](x, self.layout, self.before.get(place))
        return cast(Tensor, y)

    def state(self) -> State:
        """Return what all layers remember after the pass."""
        return tuple(self.after[place] for place in self.layers)


class CanonNetwork(nn.Sequential):
    """The layers of a network, with a Canon layer before the first and one after it."""

    def forward(self, x: Float[Tensor, "b l d"], canon: CanonPass) -> Float[Tensor, "b l d"]:  # type: ignore[override]
        """Return the network's output at each position."""
        first, *others = self
        x = canon.at("C", x)
        if isinstance(first, GatedMaps):
            wide = canon.at("D", torch.cat((first.gate(x), first.value(x)), dim=-1))
            gate, value = wide.chunk(2, dim=-1)
            x = first.act(gate) * value
        else:
            x = canon.at("D", first(x))
        for layer in others:
            x = layer(x)
        return x
