"""Peers of exact and latent attention and of the Fourier mixer, which approximate nothing."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lra.models.families.differential import Differential
from lra.models.families.fnet import FNet
from lra.models.families.grouped_query import GroupedQueryAttention
from lra.models.families.latent_attention import NORM_EPSILON, LatentAttention
from lra.models.families.sdpa import SDPA
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Positions
from lra.models.multi_head import NORM_EPSILON as QK_EPSILON
from peers.peer import (
    Peer,
    PeerCase,
    PeerPair,
    layer_of,
    package,
    projections,
    side_by_side,
    twins,
)


def attention(case: PeerCase) -> PeerPair:
    """PyTorch's MultiheadAttention, which returns no weights."""
    peer: Any = case.placed(nn.MultiheadAttention(case.width, case.heads, batch_first=True))
    ours: Any = case.placed(SDPA(case.site()))
    width = case.width
    weights = []
    for part, name in enumerate(("q_proj", "k_proj", "v_proj")):

        def rows(fused: Tensor, part: int = part) -> Tensor:
            return fused[part * width : (part + 1) * width]

        weights.append(twins(getattr(ours, name).weight, peer.in_proj_weight, rows))
        bias = twins(getattr(ours, name).bias, peer.in_proj_bias, rows)
        if name != "k_proj":  # see `projections`
            weights.append(bias)
    for kind in ("weight", "bias"):
        weights.append(twins(getattr(ours.out_proj, kind), getattr(peer.out_proj, kind)))
    mask = None
    if case.causal:
        mask = nn.Transformer.generate_square_subsequent_mask(
            case.length, device=case.device, dtype=case.dtype
        )

    def theirs(x: Tensor) -> Tensor:
        out: Tensor = peer(x, x, x, need_weights=False, attn_mask=mask, is_causal=case.causal)[0]
        return out

    return PeerPair(layer_of(ours), theirs, case.tokens(), tuple(weights))


