"""Run the layer of the released code of Mamba-3, and store what it gives.

    python tests/models/families/released/mamba3.py CHECKOUT

CHECKOUT is a clone of github.com/state-spaces/mamba with its history. The text of its layer, of the
plain references in its tests, which take the place of kernels, and of the plain norm is run as it
stands, but in float64: `torch.float32` and `float` mean it here. Stored are outputs and gradients
and, with one rank, the states after the last token.
"""

import ast
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

OUTPUTS = Path(__file__).with_suffix(".npz")
REVISIONS = {"tail": "e9594ce", "softplus": "7438488"}
"""Commits of the layer by its decay; the plain references are those of the later one."""
REFERENCES = REVISIONS["tail"]
WIDTH, HEAD, HEADS, STATES, LENGTH, ROWS, CHUNK = 12, 6, 4, 8, 11, 2, 4
CASES: dict[str, dict[str, Any]] = {
    "one, tail": {"decay": "tail", "rank": 1, "groups": 1, "share": 0.5, "norm": False},
    "one, softplus": {"decay": "softplus", "rank": 1, "groups": 2, "share": 1.0, "norm": True},
    "three, tail": {"decay": "tail", "rank": 3, "groups": 2, "share": 0.5, "norm": True},
    "three, softplus": {"decay": "softplus", "rank": 3, "groups": 1, "share": 1.0, "norm": True},
    "three, no norm": {"decay": "tail", "rank": 3, "groups": 1, "share": 0.5, "norm": False},
}


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


def weight(number: int, shape: tuple[int, ...]) -> Tensor:
    """Return the weight of a number in the order of theirs."""
    return drawn(*shape, seed=10 + number) * 0.5 + (0 if len(shape) == 2 else 0.3)


def read(checkout: Path, revision: str, file: str, *names: str, **scope: Any) -> dict[str, Any]:
    """Return classes and functions of a file, without what else the file runs."""
    from einops import rearrange, repeat  # only what is run here needs it

    command = ["git", "-C", str(checkout), "show", f"{revision}:{file}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    text = text.replace("torch.float32", "torch.float64").replace(".float()", ".double()")
    nodes = [node for node in ast.parse(text).body if getattr(node, "name", "") in names]
    future = ast.parse("from __future__ import annotations").body
    known = {
        "torch": torch, "nn": nn, "F": nn.functional, "math": math, "rearrange": rearrange,
        "repeat": repeat, **scope,
    }  # fmt: skip
    exec(compile(ast.Module([*future, *nodes], []), file, "exec"), known)  # named by hand
    return known


def layer_of(checkout: Path, case: dict[str, Any], after: list[Tensor]) -> nn.Module:
    """Return a layer with references for kernels, which put states into `after`."""
    norm_of = read(checkout, REFERENCES, "mamba_ssm/ops/triton/layernorm_gated.py", "rms_norm_ref")
    one = read(checkout, REFERENCES, "tests/ops/triton/test_mamba3_siso.py", "mamba3_siso_step_ref")
    several = SimpleNamespace(
        **read(
            checkout, REFERENCES, "tests/ops/tilelang/test_mamba3_mimo.py",
            "mamba3_MIMO_chunk_ref", "_pad_zeros", "apply_angle_dt_reference",
        )
    )  # fmt: skip

    class Norm(nn.Module):
        def __init__(self, width: int, eps: float, **options: Any) -> None:
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.ones(width)), eps
            self.options = {n: v for n, v in options.items() if n not in {"device", "dtype"}}

        def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
            y: Tensor = norm_of["rms_norm_ref"](x, self.weight, None, z, self.eps, **self.options)
            return y

    def single(
        *, chunk_size: int, return_final_states: bool, cu_seqlens: None, **parts: Any
    ) -> Any:
        o, states = one["mamba3_siso_step_ref"](**parts)
        after[:] = states
        return o

    def mimo(
        *, Q: Tensor, K: Tensor, V: Tensor, ADT: Tensor, DT: Tensor, Trap: Tensor, Q_bias: Tensor,
        K_bias: Tensor, MIMO_V: Tensor, MIMO_Z: Tensor, MIMO_Out: Any, Angles: Tensor, D: Tensor,
        Z: Any, rotary_dim_divisor: int, fuse_pregate_headwise_rms_norm: bool = False,
        outproj_norm_weight: Any = None, outproj_norm_eps: float = 1e-5, **_: Any,
    ) -> Any:  # fmt: skip
        padded = nn.functional.pad(ADT, (0, -LENGTH % CHUNK)).unflatten(2, (-1, CHUNK))
        sums = padded.cumsum(-1)
        rest = sums[..., -1:] - sums
        return several.mamba3_MIMO_chunk_ref(
            Q, K, V, Q_bias, K_bias, MIMO_V, MIMO_Out, Z, MIMO_Z,
            several.apply_angle_dt_reference(Angles, DT.mT),
            sums.flatten(2)[..., :LENGTH], rest.flatten(2)[..., :LENGTH], DT, Trap, D,
            chunk_size=CHUNK, rotary_dim_divisor=rotary_dim_divisor, dtype=torch.float64,
            contract_mimo_out=MIMO_Out is not None, fused_norm=fuse_pregate_headwise_rms_norm,
            outproj_norm_weight=outproj_norm_weight, outproj_norm_eps=outproj_norm_eps,
        )[0]  # fmt: skip

    layer = read(
        checkout, REVISIONS[case["decay"]], "mamba_ssm/modules/mamba3.py",
        "Mamba3", "heavy_tail_activation",
        RMSNormGated=Norm, mamba3_siso_combined=single, mamba3_mimo_combined=mimo,
    )["Mamba3"](
        WIDTH, d_state=STATES, headdim=HEAD, ngroups=case["groups"], rope_fraction=case["share"],
        is_outproj_norm=case["norm"], is_mimo=case["rank"] > 1, mimo_rank=case["rank"],
    )  # fmt: skip
    found: nn.Module = layer
    return found


def main(checkout: Path) -> None:
    """Store the outputs and the gradients of every case."""
    torch.set_default_dtype(torch.float64)
    stored = {}
    for name, case in CASES.items():
        after: list[Tensor] = []
        layer = layer_of(checkout, case, after)
        with torch.no_grad():
            for number, parameter in enumerate(layer.parameters()):
                parameter.copy_(weight(number, (*parameter.shape,)))
        x = tokens().requires_grad_()
        y = layer(x)
        leaves = {"x": x, **dict(layer.named_parameters())}
        gradients = torch.autograd.grad(y, [*leaves.values()], direction())
        stored[f"{name}: y"] = y.detach().numpy()
        stored[f"{name}: order"] = np.array([*leaves][1:])
        for leaf, gradient in zip(leaves, gradients, strict=True):
            stored[f"{name}: d {leaf}"] = gradient.numpy()
        for part, state in zip(("angles", "state", "key", "value"), after, strict=False):
            stored[f"{name}: {part}"] = state.detach().numpy()
    np.savez_compressed(OUTPUTS, **stored)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
