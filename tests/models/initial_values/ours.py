"""The layers of ours that are compared, and why a parameter begins otherwise than there."""

from typing import Any

import torch
from torch import nn

from lra.composition.catalogue import names
from lra.composition.class_path import locate
from lra.composition.compose import group_file
from lra.models.mixer import Site
from tests.models.initial_values.laws import Place

FAMILIES = [name for name in names("model") if "mixer" in group_file("model", name)]
"""All but stacks of their own, whose layers are the backbone's."""
STATES = {"states": 16}
OPTIONS: dict[str, dict[str, Any]] = {
    "adaptive_span": {"span": 1024},
    "collaborative normal": {"mixing": "normal"},
    "gated_delta_net comba": {"comba": True},
    "gated_delta_net preconditioned": {"precondition": 1.5},
    "kimi_delta bound": {"bound": -5.0},
    "linoss": STATES,
    "linoss damped": {"discretisation": "imex", "damping": True, **STATES},
    "kimi_delta preconditioned": {"precondition": 1.5},
    "mamba2": STATES,
    "mamba2 hydra": {"quasi_separable": True, "convolution": 7, **STATES},
    "mamba2 log-linear": {"log_linear": True, **STATES},
    "mamba3": STATES,
    "mamba3 ranks": {"rank": 3, "output_norm": True, **STATES},
    "multires_conv wide": {"wide_skip": True},
    "s4 diagonal": STATES,
    "s4 dplr": {"kernel": "dplr", **STATES},
    "s5": {"states": 32, "blocks": 1, "output": "lecun"},
    "s5 complex": {"states": 32, "blocks": 1, "output": "complex"},
    "s5 truncated": {"states": 32, "blocks": 1, "output": "truncated"},
    "slots routed": {"route": 32},
    "slstm other starts": {"forget_bias": "linear", "recurrent": "uniform"},
}
"""Of a stored layer where they are not at their defaults."""
TWO_SIDED = {
    "fnet", "funnel", "kernelised", "linformer", "luna", "mamba2 hydra", "mega", "nystromformer",
    "s4 diagonal", "s4 dplr", "s5", "s5 complex", "s5 truncated", "sgconv", "skyformer", "yoso",
}  # fmt: skip

BLANKET = "there every map and tap of a model is drawn alike; the layer alone draws taps as ours"
TAPS = {f"convolutions.{index}.weight": BLANKET for index in range(3)}
OUTPUT = {"out_proj.weight": "zeros there, which the page says"}
DIFFERENT: dict[str, dict[str, str]] = {
    "delta_net": TAPS,
    "gated_delta_net": TAPS,
    "gated_delta_net comba": TAPS,
    "gated_delta_net preconditioned": TAPS,
    "gated_delta_net2": TAPS,
    "kimi_delta": TAPS,
    "kimi_delta bound": TAPS,
    "kimi_delta preconditioned": TAPS,
    "mesa_net": TAPS,
    "rwkv6": OUTPUT,
    "rwkv7": OUTPUT,
}
"""Why a parameter begins otherwise than in released code."""
MIXED = "the identity, softmax attention; drawn with mixing=normal, the page says"
LRU = ["readout", "skip", *(f"recurrence.{each}" for each in ("nu", "theta", "log_gamma", "entry"))]
PARTS = "weight_ih", "weight_hh", "bias_ih", "bias_hh"
LSTM = [f"cells.0.lstm.{part}_l0" for part in PARTS]
UNSTORED: dict[str, dict[str, str]] = {
    "convbert": {"span": "the code is TensorFlow's: N(0, 1 / taps), which the page says"},
    "lambda_layer": {"offsets": "no code is released; the page says the law"},
    "lite_transformer": {"convolution.kernel_proj.weight": "as in dynamic_conv"},
    "lru": dict.fromkeys(LRU, "no code is released; the laws are the paper's"),
    "lstm": dict.fromkeys(LSTM, "PyTorch's own layer"),
    "luna": {"slots.weight": "the encoder's, N(0, 1 / width)"},
    "mamba2 hydra": {"step_bias": "of both ends"},
    "mamba2 log-linear": {
        f"convolutions.{index}.{part}": "as without levels"
        for index in range(3) for part in ("weight", "bias")
    },
    "path": {"convolutions.0.weight": "as the released layer alone draws taps"},
    "rg_lru": {
        "decay": "the released code is not a package; the page says the law",
        "decay_map.weight": "N(0, 1 / width of a head), as in that code",
        "input_map.weight": "N(0, 1 / width of a head), as in that code",
        "convolutions.0.weight": "PyTorch's law of convolutions, as every family here",
        "convolutions.0.bias": "PyTorch's law of convolutions, as every family here",
    },
    "short_conv": {"convolutions.0.weight": "PyTorch's own convolution"},
    "s4 diagonal": {"dynamics.entry": "cut there where eigenvectors happen to turn it"},
    "s4 dplr": {"readout": "another parameter there, which the page says"},
    "sinkhorn": {
        f"core.null_{part}": "no code of the causal form is released" for part in ("key", "value")
    },
    "talking_heads": {"core.logits_map": MIXED, "core.weights_map": MIXED},
}  # fmt: skip
"""Why a parameter that our convention does not draw is compared with no stored law."""


def built(name: str, place: Place) -> nn.Module:
    """Return a layer of ours at a place, drawn from torch's generator."""
    family = locate(str(group_file("model", name.split(maxsplit=1)[0])["mixer"]["class_path"]))
    site = Site(
        width=place.width, heads=place.heads, max_length=place.longest, layer=place.layer,
        depth=place.depth, causal=name not in TWO_SIDED,
        generator=torch.Generator().manual_seed(int(torch.randint(2**31, ()))),
    )  # fmt: skip
    layer: nn.Module = family(site, **OPTIONS.get(name, {}))
    return layer
