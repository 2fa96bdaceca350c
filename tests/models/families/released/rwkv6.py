"""Run the time mixing of the released code of RWKV-6, and store what it gives.

    python tests/models/families/released/rwkv6.py CHECKOUT

CHECKOUT is a clone of github.com/BlinkDL/RWKV-LM (commit 524481d). The text of its class is run as
it stands, in float64; a loop takes the place of its CUDA kernel, which its module would compile.
Stored are initial values and, with other weights, outputs and gradients.
"""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn

OUTPUTS = Path(__file__).with_suffix(".npz")
WIDTH, HEAD, LENGTH, ROWS, LAYER, DEPTH = 16, 8, 11, 2, 1, 3
NAMES = {
    "time_maa_x": "first_mix", "time_maa_w1": "mix_down.weight", "time_maa_w2": "mix_up",
    "time_decay": "decay.base", "time_decay_w1": "decay.down.weight",
    "time_decay_w2": "decay.up.weight", "time_faaaa": "bonus", "receptance.weight": "r_proj.weight",
    "key.weight": "k_proj.weight", "value.weight": "v_proj.weight",
    "output.weight": "out_proj.weight", "gate.weight": "gate_proj.weight",
    "ln_x.weight": "norm_weight", "ln_x.bias": "norm_bias",
}  # fmt: skip
"""Theirs, and ours; `MIXES` are the rows of our `mixes`."""
MIXES = tuple(f"time_maa_{letter}" for letter in "wkvrg")


def drawn(*shape: int, seed: int) -> Tensor:
    """Return N(0, 1) in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def tokens() -> Tensor:
    """Return what the layer reads."""
    return drawn(ROWS, LENGTH, WIDTH, seed=1)


def direction() -> Tensor:
    """Return what gradients are taken along."""
    return drawn(ROWS, LENGTH, WIDTH, seed=2)


def weight(number: int, shape: torch.Size) -> Tensor:
    """Return the weight of a number in the order of theirs, vectors and bonuses of 0.1."""
    return drawn(*shape, seed=10 + number) * (0.1 if len(shape) < 2 or 1 in shape else WIDTH**-0.5)


def loop(r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor) -> Tensor:
    """Return what the kernel does, one token after the other."""
    r, k, v, w = (each.unflatten(-1, (-1, HEAD)) for each in (r, k, v, w))
    state, outputs = torch.zeros(ROWS, WIDTH // HEAD, HEAD, HEAD), []
    for t in range(r.shape[1]):
        added = k[:, t, :, :, None] * v[:, t, :, None]
        outputs.append((r[:, t, :, :, None] * (state + u[..., None] * added)).sum(-2))
        state = state * torch.exp(-torch.exp(w[:, t]))[..., None] + added
    return torch.stack(outputs, 1).flatten(2)


def main(checkout: Path) -> None:
    """Store initial values, outputs and gradients."""
    torch.set_default_dtype(torch.float64)
    text = (checkout / "RWKV-v5/src/model.py").read_text(encoding="utf-8")
    found = re.search(r"^class RWKV_Tmix_x060\(MyModule\):\n(?:\n|[ \t].*\n)+", text, re.MULTILINE)
    assert found is not None
    known = {
        "torch": torch, "nn": nn, "F": nn.functional, "MyModule": nn.Module,
        "MyFunction": lambda method: method, "RUN_CUDA_RWKV6": loop,
    }  # fmt: skip
    exec(found[0], known)  # the clone is named by hand
    sizes = SimpleNamespace(
        n_layer=DEPTH, n_embd=WIDTH, dim_att=WIDTH, head_size_a=HEAD, head_size_divisor=8
    )
    layer = known["RWKV_Tmix_x060"](sizes, LAYER)
    begun = (*MIXES, "time_maa_x", "time_decay", "time_faaaa")
    stored = {
        f"begun {n}": layer.get_parameter(n).detach().flatten().clone().numpy() for n in begun
    }
    with torch.no_grad():
        for number, parameter in enumerate(layer.parameters()):
            parameter.copy_(weight(number, parameter.shape))
    x = tokens().requires_grad_()
    y = layer(x)
    leaves = {"x": x, **dict(layer.named_parameters())}
    gradients = torch.autograd.grad(y, [*leaves.values()], direction())
    stored |= {"y": y.detach().numpy(), "order": np.array([*leaves][1:])}
    for name, gradient in zip(leaves, gradients, strict=True):
        stored[f"d {name}"] = gradient.numpy()
    np.savez_compressed(OUTPUTS, **stored)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
