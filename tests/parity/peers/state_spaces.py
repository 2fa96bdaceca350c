"""Peers of state spaces."""

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from lra.models.families.lru import LRU
from lra.models.families.s5 import S5
from peers.peer import Peer, PeerCase, PeerPair, layer_of, package, twins


def parts(weight: Tensor) -> Tensor:
    """Return real and imaginary part of complex numbers as an axis in front."""
    return torch.view_as_real(weight.detach().resolve_conj()).movedim(-1, 0)


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


def s5(case: PeerCase) -> PeerPair:
    """s5-pytorch's state space, behind which stands our map: it has none."""
    ours: Any = case.placed(S5(case.site(), states=4 * case.head_width))
    sides = len(ours.readout)
    peer: Any = package("s5").S5(case.width, 2 * case.head_width, bidir=sides == 2)
    inner, space = ours.dynamics, peer.seq
    turned = torch.complex128 if case.dtype == torch.float64 else torch.complex64
    for name, parameter in space.named_parameters():
        parameter.data = parameter.data.to(turned if parameter.is_complex() else case.dtype)
        parameter.data = parameter.data.to(case.device)
        parameter.requires_grad_(name != "D")
    space.D.data.zero_()
    space.get_BC_tilde = lambda: (
        torch.view_as_complex(space.B),  # which it rounds to float32
        space.C,
    )
    weights = (
        twins(inner.real, space.Lambda, lambda weight: parts(weight)[0]),
        twins(inner.frequency, space.Lambda, lambda weight: parts(weight)[1]),
        twins(inner.log_step, space.log_step, lambda weight: weight.detach().view(-1)),
        twins(inner.entry, space.B, lambda weight: weight.detach().movedim(-1, 0)),
        twins(
            ours.readout,
            space.C,
            lambda weight: torch.unflatten(parts(weight), -1, (sides, -1)).movedim(-2, 0),
        ),
    )

    def theirs(x: Tensor) -> Tensor:
        y: Tensor = 2 * peer(x) + ours.skip * x
        return cast(Tensor, ours.mixed(y))

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
    Peer(
        name="s5-pytorch S5",
        distribution="s5-pytorch",
        family="s5",
        setting="two complex numbers for each channel of a head, a layer",
        make=s5,
        causal=True,
        rounding=5e-5,
        note="it has neither a map behind, so ours and our D stand behind both, nor conjugates, so "
        "its outputs are doubled; of its B, the rounding to float32 is taken away",
    ),
)
