"""Stages of a training: data, updates and memories of each, and an exact resume inside them."""

import os
import signal
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lra.models.families.indexed_attention import IndexedAttention
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Unsupported
from lra.runners.measures.train import Train
from lra.runners.records import Interrupted, Measurement
from lra.runners.training.loop import Trainer
from lra.runners.training.optim import OptimConfig
from lra.runners.training.pace import Pace
from lra.runners.training.prefetch import epoch_seed
from lra.runners.training.stages import TrainingStages
from lra.tasks.language.base import Regime
from lra.tasks.proteins.task import Proteins
from tests.runners.small_text import language_model, text_task
from tests.runners.tiny_task import Tiny, same, trainer_of, training

MEMORY = 24
STAGES = [
    {"steps": 3, "length": 8, "batch_size": 6, "micro_batch_size": 4},
    {"steps": 4, "length": 8, "batch_size": 6, "accumulate": 2, "learning_rate_scale": 0.5},
]
"""Then 3 steps of 3 rows of 16."""
STEPS = 10


task_of = partial(text_task, length=16, contiguous=True, regime=Regime.memory, memory=MEMORY)
model_of = partial(
    language_model, SoftmaxAttention, max_length=16, carried=MEMORY, depth=1, dropout=0.1
)


def optim_of(**options):
    return OptimConfig(**{"steps": STEPS, "batch_size": 3, "peak_learning_rate": 1e-2} | options)


def run(model, folder=None, stages=STAGES, task=None, **options):
    said = {"stages": stages, "log_every_steps": 4, "evaluation_batch_size": 1}
    return training(model, task or task_of(), folder, optim=optim_of(**options), **said)


def losses(items):
    return [(i.step, i.value) for i in items if getattr(i, "metric", "") == "train_loss"]


def watched(monkeypatch, after):
    """Call `after(trainer, batch, loss)` behind every step."""
    advance = Trainer.advance

    def seen(self, batch):
        loss = advance(self, batch)
        after(self, batch, loss)
        return loss

    monkeypatch.setattr(Trainer, "advance", seen)


def test_what_is_read_and_remembered_in_each_stage(monkeypatch):
    seen, memories, weights, rates = [], [], [], []

    def after(trainer, batch, loss):
        seen.append(batch)
        memories.append(trainer.streams.state[0].tolist())
        weights.append([p.detach().clone() for p in trainer.model.parameters()])
        rates.append(trainer.updates.optimiser.param_groups[0]["lr"])

    watched(monkeypatch, after)
    rows = [item for item in run(model_of(), schedule="constant") if isinstance(item, Measurement)]
    # Windows of 8 in 6 lanes, on and on: the second stage changes neither, so the text goes on.
    task, plain = task_of(), task_of(length=8)
    wanted = [*plain.batches("train", batch_size=6, seed=epoch_seed(3, 0))][:7]
    wanted += [*task.batches("train", batch_size=3, seed=epoch_seed(3, 1))][:3]
    for batch, expected in zip(seen, wanted, strict=True):
        assert torch.equal(batch.tokens, expected.tokens)
        assert torch.equal(batch.reset, expected.reset)
    assert memories == [[8 * n] * 6 for n in range(1, 8)] + [[16 * n] * 3 for n in range(1, 4)]
    # Updates: each step of the first stage and the last, every other one of the second.
    alike = [all(map(torch.equal, before, later)) for before, later in pairwise(weights)]
    assert alike == [False, False, True, False, True, False, False, False, False]
    assert rates == [1e-2] * 3 + [5e-3] * 4 + [1e-2] * 3
    found = {row.metric: row.value for row in rows}
    assert found["examples_seen"] == 7 * 6 + 3 * 3
    assert found["tokens_seen"] == 7 * 6 * 8 + 3 * 3 * 16
    assert [step for step, _ in losses(rows)] == [3, 4, 7, 8, 10]  # no window of logs is of two