def bert(case: PeerCase) -> PeerPair:
    """Transformers' BertSelfAttention in its eager form, without an output projection."""
    module = package("transformers.models.bert.modeling_bert")
    config = package("transformers").BertConfig(
        hidden_size=case.width,
        num_attention_heads=case.heads,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
    peer: Any = case.placed(module.BertSelfAttention(config))
    ours: Any = case.placed(SoftmaxAttention(case.site()))
    weights = projections(ours, peer, ("query", "key", "value"))
    ours.merge = side_by_side
    return PeerPair(layer_of(ours), lambda x: peer(x)[0], case.tokens(), weights)


def fourier(case: PeerCase) -> PeerPair:
    """Transformers' FNetBasicFourierTransform."""
    module = package("transformers.models.fnet.modeling_fnet")
    config = package("transformers").FNetConfig(
        hidden_size=case.width, max_position_embeddings=case.length
    )
    peer: Any = module.FNetBasicFourierTransform(config)
    return PeerPair(layer_of(FNet(case.site())), lambda x: peer(x)[0], case.tokens())


def rotary_angles(case: PeerCase, width: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of all positions, for two halves of `width` channels together."""
    steps = torch.arange(0, width, 2, device=case.device, dtype=torch.float64)
    places = torch.arange(case.length, device=case.device, dtype=torch.float64)
    angle = torch.outer(places, 10_000.0 ** (-steps / width)).repeat(1, 2)[None]
    return angle.cos().to(case.dtype), angle.sin().to(case.dtype)


class SideBySide(nn.Module):
    """Two projections to heads, of which each gets its share of both."""

    def __init__(self, heads: int, width_in: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = (nn.Linear(width_in, heads * width, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Project."""
        parts = (
            layer(x).view(*x.shape[:-1], self.heads, -1) for layer in (self.first, self.second)
        )
        return torch.cat([*parts], -1).flatten(-2)


def latent(case: PeerCase) -> PeerPair:
    """Transformers' DeepseekV3Attention, queries compressed, with biases."""
    module = package("transformers.models.deepseek_v3.modeling_deepseek_v3")
    width, queries, latents, rotary = case.head_width, 48, 3 * case.head_width, case.head_width // 2
    config = package("transformers").DeepseekV3Config(
        hidden_size=case.width, num_attention_heads=case.heads, num_key_value_heads=case.heads,
        q_lora_rank=queries, kv_lora_rank=latents, qk_nope_head_dim=width, v_head_dim=width,
        qk_rope_head_dim=rotary, rope_interleave=False, attention_bias=True,
        attn_implementation="sdpa",
    )  # fmt: skip
    peer: Any = module.DeepseekV3Attention(config, layer_idx=0)
    peer.q_a_layernorm = nn.RMSNorm(queries, NORM_EPSILON)
    peer.kv_a_layernorm = nn.RMSNorm(latents, NORM_EPSILON)
    peer.kv_b_proj = SideBySide(case.heads, latents, width)
    case.placed(peer)
    site = replace(case.site(), positions=Positions.rotary)
    options: dict[str, Any] = {"kv_width": latents, "query_width": queries, "rotary_width": rotary}
    ours: Any = case.placed(LatentAttention(site, **options, bias=True))
    same = {
        "q_proj": peer.q_a_proj, "q_up": peer.q_b_proj, "q_norm": peer.q_a_layernorm,
        "kv_proj": peer.kv_a_proj_with_mqa, "kv_norm": peer.kv_a_layernorm,
        "k_up": peer.kv_b_proj.first, "v_up": peer.kv_b_proj.second, "out_proj": peer.o_proj,
    }  # fmt: skip
    weights = tuple(
        twins(parameter, getattr(same[name], kind))
        for name in same
        for kind, parameter in getattr(ours, name).named_parameters()
    )
    turn = rotary_angles(case, rotary)

    def theirs(x: Tensor) -> Tensor:
        out: Tensor = peer(x, turn, None, is_causal=case.causal)[0]
        return out

    return PeerPair(layer_of(ours), theirs, case.tokens(), weights)


def gated_and_normed(case: PeerCase) -> PeerPair:
    """Transformers' Qwen3NextAttention, whose map of queries makes the gates, too."""
    module = package("transformers.models.qwen3_next.modeling_qwen3_next")
    width, heads = case.head_width, case.heads
    config = package("transformers").Qwen3NextConfig(
        hidden_size=case.width, num_attention_heads=heads, num_key_value_heads=heads,
        head_dim=width, attention_bias=False, attn_implementation="sdpa",
    )  # fmt: skip
    peer: Any = module.Qwen3NextAttention(config, layer_idx=0)
    peer.q_norm, peer.k_norm = (nn.RMSNorm(width, QK_EPSILON) for _ in range(2))
    peer.q_proj = SideBySide(heads, case.width, width)
    case.placed(peer)
    site = replace(case.site(), positions=Positions.rotary)
    ours: Any = case.placed(SDPA(site, bias=False, output_gate=True, qk_norm=True))
    same = {
        "q_proj": peer.q_proj.first, "gate_proj": peer.q_proj.second, "k_proj": peer.k_proj,
        "v_proj": peer.v_proj, "q_norm": peer.q_norm, "k_norm": peer.k_norm,
        "out_proj": peer.o_proj,
    }  # fmt: skip
    weights = tuple(twins(getattr(ours, name).weight, same[name].weight) for name in same)
    turn = rotary_angles(case, width)

    def theirs(x: Tensor) -> Tensor:
        out: Tensor = peer(x, turn, None, is_causal=case.causal)[0]
        return out

    return PeerPair(layer_of(ours), theirs, case.tokens(), weights)


def with_sinks(case: PeerCase) -> PeerPair:
    """Transformers' GptOssAttention in its eager form, two heads of queries to one of keys."""
    module = package("transformers.models.gpt_oss.modeling_gpt_oss")
    width, heads, groups = case.head_width, case.heads, case.heads // 2
    config = package("transformers").GptOssConfig(
        hidden_size=case.width, num_attention_heads=heads, num_key_value_heads=groups,
        head_dim=width, attention_bias=True, layer_types=["full_attention"],
        num_hidden_layers=1, attn_implementation="eager",
    )  # fmt: skip
    peer: Any = case.placed(module.GptOssAttention(config, layer_idx=0))
    nn.init.normal_(peer.sinks)
    site = replace(case.site(), positions=Positions.rotary)
    ours: Any = case.placed(GroupedQueryAttention(site, key_value_heads=groups, sink=True))
    same = {"q_proj": peer.q_proj, "k_proj": peer.k_proj, "v_proj": peer.v_proj}
    same["out_proj"] = peer.o_proj
    weights = tuple(
        twins(parameter, getattr(same[name], kind))
        for name in same
        for kind, parameter in getattr(ours, name).named_parameters()
    )
    weights += (twins(ours.core.sinks, peer.sinks),)
    turn = tuple(angles[..., : width // 2] for angles in rotary_angles(case, width))
    mask = None
    if case.causal:
        mask = nn.Transformer.generate_square_subsequent_mask(
            case.length, device=case.device, dtype=case.dtype
        )

    def theirs(x: Tensor) -> Tensor:
        out: Tensor = peer(x, turn, mask)[0]
        return out

    return PeerPair(layer_of(ours), theirs, case.tokens(), weights)


class ByMaps(nn.Linear):
    """A projection whose two parts of each head follow each other; theirs wants all first parts."""

    heads: int

    def forward(self, x: Tensor) -> Tensor:
        """Project."""
        parts: Tensor = super().forward(x)
        return parts.view(*x.shape[:-1], self.heads, 2, -1).transpose(-3, -2).flatten(-3)


def two_maps(case: PeerCase) -> PeerPair:
    """Transformers' DiffLlamaAttention."""
    module = package("transformers.models.diffllama.modeling_diffllama")
    config = package("transformers").DiffLlamaConfig(
        hidden_size=case.width, num_attention_heads=2 * case.heads, attn_implementation="sdpa",
    )  # fmt: skip
    peer: Any = module.DiffLlamaAttention(config, layer_idx=0)
    site = replace(case.site(), positions=Positions.rotary)
    ours: Any = case.placed(Differential(site))
    peer.q_proj, peer.k_proj, peer.v_proj = (
        ByMaps(case.width, case.width, bias=False) for _ in range(3)
    )
    for projection in (peer.q_proj, peer.k_proj, peer.v_proj):
        projection.heads = case.heads
    peer.groupnorm = nn.RMSNorm(case.head_width, 1e-5)
    vectors = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
    for name in vectors:
        delattr(peer, name)
    peer.vectors = nn.Parameter(torch.empty(2, 2, case.head_width // 2))
    case.placed(peer)
    weights = [
        twins(getattr(ours, name).weight, getattr(peer, other).weight)
        for name, other in {
            "q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "out_proj": "o_proj",
        }.items()
    ]  # fmt: skip
    maps = ours.core.attend
    weights += [twins(maps.vectors, peer.vectors), twins(maps.norm.weight, peer.groupnorm.weight)]
    turn = rotary_angles(case, case.head_width // 2)

    def theirs(x: Tensor) -> Tensor:
        for name, vector in zip(vectors, peer.vectors.flatten(0, 1), strict=True):
            setattr(peer, name, vector)
        out: Tensor = peer(x, turn, None, is_causal=case.causal)[0]
        return out

    return PeerPair(layer_of(ours), theirs, case.tokens(), tuple(weights))


PEERS = (
    Peer(
        name="torch nn.MultiheadAttention",
        distribution="torch",
        family="sdpa",
        setting="a layer",
        make=attention,
        causal=True,
    ),
    Peer(
        name="transformers BertSelfAttention",
        distribution="transformers",
        family="softmax",
        setting="the literal form of both, a layer",
        make=bert,
        note="it has no output projection, so ours is left out",
    ),
    Peer(
        name="transformers Qwen3NextAttention",
        distribution="transformers",
        family="sdpa",
        setting="a layer, output_gate=true, qk_norm=true, rotary positions of all channels",
        make=gated_and_normed,
        causal=True,
        note="its norms, in float32 whatever comes, are PyTorch's; its projection to queries and "
        "gates is two, side by side; as many heads of keys, no biases",
    ),
    Peer(
        name="transformers GptOssAttention",
        distribution="transformers",
        family="grouped_query",
        setting="a layer, sink=true, two heads of queries to one of keys, rotary positions",
        make=with_sinks,
        causal=True,
        note="its eager form, with all scores",
    ),
    Peer(
        name="transformers DiffLlamaAttention",
        distribution="transformers",
        family="differential",
        setting="a layer, rotary positions of all channels of a map",
        make=two_maps,
        causal=True,
        tolerance=1e-6,
        rounding=5e-5,
        note="its projections are in our order of rows; its four vectors are one parameter, summed "
        "in float32; its norm has weights",
    ),
    Peer(
        name="transformers DeepseekV3Attention",
        distribution="transformers",
        family="latent_attention",
        setting="a layer, queries and keys compressed, rotary parts of half a head",
        make=latent,
        causal=True,
        note="its norms, in float32 whatever comes, are PyTorch's; its projection to keys and "
        "values is two, side by side; rope_interleave=False",
    ),
    Peer(
        name="transformers FNetBasicFourierTransform",
        distribution="transformers",
        family="fnet",
        setting="FFT over length and width",
        make=fourier,
        note="it takes no mask: padding moves real outputs",
    ),
)
