"""Trainings that detect replaced tokens: scores, batch sizes, resuming, and transfer."""

import math
from pathlib import Path

import pytest
import torch

from lra.cli import main
from lra.composition.compose import build_model, typed
from lra.composition.hydra_entry import entries
from lra.models.transfer.weights import Origin, transfer
from lra.runners.records import Measurement
from lra.runners.store import read_rows
from lra.runners.training.evaluate import evaluate
from tests.runners.tiny_task import same, training

WORDS = ("task=text", "task.source=sample", "task.max_length=64", "model=softmax",
         "model.backbone.width=32", "model.backbone.depth=2", "model.backbone.heads=2",
         "model.backbone.feed_forward_width=64", "optim.batch_size=16",
         "optim.warmup_steps=8", "optim.peak_learning_rate=3e-3", "logger=none")  # fmt: skip
REPLACED = "task.objective=replaced"


def composed(*words):
    (entry,) = entries([*WORDS, *words])
    run = typed(entry.config)
    run.task.prepare()
    return run, build_model(run)


@pytest.fixture(scope="module")
def trained():
    run, model = composed(REPLACED, "optim.steps=100")
    rows = list(training(model, run.task, optim=run.optim, log_every_steps=50))
    return run, model, [row for row in rows if isinstance(row, Measurement)]


def test_a_tiny_model_finds_more_than_the_guess_that_all_are_original(trained):
    run, _, rows = trained
    test = {row.metric: row.value for row in rows if row.labels.get("split") == "test"}
    assert set(run.task.spec.scores) <= set(test)
    (certified,) = run.task.baselines("test")
    assert certified.name == "always_original"
    assert 0.5 < certified.accuracy <= test["original_share"] < test["accuracy"] - 0.01
    assert test["generator_accuracy"] > 0.1
    assert "perplexity" not in test
    losses = [row.value for row in rows if row.labels.get("penalty") == "generator"]
    assert len(losses) == 2
    assert losses[-1] < losses[0]
    ids = math.log(run.task.spec.vocabulary)
    assert test["generator_loss"] < ids


def test_scores_do_not_depend_on_the_size_of_batches(trained):
    run, model, _ = trained
    one, other = (
        evaluate(model, run.task, "test", batch_size=rows, device=torch.device("cpu"), examples=30)
        for rows in (3, 16)
    )
    assert one.measured == pytest.approx(other.measured, rel=1e-5)
    for name in ("accuracy", "original_share", "generator_accuracy"):
        assert one.measured[name] == pytest.approx(other.measured[name], rel=1e-12)
    assert (one.outcomes.hit == other.outcomes.hit).all()


def test_a_training_goes_on_to_the_bit(tmp_path: Path):
    words = (REPLACED, "optim.steps=8", "model.backbone.dropout=0.1")
    run, whole = composed(*words)
    list(training(whole, run.task, optim=run.optim))
    _, half = composed(*words)
    begun = training(half, run.task, tmp_path, optim=run.optim, checkpoint_every_s=1e-9)
    for item in begun:
        if isinstance(item, Measurement) and item.step == 3:
            break
    begun.close()
    _, resumed = composed(*words, "seed=5")
    list(training(resumed, run.task, tmp_path, optim=run.optim))
    assert same(whole, resumed)


@pytest.mark.parametrize("tied", ["true", "false"])
def test_a_classifier_takes_the_discriminator_and_drops_the_generator(tied):
    _, source = composed(REPLACED, f"model.backbone.tied_embeddings={tied}")
    _, target = composed("seed=1", "model.backbone.pooling=mean")
    report = transfer(source, target)
    given, found = source.state_dict(), target.state_dict()
    scale = source.input_scale
    torch.testing.assert_close(found["embedding.weight"], given["embedding.weight"][:-1] * scale)
    stack = [name for name in found if name.startswith(("stack.", "positions."))]
    assert stack
    for name in stack:
        assert torch.equal(found[name], given[name])
        assert report.origins[name] is Origin.copied
    generator = {name for name in given if name.startswith("generator.")}
    assert generator | {name for name in given if name.startswith("head.")} == {*report.unused}
    assert all(report.origins[name] is Origin.drawn for name in found if name.startswith("head."))


def test_between_detectors_and_from_masked_modelling_the_table_stays_shared():
    _, source = composed(REPLACED)
    _, other = composed(REPLACED, "seed=1", "model.backbone.tied_embeddings=false")
    transfer(source, other)
    table = other.embedding.weight
    torch.testing.assert_close(table, source.embedding.weight * source.input_scale)
    assert other.generator.embedding.weight is table
    torch.testing.assert_close(
        other.generator.embedding.map.weight, source.generator.embedding.map.weight
    )
    _, masked = composed("task.objective=masked")
    _, target = composed(REPLACED, "seed=2")
    report = transfer(masked, target)
    assert torch.equal(target.generator.head.weight, masked.embedding.weight)
    assert report.origins["generator.positions.table"] is Origin.drawn


def test_self_pretraining_by_detection(tmp_path: Path):
    words = ["runner=transfer", "runner.source=model", "optim.steps=2", "model.backbone.width=16",
             "optim.warmup_steps=0", "runner.evaluate_splits=[test]", "report=false",
             "runner.pretraining={optim: {steps: 2}, task: {objective: replaced}}"]  # fmt: skip
    assert main(["run", *WORDS, f"results={tmp_path}", *words]) == 0
    rows = read_rows(tmp_path)
    assert set(rows["status"]) == {"ok"}
    regimes = {dict(labels).get("regime") for labels in rows[rows["runner"] == "train"]["labels"]}
    assert regimes == {"replaced tokens, 15%"}
    starts = {dict(labels).get("start") for labels in rows[rows["runner"] == "transfer"]["labels"]}
    assert starts == {"model"}
