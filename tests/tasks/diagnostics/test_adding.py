"""The adding problem: its rows, its errors, and what evaluation and refusals say of it."""

import hashlib

import numpy as np
import pytest
import torch

from lra.models.backbone.config import BackboneConfig, Head, TaskFacts
from lra.models.backbone.heads import judge_number
from lra.models.backbone.model import Backbone
from lra.models.families.linear import LinearAttention
from lra.models.mixer import Unsupported
from lra.runners.measurement.inputs import random_inputs
from lra.runners.measures.certify import certify
from lra.runners.training.evaluate import evaluate, score_rows
from lra.runners.training.target import check_scores
from lra.tasks.contract import check_task
from lra.tasks.data.batching import Draw, random_words
from lra.tasks.diagnostics.adding import SOLVED, Adding, adding_rows

FEW = {"length": 12, "train_examples": 400, "validation_examples": 60, "test_examples": 4000}


@pytest.fixture
def task(tmp_path, monkeypatch):
    monkeypatch.setenv("LRA_DATA", str(tmp_path))
    adding = Adding(**FEW)
    adding.prepare()
    return adding


def facts_of(task):
    spec = task.spec
    return TaskFacts(
        head=Head.regression, vocabulary=0, classes=spec.classes, max_length=spec.max_length,
        scalars=True, channels=spec.channels,
    )  # fmt: skip


def test_the_contract_holds(task):
    assert [finding for finding in check_task(task) if not finding.passed] == []


def test_rows_are_those_of_the_seed():
    words = random_words(Draw.diagnostic, 0, 50 * 9).reshape(50, 9)
    tokens, answers = adding_rows(words)
    assert (
        hashlib.sha256(tokens.tobytes() + answers.tobytes()).hexdigest()[:16] == "6e164a4965fbdf3f"
    )


@pytest.mark.parametrize("length", [2, 7, 30])
def test_each_half_has_one_mark_and_the_answer_is_the_marked_sum(length):
    tokens, answers = adding_rows(
        random_words(Draw.diagnostic, 3, 2000 * (length + 2)).reshape(2000, length + 2)
    )
    half = length // 2
    for numbers, row, answer in zip(tokens[..., 0], tokens[..., 1], answers, strict=True):
        first, second = (i for i, marked in enumerate(row) if marked)  # exactly two
        assert first < half <= second
        assert numbers[first] + numbers[second] == answer
    assert ((tokens[..., 0] >= 0) & (tokens[..., 0] < 1)).all()
    places = tokens[..., 1].mean(0)  # every place of a half is marked equally often
    np.testing.assert_allclose(places[:half], 1 / half, atol=0.06)
    np.testing.assert_allclose(places[half:], 1 / (length - half), atol=0.06)
    np.testing.assert_allclose(tokens[..., 0].mean(), 0.5, atol=0.02)


def test_batches_are_the_stored_rows(task):
    for batch in task.batches("test", batch_size=256, seed=0):
        assert batch.tokens.shape[1:] == (1, 12, 2)
        marked = (batch.tokens[..., 0] * batch.tokens[..., 1]).sum((1, 2))
        torch.testing.assert_close(marked, batch.target)


def test_floors_are_those_of_theory(task):
    found = {baseline.name: baseline for baseline in task.baselines("test")}
    # The standard error of a mean of 4,000 squares is about a third of a percentage point.
    assert found["always_one"].measures["mse"] == pytest.approx(1 / 6, abs=0.012)
    assert found["second_marker"].measures["mse"] == pytest.approx(1 / 12, abs=0.006)
    assert all(baseline.accuracy is None for baseline in found.values())
    assert found["second_marker"].measures["mse"] > SOLVED


def test_rows_of_scores_have_no_accuracy(task):
    config = BackboneConfig(depth=1, width=8, heads=2)
    model = Backbone(config, facts_of(task), [LinearAttention], seed=0)
    scores = evaluate(model, task, "validation", batch_size=25, device=torch.device("cpu"))
    (batch,) = task.batches("validation", batch_size=60, seed=0)
    with torch.no_grad():
        answers, _ = model.predict(batch.tokens)
    expected = (answers[:, 0] - batch.target).square().mean()
    assert scores.measured == {"mse": pytest.approx(float(expected))}
    assert scores.loss == scores.measured["mse"]
    assert {row.metric for row in score_rows(scores, {})} == {"mse"}
    assert {row.metric for row in certify(task, split="test")} == {"mse"}


def test_training_learns_to_add():
    task = Adding(length=4, train_examples=1, validation_examples=1, test_examples=1)
    model = Backbone(
        BackboneConfig(depth=1, width=16, heads=2), facts_of(task), [LinearAttention], seed=0
    )
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    errors = []
    for step in range(80):
        words = random_words(Draw.fresh, step, 64 * 6).reshape(64, 6)
        tokens, answers = map(torch.from_numpy, adding_rows(words))
        loss = model(tokens[:, None], answers).nll.mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        errors.append(float(loss.detach()))
    assert np.mean(errors[-10:]) < 1 / 12


def test_squared_errors_are_literal():
    answers, target = torch.tensor([[0.5], [2.0]], dtype=torch.bfloat16), torch.tensor([1.0, -1.0])
    squares, hit = judge_number(answers, target)
    assert squares.tolist() == [0.25, 9.0]
    assert hit.tolist() == [False, False]
    assert judge_number(answers, target, training=True)[1] is None
    with pytest.raises(Unsupported, match=r"optim\.label_smoothing=0\.1; set it to 0"):
        judge_number(answers, target, 0.1)


def test_random_inputs_fit_the_model(task):
    facts = facts_of(task)
    tokens, target = random_inputs(3, 9, facts, 0)
    assert (tokens.shape, target.dtype) == ((3, 1, 9, 2), torch.float32)
    model = Backbone(BackboneConfig(depth=1, width=8, heads=2), facts, [LinearAttention], seed=0)
    assert model(tokens, target).nll.shape == (3,)


def test_targets_name_the_metric_that_the_task_has(task):
    check_scores({"mse": 0.01}, task, prepared=True)
    with pytest.raises(Unsupported, match="the metric accuracy, but task=adding has only mse"):
        check_scores({"accuracy": 0.99}, task, prepared=True)


def test_a_model_refuses_other_channels(task):
    facts = facts_of(task)
    model = Backbone(BackboneConfig(depth=1, width=8, heads=2), facts, [LinearAttention], seed=0)
    with pytest.raises(
        ValueError, match=r"reads 2 numbers of each token.*build it with channels=3"
    ):
        model(torch.zeros(2, 1, 12, 3), torch.zeros(2))
    with pytest.raises(ValueError, match="only tokens that are real numbers have channels"):
        TaskFacts(head=Head.classification, vocabulary=9, classes=2, max_length=4, channels=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 1}, r"task\.length must be at least 2, because each half"),
        ({"test_length": 1}, r"task\.test_length must be at least 2"),
        ({"test_examples": 0}, r"task\.test_examples must be at least 1: got 0"),
        ({"data_seed": -1}, r"task\.data_seed must be at least 0: got -1"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Adding(**options)


def test_rows_name_the_length_of_training_if_tests_differ():
    assert Adding(length=9, test_length=20).spec.source == "generated, trained at 9"
    assert Adding(length=9, test_length=20).spec.max_length == 20
    assert Adding(length=9, test_length=9).spec == Adding(length=9).spec
