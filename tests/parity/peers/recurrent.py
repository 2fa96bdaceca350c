"""Peers of recurrences over shifted tokens and of exponential gates, in plain PyTorch."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lra.models.families.rwkv7 import RWKV7
from lra.models.families.slstm import SLSTM, RecurrentDraw
from lra.models.mixer import Flow, Layout
from peers.gated import IN_FLOAT32, one_way
from peers.peer import Peer, PeerCase, PeerPair, layer_of, package, twins


def rwkv7(case: PeerCase) -> PeerPair:
    """The time mixing of a second layer, given values of a first; its scan is a loop."""
    site = replace(case.site(), layer=1, depth=2)
    ours: Any = case.placed(RWKV7(site, ranks=[16, 16, 16, 16], **one_way(case)))
    for name in ("decay", "rate", "residual", "gate"):
        nn.init.normal_(ours.get_submodule(name).down.weight, std=case.width**-0.5)
    config = package("rwkv7_hf").RWKV7Config(
        hidden_size=case.width, num_hidden_layers=2, num_heads=case.heads,
        head_dim=case.head_width, decay_low_rank_dim=16, a_low_rank_dim=16, v_low_rank_dim=16,
        gate_low_rank_dim=16,
    )  # fmt: skip
    peer: Any = case.placed(package("rwkv7_hf").RWKV7TimeMix(config, 1))
    # Its six mixes as rows of one parameter, as ours are.
    mixes = nn.Parameter(torch.empty_like(ours.mixes))
    for row, letter in enumerate("rwkvag"):
        del peer._parameters[f"x_{letter}"]
        setattr(peer, f"x_{letter}", mixes[row])
    low_rank = {
        "decay": peer.w_lora, "rate": peer.a_lora, "residual": peer.v_lora, "gate": peer.g_lora,
    }  # fmt: skip
    names = {
        "r_proj": peer.r_proj, "k_proj": peer.k_proj, "v_proj": peer.v_proj,
        "out_proj": peer.o_proj,
    }  # fmt: skip
    weights = [twins(getattr(ours, name).weight, other.weight) for name, other in names.items()]
    weights.append(twins(ours.mixes, mixes))
    for name, other in low_rank.items():
        mine = ours.get_submodule(name)
        weights.append(twins(mine.down.weight, other.lora[0].weight))
        weights.append(twins(mine.up.weight, other.lora[2].weight))
        if mine.base is not None:
            weights.append(twins(mine.base, other.lora[2].bias))
    weights += [
        twins(ours.removal_scale, peer.k_k),
        twins(ours.addition_scale, peer.k_a),
        twins(ours.skip, peer.r_k, lambda weight: weight.detach().view(-1)),
        twins(ours.norm_weight, peer.g_norm.weight),
        twins(ours.norm_bias, peer.g_norm.bias),
    ]
    (x,) = case.tokens()
    first = x.detach().flip(1).requires_grad_()

    def theirs(x: Tensor, first: Tensor) -> Tensor:
        state = x.new_zeros(len(x), case.heads, case.head_width, case.head_width)
        token = x.new_zeros(len(x), case.width)
        keep = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        outputs: Tensor = peer(x, state, token, first, keep)[0]
        return outputs.to(x.dtype)

    def mix(x: Tensor, first: Tensor) -> Tensor:
        return ours.extend(Flow(x, stream=first), Layout()).x  # type: ignore[no-any-return]

    return PeerPair(mix, theirs, (x, first), tuple(weights))


def slstm(case: PeerCase) -> PeerPair:
    """sLSTMLayer in its plain form, a loop over tokens."""
    draw = RecurrentDraw.uniform
    ours: Any = case.placed(SLSTM(case.site(), recurrent=draw, **one_way(case)))
    module = package("xlstm.blocks.slstm.layer")
    config = module.sLSTMLayerConfig(
        embedding_dim=case.width, num_heads=case.heads, backend="vanilla", dtype="float32",
        enable_automatic_mixed_precision=False,
    )  # fmt: skip
    peer: Any = case.placed(module.sLSTMLayer(config))
    peer.group_norm.residual_weight = False
    size = case.heads, 4, case.head_width, case.head_width
    weights = [
        # What it calls fgate makes the input gate, and the other way round.
        twins(ours.input_map.weight, peer.fgate.weight),
        twins(ours.forget_map.weight, peer.igate.weight),
        twins(ours.cell_map.weight, peer.zgate.weight),
        twins(ours.output_map.weight, peer.ogate.weight),
        twins(
            ours.recurrent, peer.slstm_cell._recurrent_kernel_,
            lambda weight: weight.detach().view(size).permute(0, 3, 1, 2),
        ),
        twins(
            ours.bias, peer.slstm_cell._bias_,
            lambda weight: weight.detach().view(4, case.heads, case.head_width),
        ),
        twins(ours.norm_weight, peer.group_norm.weight),
    ]  # fmt: skip
    (taps,) = ours.convolutions
    weights.append(twins(taps.weight, peer.conv1d.conv.weight, lambda each: each.detach()[:, 0]))
    weights.append(twins(taps.bias, peer.conv1d.conv.bias))
    return PeerPair(layer_of(ours), lambda x: peer(x).to(x.dtype), case.tokens(), tuple(weights))


PEERS = (
    Peer(
        name="rwkv7-hf RWKV7TimeMix",
        distribution="rwkv7-hf",
        family="rwkv7",
        setting="ranks of 16, a second layer",
        make=rwkv7,
        causal=True,
        note="a loop over tokens, its decays in float32; values of a first layer are given",
        **IN_FLOAT32,
    ),
    Peer(
        name="xlstm sLSTMLayer",
        distribution="xlstm",
        family="slstm",
        setting="4 taps, a layer",
        make=slstm,
        causal=True,
        note="its plain form, a loop over tokens; its norm's weights are not added to 1",
    ),
)
