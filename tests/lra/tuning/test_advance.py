"""What a search trains next follows from its record and rows alone, whoever asks and when."""

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from lra.errors import ConfigError
from lra.tuning.adaptive import propose
from lra.tuning.advance import TrialOutcome, Words, advance, table
from lra.tuning.growing_search import _read_result
from tests.lra.tuning.searches import RATE, finished, outcome, record, value


def score_of(words: Words) -> float:
    """Return a score by options and seed alone, rounded so that there are ties."""
    rate, seed = float(value(words, RATE) or 1e-3), int(value(words, "seed"))
    return round(math.exp(-abs(math.log(rate / 3e-3))) + 0.01 * (seed % 3), 1)


def rate_of(words: Words) -> float:
    """Return the rate as the score; untuned options have none."""
    return float(value(words, RATE) or 0)


@settings(max_examples=60, deadline=None)
@given(
    st.randoms(use_true_random=False),
    st.sampled_from([[], [0.25], [0.1, 0.5]]),
    st.integers(1, 8),
    st.integers(1, 2),
    st.tuples(
        st.lists(st.integers(0, 9), min_size=1, max_size=2, unique=True),
        st.booleans(),
        st.floats(0, 0.5),
    ),
)
def test_any_order_ends_in_one_choice(
    chance: random.Random,
    rungs: list[float],
    trials: int,
    studies: int,
    more: tuple[list[int], bool, float],
) -> None:
    """Trainings end in any order; two callers see other parts of what has ended."""
    seeds, untuned, failing = more
    searched = record(
        trials=trials, rungs=rungs, studies=studies, seeds=seeds, untuned=untuned, keep=0.4
    )

    def ends(words: Words) -> TrialOutcome:
        fails = random.Random(repr(words)).random() < failing
        return outcome(words, None if fails else score_of(words))

    ended: dict[Words, TrialOutcome] = {}
    named = set[Words]()
    total = -1
    while True:
        step = advance(searched, ended)
        part = dict(chance.sample([*ended.items()], k=len(ended) // 2))
        assert {*advance(searched, part).trainings} <= {*step.trainings}
        assert len({*step.trainings}) == len(step.trainings)
        assert named <= {*step.trainings}  # nothing is taken back
        named = {*step.trainings}
        now = len(step.trainings) + len(step.choices) + step.later
        assert total < 0 or now <= total  # what follows was foreseen, or less follows
        total = now
        left = [words for words in step.trainings if words not in ended]
        if not left:
            break
        for words in chance.sample(left, k=chance.randint(1, len(left))):
            ended[words] = ends(words)
    assert step.later == 0
    assert [(c.arm, c.study) for c in step.choices] == [
        (arm, study) for arm in searched.arms for study in range(studies)
    ]
    again = finished(searched, lambda words: ends(words).score)
    assert [table(c) for c in again.choices] == [table(c) for c in step.choices]
    assert again.trainings == step.trainings
    assert any("evaluate_splits=[validation]" in w for w in step.trainings[0])


def test_a_search_grown_names_its_former_trainings_and_more() -> None:
    few = finished(record(trials=4), score_of)
    many = finished(
        record(["linear", "sdpa", "lstm"], trials=8, final_seeds=[1, 2, 3, 4]), score_of
    )
    trials = {words for words in few.trainings if "seed=0" in words}
    assert len(trials) == 2 * 5
    assert trials < {*many.trainings}


@pytest.mark.parametrize("sampler", ["halton", "tpe"])
def test_a_repeated_trial_counts_once(sampler: str) -> None:
    if sampler == "tpe":
        pytest.importorskip("optuna")
    ranges = {RATE: "choice(0.01, 0.1)"}
    searched = record(["linear"], ranges=ranges, sampler=sampler)
    ended: dict[Words, TrialOutcome] = {}
    while not (step := advance(searched, ended)).choices:
        ended |= {words: outcome(words, rate_of(words)) for words in step.trainings}
        searched = propose(searched, step)
    (chosen,) = step.choices
    assert len({row["options"][RATE] for row in table(chosen)}) == len(table(chosen)) == 3
    assert (len(step.trainings), step.later) == (3 + 6, 0)


def test_of_repeated_trials_a_rung_keeps_one() -> None:
    searched = record(["linear"], ranges={RATE: "choice(0.01, 0.1)"}, rungs=[0.5])
    first, last = advance(searched, {}), finished(searched, rate_of)
    assert [row["rung"] for row in table(last.choices[0])] == ["0.5"] * 3 + [""] * 2
    assert len(first.trainings) + first.later == len(last.trainings) + 1  # the choice


def test_rungs_leave_the_worse_and_keep_the_untuned() -> None:
    step = finished(record(["linear"], trials=8, rungs=[0.25, 0.5], keep=0.3), score_of)
    by_rung: dict[str, list[int]] = {}
    for row in table(step.choices[0]):
        by_rung.setdefault(row["rung"], []).append(row["trial"])
    assert {rung: len(numbers) for rung, numbers in by_rung.items()} == {"0.25": 9, "0.5": 4, "": 2}
    assert all(numbers[0] == 0 for numbers in by_rung.values())
    until = [value(words, "runner.until_step") for words in step.trainings]
    assert [until.count(steps) for steps in ("25", "50", "")] == [9, 4, 2 + 6]
    scores = {row["trial"]: row["score"] for row in table(step.choices[0]) if row["rung"] == "0.25"}
    left = [scores[n] for n in scores if n not in by_rung["0.5"]]
    assert max(left) <= min(scores[n] for n in by_rung["0.5"] if n)
    later = [words for words in step.trainings if value(words, "runner.until_step") == "50"]
    assert all(value(words, "runner.continues") for words in later)


CHOICES: list[tuple[str, list[Any], str, int | None]] = [
    ("the best", [0.1, 0.2, 0.9, 0.3], "higher", 2),
    ("the least loss", [0.1, 0.2, 0.9, 0.05], "lower", 3),
    ("a tie: the lower number", [0.1, 0.9, 0.9, 0.3], "higher", 1),
    ("the untuned options", [0.95, 0.2, 0.9, 0.3], "higher", 0),
    ("one that diverged is the worst", [None, 0.2, None, None], "lower", 1),
    ("a score of 0 is better than none", [None, None, 0.0, None], "higher", 2),
    ("all failed", [None, None, None, None], "higher", None),
]


@pytest.mark.parametrize(("why", "scores", "better", "wanted"), CHOICES)
def test_the_choice(why: str, scores: list[Any], better: str, wanted: int | None) -> None:
    searched = record(["linear"], trials=3)
    rates = [values.get(RATE, ("",))[0] for values in searched.trials(searched.arms[0], 0).values()]
    (chosen,) = finished(
        searched, lambda words: scores[rates.index(value(words, RATE))], better=better
    ).choices
    assert (chosen.trial and chosen.trial.number) == wanted, why


def test_one_failed_seed_fails_a_trial() -> None:
    searched = record(["linear"], trials=3, seeds=[0, 1])
    rates = [values.get(RATE, ("",))[0] for values in searched.trials(searched.arms[0], 0).values()]

    def score(words: Words) -> float | None:
        number = rates.index(value(words, RATE))
        return None if (number, value(words, "seed")) == (3, "1") else 0.1 * number

    (chosen,) = finished(searched, score).choices
    assert chosen.trial.number == 2
    assert [row["status"] for row in table(chosen)] == ["ok", "ok", "ok", "diverged"]


def test_equal_scores_are_told_apart_by_the_loss() -> None:
    searched = record(["linear"], trials=2, final_seeds=[])
    step = advance(searched, {})
    losses = iter([0.5, 0.3, 0.2])
    ended = {words: TrialOutcome("k-f", score=0.5, loss=next(losses)) for words in step.trainings}
    (chosen,) = advance(searched, ended).choices
    assert chosen.trial.number == 2


def test_last_trainings_have_fresh_seeds_both_splits_and_no_trial_has_test() -> None:
    step = finished(record(["linear"], trials=2, untuned=True), score_of)
    finals = [words for words in step.trainings if value(words, "runner.tuned")]
    assert len(finals) == 6
    assert {value(words, "seed") for words in finals} == {"1", "2", "3"}
    assert {value(words, "runner.evaluate_splits") for words in finals} == {"[validation,test]"}
    trials = [words for words in step.trainings if words not in finals]
    assert {value(words, "runner.evaluate_splits") for words in trials} == {"[validation]"}
    assert {value(words, "runner.tuned").rpartition("/")[2] for words in finals} >= {"0"}


def row(metric: str, number: float | None, split: str, **more: Any) -> dict[str, Any]:
    status = "ok" if number is not None else "diverged"
    whole = {"metric": metric, "value": number, "step": None, "status": status, "reason": ""}
    return {**whole, "labels": {"split": split}, **more}


def test_a_trial_with_a_score_on_test_is_refused() -> None:
    rows = [row("accuracy", 0.5, "validation"), row("loss", 1.0, "validation")]
    assert _read_result("k-f", rows, "accuracy", wanted=False).score == 0.5
    with pytest.raises(ConfigError, match="must choose on validation data only"):
        _read_result("k-f", [*rows, row("accuracy", 0.9, "test")], "accuracy", wanted=False)


def test_a_trial_without_accuracy_is_judged_by_its_error() -> None:
    rows = [row("mse", 0.2, "validation")]
    found = _read_result("k-f", rows, "accuracy", wanted=False)
    assert (found.score, found.loss, found.metric, found.better) == (0.2, 0.2, "mse", "lower")


def test_what_rows_say_of_a_trial() -> None:
    rows = [row("loss", 1.0, "validation")]
    assert _read_result("k-f", rows, "perplexity", wanted=False)[3:7] == (1.0, 1.0, "loss", "lower")
    with pytest.raises(ConfigError, match=r"search\.metric=perplexity: trials have loss"):
        _read_result("k-f", rows, "perplexity", wanted=True)
    failed = _read_result(
        "k-f", [row("accuracy", None, "test", reason="inf")], "accuracy", wanted=True
    )
    assert (failed.status, failed.reason, failed.score) == ("diverged", "inf", None)
    during = [row("accuracy", 0.9, "validation", step=50), row("accuracy", None, "test")]
    assert _read_result("k-f", during, "accuracy", wanted=False).score is None
