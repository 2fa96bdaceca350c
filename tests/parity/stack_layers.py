"""Copies of the weights of a layer of transformers into a layer of ours, for `test_stacks`."""

from typing import Any

import torch
from torch import Tensor, nn

from peers.blocks import channels, of_pooling

ROTARY = 4
"""Rotated channels of a head of DeepSeek-V4."""


def copy(ours: Any, theirs: Any) -> None:
    """Copy a parameter, or the weight and bias of a module; shapes must be equal."""
    if isinstance(theirs, nn.Module):
        copy(ours.weight, theirs.weight)
        if getattr(theirs, "bias", None) is not None:
            copy(ours.bias, theirs.bias)
        return
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    ours.data.copy_(theirs.data)


def parts(theirs: Tensor, *ours: Any) -> None:
    """Copy rows of theirs into parameters of ours, one after the other, all of them."""
    for own, part in zip(ours, theirs.split([len(own) for own in ours]), strict=True):
        copy(own, part.reshape(own.shape))


def swiglu(block: Any, gate: Any, up: Any, down: Any) -> None:
    copy(block.network[0].gate, gate)
    copy(block.network[0].value, up)
    copy(block.network[-1], down)


def convolution(ours: Any, theirs: Any) -> None:
    parts(theirs.weight, *(each.weight for each in ours))
    if theirs.bias is not None:
        parts(theirs.bias, *(each.bias for each in ours))


def projections(ours: Any, theirs: Any, norms: bool = False) -> None:
    for name in ("q_proj", "k_proj", "v_proj"):
        copy(getattr(ours, name), getattr(theirs, name))
    copy(ours.out_proj, theirs.o_proj)
    for name in ("q_norm", "k_norm") if norms else ():
        copy(getattr(ours, name), getattr(theirs, name))


def qwen3_next(block: Any, layer: Any) -> None:
    copy(block.mixer_norm.weight, layer.input_layernorm.weight + 1)  # theirs counts from 0
    copy(block.network_norm.weight, layer.post_attention_layernorm.weight + 1)
    swiglu(block, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)
    if layer.block_type == "full_attention":
        gated_attention(block.mixer, layer.self_attn)
    else:
        gated_delta_net(block.mixer, layer.linear_attn)


def gated_attention(mixer: Any, peer: Any) -> None:
    queries, gate = peer.q_proj.weight.unflatten(0, (-1, 2, peer.head_dim)).unbind(1)
    copy(mixer.q_proj.weight, queries.flatten(0, 1))
    copy(mixer.gate_proj.weight, gate.flatten(0, 1))
    copy(mixer.k_proj, peer.k_proj)
    copy(mixer.v_proj, peer.v_proj)
    copy(mixer.out_proj, peer.o_proj)
    copy(mixer.q_norm.weight, peer.q_norm.weight + 1)
    copy(mixer.k_norm.weight, peer.k_norm.weight + 1)


def gated_delta_net(mixer: Any, peer: Any) -> None:
    if hasattr(peer, "in_proj_qkv"):  # from Qwen3.5 on
        streams = (mixer.q_proj, mixer.k_proj, mixer.v_proj)
        parts(peer.in_proj_qkv.weight, *(each.weight for each in streams))
        copy(mixer.gate_proj, peer.in_proj_z)
        copy(mixer.beta_map, peer.in_proj_b)
        copy(mixer.decay_map, peer.in_proj_a)
        gated(mixer, peer)
        return
    by_head = peer.in_proj_qkvz.weight.unflatten(0, (peer.num_k_heads, -1))
    sizes = (peer.head_k_dim, peer.head_k_dim, peer.head_v_dim, peer.head_v_dim)
    names = ("q_proj", "k_proj", "v_proj", "gate_proj")
    for name, part in zip(names, by_head.split(sizes, 1), strict=True):
        copy(getattr(mixer, name).weight, part.flatten(0, 1))
    beta, decay = peer.in_proj_ba.weight.unflatten(0, (peer.num_k_heads, 2)).unbind(1)
    copy(mixer.beta_map.weight, beta)
    copy(mixer.decay_map.weight, decay)
    gated(mixer, peer)


def gated(mixer: Any, peer: Any) -> None:
    convolution(mixer.convolutions, peer.conv1d)
    copy(mixer.log_rate, peer.A_log)
    copy(mixer.step_bias, peer.dt_bias)
    copy(mixer.norm, getattr(peer, "norm", None) or peer.o_norm)
    copy(mixer.out_proj, getattr(peer, "out_proj", None) or peer.o_proj)


