"""Released state spaces, convolutions and attention, by our names and in our layout."""

import importlib
import importlib.util
import math
import sys
import types
from enum import Enum
from functools import cache, partial
from typing import Any
from unittest.mock import MagicMock

import torch
from laws import Draw, Place
from reading import ROOT, STATES, initialised, nn_stub, plain, read
from torch import Tensor, nn


def s4(place: Place, mode: str) -> Draw:
    """S4Block, at steps as exponentials; phases of eigenvectors are left out."""
    stub = MagicMock(rank_zero_only=lambda function: function)
    sys.modules.setdefault("pytorch_lightning", stub)
    sys.modules.setdefault("pytorch_lightning.utilities", stub)
    package = _s4()
    more = {"diag": {"init": "diag-legs"}, "dplr": {"init": "legs", "B_clip": None}}
    block = package.S4Block(
        place.width, bidirectional=True, mode=mode, d_state=STATES, dt_transform="exp",
        real_transform="exp", l_max=place.longest, **more[mode],
    )  # fmt: skip
    k = block.layer.kernel

    def size(pairs: Tensor) -> Tensor:
        length = pairs.square().sum(-1).sqrt()
        return torch.stack((length, torch.zeros_like(length)), -1)

    own = {
        "skip": block.layer.D[0], "dynamics.log_decay": k.A_real,
        "dynamics.frequency": k.A_imag.abs(), "dynamics.entry": size(k.B[0]),
        "dynamics.log_step": k.inv_dt[:, 0] - math.log(0.001 * 0.1) / 2,
    }  # fmt: skip
    order = own["dynamics.frequency"].argsort(-1)
    for name in ("dynamics.frequency", "dynamics.log_decay"):
        own[name] = own[name].gather(-1, order)
    if mode == "dplr":
        own["dynamics.low_rank"] = size(k.P[0])
    for name in own.keys() & {"dynamics.entry", "dynamics.low_rank"}:
        own[name] = own[name].gather(-2, order[..., None].expand(-1, -1, 2))
    if mode == "diag":
        own["readout"] = k.C
        del own["dynamics.entry"]  # cut where eigenvectors happen to turn it
    return own


