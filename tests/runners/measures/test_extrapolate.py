"""Scores at other lengths, against a direct computation and against the training's own."""

from functools import partial
from pathlib import Path

import pytest
import torch

from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.families.linformer import Linformer
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Positions, Unsupported
from lra.runners.measures.extrapolate import Extrapolate, extrapolate, fit_weights
from lra.runners.records import Measurement, Status
from lra.runners.training.checkpoint import Checkpoints
from lra.tasks.diagnostics.induction import Induction
from tests.runners.small_text import text_task
from tests.runners.tiny_task import CPU, Tiny, training

LENGTH = 12
FEW = {"train_examples": 60, "validation_examples": 10, "test_examples": 23}


def induction(**options):
    task = Induction(**{"length": LENGTH, "symbols": 5, **FEW, **options})
    task.prepare()
    return task


text = partial(text_task, sample=2000, length=LENGTH)


def model_of(task, tokens=0, positions=Positions.sinusoidal):
    config = BackboneConfig(width=16, heads=2, feed_forward_width=16, positions=positions)
    spec = task.spec
    facts = TaskFacts(
        head=Head.language_modelling,
        vocabulary=spec.vocabulary,
        classes=spec.classes,
        max_length=max(spec.max_length, tokens),
    )
    return Backbone(config, facts, [SoftmaxAttention], seed=2)


def rows_of(task, remake, weights, *, positions=Positions.sinusoidal, **options):
    def build(tokens):
        return fit_weights(model_of(task, tokens, positions), weights)

    items = extrapolate(
        build,
        lambda changed: remake(**changed),
        task,
        config=Extrapolate(**options),
        hardware=CPU,
    )
    return [item for item in items if isinstance(item, Measurement)]


def values(rows, metric):
    return {row.labels["factor"]: row.value for row in rows if row.metric == metric}


@pytest.mark.parametrize("name", ["induction", "text8"])
def test_factor_one_is_the_trainings_own_test_score(name, tmp_path: Path) -> None:
    remake = induction if name == "induction" else text
    task = remake()
    trained = training(model_of(task), task, tmp_path)
    judged = [r for r in trained if isinstance(r, Measurement) and r.labels.get("split") == "test"]
    own = {r.metric: r.value for r in judged if r.metric in {"accuracy", "loss"}}
    rows = rows_of(task, remake, Checkpoints(tmp_path).weights(), factors=[1.0], examples=None)
    assert own == {r.metric: r.value for r in rows if r.metric in own}
    assert len(own) == 2


