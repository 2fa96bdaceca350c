"""The stack: blocks of a sequence mixer and a position-wise network, from Flow to Flow.

A pre-norm block computes `x + mixer(LN x)`, then `x + network(LN x)`; one more norm (LN) follows
the last block. A post-norm block computes `LN(x + mixer(x))`, then `LN(x + network(x))`; one more
norm comes before the first block. Any module that maps (Flow, Layout) to Flow can replace a stack.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lra.models.backbone.canon import CanonNetwork, CanonPass, CanonPlaces
from lra.models.backbone.networks import FeedForward, network_of
from lra.models.backbone.norms import NORM_EPSILON, Condition, NormKind, apply_norm, norm_of
from lra.models.mixer import (
    FACTS,
    Extends,
    Flow,
    GatesResidual,
    Layout,
    Remembers,
    State,
    Traits,
    Unsupported,
)
from lra.models.positions import At, Spacing

Blank: TypeAlias = Bool[Tensor, "b l 1"] | None
"""True for padding, which enters a mixer as zeros."""


class KeySource(NamedTuple):
    """The input of a layer's keys and values, if it is not the input of its queries."""

    x: Float[Tensor, "b s d"] | None
    """Tokens for keys and values; None: the layer's input, but at the positions `at`."""
    layout: Layout
    blank: Blank
    at: At


def family(mixer: object) -> str:
    """Return the name of a mixer (or stack) in messages, which is its class's name."""
    return type(mixer).__name__