def test_a_stage_remembers_as_much_as_it_says(tmp_path: Path, monkeypatch):
    """The rows of a stage with another memory begin anew; the next stages are the model's."""
    listed = [{"steps": 3, "length": 8, "batch_size": 6, "memory": 12}]
    listed += [{"steps": 4, "length": 8, "batch_size": 6}]
    sizes, whole = [], model_of()

    def after(trainer, batch, loss):
        _, ((keys, *_), *_) = trainer.streams.state
        sizes.append((len(keys), 12 in keys.shape, MEMORY in keys.shape))
        if trainer.checkpoints.folder and trainer.step in (2, 5):
            os.kill(os.getpid(), signal.SIGTERM)

    watched(monkeypatch, after)
    expected = losses(run(whole, stages=listed))
    assert sizes == [(6, True, False)] * 3 + [(6, False, True)] * 4 + [(3, False, True)] * 3
    for _ in range(2):
        with pytest.raises(Interrupted):
            list(run(model_of(), tmp_path, stages=listed))
    resumed = model_of()
    assert losses(run(resumed, tmp_path, stages=listed)) == expected
    assert same(whole, resumed)


def test_a_memory_of_a_stage_needs_a_state_and_streams_to_fill_it():
    plain = task_of(regime=Regime.non_overlapping, memory=0)
    listed = [{"steps": 2, "memory": 8}]
    with pytest.raises(ValueError, match=r"stages\[0\].memory=8 needs a task with a memory"):
        next(run(model_of(), stages=listed, task=plain))
    with pytest.raises(Unsupported, match=r"stages\[0\].memory=500 is longer than the text"):
        next(run(model_of(), stages=[{"steps": 2, "memory": 500}]))


def test_accumulation_is_the_mean_gradient_of_batches_that_follow_each_other(monkeypatch):
    task, model, other = task_of(), model_of().eval(), model_of().eval()
    stages = [{"steps": 2, "accumulate": 2}]
    trainer = trainer_of(model, task, optim=optim_of(steps=2, clip=None), stages=stages)
    taken = []
    monkeypatch.setattr(
        trainer.updates, "apply", lambda: taken.append([p.grad.clone() for p in model.parameters()])
    )
    state = other.initial_state(3, MEMORY)
    batches = [*task.batches("train", batch_size=3, seed=1)][:2]
    total = torch.zeros(())
    for batch in batches:
        trainer.advance(batch)
        outcome = other(batch.tokens, batch.target, None, state)
        total = total + outcome.nll.mean() / 2
        count, layers = outcome.state
        state = (count, tuple(tuple(part.detach() for part in layer) for layer in layers))
    total.backward()
    assert len(taken) == 1
    for found, parameter in zip(taken[0], other.parameters(), strict=True):
        torch.testing.assert_close(found, parameter.grad, rtol=1e-5, atol=1e-8)


def test_a_training_stopped_behind_every_step_goes_on_to_the_bit(tmp_path: Path, monkeypatch):
    task, whole = task_of(), model_of()
    expected = losses(run(whole, task=task))
    reached = []

    def stop(trainer, batch, loss):
        reached.append(trainer.step)
        if trainer.step < STEPS:
            os.kill(os.getpid(), signal.SIGTERM)

    watched(monkeypatch, stop)
    for _ in range(1, STEPS):
        with pytest.raises(Interrupted):
            list(run(model_of(), tmp_path, task=task))
    resumed = model_of()
    assert losses(run(resumed, tmp_path, task=task)) == expected
    assert reached == list(range(1, STEPS + 1))
    assert same(whole, resumed)


