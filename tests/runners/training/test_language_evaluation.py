"""Each regime of evaluation against a direct computation, token by token."""

import math

import pytest
import torch

from lra.models.families.linear import LinearAttention
from lra.models.families.softmax import SoftmaxAttention
from lra.runners.training.evaluate import evaluate
from lra.tasks.language.base import Regime
from tests.runners.small_text import language_model, text_task

LENGTH, STRIDE = 16, 5


def task_of(regime, **options):
    return text_task(length=LENGTH, regime=regime, **options)


def model_of(mixer, max_length=LENGTH):
    return language_model(mixer, max_length=max_length, width=16).double().eval()


def begins(regime, token, tokens):
    """Where the window begins that predicts `token`."""
    if regime is Regime.memory:
        return 0
    if regime is Regime.non_overlapping:
        return (token - 1) // LENGTH * LENGTH
    steps = max(0, math.ceil((token - LENGTH) / STRIDE))
    return max(0, min(LENGTH + steps * STRIDE, tokens - 1) - LENGTH)


# With a memory, rows side by side are streams of their own, which begin without one.
@pytest.mark.parametrize(
    ("mixer", "regime", "batch_size"),
    [
        (SoftmaxAttention, Regime.non_overlapping, 7),
        (LinearAttention, Regime.sliding, 1),
        (SoftmaxAttention, Regime.sliding, 7),
        (LinearAttention, Regime.memory, 1),
        (SoftmaxAttention, Regime.memory, 1),
    ],
)
def test_the_regime_is_what_it_says(mixer, regime, batch_size):
    options = {
        Regime.sliding: {"stride": STRIDE},
        Regime.memory: {"memory": 200},
        Regime.non_overlapping: {},
    }[regime]
    task, model, whole = task_of(regime, **options), model_of(mixer), model_of(mixer, 200)
    stream = torch.from_numpy(task.split("test").tokens.astype("int64"))
    total = hits = 0.0
    for token in range(1, len(stream)):
        context = stream[begins(regime, token, len(stream)) : token]
        with torch.no_grad():
            logits, _ = whole.predict(context[None, None])
        total -= float(logits[0, -1].log_softmax(-1)[stream[token]])
        hits += float(logits[0, -1].argmax() == stream[token])
    measured, outcomes, parts, *_ = evaluate(
        model, task, "test", batch_size=batch_size, device=torch.device("cpu")
    )
    assert measured["loss"] == pytest.approx(total / (len(stream) - 1), rel=1e-6)
    assert measured["accuracy"] == pytest.approx(hits / (len(stream) - 1))
    assert measured["bits_per_character"] == pytest.approx(measured["loss"] / math.log(2))
    assert outcomes.hit.dtype == "float32"
    for kind in ("position", "frequency"):
        own = [found for (about, _), found in parts.items() if about == kind]
        assert sum(count for _, count in own) == len(stream) - 1
        assert sum(mean * count for mean, count in own) == pytest.approx(total, rel=1e-6)


def test_streams_side_by_side_score_each_token_once():
    task = task_of(Regime.memory, memory=50)
    model = model_of(LinearAttention)
    tokens = len(task.split("test").tokens)
    one, *_ = evaluate(model, task, "test", batch_size=1, device=torch.device("cpu"))
    four, *_ = evaluate(model, task, "test", batch_size=4, device=torch.device("cpu"))
    assert one["loss"] == pytest.approx(four["loss"], rel=0.1)
    counted = sum(
        float(batch.target.numel() if batch.weight is None else batch.weight.sum())
        for batch in task.batches("test", batch_size=4, seed=0)
    )
    assert counted == tokens - 1
