"""Adapters of attention, convolutions and scans, with slow forms in the place of the packages."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from lra.models.families.forgetting import Forgetting
from lra.models.families.mamba import Mamba
from lra.models.families.nsa import NativeSparseAttention
from lra.models.families.path import PathAttention
from lra.models.kernels.comparison import difference
from lra.models.kernels.providers import WITHOUT, all_kernels
from lra.models.kernels.session import public_kernels
from lra.models.mixer import Layout
from lra.models.ops.sparse.block_table import laid_out
from lra.models.short_convolution import short_convolution
from tests.attention import builder, drawn
from tests.models.kernels import literal_attention as literal
from tests.models.kernels.attention_calls import (
    CALLS,
    OPERATIONS,
    chosen,
    convolved,
    numbers,
    standing_in,
)


def documents() -> torch.Tensor:
    return torch.tensor([0] * 20 + [3] * 1 + [1] * 29).expand(2, -1)


VARIANTS = {
    "path without gates": ("parallel_path_attn", {"g": None}),
    "convolution of a whole row": ("causal_conv1d", {"before": None, "bias": None}),
    "convolution of documents": ("causal_conv1d_fn", {"before": None, "document": documents()}),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_adapter_computes_outputs_states_and_gradients(name):
    call, kernel = CALLS[name](), standing_in(name)
    assert not kernel.refusal(call)
    assert not difference(kernel, OPERATIONS[name], call)


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_adapter_computes_what_else_it_takes(variant):
    name, changes = VARIANTS[variant]
    call, kernel = {**CALLS[name](), **changes}, standing_in(name)
    assert not kernel.refusal(call)
    assert not difference(kernel, OPERATIONS[name], call)


@pytest.mark.parametrize("name", ["causal_conv1d", "causal_conv1d_fn"])
@pytest.mark.parametrize("length", [2, 3, 50])
def test_the_last_inputs_are_those_of_our_form(name, length):
    call = convolved(x=numbers(2, length, 8))
    found, wanted = standing_in(name).run(call), short_convolution(**call)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def test_the_last_inputs_at_documents_are_those_of_our_form():
    call = convolved(before=None, document=documents())
    call["document"] = call["document"].clone()
    call["document"][:, -2:] = 7
    found, wanted = standing_in("causal_conv1d_fn").run(call), short_convolution(**call)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def later(x: torch.Tensor, dim: int = 1) -> torch.Tensor:
    """Return what each token reads one token too late."""
    return x.roll(1, dim)


def transposed(x: torch.Tensor) -> torch.Tensor:
    """Return rows as if heads came before tokens."""
    return x.transpose(1, 2).reshape(x.shape)


Wrong = Callable[..., Any]
FADES, PATH, NSA = (
    literal.parallel_forgetting_attn,
    literal.parallel_path_attn,
    literal.parallel_nsa,
)
TRITON, CUDA, SCAN = literal.causal_conv1d, literal.causal_conv1d_fn, literal.selective_scan_fn
WRONG: dict[str, tuple[str, Wrong]] = {
    "gates: sign": ("parallel_forgetting_attn", lambda q, k, v, g, **o: FADES(q, k, v, -g, **o)),
    "gates: none": ("parallel_forgetting_attn", lambda q, k, v, g, **o: FADES(q, k, v, 0 * g, **o)),
    "gates: one token late": (
        "parallel_forgetting_attn", lambda q, k, v, g, **o: FADES(q, k, v, later(g), **o),
    ),
    "gates: scale": ("parallel_forgetting_attn", lambda *x, scale: FADES(*x, scale=2 * scale)),
    "gates: layout": (
        "parallel_forgetting_attn",
        lambda q, k, v, g, **o: FADES(q, k, transposed(v), g, **o),
    ),
    "gates: layout of gates": (
        "parallel_forgetting_attn",
        lambda q, k, v, g, **o: FADES(q, k, v, transposed(g), **o),
    ),
    "path: scale of gates": (
        "parallel_path_attn", lambda *x, scale: PATH(*x[:5], x[5] * scale, scale=scale),
    ),
    "path: scale": ("parallel_path_attn", lambda *x, scale: PATH(*x, scale=1.1 * scale)),
    "path: sign of beta": (
        "parallel_path_attn", lambda q, k, v, w, beta, g, **o: PATH(q, k, v, w, -beta, g, **o),
    ),
    "path: reflected one token late": (
        "parallel_path_attn",
        lambda q, k, v, w, beta, g, **o: PATH(q, k, v, later(w), later(beta), g, **o),
    ),
    "path: queries and keys": (
        "parallel_path_attn", lambda q, k, *x, **o: PATH(k, q, *x, **o),
    ),
    "choice: the block before": (
        "parallel_nsa",
        lambda *x, block_indices, **o: NSA(*x, block_indices=(block_indices - 1).relu(), **o),
    ),
    "choice: one block fewer": (
        "parallel_nsa", lambda *x, block_counts, **o: NSA(*x, block_counts=block_counts - 1, **o),
    ),
    "choice: scale": ("parallel_nsa", lambda *x, scale, **o: NSA(*x, scale=1.0, **o)),
    "choice: heads": (
        "parallel_nsa", lambda q, *x, **o: NSA(q.roll(1, 2), *x, **o),
    ),
    "taps: window": ("causal_conv1d", lambda x, *w, **o: TRITON(later(x), *w, **o)),
    "taps: order": (
        "causal_conv1d", lambda x, weight, *b, **o: TRITON(x, weight.flip(1), *b, **o),
    ),
    "taps: activation": (
        "causal_conv1d", lambda *x, **o: (F.silu(TRITON(*x, **o)[0]), None),
    ),
    "taps: state": (
        "causal_conv1d",
        lambda *x, initial_state: TRITON(*x, initial_state=initial_state.roll(-1, 2)),
    ),
    "taps: window in CUDA": ("causal_conv1d_fn", lambda x, *w, **o: CUDA(x, *w, **o).roll(1, 2)),
    "taps: state in CUDA": (
        "causal_conv1d_fn",
        lambda *x, initial_states, **o: CUDA(*x, initial_states=None, **o),
    ),
    "scan: sign": ("selective_scan_fn", lambda u, dt, a, *x: SCAN(u, dt, -a, *x)),
    "scan: B and C": ("selective_scan_fn", lambda u, dt, a, b, c: SCAN(u, dt, a, c, b)),
    "scan: steps one token late": (
        "selective_scan_fn", lambda u, dt, *x: SCAN(u, later(dt, 2), *x),
    ),
    "scan: softplus twice": ("selective_scan_fn", lambda u, dt, *x: SCAN(u, F.softplus(dt), *x)),
    "scan: reads before it writes": (
        "selective_scan_fn", lambda *x: later(SCAN(*x), 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_a_kernel_that_computes_something_else_is_refused(mistake):
    name, wrong = WRONG[mistake]
    call = CALLS[name]()
    assert "differs by" in difference(standing_in(name, wrong), OPERATIONS[name], call)


@pytest.mark.parametrize("name", OPERATIONS)
def test_lost_gradients_are_refused(name):
    def cut(*x: Any, **options: Any) -> Any:
        return getattr(literal, name)(x[0].detach(), *x[1:], **options)

    found = difference(standing_in(name, cut), OPERATIONS[name], CALLS[name]())
    assert "gradient of" in found


double = torch.zeros(2, 2, 80, 16, dtype=torch.float64)
LIMITS = {
    "both directions": ("parallel_forgetting_attn", {"causal": False}, "it is causal"),
    "mask": ("parallel_forgetting_attn", {"visible": double[:, :1] > 0}, "no padding, documents"),
    "dropout": ("parallel_forgetting_attn", {"dropout": 0.1}, "no dropout"),
    "stream": ("parallel_forgetting_attn", {"q": double[:, :, :1]}, "got 1 and 80"),
    "wide heads": ("parallel_forgetting_attn", {"v": torch.zeros(2, 2, 80, 320)}, "wider than 256"),
    "float64": ("parallel_forgetting_attn", {"q": double}, "no float64"),
    "width of path": ("parallel_path_attn", {"v": torch.zeros(2, 2, 80, 24)}, "got 24"),
    "mask of path": ("parallel_path_attn", {"visible": double[:, :1] > 0}, "no padding, documents"),
    "choice in both directions": ("parallel_nsa", {"causal": False}, "it is causal"),
    "window of blocks": ("parallel_nsa", {"reach": 8}, "no window"),
    "dropout of blocks": ("parallel_nsa", {"dropout": 0.1}, "no dropout"),
    "taps apart": ("causal_conv1d", {"spacing": 2}, "2 tokens apart"),
    "taps at documents": ("causal_conv1d", {"document": documents()}, "not stop at documents"),
    "taps in float64": ("causal_conv1d", {"x": double[0]}, "no float64"),
    "five taps": ("causal_conv1d_fn", {"weight": torch.zeros(8, 5)}, "got 5"),
    "nine channels": ("causal_conv1d_fn", {"weight": torch.zeros(9, 4)}, "got 9"),
    "documents and a state": ("causal_conv1d_fn", {"document": documents()}, "there are documents"),
    "state of a scan": ("selective_scan_fn", {"state": torch.zeros(2, 6, 5)}, "empty state"),
    "documents of a scan": ("selective_scan_fn", {"begins": documents() > 0}, "at documents"),
    "float64 of a scan": ("selective_scan_fn", {"u": double[0]}, "no float64"),
    "states of a scan": ("selective_scan_fn", {"rates": torch.zeros(6, 300)}, "got 300"),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_what_a_kernel_cannot_compute_is_refused_in_a_sentence(limit):
    name, changes, reason = LIMITS[limit]
    assert reason in standing_in(name).refusal({**CALLS[name](), **changes})


def test_blocks_that_a_kernel_cannot_choose_are_refused():
    nsa, keep = standing_in("parallel_nsa"), torch.ones(2, 70, dtype=torch.bool)
    padded = laid_out(Layout(keep=keep), 70, 16, causal=True, like=keep)
    assert "padding" in nsa.refusal({**chosen(), "table": padded})
    assert "got 4" in nsa.refusal(chosen(heads=8))
    assert "got 24" in nsa.refusal(chosen(heads=24, groups=1))
    assert "got 8" in nsa.refusal(chosen(block=8))


FAMILIES = {
    "forgetting": (builder(Forgetting, causal=True), "parallel_forgetting_attn"),
    "path": (builder(PathAttention, causal=True, width=32, heads=2), "parallel_path_attn"),
    "convolution of path": (builder(PathAttention, causal=True), "causal_conv1d"),
    "mamba": (builder(Mamba, causal=True), "selective_scan_fn"),
    "mamba in both directions": (builder(Mamba), "selective_scan_fn"),
    "nsa": (
        builder(
            NativeSparseAttention, causal=True, width=64, heads=16, key_value_heads=1,
            block=16, top=3, compressed_block=8, stride=4, window=16,
        ),
        "parallel_nsa",
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_reaches_its_kernel(family):
    """In training: outputs and gradients are those of our forms."""
    built, name = FAMILIES[family]
    mixer = built().float().train()
    x = drawn(2, 64, mixer.out_proj.weight.shape[0]).float()
    kernel = standing_in(name)
    parameters, found = [p for p in mixer.parameters() if p.requires_grad], {}
    for kernels in ({}, {kernel.operation: [kernel]}):
        with public_kernels(kernels=kernels) as session:
            y = mixer(x, Layout())
        gradients = torch.autograd.grad(y.square().sum(), parameters, allow_unused=True)
        found[bool(kernels)] = y, *gradients
    assert str(kernel) in session.forms[kernel.operation]
    for one, other in zip(found[True], found[False], strict=True):
        if one is not None:
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_methods_without_an_adapter_have_a_sentence():
    without = {"parallel_moba", "flashrnn", "lstm", "mlstm-kernels", "flash-attn", "natten"}
    assert without <= {*WITHOUT}
    kernels = [kernel for of_one in all_kernels().values() for kernel in of_one]
    assert not {*WITHOUT} & ({*all_kernels()} | {kernel.name for kernel in kernels})
    assert all(len(why.split()) > 3 for why in WITHOUT.values())
