"""Adapters of attention, convolutions and scans, with the packages' slow forms in their place.

Each file is loaded by itself, because the packages import Triton and compiled code. fla-core has no
slow form of its short convolution.
"""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from lra.models.kernels.comparison import difference
from peers.peer import Missing
from tests.attention import compare, joined
from tests.models.kernels.attention_calls import CALLS, OPERATIONS, standing_in

pytestmark = pytest.mark.parity


class Absent(ModuleType):
    """A module that is not needed: all that it has are decorators without effect."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda function: function


FILES = {
    "parallel_forgetting_attn": ("fla", "ops/forgetting_attn/naive.py", ()),
    "parallel_path_attn": ("fla", "ops/path_attn/naive.py", ()),
    "parallel_nsa": ("fla", "ops/nsa/naive.py", ("fla.ops.utils", "fla.ops.utils.pooling")),
    "causal_conv1d_fn": (
        "causal_conv1d", "causal_conv1d_interface.py", ("causal_conv1d.cpp_functions",),
    ),
    "selective_scan_fn": (
        "mamba_ssm", "ops/selective_scan_interface.py",
        ("mamba_ssm.utils.torch", "mamba_ssm.ops.triton.layer_norm", "selective_scan_cuda"),
    ),
}  # fmt: skip
"""By the name of the kernel: package, file, and modules that the file imports in vain."""


def path(peer: Any) -> Callable[..., Any]:
    def attention(*parts: torch.Tensor, scale: float) -> tuple[torch.Tensor, None]:
        return peer.naive_path_attn(*parts, scale), None

    return attention


def choice(peer: Any) -> Callable[..., Any]:
    def attention(*rows: torch.Tensor, block_counts: int, **options: Any) -> torch.Tensor:
        assert options["block_indices"].shape[3] == block_counts
        return peer.naive_nsa_selection(*rows, **options)

    return attention


def convolution(peer: Any) -> Callable[..., Any]:
    def convolved(*parts: torch.Tensor, seq_idx: None, **options: Any) -> torch.Tensor:
        assert seq_idx is None, "the slow form has no documents"
        return peer.causal_conv1d_ref(*parts, **options)

    return convolved


FORMS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "parallel_forgetting_attn": lambda peer: peer.naive_forgetting_attn,
    "parallel_path_attn": path,
    "parallel_nsa": choice,
    "causal_conv1d_fn": convolution,
    "selective_scan_fn": lambda peer: peer.selective_scan_ref,
}
"""By the name of the kernel: the package's slow form, with the arguments of the kernel."""


def slow_form(name: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return the slow form of a kernel. Raises `Missing` where its package is absent."""
    package, file, absent = FILES[name]
    for wanted in ("einops", package):
        if (spec := importlib.util.find_spec(wanted)) is None:
            raise Missing(f"{wanted} is not installed; no extra brings it: its files suffice")
    assert spec.origin
    for module in absent:
        monkeypatch.setitem(sys.modules, module, Absent(module))
    place = Path(spec.origin).parent / file
    alone = importlib.util.spec_from_file_location(f"slow_{name}", place)
    assert alone
    assert alone.loader
    peer = importlib.util.module_from_spec(alone)
    alone.loader.exec_module(peer)
    return FORMS[name](peer)


@pytest.mark.parametrize("name", FILES)
def test_an_adapter_calls_the_slow_form_of_its_package(name, monkeypatch):
    kernel, call = standing_in(name, slow_form(name, monkeypatch)), CALLS[name]()
    assert not kernel.refusal(call)
    assert not difference(kernel, OPERATIONS[name], call)
    found, wanted = (
        joined(*(out if isinstance(out, tuple) else (out,)))
        for out in (kernel.run(call), OPERATIONS[name](**call))
    )
    leaves = [x for x in call.values() if isinstance(x, torch.Tensor) and x.is_floating_point()]
    compare(found, wanted, leaves, atol=1e-4, rtol=1e-4)
