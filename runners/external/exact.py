"""Peers of exact attention and of the Fourier mixer, which have nothing to approximate."""

from typing import Any

from torch import Tensor, nn

from models.families.fnet import FNet
from models.families.sdpa import SDPA
from models.families.softmax import SoftmaxAttention
from runners.external.peer import Peer, PeerCase, PeerPair, layer_of, package, projections, twins


def attention(case: PeerCase) -> PeerPair:
    """PyTorch's MultiheadAttention, which returns no weights."""
    peer: Any = case.placed(nn.MultiheadAttention(case.width, case.heads, batch_first=True))
    ours: Any = case.placed(SDPA(case.site()))
    width = case.width
    weights = []
    for part, name in enumerate(("q_proj", "k_proj", "v_proj")):

        def rows(fused: Tensor, part: int = part) -> Tensor:
            return fused[part * width : (part + 1) * width]

        weights.append(twins(getattr(ours, name).weight, peer.in_proj_weight, rows))
        bias = twins(getattr(ours, name).bias, peer.in_proj_bias, rows)
        if name != "k_proj":  # see `projections`
            weights.append(bias)
    for kind in ("weight", "bias"):
        weights.append(twins(getattr(ours.out_proj, kind), getattr(peer.out_proj, kind)))
    mask = None
    if case.causal:
        mask = nn.Transformer.generate_square_subsequent_mask(
            case.length, device=case.device, dtype=case.dtype
        )

    def theirs(x: Tensor) -> Tensor:
        out: Tensor = peer(x, x, x, need_weights=False, attn_mask=mask, is_causal=case.causal)[0]
        return out

    return PeerPair(layer_of(ours), theirs, case.tokens(), tuple(weights))


def bert(case: PeerCase) -> PeerPair:
    """Transformers' BertSelfAttention in its eager form, without an output projection."""
    module = package("transformers.models.bert.modeling_bert")
    config = package("transformers").BertConfig(
        hidden_size=case.width,
        num_attention_heads=case.heads,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
    peer: Any = case.placed(module.BertSelfAttention(config))
    ours: Any = case.placed(SoftmaxAttention(case.site()))
    weights = projections(ours, peer, ("query", "key", "value"))
    ours.out_proj = nn.Identity()
    return PeerPair(layer_of(ours), lambda x: peer(x)[0], case.tokens(), weights)


def fourier(case: PeerCase) -> PeerPair:
    """Transformers' FNetBasicFourierTransform."""
    module = package("transformers.models.fnet.modeling_fnet")
    config = package("transformers").FNetConfig(
        hidden_size=case.width, max_position_embeddings=case.length
    )
    peer: Any = module.FNetBasicFourierTransform(config)
    return PeerPair(layer_of(FNet(case.site())), lambda x: peer(x)[0], case.tokens())


PEERS = (
    Peer(
        name="torch nn.MultiheadAttention",
        distribution="torch",
        family="sdpa",
        setting="a layer",
        make=attention,
        causal=True,
    ),
    Peer(
        name="transformers BertSelfAttention",
        distribution="transformers",
        family="softmax",
        setting="the literal form of both, a layer",
        make=bert,
        note="it has no output projection, so ours is left out",
    ),
    Peer(
        name="transformers FNetBasicFourierTransform",
        distribution="transformers",
        family="fnet",
        setting="FFT over length and width",
        make=fourier,
        note="it takes no mask: padding moves real outputs",
    ),
)