def jamba(block: Any, layer: Any) -> None:
    copy(block.mixer_norm, layer.input_layernorm)
    copy(block.network_norm, layer.pre_ff_layernorm)
    peer = layer.feed_forward
    swiglu(block, peer.gate_proj, peer.up_proj, peer.down_proj)
    if hasattr(layer, "self_attn"):
        projections(block.mixer, layer.self_attn)
        return
    mixer, peer = block.mixer, layer.mamba
    parts(peer.in_proj.weight, mixer.input_proj.weight, mixer.gate_proj.weight)
    convolution(mixer.convolutions, peer.conv1d)
    copy(mixer.choice_map, peer.x_proj)
    copy(mixer.step_map.weight, peer.dt_proj.weight)
    copy(mixer.step_bias, peer.dt_proj.bias)
    copy(mixer.log_rate, peer.A_log)
    copy(mixer.skip, peer.D)
    copy(mixer.out_proj, peer.out_proj)
    for own, other in zip(
        mixer.inner, (peer.dt_layernorm, peer.b_layernorm, peer.c_layernorm), strict=True
    ):
        copy(own, other)


def kimi_linear(block: Any, layer: Any) -> None:
    copy(block.mixer_norm, layer.input_layernorm)
    copy(block.network_norm, layer.post_attention_layernorm)
    swiglu(block, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)
    mixer = block.mixer
    if type(mixer).__name__ == "LatentAttention":
        peer = layer.self_attn
        copy(mixer.q_proj, peer.q_proj)
        latents(mixer, peer)
        return
    peer = layer.linear_attn if hasattr(layer, "linear_attn") else layer.self_attn
    names = {
        "q_proj": peer.q_proj, "k_proj": peer.k_proj, "v_proj": peer.v_proj,
        "decay_down": peer.forget_gate.f_a_proj, "decay_up": peer.forget_gate.f_b_proj,
        "beta_map": peer.b_proj, "gate_down": peer.g_a_proj, "norm": peer.o_norm,
        "out_proj": peer.o_proj,
    }  # fmt: skip
    for own, other in names.items():
        copy(getattr(mixer, own), other)
    copy(mixer.gate_up.weight, peer.g_b_proj.weight)
    convolution(mixer.convolutions, peer.conv1d)
    copy(mixer.log_rate, peer.forget_gate.A_log.view(-1))
    copy(mixer.step_bias, peer.forget_gate.dt_bias)


def glm5_next(block: Any, layer: Any) -> None:
    if layer.block_type == "linear_attention":
        kimi_linear(block, layer)
        return
    copy(block.mixer_norm, layer.input_layernorm)
    copy(block.network_norm, layer.post_attention_layernorm)
    swiglu(block, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)
    latents(block.mixer, layer.self_attn)
    for own, other in {
        "q_proj": layer.self_attn.q_a_proj, "q_norm": layer.self_attn.q_a_layernorm,
        "q_up": layer.self_attn.q_b_proj,
    }.items():  # fmt: skip
        copy(getattr(block.mixer, own), other)


def latents(mixer: Any, peer: Any) -> None:
    copy(mixer.kv_proj, peer.kv_a_proj_with_mqa)
    copy(mixer.kv_norm, peer.kv_a_layernorm)
    both = peer.kv_b_proj.weight.unflatten(0, (peer.num_heads, 2, -1))
    copy(mixer.k_up.weight, both[:, 0].flatten(0, 1))
    copy(mixer.v_up.weight, both[:, 1].flatten(0, 1))
    copy(mixer.out_proj, peer.o_proj)


def mamba2(mixer: Any, peer: Any) -> None:
    maps = (mixer.gate_proj, mixer.input_proj, mixer.write_proj, mixer.read_proj, mixer.step_map)
    parts(peer.in_proj.weight, *(each.weight for each in maps))
    convolution(mixer.convolutions, peer.conv1d)
    copy(mixer.step_bias, peer.dt_bias)
    copy(mixer.log_rate, peer.A_log)
    copy(mixer.skip, peer.D)
    if [*peer.norm.parameters()]:
        copy(mixer.norm, peer.norm)
    copy(mixer.out_proj, peer.out_proj)


def nemotron_h(block: Any, layer: Any) -> None:
    if layer.block_type == "mlp":
        copy(block.network_norm, layer.norm)
        copy(block.network[0], layer.mixer.up_proj)
        copy(block.network[-1], layer.mixer.down_proj)
        return
    copy(block.mixer_norm, layer.norm)
    if layer.block_type == "full_attention":
        projections(block.mixer, layer.mixer)
    else:
        mamba2(block.mixer, layer.mixer)


