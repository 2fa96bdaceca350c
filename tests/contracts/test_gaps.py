"""Padding inside a row: a memory keeps nothing of it; what counts places counts it."""

from functools import partial

import pytest
import torch

from lra.composition.compose import core_of
from lra.models.families.retnet import HeadDecay, RetNet
from lra.models.mixer import Layout, Site, Unsupported
from tests.contracts.choices_of_configs import STACKS, nodes

MAKERS = {
    name: core_of(node, ())[0][0] for name, node in nodes("model").items() if name not in STACKS
} | {
    "retnet with slopes": partial(RetNet, decay=HeadDecay.slopes),
    "retnet without rotation": partial(RetNet, rotary=False),
}
BY_PLACE = {
    "adaptive_span", "convbert", "cosformer", "dynamic_conv", "lambda_layer", "light_conv",
    "linformer", "lite_transformer", "mega", "nystromformer", "sinkhorn", "sparse_transformer",
    "synthesizer",
}  # fmt: skip
"""Families that weigh by the place in the row: by distance, taps, blocks, or a table of places."""
LENGTH, GAP, BEFORE = 24, 5, 10


def mixed(make, *, causal):
    """Return a row's outputs, and those of its tokens with padding in the middle."""
    torch.manual_seed(1)
    site = Site(width=16, heads=2, max_length=64, causal=causal)
    mixer = make(site).double().eval()
    if "keep" not in mixer.traits.supports:
        raise Unsupported("padding is refused")
    x = torch.randn(2, LENGTH, 16, dtype=torch.float64)
    noise = torch.randn(2, GAP, 16, dtype=torch.float64)
    keep = torch.ones(2, LENGTH + GAP, dtype=torch.bool)
    keep[:, BEFORE : BEFORE + GAP] = False
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        padded = mixer(torch.cat((x[:, :BEFORE], noise, x[:, BEFORE:]), 1), Layout(keep=keep))
        return mixer(x, Layout()), padded[keep].view(2, LENGTH, -1)


@pytest.mark.parametrize("causal", [True, False])
def test_rows_with_a_gap_are_those_without_it_unless_places_are_counted(causal):
    moved, tried = set[str](), set[str]()
    for family, make in MAKERS.items():
        try:
            whole, padded = mixed(make, causal=causal)
        except Unsupported:
            continue
        tried.add(family)
        if not torch.allclose(whole, padded, rtol=1e-9, atol=1e-9):
            moved.add(family)
    assert moved == BY_PLACE & tried
    assert len(tried) > 50
