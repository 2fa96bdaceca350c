"""Peers of state spaces."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from models.families.lru import LRU
from peers.peer import Peer, PeerCase, PeerPair, layer_of, package, twins


def lru(case: PeerCase) -> PeerPair:
    """LRU-pytorch's recurrence, behind which stands our map: it has none."""
    one_way: Any = {} if case.causal else {"bidirectional": False}
    ours: Any = case.placed(LRU(case.site(), states=2 * case.head_width, **one_way))
    peer: Any = package("LRU_pytorch").LRU(case.width, case.width, 2 * case.head_width)
    turned = torch.complex128 if case.dtype == torch.float64 else torch.complex64
    for name, parameter in peer.named_parameters():
        parameter.data = parameter.data.to(turned if parameter.is_complex() else case.dtype)
        parameter.data = parameter.data.to(case.device)
        parameter.requires_grad_(name != "D")
    peer.D.data.zero_()  # a full matrix
    peer.D.data.diagonal().copy_(ours.skip.detach())
    peer.state = torch.zeros(2 * case.head_width, dtype=turned)
    inner = ours.recurrence

    def parts(weight: Tensor) -> Tensor:
        return torch.view_as_real(weight.detach()).movedim(-1, 0)

    weights = (
        twins(inner.nu, peer.nu_log),
        twins(inner.theta, peer.theta_log),
        twins(inner.log_gamma, peer.gamma_log),
        twins(inner.entry, peer.B, parts),
        twins(ours.readout, peer.C, lambda weight: parts(weight)[None]),
    )

    def theirs(x: Tensor) -> Tensor:
        before = torch.get_default_dtype()
        torch.set_default_dtype(case.dtype)  # of what it gathers its outputs in
        try:
            y: Tensor = peer(x)
        finally:
            torch.set_default_dtype(before)
        return F.glu(ours.out_proj(F.gelu(y)), dim=-1)

    return PeerPair(layer_of(ours), theirs, case.tokens(), weights)


PEERS = (
    Peer(
        name="LRU-pytorch LRU",
        distribution="LRU-pytorch",
        family="lru",
        setting="a complex number for each channel of two heads, one direction, a layer",
        make=lru,
        causal=True,
        note="it has no map behind the recurrence, so ours stands behind both; its D is a matrix, "
        "here with our numbers on the diagonal; its outputs have PyTorch's default type",
    ),
)
