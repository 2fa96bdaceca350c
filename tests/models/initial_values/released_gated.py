"""Released layers of gated recurrences and delta rules, by our names and in our layout."""

import contextlib
import importlib
import io
import os
import types
import warnings
from functools import cache, partial
from typing import Any

import torch
from laws import Draw, Place
from reading import STATES, initialised, nn_stub, read, taps
from torch import nn


def rwkv(place: Place, file: str, name: str, **more: Any) -> nn.Module:
    """Return a time mixing as `generate_init_weight` leaves it."""
    os.environ["RWKV_FLOAT_MODE"], os.environ["RWKV_MY_TESTING"] = "fp32", ""
    there = _rwkv(file, name)
    args = types.SimpleNamespace(
        n_embd=place.width, dim_att=place.width, n_layer=place.depth, accelerator="CPU",
        vocab_size=32, my_testing="", **more,
    )  # fmt: skip
    model, block = nn.Module(), nn.Module()
    model.args, block.att = args, getattr(there, name)(args, place.layer)
    model.blocks = nn.ModuleDict({str(place.layer): block})
    with contextlib.redirect_stdout(io.StringIO()):
        weights = there.generate_init_weight(model)
    model.load_state_dict(weights)
    return block.att


@cache
def _rwkv(file: str, name: str) -> types.SimpleNamespace:
    import gc

    return read(file, f"{name} generate_init_weight", MyModule=nn.Module, gc=gc)


