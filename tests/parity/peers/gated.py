"""Peers of gated recurrences and delta rules: layers of transformers in plain PyTorch."""

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from lra.models.families.gated_delta_net import GatedDeltaNet
from lra.models.families.kimi_delta import KimiDelta
from lra.models.families.mamba import Mamba
from lra.models.families.mamba2 import Mamba2
from lra.models.families.retnet import HeadDecay, HeadNorm, RetNet
from lra.models.ops.gated.delta_layer import StreamActivation
from lra.models.ops.gated.head_norm import Gate
from peers.peer import Mix, Peer, PeerCase, PeerPair, Twins, View, layer_of, package, twins


def rows(first: int, last: int) -> View:
    """Return a view of so many rows."""
    return lambda weight: weight.detach()[first:last]


def taps(first: int, last: int) -> View:
    """Return a view of the taps of so many channels."""
    return lambda weight: weight.detach()[first:last, 0]


def parted(ours: list[Any], theirs: Any, view: Any = rows) -> list[Twins]:
    """Lay parameters of ours one behind the other in one of theirs."""
    pairs, first = [], 0
    for each in ours:
        pairs.append(twins(each, theirs, view(first, first + len(each))))
        first += len(each)
    return pairs


def convolutions(ours: Any, theirs: Any) -> list[Twins]:
    """Lay the taps of our convolutions into theirs, and biases where there are some."""
    pairs = parted([each.weight for each in ours], theirs.weight, taps)
    if theirs.bias is not None:
        pairs += parted([each.bias for each in ours], theirs.bias)
    return pairs


def one_way(case: PeerCase) -> Any:
    """Return the option by which ours reads from the first token alone, as theirs do."""
    return {} if case.causal else {"bidirectional": False}


def layer(peer: Any, case: PeerCase) -> Mix:
    """Return a layer of theirs as a function of its input."""
    case.placed(peer)

    def theirs(x: Tensor) -> Tensor:
        y = peer(x)
        outputs: Tensor = y[0] if isinstance(y, tuple) else y
        return outputs.to(x.dtype)

    return theirs


def mamba(case: PeerCase) -> PeerPair:
    """MambaMixer, whose scan is a loop over tokens."""
    ours: Any = case.placed(Mamba(case.site(), **one_way(case)))
    module = package("transformers.models.mamba.modeling_mamba")
    config = package("transformers").MambaConfig(hidden_size=case.width, num_hidden_layers=1)
    peer: Any = module.MambaMixer(config, 0)
    theirs = layer(peer, case)
    weights = [
        *parted([ours.input_proj.weight, ours.gate_proj.weight], peer.in_proj.weight),
        *convolutions(ours.convolutions, peer.conv1d),
        twins(ours.choice_map.weight, peer.x_proj.weight),
        twins(ours.step_map.weight, peer.dt_proj.weight),
        twins(ours.step_bias, peer.dt_proj.bias),
        twins(ours.log_rate, peer.A_log),
        twins(ours.skip, peer.D),
        twins(ours.out_proj.weight, peer.out_proj.weight),
    ]
    return PeerPair(layer_of(ours), theirs, case.tokens(), tuple(weights))


def mamba2(case: PeerCase) -> PeerPair:
    """Mamba2Mixer, in chunks."""
    ours: Any = case.placed(Mamba2(case.site(), states=64, **one_way(case)))
    module = package("transformers.models.mamba2.modeling_mamba2")
    config = package("transformers").Mamba2Config(
        hidden_size=case.width, state_size=64, num_heads=case.heads, head_dim=2 * case.head_width,
        n_groups=1, chunk_size=64, num_hidden_layers=1,
    )  # fmt: skip
    peer: Any = module.Mamba2Mixer(config, 0)
    theirs = layer(peer, case)
    inner = [
        each.weight
        for each in (
            ours.gate_proj,
            ours.input_proj,
            ours.write_proj,
            ours.read_proj,
            ours.step_map,
        )
    ]
    weights = [
        *parted(inner, peer.in_proj.weight),
        *convolutions(ours.convolutions, peer.conv1d),
        twins(ours.step_bias, peer.dt_bias),
        twins(ours.log_rate, peer.A_log),
        twins(ours.skip, peer.D),
        twins(ours.norm.weight, peer.norm.weight),
        twins(ours.out_proj.weight, peer.out_proj.weight),
    ]
    return PeerPair(layer_of(ours), theirs, case.tokens(), tuple(weights))


def gated_delta_net(case: PeerCase) -> PeerPair:
    """OlmoHybridGatedDeltaNet, in chunks, with negative eigenvalues."""
    ours: Any = case.placed(GatedDeltaNet(case.site(), negative_eigenvalues=True, **one_way(case)))
    module = package("transformers.models.olmo_hybrid.modeling_olmo_hybrid")
    config = package("transformers").OlmoHybridConfig(
        hidden_size=case.width, num_hidden_layers=4, linear_num_key_heads=case.heads,
        linear_num_value_heads=case.heads, linear_key_head_dim=case.head_width,
        linear_value_head_dim=2 * case.head_width,
    )  # fmt: skip
    peer: Any = module.OlmoHybridGatedDeltaNet(config, 0)
    theirs = layer(peer, case)
    weights = [
        *(
            twins(getattr(ours, own).weight, getattr(peer, other).weight)
            for own, other in {
                "q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "gate_proj": "g_proj",
                "decay_map": "a_proj", "beta_map": "b_proj", "out_proj": "o_proj", "norm": "o_norm",
            }.items()
        ),
        *convolutions(ours.convolutions, peer.conv1d),
        twins(ours.log_rate, peer.A_log),
        twins(ours.step_bias, peer.dt_bias),
    ]  # fmt: skip
    return PeerPair(layer_of(ours), theirs, case.tokens(), tuple(weights))