class TiedDropout(nn.Dropout):
    """Dropout that removes a channel at all positions of a sequence together."""

    def forward(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        """Apply dropout."""
        return nn.functional.dropout1d(x.mT, self.p, self.training).mT


class TransformerBlock(nn.Module):
    """One mixer and one position-wise network, each after a norm, each with a residual.

    With `chunks` above 1, the network processes this many pieces of the length one after the other,
    stores only their inputs, and computes them again in backward.
    """

    def __init__(
        self,
        mixer: nn.Module,
        *,
        width: int,
        feed_forward: FeedForward,
        feed_forward_width: int,
        dropout: float,
        feed_forward_bias: bool = True,
        chunks: int = 1,
        norm: NormKind = NormKind.layer,
        norm_epsilon: float = NORM_EPSILON,
        activation_dropout: float | None = None,
        feed_forward_groups: int = 1,
        tied_dropout: bool = False,
    ) -> None:
        """Make norms, network and dropout, and note what the mixer can do: `isinstance` is slow."""
        super().__init__()
        self.mixer_norm = norm_of(norm, width, norm_epsilon)
        self.mixer = mixer
        self.dropout = (TiedDropout if tied_dropout else nn.Dropout)(dropout)
        self.extends = isinstance(mixer, Extends)
        self.gates = isinstance(mixer, GatesResidual)
        self.chunks = chunks
        self.canon: CanonPlaces | None = None
        self.network_norm: nn.Module | None = None
        self.network: nn.Sequential | None = None
        if feed_forward != FeedForward.none:
            self.network_norm = norm_of(norm, width, norm_epsilon)
            inside = dropout if activation_dropout is None else activation_dropout
            self.network = network_of(
                width, feed_forward_width, inside,
                kind=feed_forward, bias=feed_forward_bias, groups=feed_forward_groups,
            )  # fmt: skip

    def forward(
        self, flow: Flow, layout: Layout, blank: Blank = None, source: KeySource | None = None
    ) -> Flow:
        """Apply the mixer, then the network at each position, each with a residual.

        The mixer reads tokens as zeros where `blank`; keys and values come from `source` (None:
        from `flow`).
        """
        flow, canon = self.begun(flow, layout)
        mixed = self.mixed(flow, layout, blank, source, canon)
        x = flow.x + mixed.x
        if self.network is not None:
            x = x + self.by_pieces(x, canon, layout.condition)
        return self.ended(mixed.with_x(x), canon)

    def add_canon(self, canon: CanonPlaces) -> None:
        """Add Canon layers to the block."""
        self.canon = canon
        if self.network is not None:
            self.network = CanonNetwork(*self.network)

    def begun(self, flow: Flow, layout: Layout) -> tuple[Flow, CanonPass | None]:
        """Return the flow with the mixer's state alone, and the pass of the Canon layers."""
        if self.canon is None:
            return flow, None
        of_mixer, of_canon = cast(tuple[State, State], flow.state or (None, None))
        return flow._replace(state=of_mixer), self.canon.over(layout, of_canon)

    def ended(self, flow: Flow, canon: CanonPass | None) -> Flow:
        """Return the flow with the states of mixer and Canon layers, if there is a state."""
        if canon is None or flow.state is None:
            return flow
        return flow._replace(state=(flow.state, canon.state()))

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return the empty state of the mixer, with that of Canon layers if there are some."""
        if not isinstance(self.mixer, Remembers):
            raise Unsupported(
                f"{family(self.mixer)} has no state that continues from token to token, so it "
                "cannot write one token at a time: choose another family, or run the whole "
                "sequence through forward"
            )
        state = self.mixer.initial_state(batch_size, memory)
        return state if self.canon is None else (state, self.canon.empty(batch_size))

    def by_pieces(
        self, x: Float[Tensor, "b l d"], canon: CanonPass | None = None, condition: Condition = None
    ) -> Float[Tensor, "b l d"]:
        """Return `transformed(x)`, computed for one piece of the length after another."""
        if self.chunks == 1:
            return self.transformed(x, canon, condition)
        parts = self.pieces(x)
        recompute = len(parts) > 1 and torch.is_grad_enabled()
        outputs = [
            checkpoint(self.transformed, part, None, condition, use_reentrant=False)
            if recompute
            else self.transformed(part, None, condition)
            for part in parts
        ]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)

    def mixed(
        self,
        flow: Flow,
        layout: Layout,
        blank: Blank = None,
        source: KeySource | None = None,
        canon: CanonPass | None = None,
    ) -> Flow:
        """Return what the mixer adds to the residual stream, and its state; see `forward`."""
        entering = flow.with_x(self.entering(flow.x, blank, layout.condition))
        if canon is not None:
            x = canon.at("A", entering.x)
            entering = entering.with_x(x if blank is None else x.masked_fill(blank, 0.0))
        if self.gates:
            mixer = cast(GatesResidual, self.mixer)
            return mixer.gated_extend(entering, layout, flow.x, self.dropout)
        mixed = self.mix(entering, layout, source)
        return mixed.with_x(self.dropped(mixed.x))

    def entering(
        self, x: Float[Tensor, "b l d"], blank: Blank, condition: Condition = None
    ) -> Float[Tensor, "b l d"]:
        """Return the input of the mixer: the norm of the residual stream `x`, 0 where `blank`."""
        x = apply_norm(self.mixer_norm, x, condition)
        return x if blank is None else x.masked_fill(blank, 0.0)

    def dropped(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        """Return `x` after dropout; a rate of 0 skips the call."""
        remaining: Tensor = self.dropout(x) if self.dropout.p else x
        return remaining

    def pieces(self, x: Float[Tensor, "b l d"]) -> tuple[Tensor, ...]:
        """Cut the length of `x` into `chunks` pieces, or fewer if it is too short."""
        return x.chunk(self.chunks, dim=1)

    def transformed(
        self, x: Float[Tensor, "b l d"], canon: CanonPass | None = None, condition: Condition = None
    ) -> Float[Tensor, "b l d"]:
        """Return what the network adds to the residual stream `x`."""
        norm = cast(nn.Module, self.network_norm)
        return self.dropped(self.computed(apply_norm(norm, x, condition), canon))

    def computed(
        self, x: Float[Tensor, "b l d"], canon: CanonPass | None
    ) -> Float[Tensor, "b l d"]:
        """Return the output of the network at each position."""
        network: Any = self.network
        computed: Tensor = network(x) if canon is None else network(x, canon)
        return computed

    def mix(self, flow: Flow, layout: Layout, source: KeySource | None = None) -> Flow:
        """Return the mixer's output: from `attend` if there is a `source`, else from `extend`.

        `extend` also updates state and stream; a mixer without it is called directly.
        """
        mixer: Any = self.mixer
        if source is not None:
            key_input = flow.x if source.x is None else self.entering(source.x, source.blank)
            return flow.with_x(mixer.attend(flow.x, layout, key_input, source.layout, source.at))
        if self.extends:
            extended: Flow = mixer.extend(flow, layout)
            return extended
        if flow.state is not None:
            raise Unsupported(
                f"{family(mixer)} has no method `extend`, so it cannot continue from a state: "
                "choose another family, or pass no state"
            )
        return flow.with_x(mixer(flow.x, layout))


class PostNormBlock(TransformerBlock):
    """One mixer and one position-wise network, each with a residual and a norm of the sum."""

    def forward(
        self, flow: Flow, layout: Layout, blank: Blank = None, source: KeySource | None = None
    ) -> Flow:
        """Apply the mixer, then the network at each position; norm each sum."""
        flow, canon = self.begun(flow, layout)
        mixed = self.mixed(flow, layout, blank, source, canon)
        x = apply_norm(self.mixer_norm, flow.x + mixed.x, layout.condition)
        if self.network is not None:
            x = self.by_pieces(x, canon, layout.condition)
        return self.ended(mixed.with_x(x), canon)

    def entering(
        self, x: Float[Tensor, "b l d"], blank: Blank, condition: Condition = None
    ) -> Float[Tensor, "b l d"]:
        """Return the input of the mixer, which the previous block has normed already."""
        del condition
        return x if blank is None else x.masked_fill(blank, 0.0)

    def transformed(
        self, x: Float[Tensor, "b l d"], canon: CanonPass | None = None, condition: Condition = None
    ) -> Float[Tensor, "b l d"]:
        """Return the block's output at each position: norm(x + network(x))."""
        norm = cast(nn.Module, self.network_norm)
        return apply_norm(norm, x + self.dropped(self.computed(x, canon)), condition)


class PlainBlock(TransformerBlock):
    """One mixer, then one position-wise network, without residuals and norms."""

    def __init__(self, mixer: nn.Module, **options: Any) -> None:
        """Make the block with the identity as its norm, so that `mixed` works unchanged."""
        super().__init__(mixer, **options)
        self.mixer_norm = nn.Identity()
        self.network_norm = None

    def forward(
        self, flow: Flow, layout: Layout, blank: Blank = None, source: KeySource | None = None
    ) -> Flow:
        """Apply the mixer, then the network at each position."""
        flow, canon = self.begun(flow, layout)
        mixed = self.mixed(flow, layout, blank, source, canon)
        x = mixed.x if self.network is None else self.by_pieces(mixed.x, canon)
        return self.ended(mixed.with_x(x), canon)

    def transformed(
        self, x: Float[Tensor, "b l d"], canon: CanonPass | None = None, condition: Condition = None
    ) -> Float[Tensor, "b l d"]:
        """Return the block's output at each position: network(x), with dropout."""
        del condition
        return self.dropped(self.computed(x, canon))


def _find_used_facts(traits: Traits) -> frozenset[str]:
    """Return the names of the layout's facts that a mixer with these traits uses."""
    return traits.supports | ({"keep"} if traits.hides_others else set())


class Stack(nn.Module):
    """Blocks one after the other, then a norm.

    With `checkpointing`, a block stores only its input and is computed again in backward, with the
    same random state, so that dropout is the same. With `zeroed`, mixers get no mask of padding and
    read padding as zeros.
    """

    def __init__(
        self,
        blocks: Sequence[TransformerBlock],
        *,
        width: int,
        checkpointing: bool = False,
        zeroed: bool = False,
        norm: NormKind = NormKind.layer,
        norm_epsilon: float = NORM_EPSILON,
    ) -> None:
        """Make the last norm, and note which facts each mixer uses: `refuse` runs in every pass."""
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm_of(norm, width, norm_epsilon)
        self.checkpointing = checkpointing
        self.zeroed = zeroed
        self.streams_input = False
        """Whether layers read the input of the stack, in `Flow.stream`."""
        self.supported = [
            (family(block.mixer), _find_used_facts(cast(Any, block.mixer).traits))
            for block in blocks
        ]

    def checked(self, layout: Layout) -> tuple[Layout, Blank]:
        """Return the layout for the mixers, and the mask of tokens that they read as zeros.

        Raises:
            Unsupported: Some mixer would ignore a fact of the layout.
        """
        blank = None
        if self.zeroed and layout.keep is not None:
            blank = ~layout.keep[..., None]
            layout = layout._replace(keep=None)
        self.refuse(layout)
        return layout, blank

    def refuse(self, layout: Layout) -> None:
        """Raise `Unsupported` if some mixer would ignore a fact in `layout`."""
        facts = {name for name in FACTS if getattr(layout, name) is not None}
        for layer, (name, supports) in enumerate(self.supported):
            if ignored := sorted(facts - supports):
                raise Unsupported(
                    f"{name} (layer {layer}) does not support these facts of a layout: got "
                    f"{', '.join(ignored)}; it supports {', '.join(sorted(supports)) or 'none'}. "
                    f"Choose another family, or a task without {', '.join(ignored)}"
                )

    def forward(self, flow: Flow, layout: Layout, *, first: bool = False) -> Flow:
        """Return the output after all blocks and the last norm, and the next state if one is given.

        Args:
            flow: Tokens that enter the first block, and a state with one entry per block, or None.
            layout: Facts of the tokens.
            first: Whether to return only the output at position 0.
        """
        flow = self.opened(flow, layout.condition)
        if self.streams_input:
            flow = flow._replace(stream=flow.x)
        layout, blank = self.checked(layout)
        has_state = flow.state is not None
        states = cast(tuple[State, ...], flow.state if has_state else (None,) * len(self.blocks))
        after = []
        for block, state in zip(self.blocks, states, strict=True):
            flow = flow._replace(state=state) if has_state else flow
            flow = self.through(block, flow, layout, blank)
            after.append(flow.state)
        flow = flow._replace(state=tuple(after)) if has_state else flow
        return flow.with_x(self.closed(flow.x[:, :1] if first else flow.x, layout.condition))

    def queried(self, flow: Flow, queries: Float[Tensor, "b l d"], layout: Layout) -> Flow:
        """Return the output of a second stream of queries, as in XLNet (section 2.3).

        `layout.order` has a rank for each token. In the first stream, which starts as `flow.x`, a
        token attends to itself and to tokens of lower or equal rank. In the second stream, which
        starts as `queries`, the query at a token's place attends only to tokens of lower rank in
        the first stream, so its output can predict this token (arXiv:1906.08237).
        """
        content_flow, query_flow = self.opened(flow), self.opened(flow.with_x(queries))
        layout, blank = self.checked(layout)
        assert layout.order is not None, "the batch must contain the order of prediction"
        lower_ranks = layout._replace(order=layout.order - 1)
        for block in self.blocks:
            source = KeySource(content_flow.x, layout, blank, At(Spacing(), Spacing()))
            query_flow = self.through(block, query_flow, lower_ranks, blank, source)
            content_flow = self.through(block, content_flow, layout, blank)
        return content_flow.with_x(self.closed(query_flow.x))

    def through(self, block: nn.Module, flow: Flow, *facts: Any) -> Flow:
        """Return `block(flow, *facts)`, with activation checkpointing if it is on."""
        passed: Flow
        if self.checkpointing and torch.is_grad_enabled():
            passed = checkpoint(block, flow, *facts, use_reentrant=False)
        else:
            passed = block(flow, *facts)
        return passed

    def mask_out(self, keep: Bool[Tensor, "b l"]) -> Bool[Tensor, "b m"]:
        """Return which output positions are real, given which inputs are: here they are equal."""
        return keep

    def opened(self, flow: Flow, condition: Condition = None) -> Flow:
        """Return the input of the first block, given the input of the stack."""
        del condition
        return flow

    def closed(
        self, x: Float[Tensor, "b l d"], condition: Condition = None
    ) -> Float[Tensor, "b l d"]:
        """Return the output of the stack, given the output of the last block."""
        return apply_norm(self.norm, x, condition)

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return the empty states of all mixers; raise `Unsupported` if one has no state."""
        blocks = [cast(TransformerBlock, self.blocks[layer]) for layer in self.visits]
        return tuple(block.initial_state(batch_size, memory) for block in blocks)

    @property
    def visits(self) -> list[int]:
        """The number of each layer, from 0, in the order in which they are applied."""
        return list(range(len(self.blocks)))


class PostNormStack(Stack):
    """A norm, then blocks one after the other, each of which ends with a norm."""

    def opened(self, flow: Flow, condition: Condition = None) -> Flow:
        """Return the normed embeddings."""
        return flow.with_x(apply_norm(self.norm, flow.x, condition))

    def closed(
        self, x: Float[Tensor, "b l d"], condition: Condition = None
    ) -> Float[Tensor, "b l d"]:
        """Return the last block's output, which is normed already."""
        del condition
        return x
