"""Patterns of published hybrids, built small, equal the files of their sources with equal weights.

Theirs are models of transformers. Their weights are copied into ours, and both read one batch with
padding at either end. Parameters are counted to the unit, embedding and head included.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from stack_layers import (
    ROTARY,
    copy,
    deepseek_v4,
    falcon_h1,
    glm5_next,
    jamba,
    kimi_linear,
    lfm3,
    mimo_v2,
    minimax,
    nemotron_h,
    olmo_hybrid,
    qwen3_next,
    qwen4_exp,
    recurrent_gemma,
    zamba2,
)

from lra.composition.compose import build_model, typed
from lra.composition.hydra_entry import entries
from lra.models.backbone.config import Head, TaskFacts
from peers.peer import package

VOCABULARY, LENGTH = 37, 21
FROM_ZERO = {"Qwen3NextRMSNorm", "Qwen3_5RMSNorm", "RecurrentGemmaRMSNorm"}
"""Norms whose weights count from 0."""
CONSTANT = (
    "_hc.fn", "_hc.base", "_hc.scale", "hc_head.hc_fn", "hc_head.hc_base", "hc_head.hc_scale",
    "input_mix_weight_down.weight", "input_mix_weight_up.weight", "block_inject_weight.weight",
    "shared_expert_gate.weight",
)  # fmt: skip
"""Ends of names of parameters that weigh hyper-connected streams, or a shared expert: with the
values of `one_stream`, these weights are constants."""
IDLE = ("mlp.gate.weight", *CONSTANT)
"""Ends of names of parameters without effect: the router of a single expert, and `CONSTANT`."""
WITHOUT = {"glm5_next": ".indexer."}
"""Modules that ours lacks; with as many tokens as here, they have no effect."""
PADDING_LAST = {"recurrent_gemma", "deepseek_v4"}
"""Their recurrence or their blocks read padding before a row."""
SMALL = ("task=mqar", "logger=none", "size=tiny", "model.backbone.dropout=0.0")


class Source(NamedTuple):
    """A model of transformers, small, and the options that make ours equal to it."""

    module: str
    """Of transformers.models."""
    kind: str
    """The prefix of its classes."""
    config: dict[str, Any]
    words: tuple[str, ...]
    """Arguments of `lra run`."""
    layer: Callable[[Any, Any], None]
    """Copies the weights of a layer."""


USUAL = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "pad_token_id": None,
}  # fmt: skip
SIZES = (
    "model.backbone.width=32", "model.backbone.heads=4", "model.backbone.feed_forward_width=48"
)  # fmt: skip
GROUPED = "model.layer_options.attention.key_value_heads=2"
SOURCES = {
    "qwen3_next": Source(
        "qwen3_next", "Qwen3Next",
        {**USUAL, "num_hidden_layers": 8, "head_dim": 8, "num_experts": 0,
         "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 4,
         "linear_num_value_heads": 4, "rms_norm_eps": 1e-6, "rope_parameters": {
             "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}},
        ("model.backbone.depth=8", GROUPED),
        qwen3_next,
    ),
    "qwen3_5": Source(
        "qwen3_5", "Qwen3_5Text",
        {**USUAL, "num_hidden_layers": 8, "head_dim": 8, "rms_norm_eps": 1e-6,
         "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 4,
         "linear_num_value_heads": 4, "rope_parameters": {
             "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
             "mrope_section": [1, 0, 0]}},
        ("model.backbone.depth=8", GROUPED),
        qwen3_next,
    ),
    "jamba": Source(
        "jamba", "Jamba",
        {**USUAL, "num_hidden_layers": 8, "num_experts": 1, "num_experts_per_tok": 1,
         "mamba_d_state": 8, "mamba_dt_rank": 2},
        ("model.backbone.depth=8", GROUPED, "model.mixer.states=8"),
        jamba,
    ),
    "kimi_linear": Source(
        "kimi_linear", "KimiLinear",
        {**USUAL, "num_hidden_layers": 7, "num_key_value_heads": 4, "linear_num_heads": 4,
         "linear_head_dim": 8, "kv_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8,
         "v_head_dim": 8, "mlp_layer_types": ["dense"] * 7, "linear_attn_config": {
             "full_attn_layers": [4, 7], "kda_layers": [1, 2, 3, 5, 6],
             "head_dim": 8, "num_heads": 4, "short_conv_kernel_size": 4}},
        ("model.backbone.depth=7", "+model.layer_options.latent_attention.kv_width=12",
         "+model.layer_options.latent_attention.rotary_width=4"),
        kimi_linear,
    ),
    "nemotron_h": Source(
        "nemotron_h", "NemotronH",
        {**USUAL, "head_dim": 8, "hybrid_override_pattern": "M-M*-M-", "ssm_state_size": 8,
         "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 1, "chunk_size": 8,
         },
        ("model.backbone.depth=7", "model.layers=M-MA-M-",
         "model.layer_options.M.states=8", "model.layer_options.A.key_value_heads=2"),
        nemotron_h,
    ),
    "falcon_h1": Source(
        "falcon_h1", "FalconH1",
        {**USUAL, "num_hidden_layers": 3, "mamba_d_ssm": 64, "mamba_n_heads": 4,
         "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 8,
         "ssm_out_multiplier": 0.5, "attention_out_multiplier": 1.5,
         "rope_parameters": {"rope_type": "default", "rope_theta": 1e11}},
        ("model.backbone.depth=3", GROUPED, "model.mixer.states=8",
         "model.layer_options.both.scales=[0.5,1.5]"),
        falcon_h1,
    ),
    "minimax_01": Source(
        "minimax", "MiniMax",
        {**USUAL, "num_hidden_layers": 8, "num_local_experts": 1, "num_experts_per_tok": 1,
         "layer_types": [*["linear_attention"] * 7, "full_attention"], "block_size": 8,
         "rope_parameters": {"rope_type": "default", "rope_theta": 1e7}},
        ("model.backbone.depth=8", GROUPED),
        minimax,
    ),
    "zamba2": Source(
        "zamba2", "Zamba2",
        {**USUAL, "num_hidden_layers": 6, "num_key_value_heads": 4, "n_mamba_heads": 4,
         "mamba_d_state": 8, "chunk_size": 8, "adapter_rank": 3, "intermediate_size": 128,
         "layers_block_type": [*["mamba", "mamba", "hybrid"] * 2]},
        ("model.backbone.depth=6", "model.layers=LLHLLH", "model.layer_options.L.states=8",
         "model.layer_options.H.adapter_rank=3", "model.backbone.feed_forward_width=128"),
        zamba2,
    ),
    "olmo_hybrid": Source(
        "olmo_hybrid", "OlmoHybrid",
        {**USUAL, "num_hidden_layers": 8, "linear_num_key_heads": 4, "linear_num_value_heads": 4,
         "linear_key_head_dim": 6, "linear_value_head_dim": 12,
            "rope_parameters": {"rope_type": "default", "rope_theta": None}},
        ("model.backbone.depth=8", GROUPED,
         "model.layer_options.gated_delta_net.backbone.head_width=6"),
        olmo_hybrid,
    ),
    "qwen4_exp": Source(
        "qwen4_exp", "Qwen4ExpText",
        {**USUAL, "num_hidden_layers": 8, "head_dim": 8, "num_experts": 1,
         "num_experts_per_tok": 1, "moe_intermediate_size": 24,
         "shared_expert_intermediate_size": 24, "hc_count": 2, "hc_lowrank": 6,
         "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 4,
         "linear_num_value_heads": 4, "indexer_n_heads": 16, "indexer_kv_heads": 1,
         "indexer_head_dim": 8, "indexer_budget": 6, "indexer_compress_ratio": 3},
        ("model.backbone.depth=8", GROUPED, "+model.layer_options.attention.index_heads=16",
         "model.layer_options.attention.block=3", "model.layer_options.attention.budget=6"),
        qwen4_exp,
    ),
    "glm5_next": Source(
        "glm5_next", "Glm5NextText",
        {**USUAL, "num_hidden_layers": 8, "num_key_value_heads": 4, "linear_num_heads": 4,
         "linear_head_dim": 8, "kv_lora_rank": 12, "q_lora_rank": 20, "qk_nope_head_dim": 8,
         "v_head_dim": 8, "mlp_layer_types": ["dense"] * 8, "hc_mult": 1, "hc_eps": 0.0,
         "index_n_heads": 4, "index_head_dim": 8, "index_kpool": 4, "index_topk": 24},
        ("model.backbone.depth=8", "+model.layer_options.latent_attention.kv_width=12",
         "+model.layer_options.latent_attention.query_width=20"),
        glm5_next,
    ),
    "mimo_v2": Source(
        "mimo_v2_flash", "MiMoV2Flash",
        {**USUAL, "num_hidden_layers": 12, "head_dim": 12, "v_head_dim": 12, "sliding_window": 5,
         "mlp_layer_types": ["dense"] * 12},
        ("model.backbone.depth=12", "model.backbone.head_width=12", GROUPED,
         "model.mixer.window=[4]"),
        mimo_v2,
    ),
    "deepseek_v4": Source(
        "deepseek_v4", "DeepseekV4",
        {**USUAL, "num_hidden_layers": 6, "num_key_value_heads": 1, "head_dim": 8,
         "intermediate_size": 24, "n_routed_experts": 1, "num_experts_per_tok": 1,
         "q_lora_rank": 12, "partial_rotary_factor": ROTARY / 8, "sliding_window": 5,
         "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4},
         "o_groups": 2, "o_lora_rank": 10, "index_n_heads": 16, "index_head_dim": 6,
         "index_topk": 3, "hc_mult": 1, "hc_eps": 0.0},
        ("model.backbone.depth=6", *(
            f"{place}.{option}" for place in ("model.mixer", "++model.layer_options.sparse")
            for option in ("window=5", "query_width=12", "output_groups=2", "output_rank=10",
                           f"rotary_width={ROTARY}")),
         "model.mixer.block=4", "model.layer_options.sparse.block=2",
         "model.layer_options.sparse.top=3", "+model.layer_options.sparse.index_heads=16",
         "+model.layer_options.sparse.index_width=6"),
        deepseek_v4,
    ),
    "recurrent_gemma": Source(
        "recurrent_gemma", "RecurrentGemma",
        {**USUAL, "num_hidden_layers": 6, "num_key_value_heads": 4, "intermediate_size": 96,
         "attention_window_size": 5, "lru_width": 32},
        ("model.backbone.depth=6", "model.layer_options.sliding_window.window=[4]"),
        recurrent_gemma,
    ),
    "lfm3": Source(
        "lfm3", "Lfm3",
        {**USUAL, "num_hidden_layers": 8, "num_key_value_heads": 4, "head_dim": 8,
         "sliding_window": 5, "rope_parameters": {
             "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
             "full_attention": {"rope_type": "default", "rope_theta": 1e6}}},
        ("model.backbone.depth=8", "model.layer_options.attention.key_value_heads=4",
         "model.layer_options.window.window=[4]",
         "model.layer_options.attention.backbone.rotary_share=1.0"),
        lfm3,
    ),
}  # fmt: skip


def ours_of(name: str, source: Source) -> Any:
    words = [f"+pattern={name}", *SMALL, *SIZES, *source.words]
    (entry,) = entries(words)
    facts = TaskFacts(
        head=Head.language_modelling, vocabulary=VOCABULARY, classes=2, max_length=LENGTH,
        padded=True,
    )  # fmt: skip
    return build_model(typed(entry.config), given_facts=facts).eval()


def theirs_of(source: Source) -> Any:
    torch.manual_seed(1)
    configuration = package(f"transformers.models.{source.module}")
    config = getattr(configuration, f"{source.kind}Config")(**source.config)
    config._attn_implementation = "eager"
    if hasattr(config, "hc_count"):
        config.hc_count = 1  # the constructor refuses a single stream
    model = getattr(configuration, f"{source.kind}Model")(config).eval()
    for module in model.modules():
        if hasattr(module, "time_step_limit"):  # theirs clamps steps at the smallest initial one
            module.time_step_limit = (0.0, float("inf"))
        if hasattr(module, "normalizer"):  # rounded to bfloat16 there
            module.normalizer = torch.tensor(module.config.hidden_size**0.5)
        if type(module).__name__ == "Lfm3Attention":
            module.q_norm.variance_epsilon = module.k_norm.variance_epsilon = 1e-6
        if type(module).__name__ == "Glm5NextTextAttention":
            module.q_a_layernorm.variance_epsilon = module.kv_a_layernorm.variance_epsilon = 1e-6
        if type(module).__name__ == "MiniMaxLightningAttention":
            module.norm.variance_epsilon *= module.head_dim  # ours divides keys by its root
    for parameter in model.parameters():  # also norms and biases, which start at 1 and 0
        parameter.data += 0.1 * torch.randn(parameter.shape)
    one_stream(model)
    return model


def one_stream(model: Any) -> None:
    """Let hyper-connections, here of one stream, add what a layer computes, as residuals do."""
    for name, parameter in model.named_parameters():
        if name.endswith(CONSTANT):
            parameter.data.zero_()
        if name.endswith(("_hc.base", "hc_base")):
            parameter.data[0] = 30.0  # the factor sigmoid(30) of a layer's input is 1


def pair_of(name: str) -> tuple[Any, Any]:
    source = SOURCES[name]
    ours, theirs = ours_of(name, source), theirs_of(source)
    copy(
        ours.embedding.weight,
        (theirs.embed_tokens if hasattr(theirs, "embed_tokens") else theirs.embeddings).weight,
    )
    keys = ("norm", "final_layernorm", "norm_f", "embedding_norm", "final_norm")
    final = next((getattr(theirs, key) for key in keys if hasattr(theirs, key)), None)
    if final is None:  # Qwen4-Exp
        final = theirs.hyper_connection_mixer.hc_norm
        copy(ours.stack.norm.weight, 0.5 * (final.weight + 1))
    elif name == "minimax_01":  # its layers begin with a norm of the stream, ours end with one
        behind = [*(layer.input_layernorm for layer in theirs.layers), final]
        copy(ours.stack.norm, behind.pop(0))
        for block, norm in zip(ours.stack.blocks, behind, strict=True):
            copy(block.network_norm, norm)
    else:
        copy(ours.stack.norm.weight, final.weight + float(type(final).__name__ in FROM_ZERO))
    for block, layer in zip(ours.stack.blocks, theirs.layers, strict=True):
        source.layer(block, layer)
    return ours, theirs


@pytest.mark.parity
@pytest.mark.parametrize("name", SOURCES)
def test_a_stack_equals_its_source(name: str) -> None:
    with torch.no_grad():
        ours, theirs = pair_of(name)
        tokens = torch.randint(
            1, VOCABULARY, (3, LENGTH), generator=torch.Generator().manual_seed(2)
        )
        keep = torch.ones(3, LENGTH, dtype=torch.bool)
        keep[1, :6] = keep[2, 14:] = False
        if name in PADDING_LAST:
            keep[1] = keep[1].flip(0)
        expected = theirs(input_ids=tokens, attention_mask=keep.long()).last_hidden_state
        found = ours.run(tokens[:, None], keep[:, None], None).x
    difference = (found - expected)[keep].abs().max().item()
    assert difference <= 1e-5 * max(1.0, expected[keep].abs().max().item())


@pytest.mark.parity
@pytest.mark.parametrize("name", SOURCES)
def test_a_disturbed_weight_is_seen(name: str) -> None:
    """The comparison can fail: with one number of each layer changed, it does."""
    with torch.no_grad():
        ours, theirs = pair_of(name)
        tokens = torch.arange(1, 13)[None]
        for layer in theirs.layers:
            before = theirs(input_ids=tokens).last_hidden_state
            next(each for each in layer.parameters() if each.dim() > 1).view(-1)[3] += 0.5
            assert (theirs(input_ids=tokens).last_hidden_state - before).abs().max() > 1e-4
        found = ours.run(tokens[:, None], None, None).x
        assert (found - theirs(input_ids=tokens).last_hidden_state).abs().max() > 1e-3


@pytest.mark.parity
@pytest.mark.parametrize("name", SOURCES)
def test_a_stack_has_as_many_parameters(name: str) -> None:
    ours, theirs = pair_of(name)
    count = sum(
        parameter.numel() for parameter in (*ours.embedding.parameters(), *ours.stack.parameters())
    )
    assert count == sum(
        parameter.numel()
        for key, parameter in theirs.named_parameters()
        if not key.endswith(IDLE) and WITHOUT.get(name, "nothing") not in key
    )


LISTS: dict[str, tuple[str, str, dict[str, Any], set[str]]] = {
    "qwen3_next": ("qwen3_next", "Qwen3NextConfig", {}, {"full_attention"}),
    "qwen3_5": ("qwen3_5", "Qwen3_5TextConfig", {}, {"full_attention"}),
    "qwen4_exp": ("qwen4_exp", "Qwen4ExpTextConfig", {}, {"indexed_attention"}),
    "kimi_linear": (
        "kimi_linear", "KimiLinearConfig",
        {"linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "kda_layers": [
            layer for layer in range(1, 28) if layer % 4 and layer != 27]}},
        {"full_attention"},
    ),
    "glm5_next": ("glm5_next", "Glm5NextTextConfig", {}, {"indexed_attention"}),
    "olmo_hybrid": ("olmo_hybrid", "OlmoHybridConfig", {}, {"full_attention"}),
    "lfm3": ("lfm3", "Lfm3Config", {}, {"full_attention"}),
    "jamba": ("jamba", "JambaConfig", {}, {"full_attention"}),
    "bailing": ("bailing_hybrid", "BailingHybridConfig", {}, {"full_attention"}),
    "mimo_v2": ("mimo_v2_flash", "MiMoV2FlashConfig", {}, {"full_attention"}),
    "deepseek_v4": ("deepseek_v4", "DeepseekV4Config", {}, {"compressed_sparse_attention"}),
    "zamba2": ("zamba2", "Zamba2Config", {}, {"hybrid"}),
    "nemotron_h": (
        "nemotron_h", "NemotronHConfig",
        {"hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"},
        {"full_attention"},
    ),
}  # fmt: skip
"""Module, class and arguments of a configuration, and its names of layers with attention."""
KINDS = {"attention", "latent_attention", "A", "H", "sparse"}


def kinds_of(config: Any) -> list[str]:
    """Return the kind of each layer; Zamba2's own list tells its shared blocks."""
    if type(config).__name__ == "Zamba2Config":
        return list(config.layers_block_type)
    return list(config.layer_types)


@pytest.mark.parity
@pytest.mark.parametrize("name", LISTS)
def test_the_layers_are_those_of_the_configuration(name: str) -> None:
    module, kind, arguments, attention = LISTS[name]
    config = getattr(package(f"transformers.models.{module}"), kind)(**arguments)
    (entry,) = entries([f"+pattern={name}", "task=mqar", "logger=none"])
    layers = typed(entry.config).mixer_options["layers"]
    assert [layer in KINDS for layer in layers] == [each in attention for each in kinds_of(config)]


@pytest.mark.parity
def test_two_defaults_of_transformers_are_other_stacks_than_the_checkpoints() -> None:
    """Both are named in the patterns' files."""
    kimi = package("transformers.models.kimi_linear").KimiLinearConfig().layer_types
    assert [place for place, each in enumerate(kimi) if each == "full_attention"] == [
        4, 8, 12, 16, 20, 24
    ]  # fmt: skip
    minimax = package("transformers.models.minimax").MiniMaxConfig().layer_types
    assert minimax == ["full_attention", "linear_attention"] * 16
