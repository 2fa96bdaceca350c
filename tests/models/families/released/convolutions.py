"""Run LightConv and DynamicConv of fairseq, and store what they give.

    python tests/models/families/released/convolutions.py CHECKOUT

CHECKOUT is a clone of github.com/facebookresearch/fairseq (commit 3d262bb); its two modules are run
as they stand, without the rest of the package. Stored is the form that unfolds its input.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import torch

OUTPUTS = Path(__file__).with_suffix(".npz")
WIDTH, HEADS, LENGTH, ROWS = 12, 3, 9, 2
CASES = {
    f"{name}, {taps} taps, {left} before": (name, taps, left)
    for name in ("light", "dynamic")
    for taps, left in ((3, 2), (3, 1), (7, 6), (7, 3))
}


def drawn(*shape: int, seed: int) -> torch.Tensor:
    """Return N(0, 1) in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def tokens() -> torch.Tensor:
    """Return what is convolved, behind the gate, batch first."""
    return drawn(ROWS, LENGTH, WIDTH, seed=1)


def weight(name: str, taps: int) -> torch.Tensor:
    """Return the weight as that code shapes it."""
    if name == "light":
        return drawn(HEADS, 1, taps, seed=2)
    return drawn(HEADS * taps, WIDTH, seed=3)


def direction() -> torch.Tensor:
    """Return what gradients are taken along."""
    return drawn(ROWS, LENGTH, WIDTH, seed=4)


def loaded(checkout: Path) -> SimpleNamespace:
    """Return both modules, under a package that has nothing else."""
    package = ModuleType("fairseq")
    package.__path__ = [str(checkout / "fairseq")]
    package.utils = ModuleType("fairseq.utils")
    package.utils.softmax = lambda x, dim, **_: torch.softmax(x, dim)
    modules = ModuleType("fairseq.modules")
    modules.__path__ = [str(checkout / "fairseq" / "modules")]
    sys.modules |= {
        "fairseq": package, "fairseq.utils": package.utils, "fairseq.modules": modules,
    }  # fmt: skip
    return SimpleNamespace(
        light=importlib.import_module("fairseq.modules.lightweight_convolution"),
        dynamic=importlib.import_module("fairseq.modules.dynamic_convolution"),
    )


def layer(code: SimpleNamespace, name: str, taps: int, left: int) -> torch.nn.Module:
    """Return the module of that code with our weight."""
    options = {"kernel_size": taps, "padding_l": left, "num_heads": HEADS, "weight_softmax": True}
    if name == "light":
        made = code.light.LightweightConv1dTBC(WIDTH, **options)
        made.weight = torch.nn.Parameter(weight(name, taps))
        return made
    made = code.dynamic.DynamicConv1dTBC(WIDTH, **options)
    made.weight_linear.weight = torch.nn.Parameter(weight(name, taps))
    return made


def main(checkout: Path) -> None:
    """Store outputs and gradients of every case."""
    code, found = loaded(checkout), {}
    for case, (name, taps, left) in CASES.items():
        module, x = layer(code, name, taps, left), tokens().requires_grad_()
        y = module(x.transpose(0, 1), unfold=True).transpose(0, 1)
        (parameter,) = module.parameters()
        by_x, by_weight = torch.autograd.grad(y, (x, parameter), direction())
        values = {"y": y, "x": by_x, "weight": by_weight}
        found |= {f"{case}: {key}": value.detach().numpy() for key, value in values.items()}
    np.savez_compressed(OUTPUTS, **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