def rwkv7(place: Place) -> Draw:
    """RWKV-LM, the trainer of version 7."""
    file = "rwkv/RWKV-v7/train_temp/src/model.py"
    a: Any = rwkv(place, file, "RWKV_Tmix_x070", head_size=place.width // place.heads)
    found = {
        "mixes": torch.cat((a.x_r, a.x_w, a.x_k, a.x_v, a.x_a, a.x_g))[:, 0],
        "r_proj.weight": a.receptance.weight, "k_proj.weight": a.key.weight,
        "v_proj.weight": a.value.weight, "out_proj.weight": a.output.weight,
        "removal_scale": a.k_k.flatten(), "addition_scale": a.k_a.flatten(),
        "skip": a.r_k.flatten(), "norm_weight": a.ln_x.weight, "norm_bias": a.ln_x.bias,
    }  # fmt: skip
    for name, letter in {"decay": "w", "rate": "a", "residual": "v", "gate": "g"}.items():
        if name != "residual" or place.layer:
            down, up = getattr(a, f"{letter}1"), getattr(a, f"{letter}2")
            found |= {f"{name}.down.weight": down.T, f"{name}.up.weight": up.T}
            if name != "gate":
                found[f"{name}.base"] = getattr(a, f"{letter}0").flatten()
    return found


def rwkv6(place: Place) -> Draw:
    """RWKV-LM, the trainer of version 6."""
    file, size = "rwkv/RWKV-v5/src/model.py", place.width // place.heads
    a: Any = rwkv(place, file, "RWKV_Tmix_x060", head_size_a=size, head_size_divisor=8)
    mixes = a.time_maa_w, a.time_maa_k, a.time_maa_v, a.time_maa_r, a.time_maa_g
    return {
        "first_mix": a.time_maa_x.flatten(), "mixes": torch.cat(mixes)[:, 0],
        "mix_down.weight": a.time_maa_w1.T, "mix_up": a.time_maa_w2,
        "decay.base": a.time_decay.flatten(), "decay.down.weight": a.time_decay_w1.T,
        "decay.up.weight": a.time_decay_w2.T, "bonus": a.time_faaaa.flatten(),
        "r_proj.weight": a.receptance.weight, "k_proj.weight": a.key.weight,
        "v_proj.weight": a.value.weight, "gate_proj.weight": a.gate.weight,
        "out_proj.weight": a.output.weight, "norm_weight": a.ln_x.weight,
        "norm_bias": a.ln_x.bias,
    }  # fmt: skip


def mlstm(place: Place) -> Draw:
    """The layer of xlstm."""
    layer = importlib.import_module("xlstm.blocks.mlstm.layer")
    config = layer.mLSTMLayerConfig(
        embedding_dim=place.width, num_heads=place.heads, context_length=8, _num_blocks=place.depth
    )
    m = layer.mLSTMLayer(config)
    m.reset_parameters()
    cell = m.mlstm_cell
    return {
        **taps(m.conv1d.conv), "skip": m.learnable_skip, "norm_weight": 1 + cell.outnorm.weight,
        "query_map.weight": m.q_proj.weight, "key_map.weight": m.k_proj.weight,
        "value_map.weight": m.v_proj.weight, "enter.weight": cell.igate.weight,
        "enter.bias": cell.igate.bias, "forget.weight": cell.fgate.weight,
        "forget.bias": cell.fgate.bias,
    }  # fmt: skip


def slstm(place: Place, **more: Any) -> Draw:
    """The layer of xlstm, without CUDA."""
    layer = importlib.import_module("xlstm.blocks.slstm.layer")
    config = layer.sLSTMLayerConfig(
        embedding_dim=place.width, num_heads=place.heads, backend="vanilla",
        _block_idx=place.layer, _num_blocks=place.depth, **more,
    )  # fmt: skip
    m = layer.sLSTMLayer(config)
    m.reset_parameters()
    kernel = m.slstm_cell._recurrent_kernel_.unflatten(1, (4, -1))  # as its vanilla cell has it
    maps = {"input": m.igate, "forget": m.fgate, "cell": m.zgate, "output": m.ogate}
    return {
        **taps(m.conv1d.conv), "norm_weight": 1 + m.group_norm.weight,
        **{f"{name}_map.weight": each.weight for name, each in maps.items()},
        "bias": m.slstm_cell._bias_.view(4, place.heads, -1),
        "recurrent": kernel.permute(0, 3, 1, 2),
    }  # fmt: skip


@cache
def fla_model(name: str, place: Place, options: tuple[tuple[str, Any], ...]) -> Any:
    """Return a language model of flash-linear-attention."""
    importlib.import_module("transformers.modeling_utils")
    package = importlib.import_module("fla.models")
    config = getattr(package, f"{name}Config")(
        hidden_size=place.width, num_hidden_layers=place.depth, vocab_size=32, **dict(options)
    )
    model = importlib.import_module("transformers").AutoModelForCausalLM.from_config(config)
    return model


def fla(place: Place, name: str, **options: Any) -> Any:
    """Return a layer of such a model, drawn anew."""
    model = fla_model(name, place, tuple(options.items()))
    block = type(model.model.layers[place.layer])(model.config, place.layer)
    return initialised(block, model._init_weights).attn


def heads_of(place: Place) -> dict[str, int]:
    """Return the sizes that most of these models ask for."""
    return {"num_heads": place.heads, "head_dim": place.width // place.heads}


def gla(place: Place) -> Draw:
    """GLA of flash-linear-attention."""
    a = fla(place, "GLA", num_heads=place.heads)
    return {"decay_up.bias": a.gk_proj[1].bias, "norm.weight": a.g_norm_swish_gate.weight}


def hgrn2(place: Place) -> Draw:
    """HGRN2 of flash-linear-attention, whose bounds are its model's."""
    options = {"num_heads": place.heads, "expand_ratio": place.width // place.heads}
    bounds = fla_model("HGRN2", place, tuple(options.items())).model.lower_bounds
    found = {"norm.weight": fla(place, "HGRN2", **options).g_norm.weight}
    return found | ({"bounds.table": bounds} if place.layer else {})


def delta_net(place: Place) -> Draw:
    """DeltaNet of flash-linear-attention."""
    a = fla(place, "DeltaNet", num_heads=place.heads)
    return {"norm.weight": a.o_norm.weight, **streams(a)}


def streams(a: Any) -> Draw:
    """Return the taps of queries, keys and values."""
    return {**taps(a.q_conv1d), **taps(a.k_conv1d, 1), **taps(a.v_conv1d, 2)}


def gated_delta_net(place: Place) -> Draw:
    """Gated DeltaNet of flash-linear-attention."""
    a = fla(place, "GatedDeltaNet", **heads_of(place))
    own = {"log_rate": a.A_log, "step_bias": a.dt_bias, "norm.weight": a.o_norm.weight}
    return own | streams(a)


def comba(place: Place) -> Draw:
    """Comba of flash-linear-attention."""
    with warnings.catch_warnings(action="ignore"):  # it advises about the start of D
        a = fla(place, "Comba", **heads_of(place))
    own = {"log_rate": a.A_log, "step_bias": a.dt_bias, "norm.weight": a.o_norm.weight}
    return own | streams(a) | {"inner_decay": a.decay, "query_correction": a.D}


def preconditioned(place: Place, name: str) -> Draw:
    """The preconditioned layers of flash-linear-attention."""
    a = fla(place, name, **heads_of(place))
    own = {
        "log_rate": a.A_log, "step_bias": a.dt_bias, "norm.weight": a.o_norm.weight,
        "preconditioner.log_rate": a.A_log_atk, "preconditioner.step_bias": a.dt_bias_atk,
        "preconditioner.centre": a.log_atk_scale,
    }  # fmt: skip
    own |= {"gate_up.bias": a.g_proj[1].bias} if name == "PrecondKDA" else {}
    return own | streams(a)


def kimi_delta(place: Place, **options: Any) -> Draw:
    """KDA of flash-linear-attention."""
    a = fla(place, "KDA", **heads_of(place), **options)
    own = {"log_rate": a.A_log, "step_bias": a.dt_bias, "norm.weight": a.o_norm.weight}
    return own | streams(a) | {"gate_up.bias": a.g_proj[1].bias}


def gated_delta_net2(place: Place) -> Draw:
    """Gated DeltaNet-2 of flash-linear-attention, which has a layer but no model: in KDA's."""
    layer = importlib.import_module("fla.layers.gdn2").GatedDeltaNet2(
        place.width, **heads_of(place)
    )
    model = fla_model("KDA", place, tuple(heads_of(place).items()))
    a: Any = initialised(layer, model._init_weights)
    own = {"log_rate": a.A_log, "step_bias": a.dt_bias, "norm.weight": a.o_norm.weight}
    return own | streams(a) | {"gate_up.bias": a.g_proj[1].bias}


def raven(place: Place) -> Draw:
    """The layer of Raven."""
    file, stub = "raven/raven/layers/raven.py", {"SwishFeatureMap": nn_stub, "RMSNorm": nn_stub}
    layer = read(file, "RavenAttention", **stub).RavenAttention
    a: Any = layer(hidden_size=place.width, num_heads=place.heads, layer_idx=place.layer)
    return {"log_rate": a.A_log, "step_bias": a.dt_bias}


def mesa_net(place: Place) -> Draw:
    """MesaNet of flash-linear-attention."""
    a = fla(place, "MesaNet", **heads_of(place))
    return {
        "ridge": a.lambda_params.view(place.heads, -1), "norm.weight": a.o_norm.weight,
        "beta_map.bias": a.b_proj.bias, "decay_map.bias": a.a_proj.bias,
        **taps(a.q_conv1d), **taps(a.k_conv1d, 1),
    }  # fmt: skip


def forgetting(place: Place) -> Draw:
    """Forgetting attention of flash-linear-attention."""
    a = fla(place, "ForgettingTransformer", num_heads=place.heads)
    return {"forget_map.bias": a.f_proj.bias}


def log_linear(place: Place) -> Draw:
    """Log-linear Mamba-2 of flash-linear-attention."""
    size = 2 * place.width // place.heads
    options = {"num_heads": place.heads, "head_dim": size, "state_size": STATES}
    model = fla_model("LogLinearMamba2", place, tuple(options.items()))
    block = type(model.backbone.layers[place.layer])(model.config, place.layer)
    a = initialised(block, model._init_weights).mixer
    return {"log_rate": a.A_log, "skip": a.D, "step_bias": a.dt_bias, "norm.weight": a.norm.weight}


def through_mamba(layer: nn.Module, place: Place) -> nn.Module:
    """Initialise as the language model of state-spaces/mamba does."""
    file = "mamba/mamba_ssm/models/mixer_seq_simple.py"
    return initialised(
        layer, partial(read(file, "_init_weights")._init_weights, n_layer=place.depth)
    )


def gated_norm(width: int, **_: Any) -> nn.Module:
    """Return the weights of the norm in the kernels of state-spaces/mamba."""
    file = "mamba/mamba_ssm/ops/triton/layernorm_gated.py"
    return read(file, "RMSNorm").RMSNorm(width)


def mamba(place: Place) -> Draw:
    """The layer of state-spaces/mamba."""
    repeat = importlib.import_module("einops").repeat
    a: Any = through_mamba(
        read("mamba/mamba_ssm/modules/mamba_simple.py", "Mamba", repeat=repeat).Mamba(place.width),
        place,
    )
    own = {"log_rate": a.A_log, "skip": a.D, "step_bias": a.dt_proj.bias}
    return own | {"step_map.weight": a.dt_proj.weight} | taps(a.conv1d)


def mamba2(place: Place, file: str = "mamba/mamba_ssm/modules/mamba2.py") -> Draw:
    """The second layer of state-spaces/mamba, or Hydra."""
    name, width, sides = ("Mamba2", 2 * place.width, 1)
    if "hydra" in file:
        name, sides = "Hydra", 2
    scope = {"PyTorchModelHubMixin": object, "RMSNormGated": gated_norm}
    layer = getattr(read(file, name, **scope), name)(
        place.width, d_state=STATES, headdim=width // place.heads
    )
    a: Any = through_mamba(layer, place)
    own = {"log_rate": a.A_log, "skip": a.D, "norm.weight": a.norm.weight}
    own |= {} if sides == 2 else {"step_bias": a.dt_bias}
    ends = width, width + sides * STATES, width + 2 * sides * STATES
    parts = (slice(0, ends[0]), slice(ends[0], ends[1]), slice(ends[1], ends[2]))
    for index, part in enumerate(parts):
        own |= taps(a.conv1d, index, part)
    return own


def mamba3(place: Place, **options: Any) -> Draw:
    """The third layer of state-spaces/mamba; its order of channels does not matter here."""
    layer = read(
        "mamba/mamba_ssm/modules/mamba3.py", "Mamba3",
        RMSNormGated=gated_norm, mamba3_mimo_combined=True,
    ).Mamba3(
        place.width, d_state=STATES, headdim=2 * place.width // place.heads, **options
    )  # fmt: skip
    a: Any = through_mamba(layer, place)
    own = {
        "step_bias": a.dt_bias, "skip": a.D, "writes.bias": a.B_bias, "reads.bias": a.C_bias,
        "writes.norm.weight": a.B_norm.weight, "reads.norm.weight": a.C_norm.weight,
    }  # fmt: skip
    if options:
        own |= {
            "outputs.input_weight": a.mimo_x, "outputs.gate_weight": a.mimo_z,
            "outputs.output_weight": a.mimo_o,
            "outputs.norm_weight": a.norm.weight.view(place.heads, -1),
        }  # fmt: skip
    return own
