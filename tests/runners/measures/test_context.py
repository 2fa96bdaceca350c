"""Losses by context length: against logits of single windows, and of streams read at once."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lra.models.backbone.config import BackboneConfig
from lra.models.families.linear import LinearAttention
from lra.models.families.softmax import SoftmaxAttention
from lra.models.families.transformer_xl import TransformerXL
from lra.models.mixer import Positions, Unsupported
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measures.context import LossByContext, draw_targets, loss_by_context
from lra.runners.measures.extrapolate import fit_weights
from lra.runners.records import Status
from lra.tasks.diagnostics.induction import Induction
from lra.tasks.language.base import Regime
from tests.runners.small_text import language_model, text_task

CPU = HardwareProfile(name="cpu")
LENGTH = 8


task_of = partial(text_task, sample=2000, length=LENGTH)


def model_of(family=SoftmaxAttention, positions=Positions.sinusoidal, max_length=LENGTH):
    return language_model(family, max_length=max_length, positions=positions).double().eval()


def rows_of(model, task, seed=5, **options):
    config = LossByContext(**{"targets": 7, **options})
    return list(loss_by_context(lambda _: model, task, config=config, hardware=CPU, seed=seed))


def losses(rows):
    return {int(row.labels["context"]): row for row in rows if row.metric == "loss"}


def literal(model, task, position, context):
    """One target, one window, the logits behind its last token."""
    stream = torch.from_numpy(task.split("test").tokens.astype(np.int64))
    logits, _ = model.predict(stream[position - context : position][None, None])
    return float(-logits[0, -1].detach().log_softmax(-1)[stream[position]])


@pytest.mark.parametrize("batch_size", [3, 64])
def test_each_target_is_predicted_from_exactly_so_many_tokens(batch_size):
    task, model = task_of(), model_of(max_length=20)
    rows = rows_of(model, task, contexts=[1, 5, 20], batch_size=batch_size)
    targets = draw_targets(task, "test", 7, 5)
    for context, row in losses(rows).items():
        expected = [literal(model, task, int(p), context) for p in targets.positions]
        assert row.samples == pytest.approx(expected, rel=1e-5)
        assert row.value == pytest.approx(float(np.mean(expected)), rel=1e-9)
    bits = {r.labels["context"]: r.value for r in rows if r.metric == "bits_per_character"}
    assert bits["5"] == pytest.approx(losses(rows)[5].value / np.log(2))


@pytest.mark.parametrize(
    ("family", "positions"),
    [
        (SoftmaxAttention, Positions.rotary),
        (LinearAttention, Positions.none),
        (TransformerXL, Positions.transformer_xl),
    ],
)
def test_a_stream_that_is_remembered_whole_is_one_long_window(family, positions):
    task = task_of(regime=Regime.memory, memory=64, contiguous=True)
    model = model_of(family, positions, max_length=32)
    found = losses(rows_of(model, task, contexts=[3, 8, 21]))
    anew = losses(rows_of(model, task_of(), contexts=[3, 8, 21]))
    for context, row in anew.items():
        assert found[context].samples == pytest.approx(row.samples, rel=1e-5)


def test_what_a_memory_has_lost_is_not_seen():
    task = task_of(regime=Regime.memory, memory=2, contiguous=True)
    model = model_of(SoftmaxAttention, Positions.none)
    model.stack.blocks = model.stack.blocks[:1]  # one layer reaches no further than its memory
    found = losses(rows_of(model, task, contexts=[10, 18, 26]))
    assert found[10].samples == found[18].samples == found[26].samples
    assert losses(rows_of(model, task, contexts=[1]))[1].samples != found[10].samples


def test_every_model_and_context_has_the_same_targets_and_another_seed_others():
    one = draw_targets(task_of(), "test", 20, 0)
    other = draw_targets(task_of(length=16), "test", 20, 0)
    assert one.drawn == other.drawn
    assert one.positions.tolist() == other.positions.tolist() == sorted(set(one.positions))
    assert one.positions.min() >= len(one.stream) // 2
    assert draw_targets(task_of(), "test", 20, 1).drawn != one.drawn
    assert len(draw_targets(task_of(), "test", 10**9, 1).positions) == -(-len(one.stream) // 2)


def test_contexts_that_are_not_given_double_up_to_what_the_model_sees():
    assert LossByContext().lengths(100, 0) == [1, 2, 4, 8, 16, 32, 64, 100]
    assert LossByContext().lengths(4, 12) == [1, 2, 4, 8, 16]
    assert LossByContext(longest=6, step=2).lengths(100, 0) == [1, 2, 4, 6]
    assert LossByContext(contexts=[7, 3], step=3).lengths(1, 0) == [3, 6, 7]


def test_what_cannot_be_read_is_a_row_with_the_reason():
    task = task_of()
    learned = model_of(positions=Positions.learned)

    def build(tokens):
        if tokens <= LENGTH:
            return learned
        longer = model_of(positions=Positions.learned, max_length=tokens)
        return fit_weights(longer, learned.state_dict())

    config = LossByContext(contexts=[4, 12, 10**6], targets=3)
    rows = losses(loss_by_context(build, task, config=config, hardware=CPU, seed=0))
    assert [row.status for row in rows.values()] == [
        Status.ok, Status.unsupported, Status.skipped,
    ]  # fmt: skip
    assert "positions have shape [8, 8] and do not fit this length" in rows[12].reason
    assert "choose shorter runner.contexts" in rows[10**6].reason
    with torch.no_grad():
        learned.embedding.weight.fill_(torch.nan)
    (row,) = rows_of(learned, task, contexts=[4])
    assert row.status is Status.diverged


def test_a_task_without_a_stream_is_refused():
    with pytest.raises(Unsupported, match=r"task=induction.*choose enwik8, text8"):
        rows_of(model_of(), Induction(length=12, symbols=5))


def test_passes_are_those_of_the_contexts():
    config = LossByContext(contexts=[4, 8, 16], targets=10, batch_size=4)
    work = SimpleNamespace(task=task_of(), backbone=BackboneConfig(width=8, heads=2))
    assert [(p.times, p.rows, p.length, p.step) for p in config.passes(work)] == [
        (3, 4, 4, False), (3, 4, 8, False), (5, 2, 16, False),
    ]  # fmt: skip
    work.task = task_of(regime=Regime.memory, memory=4, contiguous=True)
    assert [(p.times, p.rows, p.length) for p in config.passes(work)] == [
        (3, 4, 4), (3, 4, 8), (10, 2, 8),
    ]  # fmt: skip
