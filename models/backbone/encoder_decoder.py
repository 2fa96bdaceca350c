"""An encoder and a decoder as one stack: the encoder reads the prefix, the decoder what follows it.

    [s1 s2 s3 | _ t1 t2]     prefix = 3
     encoder    decoder      each token of the decoder sees all of the source, and itself and those
                             before it among the decoder's

From outside it is a causal stack that honours a prefix, as attention under a prefix mask is: the
same batches train both. Transformer (Vaswani et al. 2017, arXiv:1706.03762, section 3.1) with any
family that looks both ways as the encoder; with Longformer it is LED (Beltagy et al. 2020,
arXiv:2004.05150, section 7). Positions of the decoder's tokens restart. What stands at the
places of the source is zeros: nothing is answered there.

The decoder of an encoder-decoder model: what a block of it adds to a block of the stack.

With Longformer as the encoder and exact attention here, for the mixer and across, this is LED
(Beltagy et al. 2020, arXiv:2004.05150, section 7): n source tokens cost the encoder O(n), and each
of m target tokens sees all of them, O(m n + m^2).

    source = encoder(Flow(embedded), layout).x
    for block in blocks:
        flow = block(flow, Layout(), source, layout)
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lra.conf.choices import rebind
from lra.models.backbone.assembly import block_of, stack_of
from lra.models.backbone.choices import DecoderMixer
from lra.models.backbone.config import BackboneConfig, TaskFacts
from lra.models.backbone.networks import FeedForward, network_of
from lra.models.backbone.requirements import checked_mixer
from lra.models.backbone.stack import Stack, TransformerBlock, family
from lra.models.mixer import (
    Flow,
    Layout,
    Mixer,
    MixerFactory,
    Positions,
    Site,
    State,
    Traits,
    Unsupported,
)
from lra.models.multi_head import MultiHead


class DecoderBlock(nn.Module):
    """A causal mixer, attention to the source, a network: each behind a norm, with a residual.

    Args:
        mixer: Any causal mixer; its state along time goes through `Flow` as in `TransformerBlock`.
        cross: Attends to the source. Built at a site with causal=False and positions=none, since
            source and target have no common order; keys and values are recomputed in every call.
        width: Of both sequences.
        feed_forward_width: Hidden width of the network.
        dropout: After each part, and inside the network.

    Raises:
        Unsupported: `mixer` looks at later tokens, or `cross` offers no cross attention.
    """

    def __init__(
        self,
        mixer: Mixer,
        cross: MultiHead,
        *,
        width: int,
        feed_forward_width: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self_mixer = checked_mixer(mixer, positions=Positions.none, causal=True, max_length=1)
        if not cross.traits.cross:
            raise Unsupported(
                f"{family(cross)} has no cross attention (traits.cross=False): choose a family of "
                "exact attention, such as softmax or sdpa, built with causal=False"
            )
        self.own = TransformerBlock(
            self_mixer,
            width=width,
            feed_forward=FeedForward.none,
            feed_forward_width=feed_forward_width,
            dropout=dropout,
        )
        self.cross_norm, self.network_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.cross = cross
        self.network = network_of(width, feed_forward_width, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        flow: Flow,
        layout: Layout,
        source: Float[Tensor, "b s d"],
        source_layout: Layout,
    ) -> Flow:
        """Continue the target, attending to the source.

        `source_layout.keep` is True for real tokens of the source.
        """
        flow = self.own(flow, layout)
        seen = self.cross.attend(self.cross_norm(flow.x), layout, source, source_layout)
        x = flow.x + self.dropout(seen)
        return flow.with_x(x + self.dropout(self.network(self.network_norm(x))))

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return the mixer's empty state; attention to the source needs no state."""
        return self.own.mixer.initial_state(batch_size, memory)  # type: ignore[operator, no-any-return]


