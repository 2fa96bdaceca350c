"""Ours and theirs, with equal weights, are one function: outputs and all gradients."""

import pytest
import torch

from peers.catalogue import PEERS
from peers.peer import Peer, PeerCase, disagreement

SAME = [
    pytest.param(peer, causal, id=f"{peer.name}, {'causal' if causal else 'bidirectional'}")
    for peer in PEERS
    for causal in (False, True)
    if peer.same and (peer.causal if causal else peer.bidirectional)
]


def case(causal: bool, dtype: torch.dtype, length: int = 1024) -> PeerCase:
    return PeerCase(length, causal=causal, heads=2, head_width=32, batch=2, dtype=dtype)


@pytest.mark.parity
@pytest.mark.parametrize(("peer", "causal"), SAME)
def test_outputs_and_gradients_are_equal_in_float64(peer: Peer, causal: bool) -> None:
    assert disagreement(peer.pair(case(causal, torch.float64))) <= peer.tolerance


@pytest.mark.parity
@pytest.mark.share(3)
@pytest.mark.parametrize(("peer", "causal"), SAME)
def test_they_are_equal_in_float32_up_to_rounding(peer: Peer, causal: bool) -> None:
    assert disagreement(peer.pair(case(causal, torch.float32))) <= peer.rounding


@pytest.mark.parity
@pytest.mark.parametrize(
    ("peer", "causal"),
    [
        pytest.param(peer, causal, id=f"{peer.name}, {causal}")
        for peer in PEERS
        for causal in (False, True)
        if not peer.same
    ],
)
def test_what_is_called_another_function_is_one(peer: Peer, causal: bool) -> None:
    assert disagreement(peer.pair(case(causal, torch.float64))) > 0.1


@pytest.mark.parity
@pytest.mark.share(3)
@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_disturbed_weight_is_seen(peer: Peer) -> None:
    """The comparison can fail: with one number of theirs changed, it does."""
    pair = peer.pair(case(not peer.bidirectional, torch.float64))
    if pair.weights:
        with torch.no_grad():
            pair.weights[0].theirs.view(-1)[3] += 0.5
    else:  # a core without weights: its output
        theirs = pair.theirs
        pair = pair._replace(theirs=lambda *inputs: 1.01 * theirs(*inputs))
    assert disagreement(pair) > 1e-3


def test_a_length_or_direction_that_a_peer_does_not_take_is_refused() -> None:
    (longformer,) = (peer for peer in PEERS if "Longformer" in peer.name)
    with pytest.raises(ValueError, match="multiples of 256 tokens: got 300"):
        longformer.pair(PeerCase(300))
    with pytest.raises(ValueError, match="no causal form"):
        longformer.pair(PeerCase(512, causal=True))
