"""Adaptive spans against their released code, what they cost, and what their loss does."""

import numpy as np
import pytest
import torch

from lra.models.contract.counting import count_operations
from lra.models.families.adaptive_span import AdaptiveSpan
from lra.models.mixer import Layout, Site
from lra.runners.training.optim import OptimConfig
from lra.runners.training.optimisers.groups import parameter_groups
from tests.attention import builder, drawn
from tests.models.families.released import adaptive_span as released

STORED = np.load(released.OUTPUTS)
WIDTH, HEADS, SPAN, RAMP = 12, 3, 20, 4


def build(spans: list[float] | None = None, **options) -> AdaptiveSpan:
    mixer = builder(AdaptiveSpan, causal=True, span=SPAN, ramp=RAMP)(**options)
    if spans is not None:
        with torch.no_grad():
            mixer.core.spans.copy_(torch.tensor(spans))
    return mixer


@pytest.mark.parametrize("scale", [1.0, 3.0, 10.0, 30.0])
def test_large_scores_at_the_end_of_a_ramp_weigh_nothing(scale: float) -> None:
    """At the default options, where spans are 0: in float32 what the definition says in float64."""
    found = []
    for dtype in (torch.float64, torch.float32):
        torch.manual_seed(0)
        site = Site(width=64, heads=2, max_length=64, causal=True)
        mixer = AdaptiveSpan(site).double().to(dtype)
        x = (drawn(2, 64, 64) * scale).to(dtype)
        y = mixer(x, Layout())
        (slope,) = torch.autograd.grad((y * drawn(2, 64, 64, seed=1).to(dtype)).sum(),
                                       [mixer.core.spans])  # fmt: skip
        found.append((y.detach().double(), slope.double()))
    (exact, wanted), (rounded, slope) = found
    most = float(exact.abs().max())
    torch.testing.assert_close(rounded, exact, atol=1e-4 * most, rtol=0)
    torch.testing.assert_close(slope, wanted, atol=0.01 * most, rtol=1e-3)
    assert wanted.abs().max() < mixer.core.limit * most


def test_operations_fall_with_the_longest_span() -> None:
    x, counts = drawn(1, 1536, WIDTH), []
    for longest in (1.0, 0.4, 0.05):  # windows of 512, 256 and 64
        mixer = build([0.0, longest, 0.1], span=512)
        counts.append(count_operations(lambda mixer=mixer: mixer(x, Layout())))
    assert counts[0] > 1.8 * counts[1]
    assert counts[0] > 4 * counts[2]


def test_what_the_loss_does_to_spans() -> None:
    mixer = build([0.25, 0.5, 0.75], penalty=0.3)
    (loss,) = mixer.penalties().values()
    torch.testing.assert_close(loss.double(), torch.tensor(0.3 * SPAN * 0.5).double())
    loss.backward()
    slope = torch.full((HEADS,), 0.3 * SPAN / HEADS, dtype=torch.float64)
    torch.testing.assert_close(mixer.core.spans.grad.double(), slope)
    with torch.no_grad():
        mixer.core.spans.copy_(torch.tensor([-0.5, 0.4, 1.5]))
        mixer.after_step(1, torch.Generator())
    assert mixer.core.spans.tolist() == pytest.approx([0, 0.4, 1])
    groups = parameter_groups(mixer, OptimConfig(weight_decay=0.1, steps=1, warmup_steps=0))
    (undecayed,) = [group["params"] for group in groups if group["weight_decay"] == 0]
    assert [p.shape for p in undecayed] == [(HEADS,)]


def test_layers_have_one_table() -> None:
    site = Site(width=WIDTH, heads=HEADS, max_length=64, causal=True)
    one, other = (AdaptiveSpan(site, span=SPAN) for _ in range(2))
    assert one.core.table is other.core.table


@pytest.mark.parametrize("case", released.CASES)
def test_equals_the_released_code(case: str) -> None:
    """But for 1e-8 that it adds to sums of weights, which are small where spans are short."""
    spans, persistent = released.CASES[case]
    mixer, theirs = build(spans, persistent=persistent), released.weights(persistent)
    core = mixer.core
    ours = {
        f"proj_{name}.weight": layer.weight
        for name, layer in {
            "query": mixer.q_proj, "key": mixer.k_proj, "val": mixer.v_proj, "out": mixer.out_proj,
        }.items()
    }  # fmt: skip
    if persistent:
        ours["attn.persistent_memory.key"] = core.keys
        ours["attn.persistent_memory.val"] = core.values
    with torch.no_grad():
        for layer in (mixer.q_proj, mixer.k_proj, mixer.v_proj, mixer.out_proj):
            assert layer.bias is None
        for name, parameter in ours.items():
            value = theirs[name]
            parameter.copy_(value.mT if name.endswith("memory.key") else value)
        core.table.weight[:SPAN].copy_(theirs["key_pe"][0].T)
    x = released.tokens().requires_grad_()
    y = mixer(x, Layout())[:, SPAN:]
    np.testing.assert_allclose(y.detach(), STORED[f"{case}: y"], atol=1e-6)
    y.backward(released.direction())
    found = {name: parameter.grad for name, parameter in ours.items()}
    if persistent:
        found["attn.persistent_memory.key"] = core.keys.grad.mT
    found |= {
        "x": x.grad, "key_pe": core.table.weight.grad[:SPAN].T[None],
        "spans": core.spans.grad[:, None, None],
    }  # fmt: skip
    for name, value in found.items():
        wanted = STORED[f"{case}: {name}"]
        np.testing.assert_allclose(value, wanted, atol=1e-5, rtol=1e-6, err_msg=name)