@cache
def _s4() -> Any:
    spec = importlib.util.spec_from_file_location("s4_there", ROOT / "s4/models/s4/s4.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def s5(place: Place, output: str = "lecun_normal") -> Draw:
    """S5SSM in JAX, of one block."""
    jax = importlib.import_module("jax")
    values = _s5(place, output)(jax.random.PRNGKey(int(torch.randint(2**31, ()))))["params"]
    v = {name: torch.tensor(jax.device_get(each)) for name, each in values.items()}
    # Of each pair of conjugates that with the positive frequency, which ours keeps.
    v["Lambda_im"] = -v["Lambda_im"]
    order, sign = v["Lambda_im"].argsort(), torch.tensor([1.0, -1.0])
    if "C1" in v:
        c = torch.stack((v["C1"], v["C2"]))
    else:
        c = v["C"].unflatten(1, (2, STATES)).transpose(0, 1)
    return {
        "skip": v["D"], "dynamics.real": v["Lambda_re"][order],
        "dynamics.frequency": v["Lambda_im"][order], "dynamics.log_step": v["log_step"][:, 0],
        "dynamics.entry": (sign * v["B"][order]).permute(2, 0, 1),
        "readout": (sign * c[..., order, :]).permute(0, 3, 1, 2),
    }  # fmt: skip


@cache
def _s5(place: Place, output: str) -> Any:
    numpy: Any = importlib.import_module("jax.numpy")
    jax: Any = importlib.import_module("jax")
    numpy.DeviceArray = object  # of an earlier JAX, in annotations
    hippo = importlib.import_module("s5.ssm_init")
    ssm = importlib.import_module("s5.ssm")
    numbers, _, _, vectors, _ = hippo.make_DPLR_HiPPO(2 * STATES)
    numbers, vectors = numbers[:STATES], vectors[:, :STATES]
    layer = ssm.init_S5SSM(
        place.width, STATES, numbers.real, numbers.imag, vectors, vectors.conj().T, output, "zoh",
        0.001, 0.1, conj_sym=True, clip_eigs=False, bidirectional=True,
    )  # fmt: skip
    return jax.jit(lambda key: layer(step_rescale=1.0).init(key, numpy.zeros((4, place.width))))


def linoss(place: Place, *, damping: bool = False) -> Draw:
    """LinOSSLayer in JAX, or with damping the mixer of discretax."""
    jax = importlib.import_module("jax")
    key = jax.random.PRNGKey(int(torch.randint(2**31, ())))
    layer: Any = _linoss(damping)(place.width, key)
    v = {
        name: torch.tensor(jax.device_get(getattr(layer, name)))
        for name in ("A_diag", "steps", "B", "C", "D")
    }
    found = {
        "skip": v["D"], "oscillators.stiffness": v["A_diag"], "oscillators.step": v["steps"],
        "oscillators.entry": v["B"].movedim(2, 0), "readout": v["C"].movedim(2, 0)[None],
    }  # fmt: skip
    if damping:
        found["oscillators.damping"] = torch.tensor(jax.device_get(layer.G_diag))
    return found


@cache
def _linoss(damping: bool) -> Any:
    sys.path[:0] = [str(ROOT / "linoss/models")]
    if not damping:
        layer = importlib.import_module("LinOSS").LinOSSLayer
        return lambda width, key: layer(STATES, width, "IM", key=key)
    for name in ("discretax", "discretax.sequence_mixers"):  # without what they import
        package: Any = types.ModuleType(name)
        package.__path__ = [str(ROOT / "discretax/src" / name.replace(".", "/"))]
        sys.modules[name] = package
    mixer = importlib.import_module("discretax.sequence_mixers.linoss").LinOSSSequenceMixer
    return partial(mixer, state_dim=STATES)


def sgconv(place: Place) -> Draw:
    """GConv of pieces that are drawn normally, both ways."""
    scope = {"Activation": MagicMock(), "Normalization": MagicMock(), "LinearActivation": nn_stub}
    there = read("sgconv/gconv_standalone.py", "GConv", **scope)
    layer = there.GConv(place.width, l_max=place.longest, bidirectional=True)
    return {"skip": layer.D, "kernel.parts": torch.stack(list(layer.kernel_list))}


def mega(place: Place) -> Draw:
    """Mega's layer, both ways, with positions by distance."""
    folder = "mega/fairseq/modules"
    average = read(f"{folder}/exponential_moving_average.py", "MultiHeadEMA")
    table = read(f"{folder}/relative_positional_bias.py", "SimpleRelativePositionalBias")
    there = read(
        f"{folder}/moving_average_gated_attention.py", "MovingAverageGatedAttention",
        FairseqDropout=nn_stub, SequenceNorm=nn_stub, MultiHeadEMA=average.MultiHeadEMA,
        SimpleRelativePositionalBias=table.SimpleRelativePositionalBias, utils=MagicMock(),
        Parameter=nn.Parameter,
    )  # fmt: skip
    a = there.MovingAverageGatedAttention(
        place.width, 64, 2 * place.width, STATES, bidirectional=True, max_positions=place.longest
    )
    found = {"scale": a.gamma, "shift": a.beta, "relative.weight": a.rel_pos_bias.rel_pos_bias}
    for name in ("v_proj", "mx_proj", "h_proj"):
        part = getattr(a, name)
        found |= {f"{name}.weight": part.weight, f"{name}.bias": part.bias}
    for name in ("delta", "alpha", "beta", "gamma"):
        found[f"average.{name}"] = getattr(a.move, name).view(2, place.width, STATES)
    return found | {"average.omega": a.move.omega}


def hyena(place: Place) -> Draw:
    """The operator of the standalone file."""
    there = importlib.import_module("standalone_hyena")
    a = there.HyenaOperator(place.width, place.longest)
    kernel = a.filter_fn
    *layers, last = [each for each in kernel.implicit_filter if isinstance(each, nn.Linear)]
    found = {
        "taps": a.short_filter.weight[:, 0], "taps_bias": a.short_filter.bias,
        "skip": kernel.bias[None], "kernel.positions": kernel.pos_emb.z[0],
        "kernel.frequency": kernel.implicit_filter[1].freq[0], "kernel.last.weight": last.weight,
    }  # fmt: skip
    for index, layer in enumerate(layers):
        found |= {f"kernel.layers.{index}.{name}": each for name, each in layer.named_parameters()}
    return found


def multires_conv(place: Place, **options: Any) -> Draw:
    """The layer of multires-conv; its weights stand from the coarsest level to the finest."""
    there = read("multires/layers/multireslayer.py", "MultiresLayer", print=lambda *_: None)
    a = there.MultiresLayer(place.width, 2, seq_len=place.longest, **options)
    weights = torch.cat((a.w[:, :-1].flip(1), a.w[:, -1:]), 1)
    return {"low": a.h0[:, 0], "high": a.h1[:, 0], "weights": weights}


def ttt(place: Place) -> Draw:
    """TTT-Linear."""
    there = read(
        "ttt/ttt.py", "TTTBase TTTLinear _init_weights", RotaryEmbedding=nn_stub,
        TTTConfig=object, TTTCache=object, Optional=MagicMock(),
    )  # fmt: skip
    config = types.SimpleNamespace(
        hidden_size=place.width, num_attention_heads=place.heads, mini_batch_size=16,
        share_qk=False, use_gate=False, conv_kernel=4, rope_theta=10000.0, ttt_base_lr=1.0,
        initializer_range=0.02,
    )  # fmt: skip
    model = types.SimpleNamespace(config=config)
    a: Any = initialised(there.TTTLinear(config, 0), partial(there._init_weights, model))
    return {
        "place_rate": a.learnable_token_idx, "weight": a.W1, "bias": a.b1,
        "norm_weight": a.ttt_norm_weight[:, None], "norm_bias": a.ttt_norm_bias[:, None],
        "rate_map.weight": a.learnable_ttt_lr_weight[:, 0],
        "rate_map.bias": a.learnable_ttt_lr_bias[:, 0],
        "post_norm.weight": a.post_norm.weight, "post_norm.bias": a.post_norm.bias,
    }  # fmt: skip


def nystromformer(place: Place) -> Draw:
    """The attention of its code for the Long Range Arena, with a convolution."""
    there = read("nystrom/LRA/code/attention_nystrom.py", "NystromAttention")
    config = {
        "head_dim": place.width // place.heads, "num_head": place.heads, "num_landmarks": 64,
        "seq_len": place.longest, "conv_kernel_size": 33, "inv_coeff_init_option": "original",
        "inv_init_coeff_option": "original",
    }  # fmt: skip
    return {"core.conv.weight": there.NystromAttention(config).conv.weight[:, 0, :, 0]}


def collaborative(place: Place, mixing: str = "CONCATENATE") -> Draw:
    """The attention of collaborative-attention."""
    file = "collaborative/src/collaborative_attention/collaborative_attention.py"
    there, width = read(file, "MixingMatrixInit CollaborativeAttention", Enum=Enum), place.width
    a = there.CollaborativeAttention(
        width, width, width, width, place.heads, False, 0.0, True, False,
        there.MixingMatrixInit[mixing],
    )  # fmt: skip
    return {"mixing": a.mixing}


def qrnn(place: Place) -> Draw:
    """A layer of pytorch-qrnn that sees two tokens."""
    there = read("qrnn/torchqrnn/qrnn.py", "QRNNLayer")
    a = there.QRNNLayer(place.width, place.width, window=2)
    return {"cells.0.gates.weight": a.linear.weight, "cells.0.gates.bias": a.linear.bias}


def luna(place: Place) -> Draw:
    """The attention of Luna."""
    there = read(
        "mega/fairseq/modules/luna_attention.py", "LunarMultiheadAttention",
        FairseqDropout=nn_stub, quant_noise=lambda layer, *_: layer,
    )  # fmt: skip
    a = there.LunarMultiheadAttention(
        place.width, place.heads, place.heads, tie_kv=True, self_attention=True
    )
    maps = {"pack_q_proj": a.pq_proj, "pack_kv_proj": a.pc_proj, "q_proj": a.q_proj}
    maps |= {"kv_proj": a.c_proj, "out_proj": a.out_proj}
    return {f"{name}.weight": part.weight for name, part in maps.items()}


def light_conv(place: Place) -> Draw:
    """The convolution of fairseq, one kernel a head."""
    there = read(
        "apollo/fairseq/modules/lightweight_convolution.py", "LightweightConv1dTBC",
        with_incremental_state=plain, FairseqDropout=nn_stub,
    )  # fmt: skip
    a = there.LightweightConv1dTBC(place.width, 31, num_heads=place.heads)
    return {"weight": a.weight}


def dynamic_conv(place: Place) -> Draw:
    """The convolution of fairseq, one kernel a token and head."""
    there = read(
        "apollo/fairseq/modules/dynamic_convolution.py", "DynamicConv1dTBC Linear",
        with_incremental_state=plain, FairseqDropout=nn_stub,
    )  # fmt: skip
    a = there.DynamicConv1dTBC(place.width, 31, num_heads=place.heads)
    return {"kernel_proj.weight": a.weight_linear.weight}


def adaptive_span(place: Place) -> Draw:
    """Spans and embeddings of distances of adaptive-span."""
    mask = read("span/adaptive_span.py", "AdaptiveMask")
    spans = mask.AdaptiveMask(2048, 32, 0.0, shape=(place.heads, 1, 1)).current_val
    there = read("span/models.py", "TransformerSeq")
    words = {"adapt_io_enabled": False}
    model = there.TransformerSeq(32, place.width, place.heads, 0, 1024, 0.0, words)
    return {"core.spans": spans.flatten(), "core.table.weight": model.key_pe[0].T}


def differential(place: Place) -> Draw:
    """The attention of DiffLlama in transformers, after its model's initialiser."""
    package = importlib.import_module("transformers.models.diffllama.modeling_diffllama")
    model = _diffllama(place)
    attention = package.DiffLlamaAttention(model.config, place.layer)
    a: Any = initialised(attention, model._init_weights)
    vectors = torch.stack((a.lambda_q1, a.lambda_k1, a.lambda_q2, a.lambda_k2))
    return {"core.attend.vectors": vectors.view(2, 2, -1)}


@cache
def _diffllama(place: Place) -> Any:
    package = importlib.import_module("transformers.models.diffllama.modeling_diffllama")
    return package.DiffLlamaModel(package.DiffLlamaConfig(
        hidden_size=place.width, intermediate_size=8, num_hidden_layers=place.depth,
        num_attention_heads=2 * place.heads, num_key_value_heads=2 * place.heads, vocab_size=32,
    ))  # fmt: skip