def falcon_h1(block: Any, layer: Any) -> None:
    copy(block.mixer_norm, layer.input_layernorm)
    copy(block.network_norm, layer.pre_ff_layernorm)
    network = layer.feed_forward
    swiglu(block, network.gate_proj, network.up_proj, network.down_proj)
    mixer, attention = block.mixer.mixers
    mamba2(mixer, layer.mamba)
    projections(attention, layer.self_attn)


def minimax(block: Any, layer: Any) -> None:
    """Their norms stand before what they norm, ours behind: see `pair_of`."""
    copy(block.mixer_norm, layer.post_attention_layernorm)
    gate, up = layer.mlp.experts.gate_up_proj[0].chunk(2)
    copy(block.network[0].gate.weight, gate)
    copy(block.network[0].value.weight, up)
    copy(block.network[-1].weight, layer.mlp.experts.down_proj[0])
    peer, mixer = layer.self_attn, block.mixer
    if hasattr(peer, "q_proj"):
        projections(mixer, peer)
        return
    by_head = peer.qkv_proj.weight.unflatten(0, (peer.num_attention_heads, 3, -1))
    for place, name in enumerate(("q_proj", "k_proj", "v_proj")):
        copy(getattr(mixer, name).weight, by_head[:, place].flatten(0, 1))
    copy(mixer.gate_proj, peer.output_gate)
    copy(mixer.joint_norm, peer.norm)
    copy(mixer.out_proj, peer.out_proj)


def zamba2(block: Any, layer: Any) -> None:
    decoder = getattr(layer, "mamba_decoder", layer)
    copy(block.mixer_norm, decoder.input_layernorm)
    if decoder is layer:
        mamba2(block.mixer, layer.mamba)
        return
    mixer, peer = block.mixer, layer.shared_transformer
    mamba2(mixer.own, decoder.mamba)
    copy(mixer.map, layer.linear)
    copy(mixer.block.norm, peer.input_layernorm)
    copy(mixer.block.network_norm, peer.pre_ff_layernorm)
    for name in ("q_proj", "k_proj", "v_proj"):
        copy(getattr(mixer.block.attention, name), getattr(peer.self_attn, name))
    copy(mixer.block.back, peer.self_attn.o_proj)
    mixer.block.attention.q_proj.weight.data *= 2**0.5  # theirs divides by the root of k / 2
    copy(mixer.block.gate_up, peer.feed_forward.gate_up_proj)
    copy(mixer.block.down, peer.feed_forward.down_proj)
    use = peer.feed_forward.layer_dic[decoder.mamba.layer_idx]
    for own, other in zip(
        mixer.adapter, peer.feed_forward.gate_up_proj_adapter_list[use], strict=True
    ):
        copy(own, other)


def olmo_hybrid(block: Any, layer: Any) -> None:
    swiglu(block, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)
    if hasattr(layer, "self_attn"):
        copy(block.mixer_norm, layer.post_attention_layernorm)
        copy(block.network_norm, layer.post_feedforward_layernorm)
        projections(block.mixer, layer.self_attn, norms=True)
        return
    copy(block.mixer_norm, layer.input_layernorm)
    copy(block.network_norm, layer.post_attention_layernorm)
    mixer, peer = block.mixer, layer.linear_attn
    for own, other in {
        "q_proj": peer.q_proj, "k_proj": peer.k_proj, "v_proj": peer.v_proj,
        "gate_proj": peer.g_proj, "decay_map": peer.a_proj, "beta_map": peer.b_proj,
    }.items():  # fmt: skip
        copy(getattr(mixer, own), other)
    gated(mixer, peer)


def recurrent_gemma(block: Any, layer: Any) -> None:
    copy(block.mixer_norm.weight, layer.temporal_pre_norm.weight + 1)
    copy(block.network_norm.weight, layer.channel_pre_norm.weight + 1)
    network = layer.mlp_block
    swiglu(block, network.gate_proj, network.up_proj, network.down_proj)
    peer, mixer = layer.temporal_block, block.mixer
    if hasattr(peer, "q_proj"):
        projections(mixer, peer)
        return
    copy(mixer.gate_proj, peer.linear_y)
    copy(mixer.input_proj, peer.linear_x)
    copy(mixer.out_proj, peer.linear_out)
    convolution(mixer.convolutions, peer.conv_1d)
    gates = peer.rg_lru
    copy(mixer.decay, gates.recurrent_param)
    copy(mixer.decay_map.weight, gates.recurrent_gate_weight.mT)
    copy(mixer.input_map.weight, gates.input_gate_weight.mT)
    copy(mixer.decay_bias, gates.recurrent_gate_bias.flatten())
    copy(mixer.input_bias, gates.input_gate_bias.flatten())


