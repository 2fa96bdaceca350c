"""Peers of attention to few slots or landmarks."""

from functools import partial
from typing import Any

from torch import Tensor

from lra.models.families.linformer import Linformer
from lra.models.families.nystromformer import Nystromformer
from lra.models.ops.low_rank.iterative_inverse import Initialisation
from peers.peer import Peer, PeerCase, PeerPair, layer_of, package, twins

SLOTS = 256
LANDMARKS = 64


def linformer(case: PeerCase) -> PeerPair:
    """The linformer package's layer; one E and one F for all heads."""
    peer = case.placed(
        package("linformer").LinformerSelfAttention(
            case.width, case.length, k=SLOTS, heads=case.heads
        )
    )
    peer.to_out.bias = None
    ours: Any = case.placed(Linformer(case.site(), projected_length=[SLOTS], bias=False))
    maps = ours.core.length_map
    weights = (
        *(
            twins(getattr(ours, f"{name}_proj").weight, getattr(peer, f"to_{name}").weight)
            for name in ("q", "k", "v", "out")
        ),
        twins(maps.keys, peer.proj_k, _rows),
        twins(maps.values, peer.proj_v, _rows),
    )
    return PeerPair(layer_of(ours), peer, case.tokens(), weights)


def _rows(columns: Tensor) -> Tensor:
    return columns.mT[None]


def nystrom(case: PeerCase) -> PeerPair:
    """nystrom-attention's layer, with its starting point of the inverse."""
    peer = case.placed(
        package("nystrom_attention").NystromAttention(
            case.width, case.head_width, case.heads, num_landmarks=LANDMARKS
        )
    )
    ours: Any = case.placed(
        Nystromformer(case.site(), landmarks=LANDMARKS, initialisation=Initialisation.original)
    )
    for name in ("q", "k", "v", "out"):
        getattr(ours, f"{name}_proj").bias = None
    peer.to_out[0].bias = None
    width = case.width
    taps = next(ours.core.conv.parameters())
    weights = [
        twins(getattr(ours, f"{name}_proj").weight, peer.to_qkv.weight, partial(_part, part, width))
        for part, name in enumerate(("q", "k", "v"))
    ]
    weights.append(twins(ours.out_proj.weight, peer.to_out[0].weight))
    weights.append(twins(taps, peer.res_conv.weight, lambda kernel: kernel.reshape(taps.shape)))
    return PeerPair(layer_of(ours), peer, case.tokens(), tuple(weights))


def _part(part: int, width: int, fused: Tensor) -> Tensor:
    return fused[part * width : (part + 1) * width]


PEERS = (
    Peer(
        name="linformer LinformerSelfAttention",
        distribution="linformer",
        family="linformer",
        setting=f"{SLOTS} slots, a layer",
        make=linformer,
        note="it takes no mask; share_kv would tie the projections of keys and values as well",
    ),
    Peer(
        name="nystrom-attention NystromAttention",
        distribution="nystrom-attention",
        family="nystromformer",
        setting=f"{LANDMARKS} landmarks, convolution of 33 taps, a layer",
        make=nystrom,
        multiple=LANDMARKS,
        note="its inverse starts from the largest sums in the batch, as initialisation=original; "
        "it pads other lengths in front",
    ),
)
