"""An encoder and a decoder as one stack: the encoder reads the source, the decoder the rest.

    [s1 s2 s3 | _ t1 t2]     prefix = 3
     encoder    decoder      a token of the decoder attends to the whole source, to itself, and to
                             earlier tokens of the decoder

Like attention with a prefix mask, it is a causal stack that supports `layout.prefix`, so the same
batches train both. It is the Transformer (Vaswani et al. 2017, arXiv:1706.03762, section 3.1) with
any bidirectional family as the encoder. Positions restart at the decoder's first token. The output
at source tokens is 0, because no answer is read there.

With Longformer as the encoder, and exact attention in the decoder, this is LED (Beltagy et al.
2020, arXiv:2004.05150, section 7). The encoder takes O(n) time for n source tokens; the decoder
takes O(m n + m^2), because each of m target tokens attends to the whole source.

    source = encoder(Flow(embedded), layout).x
    for block in blocks:
        flow = block(flow, Layout(), source, layout)
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
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


def source_mask(layout: Layout, longest: int) -> Bool[Tensor, "b s"]:
    """Return which of the first `longest` places of a row hold real tokens of its source."""
    assert layout.prefix is not None
    keep = torch.arange(longest, device=layout.prefix.device) < layout.prefix[:, None]
    return keep if layout.keep is None else keep & layout.keep[:, :longest]


def cut_targets(
    x: Float[Tensor, "b l d"], prefix: Int[Tensor, " b"], longest: int
) -> Float[Tensor, "b t d"]:
    """Cut the targets out of rows: token t of a target is at place `prefix` + t of its row.

    A short target is filled up with the row's last token; no earlier token depends on it.
    """
    steps = torch.arange(min(longest, x.shape[1]), device=x.device)
    cut = (prefix[:, None] + steps).clamp(max=x.shape[1] - 1)
    return x.gather(1, cut[..., None].expand(-1, -1, x.shape[2]))


def put_targets(
    x: Float[Tensor, "b t d"], prefix: Int[Tensor, " b"], length: int
) -> Float[Tensor, "b l d"]:
    """Put outputs at tokens of targets back into rows of this length; those of sources are 0."""
    place = torch.arange(length, device=x.device) - prefix[:, None]
    back = place.clamp(0, x.shape[1] - 1)[..., None].expand(-1, -1, x.shape[2])
    return x.gather(1, back).masked_fill((place < 0)[..., None], 0.0)


class DecoderBlock(nn.Module):
    """A causal mixer, attention to the source, and a network, each with a norm before it.

    Each of the three is added to the residual stream.

    Args:
        mixer: Any causal mixer; its state along time goes through `Flow` as in `TransformerBlock`.
        cross: Attention to the source, built with causal=False and positions=none, because source
            and target have no common order. It computes keys and values again in every call.
        width: Width of the tokens of source and target.
        feed_forward_width: Hidden width of the network.
        dropout: Dropout after each part, and inside the network.

    Raises:
        Unsupported: `mixer` attends to later tokens, or `cross` has no cross attention.
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
        """Make norms and the network around `mixer` and `cross`, and check both."""
        super().__init__()
        # Only causality is checked here: `encoder_decoder` checks the rest, with the mixer's site.
        self_mixer = checked_mixer(mixer, positions=Positions.none, causal=True, max_length=1)
        if not cross.traits.cross:
            raise Unsupported(
                f"{family(cross)} has no cross attention (its traits.cross is False): choose a "
                "family of exact attention, such as softmax or sdpa, built with causal=False"
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
        """Return the block's output for the target `flow`, which attends to `source`.

        `source_layout.keep` is True for real tokens of the source.
        """
        flow = self.own(flow, layout)
        attended = self.cross.attend(self.cross_norm(flow.x), layout, source, source_layout)
        x = flow.x + self.dropout(attended)
        return flow.with_x(x + self.dropout(self.network(self.network_norm(x))))

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return the mixer's empty state; attention to the source needs no state."""
        return self.own.mixer.initial_state(batch_size, memory)  # type: ignore[operator, no-any-return]


class EncoderDecoder(nn.Module):
    """A stack for rows that hold a source and then a target; `layout.prefix` separates them.

    Args:
        encoder: The stack that reads the source.
        decoder: The blocks that read the target.
        facts: Largest lengths of source and target, and whether sources differ in length.
        width: Width of the tokens.
    """

    restarts = True
    """Positions restart after the prefix."""

    def __init__(
        self, encoder: Stack, decoder: Sequence[DecoderBlock], *, facts: TaskFacts, width: int
    ) -> None:
        """Join the traits of all mixers: each promise holds if it holds for every one of them.

        `keep` and `prefix` need no support of the mixers, because `forward` applies both itself: it
        cuts rows at the prefix, and the decoder sees no padding.
        """
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
        """Encode the first `layout.prefix` tokens of each row, and decode the tokens after them.

        Sources and targets are cut out of the rows, padded to their largest length, and put back.
        """
        prefix, length = layout.prefix, flow.x.shape[1]
        if prefix is None or flow.state is not None:
            raise Unsupported(
                "an encoder-decoder reads whole rows, without a state, and needs to know where "
                "the source of each row ends: pass layout.prefix, and no state"
            )
        source_length = min(self.facts.source_length, length)
        keep = source_mask(layout, source_length) if self.facts.sources_vary else None
        source_layout = Layout(keep=keep)
        encoded = self.encoder(flow.with_x(flow.x[:, :source_length]), source_layout)
        target: Flow = encoded.with_x(cut_targets(flow.x, prefix, self.facts.target_length))
        for block in self.decoder:
            target = block(target, Layout(), encoded.x, source_layout)
        return target.with_x(put_targets(self.norm(target.x), prefix, length))

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Raise `Unsupported`, because the decoder reads the whole target at once."""
        del batch_size, memory
        raise Unsupported(
            "an encoder-decoder has no state that continues from token to token: set "
            "model.backbone.decoder_depth=0"
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
        site: Facts that hold for all layers, such as the width.
        config: Options of the backbone.
        mixers: Factories of the encoder's mixers: one for all layers, or one for each.
        exact: A family of exact attention, for attention to the source and, unless
            `config.decoder_mixer` is family, for the decoder's mixers.
        facts: Facts of the task.

    Raises:
        Unsupported: A mixer of the encoder is causal only, or one of the decoder cannot be causal.
    """
    if not mixers:
        raise Unsupported(
            "this family arranges its layers itself, so it cannot be the encoder of an "
            f"encoder-decoder: got model.backbone.decoder_depth={config.decoder_depth}; set it to "
            "0, or choose another family"
        )
    decoder_mixer = exact if config.decoder_mixer == DecoderMixer.exact else mixers[-1]

    def make_site(layer: int, depth: int, longest: int, *, causal: bool, shared: Any) -> Site:
        """Return the site of one layer, with a generator seeded from that of the whole stack."""
        seed = int(torch.randint(2**62, (), generator=site.generator, device="cpu"))
        return replace(
            site, layer=layer, depth=depth, max_length=longest, causal=causal, shared=shared,
            generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip

    def build_mixer(make: MixerFactory, at: Site, *, padded: bool) -> nn.Module:
        """Return the mixer that `make` builds for `at`; raise an error if it does not fit."""
        return checked_mixer(
            rebind(make)(at), positions=config.positions, causal=at.causal,
            max_length=at.max_length, site=at, padded=padded, per_token=True,
        )  # fmt: skip

    # Layers share modules only within the encoder, within the decoder, or within cross attention.
    of_encoder, of_decoder, of_cross = ({}, {}, {})  # type: ignore[var-annotated]
    blocks = []
    for layer in range(config.depth):
        at = make_site(layer, config.depth, facts.source_length, causal=False, shared=of_encoder)
        make = mixers[layer if len(mixers) > 1 else 0]
        blocks.append(block_of(build_mixer(make, at, padded=facts.sources_vary), config))
    decoder = []
    for layer in range(config.decoder_depth):
        depth = config.decoder_depth
        at = make_site(layer, depth, facts.target_length, causal=True, shared=of_decoder)
        mixer = build_mixer(decoder_mixer, at, padded=False)
        cross_site = make_site(layer, depth, facts.source_length, causal=False, shared=of_cross)
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
