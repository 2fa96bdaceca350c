"""Peer of BigBird."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from models.families.big_bird import BigBird
from peers.peer import Peer, PeerCase, PeerPair, layer_of, package, projections

BLOCK = 64
RANDOM = 3


def big_bird(case: PeerCase) -> PeerPair:
    """Transformers' BigBirdBlockSparseAttention with the random blocks of our plan."""
    config = package("transformers").BigBirdConfig(
        hidden_size=case.width,
        num_attention_heads=case.heads,
        num_random_blocks=RANDOM,
        block_size=BLOCK,
        max_position_embeddings=case.length,
    )
    module = package("transformers.models.big_bird.modeling_big_bird")
    peer: Any = case.placed(module.BigBirdBlockSparseAttention(config))
    ours: Any = case.placed(BigBird(case.site(), block=BLOCK, random_blocks=RANDOM))
    weights = projections(ours, peer, ("query", "key", "value"))
    ours.out_proj = nn.Identity()
    count = case.length // BLOCK
    core = ours.core
    lists = core.pattern.lists(core.draws, torch.tensor([count]), torch.arange(1, count - 1))
    plan = lists.blocks[0, ..., -RANDOM:].numpy()
    heads: Iterator[Any] = iter(())

    def one_head(*_: object, **__: object) -> Any:
        nonlocal heads
        found = next(heads, None)
        if found is None:
            heads = iter(plan)
            found = next(heads)
        return found

    peer._bigbird_block_rand_mask = one_head
    peer._bigbird_block_rand_mask_with_head = lambda **_: list(plan)
    seen = torch.ones(case.batch, case.length, dtype=case.dtype, device=case.device)
    blocked, band, rows, columns = module.BigBirdModel.create_masks_for_block_sparse_attn(
        seen, BLOCK
    )
    return PeerPair(
        layer_of(ours),
        lambda x: peer(x, band, rows, columns, blocked, blocked)[0],
        case.tokens(),
        weights,
    )


PEERS = (
    Peer(
        name="transformers BigBirdBlockSparseAttention",
        distribution="transformers",
        family="big_bird",
        setting=f"blocks of {BLOCK}, {RANDOM} random, a layer",
        make=big_bird,
        multiple=BLOCK,
        note="the random blocks of our plan: its own are all block 0 outside of training; it has "
        "no output projection, so ours is left out; short of 9 blocks it fails or attends fully",
    ),
)
