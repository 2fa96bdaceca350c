"""Proposals of Optuna: the same from the same rows, and better than even points."""

import math
from typing import Any

import pytest

from lra.errors import ConfigError
from lra.tuning import adaptive
from lra.tuning.adaptive import check_installed, propose
from lra.tuning.advance import TrialOutcome, Words, advance
from lra.tuning.record import Record
from tests.lra.tuning.searches import outcome, record, value

RANGES = {"optim.a": "interval(0, 1)", "optim.b": "tag(log, interval(1e-3, 1))"}


def grown(searched: Record, score: Any) -> tuple[Record, dict[Words, TrialOutcome]]:
    """Return a search after all of its rounds, proposals among its points."""
    ended: dict[Words, TrialOutcome] = {}
    while True:
        step = advance(searched, ended)
        ended |= {w: outcome(w, score(w), better="lower") for w in step.trainings if w not in ended}
        if step.choices and all(words in ended for words in step.trainings):
            return searched, ended
        before, searched = searched, propose(searched, step)
        assert propose(before, step) == searched


def quadratic(words: Words) -> float:
    """Return a loss whose least value is 0, at a = 0.2, b = 0.03."""
    if not value(words, "optim.a"):
        return 10.0
    a, b = float(value(words, "optim.a")), math.log10(float(value(words, "optim.b")))
    return (a - 0.2) ** 2 + (b + 1.52) ** 2 / 9


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_rounds_begin_paired_and_improve_on_even_points(sampler: str) -> None:
    pytest.importorskip("optuna")
    searched = record(["linear"], ranges=RANGES, sampler=sampler, trials=23, parallel=4)
    even = record(["linear"], ranges=RANGES, trials=23)
    after, ended = grown(searched, quadratic)
    assert after.points["0 model=linear"][:4] == even.points["0"][:4]
    assert len(after.points["0 model=linear"]) == 23  # the last round is a short one
    best = min(outcome.score for outcome in ended.values() if outcome.score is not None)
    of_even = min(quadratic(words) for words in advance(even, {}).trainings)
    assert best < of_even


def test_a_failed_trial_counts_as_the_worst() -> None:
    pytest.importorskip("optuna")
    ranges = {**RANGES, "optim.c": "choice(x, y, z)", "optim.d": "choice(1, 2, 4)"}
    searched = record(["linear"], ranges=ranges, sampler="tpe", trials=12)

    def score(words: Words) -> float | None:
        return None if value(words, "optim.c") == "x" else quadratic(words)

    after, _ = grown(searched, score)
    values = [v["optim.c"][0] for n, v in after.trials(after.arms[0], 0).items() if n > 4]
    assert values.count("x") < len(values) / 2


def test_what_is_not_installed_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'lra\[search\]'"):
        check_installed("tpe")


def test_a_first_trial_that_failed_says_nothing_of_the_direction() -> None:
    pytest.importorskip("optuna")
    searched = record(["linear"], ranges=RANGES, sampler="tpe", trials=24)
    first = value(advance(searched, {}).trainings[1], "optim.a")

    def score(words: Words) -> float | None:
        return None if value(words, "optim.a") == first else quadratic(words)

    after, ended = grown(searched, score)
    assert after.points["0 model=linear"]
    scores = [
        one.score
        for words, one in ended.items()
        if value(words, "optim.a") and not value(words, "runner.tuned") and one.score is not None
    ]
    assert sum(scores[-12:]) / 12 < sum(scores[:8]) / 8
