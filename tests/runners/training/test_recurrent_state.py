"""Training along streams: the state goes on over batches, micro-batches and restarts."""

from functools import partial

import pytest
import torch

from lra.models.families.linear import LinearAttention
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Unsupported
from lra.models.positions import LearnedPositions
from lra.runners.records import Measurement
from lra.runners.training.data_check import check_streams
from lra.runners.training.optim import OptimConfig
from lra.runners.training.recurrent_state import RecurrentStates, remembered_tokens
from lra.tasks.language.base import Regime
from tests.runners.small_text import language_model, text_task
from tests.runners.tiny_task import trainer_of, training

LENGTH, ROWS, MEMORY = 16, 4, 400


task_of = partial(text_task, length=LENGTH, contiguous=True, regime=Regime.memory, memory=MEMORY)


def model_of(mixer=LinearAttention, carried=0, **options):
    sizes = {"width": 16, "feed_forward_width": 32, "max_length": MEMORY, "carried": carried}
    return language_model(mixer, **sizes, **options).double()


def optim_of(**options):
    return OptimConfig(steps=5, batch_size=ROWS, peak_learning_rate=1e-2, **options)


def run(task, model):
    return training(model, task, optim=optim_of(), log_every_steps=1, evaluation_batch_size=1)


@pytest.mark.parametrize(
    ("mixer", "micro"), [(LinearAttention, None), (LinearAttention, 3), (SoftmaxAttention, 1)]
)
def test_the_next_batch_sees_the_last_one(mixer, micro):
    """With a learning rate of zero each step's loss is that of one long sequence."""
    task, model = task_of(), model_of(mixer)
    batches = list(task.batches("train", batch_size=ROWS, seed=5))[:5]
    assert len(batches) == 5
    seen = torch.cat([batch.tokens[:, 0] for batch in batches], 1)
    answers = torch.cat([batch.target for batch in batches], 1)
    assert torch.equal(seen[:, 1:], answers[:, :-1])
    trainer = trainer_of(model, task, optim=optim_of(micro_batch_size=micro))
    for number, batch in enumerate(batches):
        for group in trainer.updates.optimiser.param_groups:
            group["lr"] = 0.0
        before = [parameter.detach().clone() for parameter in model.parameters()]
        with torch.no_grad():
            end = (number + 1) * LENGTH
            whole = model(seen[:, None, :end], answers[:, :end]).nll[:, number * LENGTH :]
            alone = model(batch.tokens, batch.target).nll
        loss = trainer.advance(batch)
        assert float(loss) == pytest.approx(float(whole.mean()), rel=1e-6)
        if number:
            assert abs(float(alone.mean() - whole.mean())) > 1e-4 * float(whole.mean())
        with torch.no_grad():  # undo the step: the next one is compared with the same weights
            for parameter, old in zip(model.parameters(), before, strict=True):
                parameter.copy_(old)


def test_without_a_memory_nothing_is_carried():
    task = task_of(regime=Regime.non_overlapping, memory=0)
    trainer = trainer_of(model_of(), task, optim=optim_of())
    for batch in list(task.batches("train", batch_size=ROWS, seed=5))[:2]:
        assert batch.reset is None
        trainer.advance(batch)
        assert trainer.streams.state is None


def test_an_epoch_begins_anew():
    task, trainer = task_of(), trainer_of(model_of(), task_of(), optim=optim_of())
    batches = list(task.batches("train", batch_size=ROWS, seed=5))
    trainer.advance(batches[0])
    trainer.advance(batches[1])
    first = trainer.streams.state[0]
    assert first.tolist() == [2 * LENGTH] * ROWS
    trainer.advance(batches[0])
    assert trainer.streams.state[0].tolist() == [LENGTH] * ROWS


def test_rows_count_windows_not_examples():
    rows = [item for item in run(task_of(), model_of()) if isinstance(item, Measurement)]
    judged = [row.labels for row in rows if row.metric == "accuracy"]
    assert len(judged) == 2
    assert all("windows" in labels and "examples" not in labels for labels in judged)


