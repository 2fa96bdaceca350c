"""Peers of attention beside convolutions."""

from typing import Any

from torch import Tensor, nn

from lra.models.families.convbert import MixedAttention
from peers.peer import (
    Peer,
    PeerCase,
    PeerPair,
    layer_of,
    package,
    projections,
    twins,
)


def convbert(case: PeerCase) -> PeerPair:
    """Transformers' ConvBertSelfAttention, without an output projection."""
    module = package("transformers.models.convbert.modeling_convbert")
    config = package("transformers").ConvBertConfig(
        hidden_size=case.width,
        num_attention_heads=case.heads,
        head_ratio=2,
        conv_kernel_size=9,
        attention_probs_dropout_prob=0.0,
    )
    peer: Any = case.placed(module.ConvBertSelfAttention(config))
    ours: Any = case.placed(MixedAttention(case.site()))
    span = peer.key_conv_attn_layer
    weights = [
        *projections(ours.attention, peer, ("query", "key", "value")),
        twins(ours.span, span.depthwise.weight),
        twins(ours.span_proj.weight, span.pointwise.weight, lambda w: w[..., 0]),
        twins(ours.span_proj.bias, span.bias, lambda b: b[:, 0]),
    ]
    for own, other in (("kernel_proj", "conv_kernel_layer"), ("values_proj", "conv_out_layer")):
        weights += [
            twins(getattr(getattr(ours, own), kind), getattr(getattr(peer, other), kind))
            for kind in ("weight", "bias")
        ]
    # Each half is handed on by a map that puts it in its place.
    inner = ours.values_proj.out_features
    ours.attention.out_proj = nn.ConstantPad1d((0, inner), 0.0)
    ours.convolved_proj = nn.ConstantPad1d((inner, 0), 0.0)

    def theirs(x: Tensor) -> Tensor:
        out: Tensor = peer(x)[0]
        return out

    return PeerPair(layer_of(ours), theirs, case.tokens(), tuple(weights))


PEERS = (
    Peer(
        name="transformers ConvBertSelfAttention",
        distribution="transformers",
        family="convbert",
        setting="9 taps, half of the heads attend, a layer",
        make=convbert,
        note="it has no output projection, so ours is left out; padding reaches its convolutions",
    ),
)
