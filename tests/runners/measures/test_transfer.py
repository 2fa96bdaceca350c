"""Fine-tuning from other weights: the loop is the one loop, and the curve begins before it."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.families.fnet import FNet
from lra.models.families.linear import LinearAttention
from lra.models.families.performer import Performer
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Unsupported
from lra.models.transfer.weights import Origin, Parts, transfer
from lra.runners.measures.transfer import PretrainedModel, Transfer, fine_tune
from lra.runners.records import Interrupted, Measurement, Outcomes
from lra.runners.training.evaluate import evaluate
from lra.runners.training.loop import Item, Trainer
from tests.runners.tiny_task import CPU, OPTIM, TIMES, Tiny, same, training


def build(mixer: Any, *, seed: int = 0, dropout: float = 0.0, length: int = 12) -> Backbone:
    config = BackboneConfig(depth=1, width=8, heads=2, feed_forward_width=8, dropout=dropout)
    facts = TaskFacts(head=Head.classification, vocabulary=8, classes=3, max_length=length)
    return Backbone(config, facts, [mixer], seed=seed)


def pretrained(steps: int = 60) -> PretrainedModel:
    model = build(SoftmaxAttention, seed=4)
    list(training(model, optim=replace(OPTIM, steps=steps)))
    return PretrainedModel(model, Tiny())


def tuned(
    model: Backbone,
    given: PretrainedModel | None,
    folder: Path | None = None,
    **options: Any,
) -> Iterator[Item]:
    config = Transfer(**{"evaluate_every_steps": 4, "log_every_steps": 3} | options)
    return fine_tune(
        model,
        Tiny(),
        source=given,
        optim=OPTIM,
        config=config,
        hardware=CPU,
        seed=3,
        checkpoints=folder,
    )


def rows(items: list[Item], *metrics: str) -> list[Measurement]:
    found = [i for i in items if isinstance(i, Measurement) and i.metric not in TIMES]
    return [row for row in found if not metrics or row.metric in metrics]


def curve(items: list[Item], metric: str) -> dict[int | None, float | None]:
    return {
        row.step: row.value
        for row in rows(items, metric)
        if row.labels.get("split") == "validation" and row.step is not None
    }


def scored(model: Backbone) -> dict[str, float]:
    return evaluate(model, Tiny(), "validation", batch_size=64, device=torch.device("cpu")).measured


def test_the_curve_begins_with_the_weights_as_they_came() -> None:
    source = pretrained()
    expected = build(LinearAttention, seed=1)
    transfer(source.model, expected)
    before, own = scored(expected), scored(source.model)
    items = list(tuned(build(LinearAttention, seed=1), source))
    for metric in ("accuracy", "loss"):
        found = curve(items, metric)
        assert list(found) == [0, 4, 8, 12]
        assert found[0] == pytest.approx(before[metric])
        (row,) = rows(items, f"source_{metric}")
        assert row.value == pytest.approx(own[metric])
        assert row.labels == {"split": "validation"}


def test_the_same_function_begins_where_the_source_ended() -> None:
    source = pretrained()
    items = list(tuned(build(SoftmaxAttention, seed=8), source))
    (own,) = rows(items, "source_loss")
    assert curve(items, "loss")[0] == pytest.approx(own.value)


def test_parameters_are_counted_by_where_they_come_from() -> None:
    model = build(LinearAttention, seed=1)
    items = list(tuned(model, pretrained(1), parts=Parts.blocks))
    counts = {row.labels["origin"]: row.value for row in rows(items, "initial_parameters")}
    stack = sum(parameter.numel() for parameter in model.stack.parameters())
    rest = sum(parameter.numel() for parameter in model.parameters()) - stack
    assert counts == {"copied": stack, "extended": 0, "started": 0, "drawn": rest}
    assert set(counts) == {origin.value for origin in Origin}


def test_from_scratch_is_the_training_itself() -> None:
    plain, started = build(LinearAttention, seed=1), build(LinearAttention, seed=1)
    expected = list(training(plain, evaluate_every_steps=4, evaluate_first=True))
    found = list(tuned(started, None, source="scratch"))
    assert rows(found) == rows(expected)
    assert same(plain, started)


def test_a_first_evaluation_changes_no_weight() -> None:
    with_it, without = build(LinearAttention, dropout=0.3), build(LinearAttention, dropout=0.3)
    list(training(with_it, evaluate_every_steps=4, evaluate_first=True))
    list(training(without, evaluate_every_steps=4))
    assert same(with_it, without)


def test_a_stopped_run_resumes_to_the_bit(tmp_path: Path, monkeypatch) -> None:
    mixer = partial(Performer, features=4, redraw_every=3)
    source = pretrained(20)
    whole = build(mixer, dropout=0.2, seed=1)
    expected = list(tuned(whole, source))

    advance = Trainer.advance

    def advance_and_ask(self: Trainer, batch: Any) -> Tensor:
        loss = advance(self, batch)
        if self.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss

    monkeypatch.setattr(Trainer, "advance", advance_and_ask)
    with pytest.raises(Interrupted, match="after step 4"):
        list(tuned(build(mixer, dropout=0.2, seed=1), source, tmp_path))
    monkeypatch.setattr(Trainer, "advance", advance)
    resumed = build(mixer, dropout=0.2, seed=1)
    found = list(tuned(resumed, source, tmp_path))
    assert rows(found) == rows(expected)
    assert same(whole, resumed)
    outcomes = [[i.nll for i in items if isinstance(i, Outcomes)] for items in (found, expected)]
    assert all((a == b).all() for a, b in zip(*outcomes, strict=True))


def test_a_stop_signal_ends_the_scoring_of_the_source() -> None:
    class Stopping(Tiny):
        def batches(self, *args: Any, **options: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            return super().batches(*args, **options)

    source = PretrainedModel(build(SoftmaxAttention), Stopping())
    with pytest.raises(Interrupted, match="before the first step"):
        list(tuned(build(LinearAttention), source))


def test_a_family_without_a_place_is_refused_before_anything_is_measured() -> None:
    stream = tuned(build(FNet), pretrained(1))
    with pytest.raises(Unsupported, match="no place for"):
        next(stream)


def test_only_the_first_examples_are_judged_along_the_way() -> None:
    found = [
        evaluate(
            build(LinearAttention), Tiny(), "validation",
            batch_size=size, device=torch.device("cpu"), examples=5,
        )
        for size in (2, 3, 64)
    ]  # fmt: skip
    whole = evaluate(
        build(LinearAttention), Tiny(), "validation", batch_size=64, device=torch.device("cpu")
    )
    for part in found:
        assert list(part.outcomes.index) == [0, 1, 2, 3, 4]
        assert part.measured["loss"] == pytest.approx(whole.outcomes.nll[:5].mean())
    items = list(tuned(build(LinearAttention), None, source="scratch", validation_examples=5))
    first = evaluate(
        build(LinearAttention), Tiny(), "validation",
        batch_size=64, device=torch.device("cpu"), examples=5,
    )  # fmt: skip
    assert curve(items, "loss")[0] == pytest.approx(first.measured["loss"])
    final = [row for row in rows(items, "loss") if row.step is None]
    assert {row.labels["examples"] for row in final} == {"9", "10"}  # at the end, all


def test_streams_are_judged_as_a_whole() -> None:
    class Streams(Tiny):
        def batches(self, *args: Any, **options: Any) -> Any:
            for batch in super().batches(*args, **options):
                yield batch._replace(reset=torch.ones(len(batch.index), dtype=torch.bool))

    with pytest.raises(ValueError, match="validation_examples=null"):
        evaluate(
            build(LinearAttention), Streams(), "validation",
            batch_size=4, device=torch.device("cpu"), examples=5,
        )  # fmt: skip


def test_what_is_trained_first(tmp_path: Path) -> None:
    assert Transfer().starts_from() == ["softmax"]
    assert Transfer(source="scratch").starts_from() == []
    path = tmp_path / "tiny.safetensors"
    path.touch()
    config = Transfer(source=None, weights=str(path))
    assert (config.starts_from(), config.started_from) == ([], "tiny")
    with pytest.raises(ValueError, match="pretraining describes the training of a source"):
        Transfer(source=None, weights=str(path), pretraining={"optim": {"steps": 1}})