def test_a_state_whose_gradients_do_not_fit_is_left(tmp_path: Path, caplog):
    half = run(model_of(), tmp_path, stages=[{"steps": 10, "accumulate": 5}])
    trainer_state = tmp_path / "resume.pt"
    for item in half:
        if isinstance(item, Measurement) and item.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
            break
    with pytest.raises(Interrupted):
        list(half)
    state = torch.load(trainer_state, weights_only=True)
    assert state["gradients"]
    name = next(iter(state["gradients"]))
    state["gradients"][name] = state["gradients"][name][:1]
    torch.save(state, trainer_state)
    list(run(model_of(), tmp_path, stages=[{"steps": 10, "accumulate": 5}]))
    assert "gradients" in caplog.text


def test_one_stage_like_the_rest_changes_nothing():
    plain, staged = model_of(), model_of()
    expected = losses(run(plain, stages=[]))
    found = losses(run(staged, stages=[{"steps": 4, "length": None, "accumulate": 1}]))
    assert found == expected
    assert same(plain, staged)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([3], r"stages\[0\]: got 3; wanted a mapping"),
        ([{"length": 8}], r"stages\[0\]\.steps is missing"),
        ([{"steps": 2, "lenght": 8}], r"stages\[0\]\.lenght is not an option .*mean length"),
        ([{"steps": "2"}], r"stages\[0\]: steps: got '2'; wanted a whole number"),
        ([{"steps": 1}, {"steps": 0}], r"stages\[1\]: steps must be at least 1: got 0"),
        ([{"steps": 2, "accumulate": 0}], r"accumulate must be at least 1: got 0"),
        ([{"steps": 5, "accumulate": 2}], r"steps=5 must be a multiple of accumulate=2.* steps=4"),
        ([{"steps": 2, "learning_rate_scale": 0}], "learning_rate_scale must be positive: got 0"),
        ([{"steps": 6}, {"steps": 5}], r"have 11 steps .* optim.steps=10: type optim.steps=11"),
        (
            [{"steps": 2, "batch_size": 2, "micro_batch_size": 3}],
            r"runner.stages\[0\]\.micro_batch_size=3 is more than the 2 rows of a batch",
        ),
        (
            [{"steps": 2}, {"steps": 2, "length": 17}],
            r"runner.stages\[1\]\.length=17 is more than the 16 tokens .*evaluation_length=17",
        ),
        (
            [{"steps": 2, "batch_size": 60}],
            r"runner.stages\[0\]: 60 rows of contiguous windows of 16 tokens need",
        ),
    ],
)
def test_stages_that_cannot_be_are_refused_before_the_first_step(stages, message):
    with pytest.raises(ValueError, match=message):
        next(run(model_of(), stages=stages))


def test_time_that_is_left_counts_stages_by_their_tokens():
    stages = TrainingStages(STAGES, optim_of())
    task = task_of()
    assert stages.ahead(0, task) == 7 + 3 * (3 * 16) / (6 * 8)
    assert stages.ahead(9, task) == 1
    pace = Pace(0, 10, 0)
    pace.stepped(1, 2.0)
    pace.stepped(2, 2.0)
    assert pace.left_s(2, 5.0) == 10.0
    pace.changed()
    pace.stepped(3, 7.0)
    assert pace.step_s == 7.0


def test_stages_stand_in_options_without_what_is_usual():
    config = Train(stages=[{"steps": 5, "length": None, "batch_size": 4, "accumulate": 1}])
    assert config.stages == [{"steps": 5, "batch_size": 4}]
    assert config.marks("sliding") == {"stages": "steps=5, batch_size=4"}
    assert Train().marks("sliding") == {}


def test_planning_counts_every_stage_with_its_own_batches():
    work = SimpleNamespace(task=task_of(), optim=optim_of(micro_batch_size=2))
    steps = [each for each in Train(stages=STAGES).passes(work) if each.step]
    assert [(p.times, p.rows, p.length, p.micro_rows) for p in steps] == [
        (3, 6, 8, 4), (4, 6, 8, 2), (3, 3, 16, 2),
    ]  # fmt: skip


