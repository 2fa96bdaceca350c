"""Run the released layers of SGConv, LongConv, Hyena and MultiresConv, and store what they give.

    python -P tests/models/families/released/long_convolutions.py SGCONV SAFARI MULTIRES LIBRARIES

SGCONV, SAFARI and MULTIRES are clones of github.com/ctlllll/SGConv (commit 97862df),
github.com/HazyResearch/safari (commit 02220c6) and github.com/thjashin/multires-conv (commit
828089f). LIBRARIES holds what they import, as `pip install --no-deps --target LIBRARIES einops
opt_einsum` leaves it. The code is run as it stands, in float64, with weights by the rule of
`weight`; what these layers import and do not call is left out. Stored are outputs, and the
gradients of inputs and weights. LongConv is asked for whole rows only: in shorter ones its code
wraps the lags beyond their end around, to later tokens.
"""

import importlib.util
import sys
import types
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import nn

OUTPUTS = Path(__file__).with_suffix(".npz")
WIDTH, ROWS = 6, 2
UNREAD = (
    "IPython", "pywt", "pytorch_lightning", "pytorch_lightning.utilities", "rich.syntax",
    "rich.tree",
)  # fmt: skip
"""What is imported, and not called."""
SGCONV = {
    "pieces, both sides": {"kernel_dim": 4, "l_max": 24, "bidirectional": True, "postact": "glu"},
    "two kernels": {"kernel_dim": 4, "l_max": 24, "channels": 2, "decay_min": 1, "decay_max": 3},
    "stretched cosines": {
        "kernel_dim": 4, "l_max": 24, "mode": "cat_cos", "init_scale": 1, "decay_min": 1,
        "decay_max": 3, "bidirectional": True, "postact": "glu",
    },
    "decay by lag": {
        "kernel_dim": 4, "l_max": 24, "mode": "cat_randn_learnable_fixed", "decay_min": 1,
        "decay_max": 1, "bidirectional": True, "postact": "glu",
    },
    "one parameter a piece": {"kernel_dim": 1, "l_max": 20, "postact": "glu"},
}  # fmt: skip
LONG_CONV = {
    "free": {"channels": 2, "lam": 0.01, "l_max": 20},
    "free, both sides": {"channels": 2, "lam": 0.01, "l_max": 20, "bidirectional": True},
}
HYENA = {
    "order 2": {"order": 2, "filter_order": 9},
    "order 3": {"order": 3, "filter_order": 5, "emb_dim": 5, "w": 10, "shift": 0.05},
}
MULTIRES = {"fading": {"kernel_size": 3, "seq_len": 20}, "shallow": {"kernel_size": 2, "depth": 2}}
LONGEST = 20
LENGTHS = (7, 20)


def weight(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the weights of a parameter, by its name in the released code: N(0, 1 / 4)."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(shape, generator=generator, dtype=torch.float64) / 2


def tokens(length: int) -> torch.Tensor:
    """Return tokens, batch first."""
    return weight(f"tokens {length}", (ROWS, length, WIDTH))


def direction(length: int) -> torch.Tensor:
    """Return what gradients are taken along."""
    return weight(f"direction {length}", (ROWS, length, WIDTH))


def lengths(case: str) -> tuple[int, ...]:
    """Return the lengths that a case is asked for."""
    return LENGTHS[-1:] if case.removeprefix("sgconv ") in LONG_CONV else LENGTHS


def stand_in(name: str) -> None:
    """Put a module whose names are all mocks in place of one that is not called."""
    module = types.ModuleType(name)
    module.__getattr__ = lambda _: MagicMock()  # type: ignore[method-assign]
    module.__path__ = []
    sys.modules[name] = module


def by_path(path: Path) -> ModuleType:
    """Return the module of a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def layers(sgconv: Path, safari: Path, multires: Path) -> dict[str, tuple[nn.Module, Callable]]:
    """Return every layer with its call, batch first."""
    sys.path.insert(0, str(safari))
    package = types.ModuleType("src.models.sequence")
    package.__path__ = [str(safari / "src/models/sequence")]
    sys.modules["src.models.sequence"] = package
    gconv, hyena, tree = (
        by_path(path) for path in (
            sgconv / "gconv_standalone.py", safari / "standalone_hyena.py",
            multires / "layers/multireslayer.py",
        )
    )  # fmt: skip
    long_conv = importlib.import_module("src.models.sequence.long_conv")
    found: dict[str, tuple[nn.Module, Callable]] = {}
    for case, given in SGCONV.items():
        scales = {"n_scales": None, "transposed": False}
        found[f"sgconv {case}"] = gconv.GConv(WIDTH, **scales | given), lambda m, x: m(x)[0]
    for case, given in LONG_CONV.items():
        layer = long_conv.LongConv(WIDTH, transposed=False, **given)
        found[f"sgconv {case}"] = layer, lambda m, x: m(x)[0]
    for case, given in HYENA.items():
        layer = hyena.HyenaOperator(WIDTH, LONGEST, **given)
        found[f"hyena {case}"] = layer, lambda m, x: m(x)
    for case, given in MULTIRES.items():
        layer = tree.MultiresLayer(WIDTH, **given)
        found[f"multires_conv {case}"] = layer, lambda m, x: m(x.mT).mT
    return found


def main(sgconv: Path, safari: Path, multires: Path, libraries: Path) -> None:
    """Store outputs and gradients of every case."""
    sys.path.insert(0, str(libraries))
    for name in UNREAD:
        stand_in(name)
    torch.set_default_dtype(torch.float64)
    found = {}
    for case, (layer, call) in layers(sgconv, safari, multires).items():
        named = dict(layer.named_parameters())
        with torch.no_grad():
            for name, parameter in named.items():
                if name not in ("decay", "filter_fn.pos_emb.z"):
                    parameter.copy_(weight(name, tuple(parameter.shape)))
        named = {name: each for name, each in named.items() if each.requires_grad}
        for length in lengths(case):
            x = tokens(length).requires_grad_()
            y = call(layer.eval(), x)
            leaves = {"x": x} | named
            gradients = torch.autograd.grad(y, [*leaves.values()], direction(length), True)
            found[f"{case}, {length}: y"] = y.detach().numpy()
            for name, gradient in zip(leaves, gradients, strict=True):
                found[f"{case}, {length}: {name}"] = gradient.numpy()
    np.savez_compressed(OUTPUTS, **found)


if __name__ == "__main__":
    main(*(Path(each) for each in sys.argv[1:]))
