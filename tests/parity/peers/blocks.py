"""Peers of attention to blocks."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from lra.models.families.big_bird import BigBird
from lra.models.families.nsa import NativeSparseAttention
from lra.models.ops.sparse.block_compression import BlockCompression
from peers.peer import Peer, PeerCase, PeerPair, layer_of, package, projections, twins

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


def native_sparse_attention(case: PeerCase) -> PeerPair:
    """native-sparse-attention-pytorch, at tokens inside of blocks behind the first one."""
    block, width, heads = 32, case.head_width, case.heads
    ours: Any = case.placed(
        NativeSparseAttention(
            case.site(),
            block=block,
            top=4,
            first=0,
            local=1,
            window=129,
            key_value_heads=heads,
            own_keys=False,
            compression=BlockCompression.network,
        )
    )
    arrange = package("einops.layers.torch").Rearrange
    module = package("native_sparse_attention_pytorch.native_sparse_attention")
    network = nn.Sequential(
        arrange("b h w n d -> b h w (n d)"),
        nn.Linear(block * width, 4 * width),
        nn.ReLU(),
        nn.Linear(4 * width, width),
    )
    peer: Any = case.placed(
        module.SparseAttention(
            dim=case.width,
            dim_head=width,
            heads=heads,
            sliding_window_size=128,
            compress_block_size=block,
            compress_block_sliding_stride=block,
            selection_block_size=block,
            num_selected_blocks=3,
            causal=True,
            norm=False,
            compress_mlp=network,
            strategy_combine_mlp=nn.Linear(case.width, 3 * heads, bias=False),
        )
    )
    peer.to_strategy_combine[2] = arrange("b n (s h) -> b h n s", h=heads)
    peer.compress_mem_kv = nn.Parameter(peer.compress_mem_kv.detach()[:, :, :0])
    peer.rotary_emb.rotate_queries_with_cached_keys = lambda q, k: (q, k)
    inner = case.width
    weights = [
        twins(ours.q_proj.weight, peer.to_qkv.weight, lambda w: w.detach()[:inner]),
        twins(ours.key_value_proj.weight, peer.to_qkv.weight, lambda w: w.detach()[inner:]),
        twins(ours.gates.weight, peer.to_strategy_combine[0].weight),
        twins(ours.out_proj.weight, peer.combine_heads.weight),
    ]
    for kind, mine in (("k", ours.compress_keys), ("v", ours.compress_values)):
        theirs = getattr(peer, f"{kind}_compress")
        weights.append(twins(mine.positions, getattr(peer, f"{kind}_intrablock_positions")))
        for layer, other in ((mine.inner, theirs[1]), (mine.outer, theirs[3])):
            weights += [twins(layer.weight, other.weight), twins(layer.bias, other.bias)]
        if kind == "k":  # moves all scores of a query alike: its gradient is rounding error alone
            weights.pop()
    place = torch.arange(case.length)
    inside = place[(place >= block) & (place % block < block - 1)]
    whole = layer_of(ours)
    return PeerPair(
        lambda x: whole(x)[:, inside],
        lambda x: peer(x)[:, inside],
        case.tokens(),
        tuple(weights),
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
    Peer(
        name="native-sparse-attention-pytorch SparseAttention",
        distribution="native-sparse-attention-pytorch",
        family="nsa",
        setting="blocks of 32, the own one and 3 others, a window of 129, a layer",
        make=native_sparse_attention,
        bidirectional=False,
        causal=True,
        multiple=128,
        note="no rotary positions, no memory keys, no norm before; a head of keys for each of "
        "queries; without the first block, where its compressed branch is no 0, and the last "
        "token of each, which sees its own block compressed in ours alone",
    ),
)
