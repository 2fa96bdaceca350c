"""Scores by numbers of passes, against models that were built with them."""

import pytest

from lra.models.families.linear import LinearAttention
from lra.models.mixer import Unsupported
from lra.runners.measures.loops import LoopScores, scores_by_passes
from lra.runners.records import Measurement
from tests.runners.small_text import language_model, text_task
from tests.runners.tiny_task import CPU

LOOP = {"depth": 3, "loop_first": 1, "loop_last": 1, "loop_inject": "add"}


def rows_of(model, task, **options):
    config = LoopScores(**options)
    found = [*scores_by_passes(model, task, config=config, hardware=CPU)]
    assert all(isinstance(row, Measurement) for row in found)
    return found


def test_every_number_of_passes_is_that_model():
    task = text_task(length=12)
    model = language_model(LinearAttention, max_length=12, loop_passes=3, **LOOP)
    rows = rows_of(model, task, counts=[4, 1], batch_size=5)
    assert model.stack.passes == 3
    assert [r.labels["passes"] for r in rows if r.metric == "loss"] == ["1", "4"]
    assert {r.labels["trained_passes"] for r in rows} == {"3"}
    losses = {r.labels["passes"]: r.value for r in rows if r.metric == "loss"}
    assert losses["1"] != losses["4"]
    for passes, loss in losses.items():
        built = language_model(LinearAttention, max_length=12, loop_passes=int(passes), **LOOP)
        built.load_state_dict(model.state_dict())
        (own,) = [
            r.value
            for r in rows_of(built, task, counts=[int(passes)], batch_size=5)
            if r.metric == "loss"
        ]
        assert own == loss


def test_a_model_without_a_loop_is_refused():
    model = language_model(LinearAttention, max_length=12)
    with pytest.raises(Unsupported, match=r"but this model has none: set model\.backbone\.loop"):
        rows_of(model, text_task(length=12))