@pytest.mark.parametrize("form", ["single", "concatenated"])
def test_windows_of_proteins_need_a_stream(form):
    task = Proteins(source="sample", form=form, max_length=64)
    stages = TrainingStages([{"steps": 2, "length": 32}], optim_of())
    if form == "concatenated":
        stages.check_windows(task)
        assert task.with_windows(32).window("train") == 32
        assert task.window("train") == 64
        return
    with pytest.raises(ValueError, match=r"got task.form=single.* set task.form=concatenated"):
        stages.check_windows(task)


def test_a_task_without_a_stream_has_no_windows_to_choose():
    with pytest.raises(
        ValueError, match=r"runner.stages\[0\].length=4 needs a task .* but task=tiny does not"
    ):
        TrainingStages([{"steps": 2, "length": 4}], optim_of()).check_windows(Tiny())
    TrainingStages([{"steps": 2, "batch_size": 4}], optim_of()).check_batches(Tiny())
    with pytest.raises(ValueError, match=r"runner.stages\[0\].batch_size=41 is more than"):
        TrainingStages([{"steps": 2, "batch_size": 41}], optim_of()).check_batches(Tiny())


indexed_model = partial(
    language_model, partial(IndexedAttention, budget=4, block=2), max_length=16, carried=MEMORY
)


def test_a_stage_trains_one_part_alone_and_rows_have_its_loss(monkeypatch):
    listed, weights, model = [{"steps": 4, "only": "index"}], [], indexed_model()
    weights.append({name: p.detach().clone() for name, p in model.named_parameters()})

    def after(trainer, batch, loss):
        alone = {block.mixer.alone for block in trainer.model.stack.blocks}
        assert alone == ({"index"} if trainer.step <= 4 else {""})
        weights.append({name: p.detach().clone() for name, p in model.named_parameters()})

    watched(monkeypatch, after)
    rows = [item for item in run(model, stages=listed) if isinstance(item, Measurement)]
    first, middle, last = weights[0], weights[4], weights[-1]
    moved = {name for name in first if not torch.equal(first[name], middle[name])}
    assert moved
    assert moved == {name for name in first if ".index." in name}
    assert any(not torch.equal(middle[name], last[name]) for name in first if name not in moved)
    losses_of_index = [row for row in rows if row.metric == "train_penalty"]
    assert [row.step for row in losses_of_index] == [4, 8, 10]
    assert all(row.labels == {"penalty": "index"} and row.value > 0 for row in losses_of_index)


def test_a_stage_that_trains_one_part_resumes_exactly(tmp_path: Path, monkeypatch):
    listed = [{"steps": 4, "only": "index"}]
    whole, halted = indexed_model(), indexed_model()
    expected = losses(run(whole, stages=listed))

    def after(trainer, batch, loss):
        if trainer.step == 2 and trainer.model is halted:
            os.kill(os.getpid(), signal.SIGTERM)

    watched(monkeypatch, after)
    with pytest.raises(Interrupted):
        list(run(halted, tmp_path, stages=listed))
    resumed = indexed_model(seed=4)
    assert losses(run(resumed, tmp_path, stages=listed)) == expected
    assert same(whole, resumed)


def test_a_part_that_no_parameter_has_is_refused():
    with pytest.raises(ValueError, match=r"stages\[0\].only=indx: no parameter.*model=indexed"):
        list(run(model_of(), stages=[{"steps": 4, "only": "indx"}]))


def test_rows_say_that_nothing_trains_an_index_without_its_loss():
    untrained = partial(IndexedAttention, budget=4, block=2, penalty=0.0)
    model = language_model(untrained, max_length=16, carried=MEMORY)
    rows = [item for item in run(model, stages=[]) if isinstance(item, Measurement)]
    remarks = {row.labels.get("remark", "") for row in rows if "split" in row.labels}
    assert all("measure a random selector" in remark for remark in remarks)
    assert not [row for row in rows if row.metric == "train_penalty"]