class EncoderDecoder(nn.Module):
    """Maps rows of a source and its continuation, which `layout.prefix` separates.

    Args:
        encoder: Of the source.
        decoder: Blocks of what follows.
        facts: Lengths of both, and whether sources vary.
        width: Of tokens.
    """

    restarts = True
    """Positions restart after the prefix."""

    def __init__(
        self, encoder: Stack, decoder: Sequence[DecoderBlock], *, facts: TaskFacts, width: int
    ) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, nn.ModuleList(decoder)
        self.norm = nn.LayerNorm(width)
        self.facts = facts
        mixers = [cast(Any, block).mixer for block in encoder.blocks]
        mixers += [block.own.mixer for block in decoder]
        all_traits = [mixer.traits for mixer in mixers]
        self.traits = Traits(
            supports=frozenset({"keep", "prefix"}),
            positions=frozenset.intersection(*(traits.positions for traits in all_traits)),
            options=frozenset.intersection(*(traits.options for traits in all_traits)),
            causal=True,
            operations=max(traits.operations for traits in all_traits),
            memory=max(traits.memory for traits in all_traits),
            weight_dropout=all(traits.weight_dropout for traits in all_traits),
        )

    def forward(self, flow: Flow, layout: Layout) -> Flow:
        """Encode the tokens before `layout.prefix`, and decode the tokens after it."""
        prefix, (_, length, width) = layout.prefix, flow.x.shape
        if prefix is None or flow.state is not None:
            raise Unsupported(
                "an encoder-decoder reads whole rows and needs to know where the source ends: "
                "pass the prefix of each row"
            )
        begins, place = prefix[:, None], torch.arange(length, device=flow.x.device)
        sources = min(self.facts.source_length, length)
        keep = None
        if self.facts.sources_vary:
            keep = place[:sources] < begins
            if layout.keep is not None:
                keep = keep & layout.keep[:, :sources]
        seen = Layout(keep=keep)
        encoded = self.encoder(flow.with_x(flow.x[:, :sources]), seen)
        steps = place[: min(self.facts.target_length, length)]
        # Behind a row's end stands its last token again, which no earlier one sees.
        index = (begins + steps).clamp(max=length - 1)[..., None].expand(-1, -1, width)
        after: Flow = encoded.with_x(flow.x.gather(1, index))
        for block in self.decoder:
            after = block(after, Layout(), encoded.x, seen)
        index = (place - begins).clamp(0, len(steps) - 1)[..., None].expand(-1, -1, width)
        x = self.norm(after.x).gather(1, index).masked_fill((place < begins)[..., None], 0.0)
        return after.with_x(x)

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Raise `Unsupported`, because the continuation is read as a whole."""
        del batch_size, memory
        raise Unsupported(
            "an encoder-decoder has no state that continues from token to token: choose "
            "decoder_depth=0"
        )


def encoder_decoder(
    site: Site,
    config: BackboneConfig,
    *,
    mixers: Sequence[MixerFactory],
    exact: MixerFactory,
    facts: TaskFacts,
) -> EncoderDecoder:
    """Return a stack of an encoder with `config.depth` layers and a decoder with `decoder_depth`.

    Args:
        site: Of the whole; what a layer's own site has otherwise is said here.
        config: Options of the backbone.
        mixers: Of the encoder: one for all layers, or one for each.
        exact: A family of exact attention: of the decoder, and from it to the source.
        facts: What the task says.

    Raises:
        Unsupported: The encoder's mixers do not look both ways, or the decoder's look ahead.
    """
    if not mixers:
        raise Unsupported(
            "this family arranges its layers itself, so it cannot be the encoder of an "
            f"encoder-decoder: got model.backbone.decoder_depth={config.decoder_depth}; set it to "
            "0, or choose another family"
        )
    decoder_mixer = exact if config.decoder_mixer == DecoderMixer.exact else mixers[-1]

    def placed(layer: int, depth: int, longest: int, *, causal: bool, shared: Any) -> Site:
        words = int(torch.randint(2**62, (), generator=site.generator, device="cpu"))
        return replace(
            site,
            layer=layer,
            depth=depth,
            max_length=longest,
            causal=causal,
            shared=shared,
            generator=torch.Generator().manual_seed(words),
        )

    def checked(make: MixerFactory, at: Site, *, padded: bool) -> nn.Module:
        return checked_mixer(
            rebind(make)(at),
            positions=config.positions,
            causal=at.causal,
            max_length=at.max_length,
            site=at,
            padded=padded,
            per_token=True,
        )

    read, written, across = ({}, {}, {})  # type: ignore[var-annotated]  # of each its own modules
    blocks = []
    for layer in range(config.depth):
        at = placed(layer, config.depth, facts.source_length, causal=False, shared=read)
        make = mixers[layer if len(mixers) > 1 else 0]
        blocks.append(block_of(checked(make, at, padded=facts.sources_vary), config))
    decoder = []
    for layer in range(config.decoder_depth):
        depth = config.decoder_depth
        at = placed(layer, depth, facts.target_length, causal=True, shared=written)
        mixer = checked(decoder_mixer, at, padded=False)
        cross_site = placed(layer, depth, facts.source_length, causal=False, shared=across)
        cross = rebind(exact)(replace(cross_site, positions=Positions.none))
        decoder.append(
            DecoderBlock(
                cast(Any, mixer),
                cast(Any, cross),
                width=config.width,
                feed_forward_width=config.feed_forward_width,
                dropout=config.dropout,
            )
        )
    encoder = stack_of(blocks, config, per_token=True)
    return EncoderDecoder(encoder, decoder, facts=facts, width=config.width)
