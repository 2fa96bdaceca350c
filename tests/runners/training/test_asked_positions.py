"""A training in which only asked positions reach the head gives the numbers of one with all."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial, partialmethod
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.compression.head_importance import Examples, head_importance
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Layout
from lra.runners.records import Measurement, Outcomes
from lra.runners.training import evaluate, loop
from lra.runners.training.distillation import Distillation, DistillationLoss
from lra.runners.training.prefetch import asked_of
from lra.tasks.task import Batch
from tests.runners.tiny_task import CPU, OPTIM, TIMES, same, training
from tests.tasks.diagnostics.small_diagnostics import made

CPU_DEVICE = torch.device("cpu")


def recall() -> Any:
    """Return the smallest recall task, in a cache of the test."""
    return made("mqar")


def language_model(task: Any, seed: int = 0, **options: Any) -> Backbone:
    """Return a small causal model of a task."""
    size = {"vocabulary": task.vocabulary, "classes": task.vocabulary, "max_length": task.length}
    frame = BackboneConfig(
        **{"depth": 1, "width": 16, "heads": 2, "feed_forward_width": 16, **options}
    )
    facts = TaskFacts(head=Head.language_modelling, **size)
    return Backbone(frame, facts, [SoftmaxAttention], seed=seed)


def trained(task: Any, **options: Any) -> tuple[Backbone, list[Any]]:
    """Return a model after a training with micro-batches and label smoothing, and its items."""
    net = language_model(task, dropout=0.1)
    optim = replace(OPTIM, steps=20, batch_size=8, micro_batch_size=3, label_smoothing=0.1)
    return net, list(training(net, task, optim=optim, evaluate_every_steps=10, **options))


def test_scores_do_not_depend_on_what_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    task = recall()
    net, items = trained(task)
    for module in (loop, evaluate):
        monkeypatch.setattr(module, "asked_of", lambda batch, device: None)
    other_net, others = trained(task)
    for ours, theirs in zip(items, others, strict=True):
        assert type(ours) is type(theirs)
        if isinstance(ours, Outcomes):
            assert np.array_equal(ours.index, theirs.index)
            assert np.array_equal(ours.hit, theirs.hit)
            np.testing.assert_allclose(ours.nll, theirs.nll, rtol=1e-5)
        elif ours.metric not in TIMES:
            assert (ours.metric, ours.step, ours.labels) == (
                theirs.metric, theirs.step, theirs.labels,
            )  # fmt: skip
            if ours.metric == "accuracy":
                assert ours.value == theirs.value  # to the bit
            else:  # products of fewer rows may round in another order
                assert ours.value == pytest.approx(theirs.value, rel=1e-6)
    for name, weight in other_net.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], weight, rtol=1e-4, atol=1e-6)


class Silent:
    """A task like another, whose second training batch asks nothing."""

    def __init__(self, task: Any) -> None:
        self.task, self.spec = task, task.spec

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def batches(self, split: str, **options: Any) -> Iterator[Batch]:
        """Yield the batches of the other task."""
        for number, batch in enumerate(self.task.batches(split, **options)):
            silent = split == "train" and number == 1
            yield batch._replace(weight=torch.zeros_like(batch.weight)) if silent else batch


def test_a_batch_that_asks_nothing_has_no_loss() -> None:
    optim = replace(OPTIM, steps=3)
    net = language_model(recall())
    items = list(training(net, Silent(recall()), optim=optim, log_every_steps=1))
    losses = [i.value for i in items if isinstance(i, Measurement) and i.metric == "train_loss"]
    assert losses[1] == 0
    assert min(losses[0], losses[2]) > 1
    assert all(weight.isfinite().all() for weight in net.parameters())


def test_a_task_without_weights_asks_everything() -> None:
    (batch, *_) = recall().batches("train", batch_size=4, seed=0)
    assert asked_of(batch._replace(weight=None), CPU_DEVICE) is None
    assert asked_of(batch._replace(weight=torch.ones_like(batch.weight)), CPU_DEVICE) is None
    asked = asked_of(batch, CPU_DEVICE)
    assert torch.equal(batch.weight.flatten()[asked], torch.ones(4 * 5))
    assert float(batch.weight.sum()) == 4 * 5


def test_a_teacher_answers_only_what_is_asked() -> None:
    task = recall()
    student, teacher = language_model(task), language_model(task, seed=1)
    taught = Distillation(student, teacher, DistillationLoss(share=0.7))
    (batch, *_) = task.batches("train", batch_size=4, seed=0)
    asked, read = asked_of(batch, CPU_DEVICE), []
    for net in (student, teacher):
        net.head.register_forward_hook(lambda head, inputs, out: read.append(out.shape[0]))
    whole = taught(batch.tokens, batch.target).nll * batch.weight
    read.clear()
    part = taught(batch.tokens, batch.target, asked=asked).nll
    assert {*read} == {len(asked)}
    torch.testing.assert_close(part, whole)


def test_heads_are_as_important_as_by_all_positions() -> None:
    task = recall()
    net, (batch, *_) = language_model(task, depth=2), task.batches("train", batch_size=6, seed=0)
    read: list[int] = []
    net.head.register_forward_hook(lambda head, inputs, out: read.append(out.shape[0]))
    found = head_importance(
        net, [Examples(batch.tokens, batch.target, None, batch.weight, Layout())]
    )
    assert read == [6 * 5]
    # A weight so small that it changes nothing asks every position.
    everywhere = batch.weight.clamp(min=1e-30)
    expected = head_importance(
        net, [Examples(batch.tokens, batch.target, None, everywhere, Layout())]
    )
    assert read[1] == 6 * task.length
    for layer, values in expected.items():
        torch.testing.assert_close(found[layer], values)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")  # of the compiler itself
def test_the_number_of_asked_positions_compiles_nothing_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="eager"))
    task = made("selective_copy")
    numbers = {
        len(asked_of(b, CPU_DEVICE)) for b in Silent(task).batches("train", batch_size=8, seed=0)
    }
    assert len(numbers) > 1
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    net = language_model(task)
    optim = replace(OPTIM, steps=8, batch_size=8)
    run = partial(training, net, Silent(task), optim=optim, evaluate_splits=[])
    assert list(run(hardware=replace(CPU, compile=True)))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    plain = language_model(task)
    assert list(training(plain, Silent(task), optim=optim, evaluate_splits=[]))
    assert not same(net, language_model(task))
    for name, weight in plain.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], weight, rtol=1e-3, atol=1e-4)
