"""Run the layers of GSA and Raven as released, and store what they give.

    pip install --no-deps --target LIBRARIES einops
    PYTHONPATH=LIBRARIES python -P tests/models/families/released/slots.py CHECKOUT RAVEN

CHECKOUT is an unpacked wheel of flash-linear-attention 0.6.0 and fla-core 0.6.0, of which
fla/layers/gsa.py and fla/ops/gsa/naive.py are read; RAVEN is a clone of github.com/goombalab/raven
(commit afc329f), of which raven/layers/raven.py is read. Their classes are run as they stand, in
float64: PyTorch's functions stand for kernels of norms, and the plain form of slot attention, which
is told to be in float64, for its kernels.
"""

import ast
import math
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

OUTPUTS = Path(__file__).with_suffix(".npz")
WIDTH, HEADS, SLOTS, ROUTE, LENGTH, ROWS = 8, 2, 6, 3, 13, 2
CASES = {"gsa": {}, "raven": {"topk": ROUTE}}
NAMES = {
    "q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "f_proj": "slot_map",
    "r_proj": "slot_map", "a_proj": "decay_map", "q_norm": "q_norm", "k_norm": "k_norm",
    "g_norm": "joint_norm", "o_proj": "out_proj",
}  # fmt: skip
"""Ours, of modules with one weight."""


def drawn(*shape: int, seed: int) -> Tensor:
    """Return N(0, 1) in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def tokens() -> Tensor:
    """Return inputs, batch first."""
    return drawn(ROWS, LENGTH, WIDTH, seed=1)


def direction() -> Tensor:
    """Return what gradients are taken along."""
    return drawn(ROWS, LENGTH, WIDTH, seed=2)


def our_name(name: str) -> str:
    """Return our name of a released parameter."""
    own = {"A_log": "log_rate", "dt_bias": "step_bias"}
    return own.get(name) or f"{NAMES[name.removesuffix('.weight')]}.weight"


def read(file: Path, name: str, **scope: Any) -> Any:
    """Return a class or function of a file, without what else the file imports."""
    tree = ast.parse(file.read_text())
    (node,) = (each for each in tree.body if getattr(each, "name", "") == name)
    future = ast.parse("from __future__ import annotations").body
    known = {"torch": torch, "nn": nn, "F": F, "math": math, "warnings": warnings, **scope}
    exec(compile(ast.Module([*future, node], type_ignores=[]), str(file), "exec"), known)
    return known[name]


def rms_norm_linear(x: Tensor, weight: Tensor, bias: None, out: Tensor, out_bias: None) -> Tensor:
    """Stand for the kernel of this name, with its epsilon."""
    assert bias is None
    assert out_bias is None
    return F.rms_norm(x, x.shape[-1:], weight, 1e-5) @ out.T


def layer(case: str, checkout: Path, raven: Path) -> nn.Module:
    """Return a released layer."""
    import einops

    double = types.SimpleNamespace(**vars(torch))
    double.float = torch.float64
    plain = read(checkout / "fla/ops/gsa/naive.py", "naive_recurrent_gsa", repeat=einops.repeat)
    plain.__globals__["torch"] = double
    Tensor.float = Tensor.double  # type: ignore[method-assign,assignment]

    def norm(width: int, affine: bool = True, *, eps: float, **_: Any) -> nn.Module:
        assert affine
        layer = nn.RMSNorm(width, eps=eps)
        layer.bias = None
        return layer

    scope = {
        "rearrange": einops.rearrange, "repeat": einops.repeat, "RMSNorm": norm,
        "SwishFeatureMap": nn.SiLU, "rms_norm_linear": rms_norm_linear, "ShortConvolution": None,
    }  # fmt: skip

    def attention(*, cu_seqlens: None, **streams: Any) -> Any:
        assert cu_seqlens is None
        return plain(**streams)

    kernels = {f"{way}_{name}": attention for way in ("chunk", "fused_recurrent")
               for name in ("gsa", "raven")}  # fmt: skip
    place, name = checkout / "fla/layers/gsa.py", "GatedSlotAttention"
    if case == "raven":
        place, name = raven / "raven/layers/raven.py", "RavenAttention"
    scope |= kernels | {
        "get_layer_cache": lambda *_: None,
        "update_layer_cache": lambda *_, **__: None,
        "unpad_hidden_states": lambda x, *_: (x, None, None),
        "repad_hidden_states": lambda o, *_: o,
    }
    kind = read(place, name, **scope)
    built: nn.Module = kind(
        hidden_size=WIDTH, num_heads=HEADS, num_slots=SLOTS, norm_eps=1e-6, layer_idx=0,
        **CASES[case],
    )  # fmt: skip
    return built.double().eval()


def main(checkout: Path, raven: Path) -> None:
    """Store outputs, and gradients by inputs and parameters."""
    found = {}
    for case in CASES:
        there, x = layer(case, checkout, raven), tokens().requires_grad_()
        for index, (_, value) in enumerate(sorted(there.named_parameters())):
            value.data.copy_(drawn(*value.shape, seed=10 + index) / 2)
        y = there(x)[0]
        y.backward(direction())
        found |= {f"{case}: y": y.detach().numpy(), f"{case}: x": x.grad.numpy()}
        for index, (name, value) in enumerate(sorted(there.named_parameters())):
            found[f"{case}: {index} {our_name(name)}"] = value.grad.numpy()
    np.savez_compressed(OUTPUTS, **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
