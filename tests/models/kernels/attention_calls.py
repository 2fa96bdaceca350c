"""Calls of operations of attention, convolutions and scans that public kernels can compute."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from lra.models.families.forgetting import fading_attention
from lra.models.kernels.kernel import PublicKernel
from lra.models.kernels.providers import all_kernels
from lra.models.mixer import Layout
from lra.models.ops.recurrent.selective_scan import selective_scan
from lra.models.ops.reflections import reflected_attention
from lra.models.ops.sparse.block_choice import chosen_by_mean
from lra.models.ops.sparse.block_table import laid_out
from lra.models.ops.sparse.chosen_blocks import chosen_attention
from lra.models.short_convolution import short_convolution
from tests.attention import drawn
from tests.models.kernels import literal_attention

OPERATIONS: dict[str, Callable[..., Any]] = {
    "parallel_forgetting_attn": fading_attention,
    "parallel_path_attn": reflected_attention,
    "parallel_nsa": chosen_attention,
    "causal_conv1d": short_convolution,
    "causal_conv1d_fn": short_convolution,
    "selective_scan_fn": selective_scan,
}
"""By the name of the package's function."""


def standing_in(name: str, function: Callable[..., Any] | None = None) -> PublicKernel:
    """Return an adapter as on a machine with its package, and `function` in the package's place."""
    kernels = all_kernels()[OPERATIONS[name].__name__]
    kernel = replace(next(x for x in kernels if x.name == name), devices=("cpu",))
    function = function or getattr(literal_attention, name)
    vars(kernel).update(loaded=function, version=kernel.versions[0], missing="")
    return kernel


def numbers(*shape: int, seed: int = 0, of: Callable[[Tensor], Tensor] = Tensor.clone) -> Tensor:
    """Return a leaf of normal numbers, or of a function of them."""
    return of(drawn(*shape, seed=seed).float()).requires_grad_()


def below_zero(x: Tensor) -> Tensor:
    return -F.softplus(x - 3)


def gated() -> dict[str, Any]:
    q, k, v = (numbers(2, 2, 80, 16, seed=seed) for seed in range(3))
    g = numbers(2, 2, 80, seed=3, of=below_zero)
    return {"q": q, "k": k, "v": v, "g": g, "causal": True, "visible": None, "dropout": 0.0}


def reflected() -> dict[str, Any]:
    q, k, v = (numbers(2, 2, 80, 16, seed=seed) for seed in range(3))
    w = numbers(2, 2, 80, 16, seed=3, of=lambda x: F.normalize(x, dim=-1))
    beta = numbers(2, 2, 80, seed=4, of=lambda x: 2 * x.sigmoid())
    g = numbers(2, 2, 80, seed=5, of=below_zero)
    call = {"q": q, "k": k, "v": v, "w": w, "beta": beta, "g": g}
    return {**call, "chunk": 32, "visible": None, "dropout": 0.0}


def chosen(*, heads: int = 32, groups: int = 2, block: int = 16) -> dict[str, Any]:
    """Return a call in which every query reads its block and the best of the others."""
    q, k, v = (
        numbers(2, number, 70, 16, seed=seed) for seed, number in enumerate((heads, groups, groups))
    )
    table = laid_out(Layout(), 70, block, causal=True, like=q)
    keys, values = (table.contents(x).detach().requires_grad_() for x in (k, v))
    choice = chosen_by_mean(q[:, :groups], keys, table, 2, causal=True)
    call = {"q": q, "keys": keys, "values": values, "chosen": choice, "table": table}
    return {**call, "causal": True, "reach": None, "dropout": 0.0}


def convolved(**more: Any) -> dict[str, Any]:
    x, weight, bias = numbers(2, 50, 8), numbers(8, 4, seed=1), numbers(8, seed=2)
    before = numbers(2, 3, 8, seed=3)
    call = {"x": x, "weight": weight, "bias": bias, "before": before, "document": None}
    return {**call, "spacing": 1, **more}


def scanned() -> dict[str, Any]:
    u, dt = numbers(2, 60, 6), numbers(2, 60, 6, seed=1, of=F.softplus)
    rates = numbers(6, 5, seed=2, of=below_zero)
    write, read = numbers(2, 60, 5, seed=3), numbers(2, 60, 5, seed=4)
    call = {"u": u, "dt": dt, "rates": rates, "write": write, "read": read}
    return {**call, "state": None, "begins": None}


CALLS: dict[str, Callable[[], dict[str, Any]]] = {
    "parallel_forgetting_attn": gated,
    "parallel_path_attn": reflected,
    "parallel_nsa": chosen,
    "causal_conv1d": convolved,
    "causal_conv1d_fn": convolved,
    "selective_scan_fn": scanned,
}
"""By the name of the package's function: makes a call of its operation."""
