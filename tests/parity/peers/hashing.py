"""Peers of attention by hashing."""

from typing import Any

import torch
from torch import Tensor

from lra.models.families.reformer import LogitScale, Reformer
from lra.models.families.yoso import Yoso, YosoEstimator
from lra.models.mixer import Layout
from peers.peer import (
    Given,
    Peer,
    PeerCase,
    PeerPair,
    by_heads,
    core_of,
    package,
    side_by_side,
)

CHUNK = 64
ROUNDS = 4


def reformer(case: PeerCase) -> PeerPair:
    """reformer-pytorch's LSHAttention with our rotations."""
    module = package("reformer_pytorch.reformer_pytorch")
    attention: Any = module.LSHAttention(bucket_size=CHUNK, n_hashes=ROUNDS, causal=case.causal)
    attention = case.placed(attention)
    buckets = case.length // CHUNK
    ours: Any = case.placed(
        Reformer(
            case.site(),
            rounds=ROUNDS,
            chunk=CHUNK,
            buckets=[buckets],
            logit_scale=LogitScale.rsqrt_d,
        )
    )
    # theirs [heads as batch, k, round, column]; ours [round, head, k, column]
    rotations = ours.rotations.permute(1, 2, 0, 3).repeat(case.batch, 1, 1, 1)

    def hashed(n_buckets: int, vectors: Tensor, **_: object) -> Tensor:
        turned = torch.einsum("btf,bfhi->bhti", vectors, rotations)
        found = torch.cat((turned, -turned), -1).argmax(-1)
        offsets = torch.arange(ROUNDS, device=found.device)[None, :, None] * n_buckets
        return (found + offsets).flatten(1)

    attention.hash_vectors = hashed
    ours.qk_proj = ours.out_proj = torch.nn.Identity()
    ours.v_proj = Given()

    def own(qk: Tensor, v: Tensor) -> Tensor:
        ours.v_proj.value = side_by_side(v)
        out: Tensor = ours(side_by_side(qk), Layout())
        return by_heads(out, case.heads)

    def theirs(qk: Tensor, v: Tensor) -> Tensor:
        out: Tensor = attention(qk.flatten(0, 1), v.flatten(0, 1))[0]
        return out.view_as(v)

    return PeerPair(own, theirs, case.heads_of_inputs(2))


def yoso(case: PeerCase) -> PeerPair:
    """Transformers' YosoSelfAttention in expectation, its projections left out."""
    module = package("transformers.models.yoso.modeling_yoso")
    config = package("transformers").YosoConfig(
        hidden_size=case.width,
        num_attention_heads=case.heads,
        use_expectation=True,
        conv_window=None,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=case.length,
        hash_code_len=9,
    )
    peer = case.placed(module.YosoSelfAttention(config))
    ours = Yoso(case.site(), mode=YosoEstimator.expectation, tau=9)
    peer.query, peer.key, peer.value = Given(), Given(), Given()
    hidden = torch.zeros(case.batch, case.length, dtype=case.dtype, device=case.device)

    def theirs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for layer, value in ((peer.query, q), (peer.key, k), (peer.value, v)):
            layer.value = side_by_side(value)
        out: Tensor = peer(peer.query.value, attention_mask=hidden)[0]
        return by_heads(out, case.heads)

    return PeerPair(core_of(ours, case), theirs, case.heads_of_inputs())


PEERS = (
    Peer(
        name="reformer-pytorch LSHAttention",
        distribution="reformer-pytorch",
        family="reformer",
        setting=f"{ROUNDS} rounds, chunks of {CHUNK}",
        make=reformer,
        causal=True,
        tolerance=1e-5,
        rounding=2e-3,
        multiple=2 * CHUNK,
        note="our rotations; logits are q k / (|k| sqrt(d)), as logit_scale=rsqrt_d; ours adds "
        "1e-6 to the mean square of a key, as its authors do; its logits of -50,000 "
        "for the own token leave two digits in float32; counting duplicates is defective",
    ),
    Peer(
        name="transformers YosoSelfAttention",
        distribution="transformers",
        family="yoso",
        setting="expectation, tau 9, no convolution",
        make=yoso,
        note="quadratic: the expectation of hashing; its hashes need a CUDA kernel, and its "
        "padding mask moves real outputs",
    ),
)
