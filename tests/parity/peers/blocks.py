"""Peers of attention to blocks."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lra.models.families.big_bird import BigBird
from lra.models.families.compressed_attention import CompressedMultiQuery, EntryForm
from lra.models.families.nsa import NativeSparseAttention
from lra.models.mixer import Positions
from lra.models.ops.sparse.block_compression import BlockCompression
from peers.peer import Peer, PeerCase, PeerPair, Twins, layer_of, package, projections, twins

BLOCK = 64
RANDOM = 3
INDEX_HEADS = 16
"""So many that hardly any two scores of an index are equal."""


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


def compressed(case: PeerCase, *, form: EntryForm) -> PeerPair:
    """Transformers' DeepseekV4Attention; its rotated channels are paired (2 i, 2 i + 1)."""
    sparse, rotary, heads = form == EntryForm.sparse, case.head_width // 4, case.heads
    kind = "compressed_sparse_attention" if sparse else "heavily_compressed_attention"
    module = package("transformers.models.deepseek_v4.modeling_deepseek_v4")
    config = package("transformers").DeepseekV4Config(
        hidden_size=case.width,
        num_attention_heads=heads,
        head_dim=case.head_width,
        q_lora_rank=24,
        partial_rotary_factor=0.25,
        num_hidden_layers=1,
        layer_types=[kind],
        compress_rates={kind: 4 if sparse else 8},
        sliding_window=5,
        o_groups=2,
        o_lora_rank=12,
        index_n_heads=INDEX_HEADS,
        index_head_dim=rotary + 4,
        index_topk=3,
    )
    config._attn_implementation = "eager"
    peer: Any = module.DeepseekV4Attention(config, 0)
    ours: Any = CompressedMultiQuery(
        replace(case.site(), positions=Positions.rotary),
        form=form,
        block=4 if sparse else 8,
        window=5,
        query_width=24,
        output_groups=2,
        output_rank=12,
        rotary_width=rotary,
        **({"top": 3, "index_heads": INDEX_HEADS, "index_width": rotary + 4} if sparse else {}),
    )
    for each in [
        ours.sink,
        *(value for name, value in ours.named_parameters() if "places" in name),
    ]:
        torch.nn.init.normal_(each)
    for name, norm in [*peer.named_modules()]:
        if type(norm) is module.DeepseekV4RMSNorm:  # in float32 whatever comes
            owner = peer.get_submodule(name.rpartition(".")[0])
            setattr(
                owner, name.rpartition(".")[2], nn.RMSNorm(len(norm.weight), config.rms_norm_eps)
            )
    ours, peer = case.placed(ours), case.placed(peer)
    pairs = [
        (ours.q_proj.weight, peer.q_a_proj.weight, None),
        (ours.q_norm.weight, peer.q_a_norm.weight, None),
        (ours.q_up.weight, peer.q_b_proj.weight, case.head_width),
        (ours.kv_proj.weight, peer.kv_proj.weight, case.head_width),
        (ours.kv_norm.weight, peer.kv_norm.weight, case.head_width),
        (ours.sink, peer.sinks, None),
        (ours.out_proj.weight, peer.o_b_proj.weight, None),
        *of_pooling(ours.pooling, peer.compressor),
    ]
    weights = [in_halves(mine, theirs, width, rotary) for mine, theirs, width in pairs]
    order = channels(case.head_width, case.head_width * heads // 2, rotary)
    maps = ours.group_maps
    peer.o_a_proj.weight.data[:, order] = maps.detach().flatten(0, 1)
    weights.append(Twins(maps, peer.o_a_proj.weight, lambda w: w.detach()[:, order].view_as(maps)))
    if sparse:  # no output has a gradient for the index
        other, index = peer.compressor.indexer, ours.index
        for mine, theirs, width in [
            (index.q_up.weight, other.q_b_proj.weight, index.pooling.width),
            (index.weights.weight, other.scorer.weights_proj.weight, None),
            *of_pooling(index.pooling, other),
        ]:
            in_halves(mine, theirs, width, rotary)
    place = torch.arange(case.length, device=case.device)
    distance = place[:, None] - place
    near = (distance >= 0) & (distance < 5)
    mask = torch.zeros_like(near, dtype=case.dtype).masked_fill(~near, -torch.inf)
    ids, turns = place[None], module.DeepseekV4RotaryEmbedding(config).to(case.device)

    def theirs_of(x: Tensor) -> Tensor:
        positions = {name: turns(x, ids, name) for name in ("main", "compress")}
        out: Tensor = peer(x, positions, ids.expand(len(x), -1), mask.expand(len(x), 1, -1, -1))[0]
        return out

    return PeerPair(layer_of(ours), theirs_of, case.tokens(), tuple(weights))


def of_pooling(ours: Any, theirs: Any) -> list[tuple[Any, Any, int | None]]:
    """Return the parameters of a compression of blocks, ours and theirs, and its width."""
    own = (ours.value_proj.weight, ours.gate_proj.weight, ours.norm.weight, ours.places)
    other = (
        theirs.kv_proj.weight, theirs.gate_proj.weight, theirs.kv_norm.weight, theirs.position_bias
    )  # fmt: skip
    return [(mine, peer, ours.width) for mine, peer in zip(own, other, strict=True)]


def channels(width: int, total: int, rotary: int) -> Tensor:
    """Return where ours of `total` channels stand in theirs: their pairs are neighbours."""
    inside = torch.arange(width)
    inside[-rotary:] = inside[-rotary:].view(-1, 2).mT.flatten()
    return (torch.arange(0, total, width)[:, None] + inside).flatten()


def in_halves(ours: Any, theirs: Any, width: int | None, rotary: int) -> Twins:
    """Copy a parameter of ours, with `width` channels a head; None: they are not rotated.

    Channels are rows, or columns where these alone are whole heads: of vectors of places.
    """
    if width is None:
        return twins(ours, theirs)
    axis = int(ours.dim() == 2 and len(ours) % width > 0)
    order = channels(width, ours.shape[axis], rotary).to(ours.device)
    with torch.no_grad():
        theirs.index_copy_(axis, order, ours)
    return Twins(ours, theirs, lambda w: w.detach().index_select(axis, order))


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
    *(
        Peer(
            name=f"transformers DeepseekV4Attention, {form.value}",
            distribution="transformers",
            family="compressed",
            setting=f"{what}, a window of 5, a layer, rotary positions of a quarter of a head",
            make=partial(compressed, form=form),
            bidirectional=False,
            causal=True,
            tolerance=1e-6,
            rounding=1e-4,
            note="its norms are PyTorch's; scores of its index, gates and angles are in float32 "
            "whatever comes; its rotated channels are in the order of pairs",
        )
        for form, what in (
            (EntryForm.heavy, "HCA, blocks of 8"),
            (EntryForm.sparse, "CSA, 3 entries of blocks of 4"),
        )
    ),
)