def kimi_delta(case: PeerCase) -> PeerPair:
    """KimiLinearDeltaAttention, in chunks."""
    ours: Any = case.placed(KimiDelta(case.site(), **one_way(case)))
    ours.gate_up.bias.data.zero_()
    module = package("transformers.models.kimi_linear.modeling_kimi_linear")
    config = package("transformers").KimiLinearConfig(
        hidden_size=case.width, num_hidden_layers=4, linear_num_heads=case.heads,
        linear_head_dim=case.head_width,
    )  # fmt: skip
    peer: Any = module.KimiLinearDeltaAttention(config, 0)
    theirs, gate = layer(peer, case), peer.forget_gate
    names = {
        "q_proj": peer.q_proj, "k_proj": peer.k_proj, "v_proj": peer.v_proj,
        "decay_down": gate.f_a_proj, "decay_up": gate.f_b_proj, "beta_map": peer.b_proj,
        "gate_down": peer.g_a_proj, "gate_up": peer.g_b_proj, "norm": peer.o_norm,
        "out_proj": peer.o_proj,
    }  # fmt: skip
    weights = [
        *(twins(getattr(ours, name).weight, other.weight) for name, other in names.items()),
        *convolutions(ours.convolutions, peer.conv1d),
        twins(ours.log_rate, gate.A_log, lambda weight: weight.detach().view(-1)),
        twins(ours.step_bias, gate.dt_bias),
    ]
    return PeerPair(layer_of(ours), theirs, case.tokens(), tuple(weights))


def lightning(case: PeerCase) -> PeerPair:
    """MiniMaxLightningAttention, the first of two layers."""
    site = replace(case.site(), depth=2)
    ours: Any = case.placed(
        RetNet(
            site, value_expansion=1, norm=HeadNorm.joint, decay=HeadDecay.slopes,
            gate=Gate.sigmoid, activation=StreamActivation.silu, rotary=False, **one_way(case),
        )
    )  # fmt: skip
    module = package("transformers.models.minimax.modeling_minimax")
    config = package("transformers").MiniMaxConfig(
        hidden_size=case.width, num_attention_heads=case.heads, num_hidden_layers=2,
        layer_types=["linear_attention"] * 2,
    )  # fmt: skip
    peer: Any = module.MiniMaxLightningAttention(config, 0)
    peer.norm.variance_epsilon *= case.head_width  # ours divides keys by its root
    case.placed(peer)

    def theirs(x: Tensor) -> Tensor:
        y: Tensor = peer(x, None, None)[0]
        return y.to(x.dtype)

    joint, by_head = peer.qkv_proj, (3, case.heads, case.head_width)
    # Theirs lays the three of a head behind each other, ours all heads of each.
    peer.qkv_proj = nn.Sequential(joint, nn.Unflatten(-1, by_head), Swapped(), nn.Flatten(-3))
    weights = [
        *parted([each.weight for each in (ours.q_proj, ours.k_proj, ours.v_proj)], joint.weight),
        twins(ours.gate_proj.weight, peer.output_gate.weight),
        twins(ours.joint_norm.weight, peer.norm.weight),
        twins(ours.out_proj.weight, peer.out_proj.weight),
    ]
    return PeerPair(layer_of(ours), theirs, case.tokens(), tuple(weights))


class Swapped(nn.Module):
    """Swaps the first two of the last three axes."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a view."""
        return x.transpose(-3, -2)


ONE_WAY: Any = {"distribution": "transformers", "causal": True}
IN_FLOAT32: Any = {"tolerance": 3e-5, "rounding": 2e-4}
"""Of layers that compute in float32 whatever their inputs are."""
PEERS = (
    Peer(
        name="transformers MiniMaxLightningAttention",
        family="retnet",
        setting="slopes of a first layer of two, one norm, sigmoid gate, a layer",
        make=lightning,
        note="in blocks of 256; its epsilon times a head's width, as ours scales keys",
        **ONE_WAY,
        **IN_FLOAT32,
    ),
    Peer(
        name="transformers MambaMixer",
        family="mamba",
        setting="16 states a channel, a layer",
        make=mamba,
        note="its plain form, a loop over tokens",
        **ONE_WAY,
        **IN_FLOAT32,
    ),
    Peer(
        name="transformers Mamba2Mixer",
        family="mamba2",
        setting="64 states, chunks of 64, a layer",
        make=mamba2,
        note="its plain form, in chunks",
        **ONE_WAY,
        **IN_FLOAT32,
    ),
    Peer(
        name="transformers OlmoHybridGatedDeltaNet",
        family="gated_delta_net",
        setting="values twice as wide as keys, negative eigenvalues, a layer",
        make=gated_delta_net,
        note="its plain form, in chunks; keys are divided by their length as ours",
        **ONE_WAY,
        **IN_FLOAT32,
    ),
    Peer(
        name="transformers KimiLinearDeltaAttention",
        family="kimi_delta",
        setting="ranks of a head's width, a layer",
        make=kimi_delta,
        note="its plain form, in chunks; its gate of outputs has no bias, so ours is 0",
        **ONE_WAY,
        **IN_FLOAT32,
    ),
)