def test_training_and_evaluation_remember_as_much_as_the_model_says(monkeypatch):
    # A sample of 45 tokens fills none of these memories.
    monkeypatch.setattr("lra.runners.training.loop.check_data", lambda *_: None)
    task = task_of()
    lengths: list[tuple[bool, int]] = []

    def watched(model):
        made = model.initial_state

        def initial_state(rows, memory):
            lengths.append((model.training, memory))
            return made(rows, memory)

        model.initial_state = initial_state
        return model

    for said, wanted in (
        ({}, {(True, MEMORY), (False, MEMORY)}),
        ({"memory": 5}, {(True, 5), (False, 5)}),
        ({"memory": 5, "evaluation_memory": 90}, {(True, 5), (False, 90)}),
        ({"evaluation_memory": 90}, {(True, MEMORY), (False, 90)}),
    ):
        lengths.clear()
        model = watched(model_of(SoftmaxAttention, MEMORY, **said))
        assert list(run(task, model))
        assert set(lengths) == wanted, said


def test_softmax_trains_on_where_its_memory_is_full():
    """Five batches of 16 tokens through a memory of 20: losses of a window of 20 in each layer."""
    task, model = task_of(memory=20), model_of(SoftmaxAttention)
    batches = list(task.batches("train", batch_size=ROWS, seed=5))[:5]
    streams = RecurrentStates(model, remembered_tokens(model.config, task, training=True))
    state, wanted = model.initial_state(ROWS, 20), []
    with torch.no_grad():
        for batch in batches:
            losses = []
            for place in range(LENGTH):
                here = slice(place, place + 1)
                outcome = model(batch.tokens[..., here], batch.target[:, here], None, state)
                losses.append(outcome.nll)
                state = outcome.state
            wanted.append(float(torch.cat(losses, 1).mean()))
    seen = []
    for batch in batches:
        streams.begin(batch.reset)
        outcome = model(batch.tokens, batch.target, None, streams.rows_of(slice(0, ROWS)))
        outcome.nll.mean().backward()
        streams.add(outcome.state)
        streams.end()
        seen.append(float(outcome.nll.mean().detach()))
    assert seen == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(
    ("carried", "options", "message"),
    [
        (
            60,
            {},
            r"task.memory=60 is .* test .* 44 tokens for the row .*; type task.memory=44 or",
        ),
        (
            40,
            {"memory": 200},
            r"model.backbone.memory=200 is .* train .* 192 tokens for each of the 4 .*batch",
        ),
        (40, {"evaluation_memory": 45}, r"model.backbone.evaluation_memory=45 is .* has 44"),
    ],
)
def test_a_memory_longer_than_its_stream_is_refused_before_the_first_step(
    carried, options, message
):
    model = model_of(SoftmaxAttention, carried, **options)
    with pytest.raises(Unsupported, match=message):
        next(run(task_of(memory=carried), model))


def test_a_state_of_one_size_takes_any_memory_and_any_stream():
    check_streams(model_of(), task_of(), "test", 1, training=False)


def test_streams_longer_than_learned_positions_are_refused_before_the_first_step():
    task, model = task_of(memory=20), model_of(SoftmaxAttention, 20)
    model.positions = LearnedPositions(32, 16).double()
    check_streams(model, task, "train", ROWS, training=True, steps=2)
    with pytest.raises(
        Unsupported, match=r"end at 32 tokens, but the train split .* has 192 .*rotary"
    ):
        next(run(task, model))


def test_a_memory_that_nothing_reads_is_refused():
    with pytest.raises(
        ValueError, match=r"in this task every .*\.memory=5, .*evaluation_memory=null"
    ):
        model_of(SoftmaxAttention, memory=5)
    with pytest.raises(Unsupported, match="the same size for every number"):
        model_of(LinearAttention, MEMORY, evaluation_memory=5)
    with pytest.raises(ValueError, match="evaluation_memory must be at least 1: got 0"):
        model_of(SoftmaxAttention, MEMORY, evaluation_memory=0)
