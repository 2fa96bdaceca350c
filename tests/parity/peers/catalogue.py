"""Every peer that ours is compared with."""

from peers import (
    blocks,
    convolutions,
    exact,
    feature_maps,
    flash_linear,
    gated,
    hashing,
    indexed,
    low_rank,
    recurrent,
    state_spaces,
    windows,
)
from peers.peer import Peer

PEERS: tuple[Peer, ...] = (
    *exact.PEERS,
    *feature_maps.PEERS,
    *windows.PEERS,
    *blocks.PEERS,
    *indexed.PEERS,
    *low_rank.PEERS,
    *hashing.PEERS,
    *convolutions.PEERS,
    *state_spaces.PEERS,
    *gated.PEERS,
    *recurrent.PEERS,
    *flash_linear.PEERS,
)


def of_family(family: str) -> list[Peer]:
    """Return the peers of one of our families."""
    return [peer for peer in PEERS if peer.family == family]