def test_longer_rows_against_a_direct_computation() -> None:
    task = induction()
    model = model_of(task, 4 * LENGTH).eval()
    rows = rows_of(task, induction, model.state_dict(), factors=[4.0, 0.5], examples=9)
    # the whole task at that length, its training rows included
    for factor, length in (("4", 4 * LENGTH), ("0.5", LENGTH // 2)):
        tokens, answers, _ = induction(test_length=length).rows("test", 0, 9)
        logits = model.predict(torch.from_numpy(tokens)[:, None])[0][:, -1].detach()
        target = torch.from_numpy(answers[:, -1])
        loss = torch.nn.functional.cross_entropy(logits, target)
        assert values(rows, "loss")[factor] == pytest.approx(float(loss), abs=1e-5)
        right = float((logits.argmax(-1) == target).float().mean())
        assert values(rows, "accuracy")[factor] == pytest.approx(right)
    assert [r.labels["factor"] for r in rows if r.metric == "loss"] == ["0.5", "4"]
    labels = rows[-1].labels
    assert (labels["tokens"], labels["trained_tokens"]) == (str(4 * LENGTH), str(LENGTH))
    assert labels["windows"] == "9"


def test_windows_of_all_lengths_judge_the_same_text() -> None:
    task = text()
    model = model_of(task, 2 * LENGTH).eval()
    rows = rows_of(
        task,
        text,
        model.state_dict(),
        factors=[0.5, 1.0, 2.0],
        examples=4,
    )
    stream = torch.from_numpy(task.split("test").tokens.astype("int64"))
    for factor, length in (("0.5", LENGTH // 2), ("1", LENGTH), ("2", 2 * LENGTH)):
        windows = stream[: 4 * LENGTH].view(-1, 1, length)
        logits = model.predict(windows)[0].flatten(0, 1).detach()
        loss = torch.nn.functional.cross_entropy(logits, stream[1 : 4 * LENGTH + 1])
        assert values(rows, "loss")[factor] == pytest.approx(float(loss), abs=1e-5)
        bits = float(loss) / torch.log(torch.tensor(2.0)).item()
        assert values(rows, "bits_per_character")[factor] == pytest.approx(bits, abs=1e-5)


def test_learned_positions_end_and_the_row_names_the_way_out() -> None:
    task = induction()
    weights = model_of(task, positions=Positions.learned).state_dict()
    rows = rows_of(task, induction, weights, positions=Positions.learned, factors=[0.5, 1.0, 2.0])
    assert {r.labels["factor"] for r in rows if r.status is Status.ok} == {"0.5", "1"}
    (refused,) = [r for r in rows if r.status is not Status.ok]
    assert refused.status is Status.unsupported
    assert refused.metric == "accuracy"
    assert refused.labels["factor"] == "2"
    assert "positions=sinusoidal, rotary, alibi or none" in refused.reason


def test_parameters_along_the_length_are_named() -> None:
    def made(length):
        facts = TaskFacts(head=Head.classification, vocabulary=5, classes=2, max_length=length)
        config = BackboneConfig(width=8, heads=2, positions=Positions.none)
        return Backbone(config, facts, [Linformer], seed=0)

    weights = made(300).state_dict()
    assert fit_weights(made(300), weights).facts.max_length == 300
    with pytest.raises(
        Unsupported, match=r"length.* has shape .* in training and another shape at this length"
    ):
        fit_weights(made(600), weights)


def test_no_text_for_one_window_is_a_row() -> None:
    task = text()
    there = len(task.split("test").tokens) - 1
    model = model_of(task, 10 * there)
    rows = rows_of(
        task,
        text,
        model.state_dict(),
        factors=[1.0, 1 + there / LENGTH],
    )
    assert values(rows, "loss")["1"] is not None
    (lost,) = [r for r in rows if r.status is not Status.ok]
    assert lost.status is Status.skipped
    assert f"the test split has {there:,} tokens to predict" in lost.reason


def test_a_loss_that_is_no_number_is_a_row() -> None:
    task = induction()
    weights = {k: torch.full_like(v, torch.nan) for k, v in model_of(task).state_dict().items()}
    (row,) = rows_of(task, induction, weights, factors=[1.0])
    assert row.status is Status.diverged
    assert "nan" in row.reason


def test_a_batch_holds_no_more_tokens_than_at_the_training_length() -> None:
    seen = []

    class Watched(Induction):
        def batches(self, split, **options):
            for batch in super().batches(split, **options):
                seen.append(batch.tokens.shape)
                yield batch

    def made(**options):
        task = Watched(**{"length": LENGTH, "symbols": 5, **FEW, **options})
        task.prepare()
        return task

    model = model_of(made(), 8 * LENGTH)
    rows_of(
        made(), made, model.state_dict(), factors=[0.5, 1.0, 3.0, 6.0], batch_size=6, examples=None
    )
    assert max(rows * length for rows, _, length in seen) == 6 * LENGTH
    assert {length: rows for rows, _, length in reversed(seen)} == {
        LENGTH // 2: 6, LENGTH: 6, 3 * LENGTH: 2, 6 * LENGTH: 1,
    }  # fmt: skip


def test_a_task_of_one_length_is_refused() -> None:
    with pytest.raises(Unsupported, match="tiny has no test examples of other lengths"):
        rows_of(Tiny(), Tiny, {}, factors=[1.0])