def lfm3(block: Any, layer: Any) -> None:
    copy(block.mixer_input_norm, layer.operator_norm)
    copy(block.mixer_norm, layer.post_operator_norm)
    copy(block.network_input_norm, layer.ffn_norm)
    copy(block.network_norm, layer.post_ffn_norm)
    swiglu(block, layer.feed_forward.w1, layer.feed_forward.w3, layer.feed_forward.w2)
    mixer = block.mixer
    if hasattr(layer, "self_attn"):
        projections(mixer, layer.self_attn, norms=True)
        copy(mixer.gate_proj, layer.self_attn.g_proj)
        return
    maps = (mixer.write_proj, mixer.read_proj, mixer.input_proj)
    parts(layer.conv.in_proj.weight, *(each.weight for each in maps))
    convolution(mixer.convolutions, layer.conv.conv)
    copy(mixer.out_proj, layer.conv.out_proj)


def mimo_v2(block: Any, layer: Any) -> None:
    copy(block.mixer_norm, layer.input_layernorm)
    copy(block.network_norm, layer.post_attention_layernorm)
    swiglu(block, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)
    mixer, peer = block.mixer, layer.self_attn
    projections(mixer, peer)
    copy(mixer.v_proj.weight, peer.v_scale * peer.v_proj.weight)
    if peer.sinks is not None:
        copy(mixer.core.sinks, peer.sinks)


def turned(ours: Any, theirs: Any, width: int) -> None:
    """Copy rows or columns of heads of `width`: theirs pairs neighbours of the last 4 channels."""
    axis = int(ours.dim() == 2 and len(ours) % width > 0)
    order = channels(width, theirs.shape[axis], ROTARY)
    copy(ours, theirs.data.index_select(axis, order))


def pooled(ours: Any, theirs: Any) -> None:
    for own, other, width in of_pooling(ours, theirs):
        turned(own, other, width)


def two_experts(block: Any, mlp: Any, shared: Any, scale: float = 1.0, share: float = 1.0) -> None:
    """Copy `share` times a shared expert and `scale` times a routed one as one network."""
    gate, up = mlp.experts.gate_up_proj[0].chunk(2)
    copy(block.network[0].gate.weight, torch.cat((shared.gate_proj.weight, gate)))
    copy(block.network[0].value.weight, torch.cat((shared.up_proj.weight, up)))
    down = (share * shared.down_proj.weight, scale * mlp.experts.down_proj[0])
    copy(block.network[-1].weight, torch.cat(down, 1))


def qwen4_exp(block: Any, layer: Any) -> None:
    half = 0.5  # the constant by which its one stream, and its shared expert, are weighed
    copy(block.mixer_norm.weight, half * (layer.attn_hyper_connection.hc_norm.weight + 1))
    copy(block.network_norm.weight, half * (layer.mlp_hyper_connection.hc_norm.weight + 1))
    two_experts(block, layer.mlp, layer.mlp.shared_expert, share=half)
    if layer.layer_type == "linear_attention":
        gated_delta_net(block.mixer, layer.linear_attn)
        return
    gated_attention(block.mixer, layer.self_attn)
    index, other = block.mixer.index, layer.self_attn.indexer
    parts(other.index_qk_proj.weight, index.queries.weight, index.keys.weight)
    copy(index.q_norm.weight, other.q_layernorm.weight + 1)
    copy(index.k_norm.weight, other.k_layernorm.weight + 1)


def deepseek_v4(block: Any, layer: Any) -> None:
    copy(block.mixer_norm, layer.input_layernorm)
    copy(block.network_norm, layer.post_attention_layernorm)
    two_experts(block, layer.mlp, layer.mlp.shared_experts, layer.mlp.gate.routed_scaling_factor)
    mixer, peer = block.mixer, layer.self_attn
    copy(mixer.q_proj, peer.q_a_proj)
    copy(mixer.q_norm, peer.q_a_norm)
    for own, other in (
        (mixer.q_up, peer.q_b_proj), (mixer.kv_proj, peer.kv_proj), (mixer.kv_norm, peer.kv_norm)
    ):  # fmt: skip
        turned(own.weight, other.weight, peer.head_dim)
    copy(mixer.sink, peer.sinks)
    order = channels(peer.head_dim, peer.o_a_proj.weight.shape[1], ROTARY)
    copy(mixer.group_maps, peer.o_a_proj.weight[:, order].view_as(mixer.group_maps))
    copy(mixer.out_proj, peer.o_b_proj)
    pooled(mixer.pooling, peer.compressor)
    if mixer.index is not None:
        index, other = mixer.index, peer.compressor.indexer
        turned(index.q_up.weight, other.q_b_proj.weight, other.head_dim)
        copy(index.weights, other.scorer.weights_proj)
        pooled(index.pooling, other)
