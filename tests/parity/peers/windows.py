"""Peers of attention within windows and blocks."""

from torch import nn

from lra.models.families.local import LocalAttention
from lra.models.families.longformer import Longformer
from lra.models.families.sliding_window import SlidingWindow
from peers.peer import (
    Peer,
    PeerCase,
    PeerPair,
    core_of,
    layer_of,
    package,
    projections,
)

WINDOW = 128
BLOCK = 64


def exact_window(case: PeerCase) -> PeerPair:
    """local-attention with an exact window."""
    peer = package("local_attention").LocalAttention(
        WINDOW, causal=case.causal, exact_windowsize=True, use_rotary_pos_emb=False
    )
    ours = core_of(SlidingWindow(case.site(), window=[WINDOW]), case)
    return PeerPair(ours, peer, case.heads_of_inputs())


def blocks(case: PeerCase) -> PeerPair:
    """local-attention as it comes: the own block, the one before, the one behind if allowed."""
    peer = package("local_attention").LocalAttention(
        BLOCK, causal=case.causal, use_rotary_pos_emb=False
    )
    mixer = LocalAttention(
        case.site(), block=BLOCK, look_back=1, look_forward=0 if case.causal else 1
    )
    return PeerPair(core_of(mixer, case), peer, case.heads_of_inputs())


def longformer(case: PeerCase) -> PeerPair:
    """Transformers' LongformerSelfAttention, without its output projection, and no global token."""
    config = package("transformers").LongformerConfig(
        hidden_size=case.width,
        num_attention_heads=case.heads,
        attention_window=[2 * WINDOW],
        attention_probs_dropout_prob=0.0,
    )
    module = package("transformers.models.longformer.modeling_longformer")
    peer = case.placed(module.LongformerSelfAttention(config, 0))
    ours = case.placed(Longformer(case.site(), window=[WINDOW]))
    weights = projections(ours, peer, ("query", "key", "value"))
    ours.out_proj = nn.Identity()
    shape = (case.batch, case.length)
    mask = next(peer.parameters()).new_zeros(shape)
    nowhere = mask.bool()
    return PeerPair(
        layer_of(ours),
        lambda x: peer(
            x,
            attention_mask=mask,
            is_index_masked=nowhere,
            is_index_global_attn=nowhere,
            is_global_attn=False,
        )[0],
        case.tokens(),
        weights,
    )


PEERS = (
    Peer(
        name="local-attention LocalAttention, exact window",
        distribution="local-attention",
        family="sliding_window",
        setting=f"window of {WINDOW} to each side",
        make=exact_window,
        causal=True,
        multiple=WINDOW,
        note="its rotary positions are off; with autopad it attends to its own padding",
    ),
    Peer(
        name="local-attention LocalAttention",
        distribution="local-attention",
        family="local",
        setting=f"blocks of {BLOCK} with their neighbours",
        make=blocks,
        causal=True,
        multiple=BLOCK,
        note="its rotary positions are off",
    ),
    Peer(
        name="transformers LongformerSelfAttention",
        distribution="transformers",
        family="longformer",
        setting=f"window of {WINDOW} to each side, a layer",
        make=longformer,
        tolerance=1e-5,
        multiple=2 * WINDOW,
        note="without a global token; it has no output projection, so ours is left out; its "
        "softmax is in float32",
    ),
)
