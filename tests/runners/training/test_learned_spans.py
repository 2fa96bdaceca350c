"""Rows of learned spans: as set by hand, and operations as published and as counted."""

import pytest
import torch

from lra.models.families.adaptive_span import AdaptiveSpan
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import MixerFactory
from lra.runners.training.learned_spans import flops_per_token, learned_span_rows
from lra.tasks.language.base import Regime
from tests.runners.small_text import language_model, text_task


def model_of(*mixers: MixerFactory, **options):
    given = {"max_length": 256, "carried": 256, "feed_forward_width": 16, **options}
    return language_model(*mixers, **given).eval()


def long_span(site):
    return AdaptiveSpan(site, span=256, ramp=8)


def task_of():
    return text_task(sample=60_000, length=128, regime=Regime.memory, memory=256, contiguous=True)


def test_spans_are_those_of_the_heads_and_operations_fall_with_them():
    model = model_of(long_span)
    with torch.no_grad():
        for block, shares in zip(model.stack.blocks, ([0.0, 0.25], [0.5, 0.125]), strict=True):
            block.mixer.span_core.spans.copy_(torch.tensor(shares))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rows = list(learned_span_rows(model, task_of()))
    spans = {(r.labels["layer"], r.labels["head"]): r.value for r in rows if "head" in r.labels}
    assert spans == {
        ("0", "0"): 0, ("0", "1"): 64, ("1", "0"): 128, ("1", "1"): 32, ("all", "all"): 56,
    }  # fmt: skip
    counted = {r.labels["spans"]: r.value for r in rows if r.metric == "span_flops"}
    assert counted["learned"] < 0.8 * counted["full"]
    implied = {r.labels["spans"]: r.value for r in rows if r.metric == "span_flops_per_token"}
    fixed = 2 * 2 * (4 * 8 * 8 + 2 * 8 * 16)
    assert implied["learned"] == fixed + 2 * 2 * 8 * (32 + 80)
    assert implied["full"] == fixed + 2 * 2 * 8 * (256 + 256)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_full_span_is_counted_as_one_that_was_learned():
    model = model_of(long_span)
    (full,) = [
        row.value
        for row in learned_span_rows(model, task_of())
        if row.metric == "span_flops" and row.labels["spans"] == "full"
    ]
    with torch.no_grad():
        for block in model.stack.blocks:
            block.mixer.span_core.spans.fill_(1.0)
    values = [r.value for r in learned_span_rows(model, task_of()) if r.metric == "span_flops"]
    assert values == [full, full]


@pytest.mark.parametrize(
    ("depth", "width", "feed_forward", "span", "published"),
    [(12, 512, 2048, 314, 41.6e6), (12, 512, 2048, 2100, 63.6e6), (24, 1024, 3072, 3800, 438.4e6)],
)
def test_operations_of_a_token_as_published(depth, width, feed_forward, span, published):
    """Table 2 of arXiv:1905.07799: multiply-adds of its small model, and of two Transformer-XL."""

    class Learned:
        def learned_spans(self):
            return torch.full((8,), float(span))

    with torch.device("meta"):
        model = model_of(
            long_span, width=width, heads=8, feed_forward_width=feed_forward, depth=depth
        )
    assert flops_per_token(model, [Learned()] * depth) / 2 == pytest.approx(published, rel=2e-3)


def test_layers_of_other_families_have_no_rows():
    assert list(learned_span_rows(model_of(SoftmaxAttention), task_of())) == []
    rows = list(learned_span_rows(model_of(SoftmaxAttention, long_span), task_of()))
    assert {r.labels["layer"] for r in rows if "layer" in r.labels} == {"1", "all"}
    assert "span_flops_per_token" not in {row.metric for row in rows}
