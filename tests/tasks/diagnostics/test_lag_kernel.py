"""Weighted sums of past numbers, compared with a loop over lags."""

import hashlib
import math

import numpy as np
import pytest

from lra.runners.measures.certify import certify
from lra.tasks.contract import check_task
from lra.tasks.data.batching import Draw, random_words
from lra.tasks.diagnostics.lag_kernel import LagKernel, LagWeights, NumberDraw, weights_of

FEW = {"train_examples": 200, "validation_examples": 60, "test_examples": 4000}


def made(**options):
    task = LagKernel(**{**FEW, **options})
    task.prepare()
    return task


def weight(kernel, lag, lags):
    """Return the weight of a lag before scaling, as the docstring writes it."""
    return {
        "near": math.exp(-8 * lag / lags),
        "far": math.exp(-8 * (lags - 1 - lag) / lags),
        "heavy": 1 / (lag + 1),
        "comb": float(lag % math.ceil(lags / 8) == 0),
    }[kernel]


@pytest.mark.parametrize("kernel", LagWeights)
@pytest.mark.parametrize(
    "options",
    [{"length": 40, "lags": 24}, {"length": 5, "lags": 5, "numbers": "normal", "test_length": 9}],
)
def test_a_loop_over_lags_finds_every_answer(kernel, options):
    task = made(kernel=kernel, **options)
    lags = task.lags
    scale = math.sqrt(sum(weight(kernel, lag, lags) ** 2 for lag in range(lags)))
    for split in ("train", "validation", "test"):
        for row, answer in zip(task.rows(split), task.split(split).targets, strict=True):
            wanted = sum(
                weight(kernel, lag, lags) * float(row[len(row) - 1 - lag, 0]) for lag in range(lags)
            )
            assert answer == pytest.approx(wanted / scale, abs=1e-5)
    assert [finding for finding in check_task(task) if not finding.passed] == []


@pytest.mark.parametrize("numbers", NumberDraw)
@pytest.mark.parametrize("kernel", LagWeights)
def test_floors_are_those_of_theory(kernel, numbers):
    task = made(kernel=kernel, numbers=numbers, length=70)
    rows = task.rows("test")
    assert rows.mean() == pytest.approx(0, abs=0.01)
    assert rows.var() == pytest.approx(1, abs=0.02)
    fourth = {"uniform": 1.8, "normal": 3.0}[numbers]  # moments
    assert (rows.astype(float) ** 4).mean() == pytest.approx(fourth, abs=0.1)
    best = max(weight(kernel, lag, 64) for lag in range(64)) ** 2
    rest = 1 - best / sum(weight(kernel, lag, 64) ** 2 for lag in range(64))
    errors = {floor.name: floor.measures["mse"] for floor in task.baselines("test")}
    # The standard error of a mean of 4,000 squares is about 0.02 times the mean.
    assert errors["always_zero"] == pytest.approx(1, abs=0.09)
    assert errors["best_lag"] == pytest.approx(rest, rel=0.09)
    assert {row.metric for row in certify(task, split="test")} == {"mse"}


def test_kernels_have_their_weights_where_they_should():
    near, far, heavy, comb = (weights_of(kernel, 64) for kernel in LagWeights)
    assert near.tolist() == far[::-1].tolist()
    assert near[:8].sum() > 0.6 * near.sum()
    assert heavy[32:].sum() > 5 * near[32:].sum()
    assert np.flatnonzero(comb).tolist() == [0, 8, 16, 24, 32, 40, 48, 56]


def test_rows_are_those_of_the_seed():
    words = random_words(Draw.diagnostic, 0, 50 * 14).reshape(50, 14)
    tokens, answers = LagKernel(length=7, lags=4).drawn(words, 7)
    assert tokens.shape == (50, 7, 1)
    assert hashlib.sha256(tokens.tobytes()).hexdigest()[:16] == "4e2be2f90de8a9ae"
    assert answers[:3].tolist() == pytest.approx([-0.2380873, 1.4874145, -1.4909098], abs=1e-6)


def test_a_batch_has_one_number_for_each_token():
    task = made(length=8, lags=4)
    (batch, *_) = task.batches("test", batch_size=16, seed=0)
    assert batch.tokens.shape == (16, 1, 8)
    assert batch.target.shape == (16,)
    assert task.describe("test", 0).splitlines()[1].startswith("-> ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lags": 0}, r"task\.lags must be at least 1: got 0"),
        ({"length": 9}, r"task\.length must be at least 64, because the kernel has .*: got 9"),
        ({"test_length": 63}, r"task\.test_length must be at least 64"),
        ({"kernel": "wide"}, "near, far, heavy, comb"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LagKernel(**options)


def test_every_option_of_the_rows_is_in_the_hash():
    hashes = {
        LagKernel(**options).spec.data_hash
        for options in ({}, {"kernel": "far"}, {"lags": 8}, {"numbers": "normal"}, {"length": 99})
    }
    assert len(hashes) == 5
    assert LagKernel().spec.source == "generated, near kernel of 64 lags, uniform numbers"
