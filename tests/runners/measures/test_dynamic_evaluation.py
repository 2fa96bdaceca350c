"""Weights that follow the text: against the ordinary evaluation, and against updates by hand."""

from functools import partial

import pytest
import torch

from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Unsupported
from lra.runners.measurement.hardware import HardwareProfile, Precision
from lra.runners.measures.dynamic_evaluation import (
    DynamicEvaluation,
    FollowingWeights,
    dynamic_evaluation,
    gradient_scales,
)
from lra.runners.records import Diverged
from lra.runners.training.evaluate import evaluate, score_rows
from lra.tasks.language.base import Regime
from tests.runners.small_text import language_model, text_task

CPU = HardwareProfile(name="cpu")
REGIMES = [
    {},
    {"regime": Regime.sliding, "stride": 5},
    {"regime": Regime.memory, "memory": 20, "contiguous": True},
]


task_of = partial(text_task, length=16)


def model_of(memory=0):
    given = {"max_length": 16, "carried": memory, "dropout": 0.5}
    return language_model(SoftmaxAttention, **given).double()


def weights_of(model):
    return [each.detach().clone() for each in model.parameters()]


@pytest.mark.parametrize(
    ("options", "rule"), [*((regime, "sgd") for regime in REGIMES), (REGIMES[0], "rms")]
)
def test_without_a_rate_it_is_the_ordinary_evaluation(options, rule):
    task, model = task_of(**options), model_of(options.get("memory", 0))
    before = weights_of(model)
    config = DynamicEvaluation(rule=rule, learning_rate=0.0, decay=0.1, splits=["test"])
    found = list(dynamic_evaluation(model, task, config=config, hardware=CPU))
    there = evaluate(model, task, "test", batch_size=1, device=torch.device("cpu"))
    expected = list(score_rows(there, {}))
    assert len(found) > 3
    assert [(r.metric, r.value, r.labels) for r in found] == [
        (r.metric, r.value, r.labels) for r in expected
    ]
    assert all(map(torch.equal, before, weights_of(model)))


@pytest.mark.parametrize("options", REGIMES)
def test_each_segment_is_judged_before_it_is_learnt(options):
    task, memory = task_of(**options), options.get("memory", 0)
    model, other = model_of(memory), model_of(memory).eval()
    before, rate, decay = weights_of(model), 0.3, 0.05
    config = DynamicEvaluation(learning_rate=rate, decay=decay, splits=["test"])
    rows = list(dynamic_evaluation(model, task, config=config, hardware=CPU))
    total, count = 0.0, 0.0
    state = other.initial_state(1, memory) if memory else None
    for batch in task.batches("test", batch_size=1, seed=0):
        outcome = other(batch.tokens, batch.target, None, state)
        counts = torch.ones_like(outcome.nll) if batch.weight is None else batch.weight
        total += float((outcome.nll * counts).sum().detach())
        count += float(counts.sum())
        if memory:
            seen, layers = outcome.state
            state = (seen, tuple(tuple(part.detach() for part in layer) for layer in layers))
        other.zero_grad()
        ((outcome.nll * counts).sum() / counts.sum()).backward()
        with torch.no_grad():
            for own, trained in zip(other.parameters(), before, strict=True):
                own += -rate * own.grad + decay * (trained - own)
    (loss,) = [row.value for row in rows if row.metric == "loss"]
    assert loss == pytest.approx(total / count, rel=1e-6)
    plain = evaluate(model, task, "test", batch_size=1, device=torch.device("cpu")).measured["loss"]
    assert abs(loss - plain) > 1e-3 * plain


def test_one_step_of_rms_by_hand():
    task, model = task_of(), model_of().eval()
    config = DynamicEvaluation(
        rule="rms", learning_rate=0.1, decay=0.5, epsilon=1e-3, statistics_batches=2,
        statistics_batch_size=3,
    )  # fmt: skip
    squares = [torch.zeros_like(each) for each in model.parameters()]
    for batch in list(task.batches("train", batch_size=3, seed=0))[:2]:
        model.zero_grad()
        model(batch.tokens, batch.target).nll.mean().backward()
        squares = [s + p.grad**2 / 2 for s, p in zip(squares, model.parameters(), strict=True)]
    model.zero_grad()
    roots = [square.sqrt() for square in squares]
    scales = gradient_scales(model, task, config, CPU)
    for found, expected in zip(scales, roots, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    following, trained = FollowingWeights(model, config, scales), weights_of(model)
    with torch.no_grad():  # away from the trained weights, so that there is a way back
        for own in model.parameters():
            own += 0.01
    moved, batch = weights_of(model), next(iter(task.batches("test", batch_size=1, seed=0)))
    outcome = model(batch.tokens, batch.target)
    gradients = torch.autograd.grad(outcome.nll.mean(), list(model.parameters()), retain_graph=True)
    following.learn(outcome, batch)
    mean = sum(root.mean() for root in roots) / len(roots)
    parts = zip(moved, trained, gradients, roots, model.parameters(), strict=True)
    for old, first, gradient, root, own in parts:
        share = (0.5 * root / mean).clamp(max=1.0)
        wanted = old - 0.1 * gradient / (root + 1e-3) + share * (first - old)
        torch.testing.assert_close(own.detach(), wanted, rtol=1e-10, atol=1e-14)
    following.restore()
    assert all(map(torch.equal, trained, weights_of(model)))


def test_the_regime_of_its_rows_is_its_own():
    config = DynamicEvaluation(learning_rate=0.25, decay=0.1)
    assert config.marks("sliding, stride 5") == {
        "regime": "sliding, stride 5; dynamic: sgd, learning rate 0.25, decay 0.1"
    }


def test_a_rate_that_is_too_high_ends_as_diverged():
    config = DynamicEvaluation(learning_rate=1e30, splits=["test"])
    model = model_of()
    before = weights_of(model)
    with pytest.raises(Diverged, match="lower runner"):
        list(dynamic_evaluation(model, task_of(), config=config, hardware=CPU))
    assert all(map(torch.equal, before, weights_of(model)))


def test_what_it_cannot_do_is_refused_before_the_first_segment():
    half = HardwareProfile(name="gpu", precision=Precision.float16)
    with pytest.raises(Unsupported, match="float16"):
        next(dynamic_evaluation(model_of(), task_of(), config=DynamicEvaluation(), hardware=half))
    task = task_of(regime=Regime.memory, memory=60)
    with pytest.raises(Unsupported, match=r"task.memory=60 is longer than the text: .* has 44"):
        next(dynamic_evaluation(model_of(60), task, config=DynamicEvaluation(), hardware=CPU))
