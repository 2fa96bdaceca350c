"""Windows of drawn lengths: how they are drawn, what they read, the rate, an exact resume."""

import numpy as np
import pytest

from lra.runners.records import Interrupted
from lra.runners.training.schedules import learning_rate
from lra.tasks.language.base import Regime
from lra.tasks.language.windows import VariedLengths, drawn_lengths, varied_lanes
from tests.runners import tiny_task
from tests.runners.tiny_task import Tiny, same
from tests.runners.training.test_stages import model_of, optim_of, task_of

VARIED = VariedLengths(5.0, 0.05, 100)
TEXT = {"length": 9, "evaluation_length": 16}


def trainer_of(task, folder=None, **options):
    config = {"window_deviation": 2.0, "halved_windows": 0.25, "evaluation_batch_size": 1}
    optim = optim_of(steps=6, warmup_steps=4)
    return tiny_task.trainer_of(model_of(), task, folder, optim=optim, **config | options)


def test_lengths_are_as_awd_lstm_draws_them():
    """max(5, int(normal(70 or, in 1 of 20, 35, 5))), cut to what a model is built for."""
    drawn = drawn_lengths(2_000_000, length=70, varied=VARIED, seed=4)
    assert 2_000_000 - 100 < drawn.sum() <= 2_000_000
    long = drawn[drawn > 52]
    assert 1 - len(long) / len(drawn) == pytest.approx(0.05, abs=0.005)
    assert (long + 0.5).mean() == pytest.approx(70, abs=0.1)
    assert long.std() == pytest.approx(5, abs=0.1)
    assert (drawn[drawn <= 52] + 0.5).mean() == pytest.approx(35, abs=0.5)
    assert drawn_lengths(10_000, length=6, varied=VARIED._replace(longest=9), seed=4).min() == 5
    assert drawn_lengths(10_000, length=6, varied=VARIED._replace(longest=9), seed=4).max() == 9
    assert not np.array_equal(drawn, drawn_lengths(2_000_000, length=70, varied=VARIED, seed=5))


def test_rows_read_on_without_a_gap():
    tokens, rows = 1000, 3
    starts, lengths, scored = varied_lanes(
        tokens, length=9, rows=rows, varied=VariedLengths(2.0, 0.25, 16), seed=1
    )
    starts, lengths = starts.reshape(-1, rows), lengths.reshape(-1, rows)
    assert np.array_equal(starts[1:], (starts + lengths)[:-1])
    assert (lengths == lengths[:, :1]).all()
    assert np.array_equal(scored, lengths.ravel())
    assert (starts + lengths).max() < tokens
    assert (np.diff(starts[0]) == 333).all()
    assert len({*lengths[:, 0]}) > 4


def test_the_rate_scales_with_the_window():
    trainer = trainer_of(task_of(**TEXT))
    task = trainer.config.read(trainer.task)
    seen = set()
    for step, batch in zip(range(6), task.batches("train", batch_size=3, seed=0), strict=False):
        trainer.advance(batch)
        length = batch.tokens.shape[-1]
        seen.add(length)
        wanted = learning_rate(trainer.optim, step) * length / 9
        assert trainer.updates.optimiser.param_groups[0]["lr"] == pytest.approx(wanted)
    assert len(seen) > 2


class Go:
    """No signal to stop."""

    def is_set(self):
        return False


def test_resume_goes_on_to_the_bit(tmp_path):
    class Stop:
        def __init__(self):
            self.left = 5

        def is_set(self):
            self.left -= 1
            return self.left <= 0

    task = task_of(**TEXT)
    whole, first = trainer_of(task), trainer_of(task, tmp_path)
    list(whole.run(Go()))
    with pytest.raises(Interrupted):
        list(first.run(Stop()))
    second = trainer_of(task, tmp_path)
    list(second.run(Go()))
    assert first.step == 3
    assert same(whole.model, second.model)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda: task_of(**TEXT, regime=Regime.non_overlapping, memory=0, contiguous=False), {},
         "got task.contiguous=false; set task.contiguous=true"),
        (lambda: task_of(length=16), {}, "set task.evaluation_length=22 or more"),
        (Tiny, {}, "needs a task that reads windows of a"),
        (lambda: task_of(**TEXT), {"stages": [{"steps": 2, "accumulate": 2}]},
         r"but runner.stages\[0\].accumulate=2 uses several windows"),
    ],
)  # fmt: skip
def test_what_cannot_vary_is_refused(make, options, message):
    with pytest.raises(ValueError, match=message):
        list(trainer_of(make(), **options).run(Go()))
