"""The decoder of an encoder-decoder model: what a block of it adds to a block of the stack.

With Longformer as the encoder and exact attention here, for the mixer and across, this is LED
(Beltagy et al. 2020, arXiv:2004.05150, section 7): n source tokens cost the encoder O(n), and each
of m target tokens sees all of them, O(m n + m^2).

    source = encoder(Flow(embedded), layout).x
    for block in blocks:
        flow = block(flow, Layout(), source, layout)
"""

from jaxtyping import Float
from torch import Tensor, nn

from models.backbone.requirements import checked_mixer
from models.backbone.stack import FeedForward, TransformerBlock, family, network_of
from models.mixer import Flow, Layout, Mixer, Positions, State, Unsupported
from models.multi_head import MultiHead


class DecoderBlock(nn.Module):
    """A causal mixer, attention to the source, a network: each behind a norm, with a residual.

    Args:
        mixer: Any causal mixer; its state along time goes through `Flow` as in `TransformerBlock`.
        cross: Attends to the source. Built at a site with causal=False and positions=none, since
            source and target have no common order; keys and values are made anew in every call.
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
        own = checked_mixer(mixer, positions=Positions.none, causal=True, max_length=1)
        if not cross.traits.cross:
            raise Unsupported(
                f"{family(cross)} offers no cross attention (traits.cross=False): choose an exact "
                "family, at a site with causal=False"
            )
        self.own = TransformerBlock(
            own,
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
        """Continue the target; `source_layout.keep` says which tokens of the source are real."""
        flow = self.own(flow, layout)
        seen = self.cross.attend(self.cross_norm(flow.x), layout, source, source_layout)
        x = flow.x + self.dropout(seen)
        return flow._replace(x=x + self.dropout(self.network(self.network_norm(x))))

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return the mixer's empty state; the source needs none."""
        return self.own.mixer.initial_state(batch_size, memory)  # type: ignore[operator, no-any-return]
