"""Tuning curves, bands and study intervals: against literal forms, and by simulated searches."""

from collections.abc import Iterator
from itertools import combinations, product
from math import inf, nan
from statistics import fmean

import numpy as np
import pytest
from scipy.stats import qmc

from lra.reports.statistics import tuning
from lra.reports.statistics.intervals import exact_interval, mean_interval
from lra.reports.statistics.tuning import (
    BAND_TRIALS,
    TuningCurve,
    agreement,
    ahead,
    expected_best,
    running_best,
    tuning_curve,
)

SEARCHES = 100
"""Of each kind; of 2,000 the rates are those of docs/tuning.md."""


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
@pytest.mark.parametrize("count", range(1, 7))
def test_the_curve_is_the_median_of_every_choice_of_k_trials(metric: str, count: int) -> None:
    scores = np.random.default_rng(count).permutation(np.linspace(0.1, 0.9, count))
    best = max if metric == "accuracy" else min
    curve = tuning_curve(list(scores), metric)
    for k in range(1, count + 1):
        draws = sorted((best(draw) for draw in product(scores, repeat=k)), reverse=best is min)
        assert curve.best[k - 1] == draws[(len(draws) + 1) // 2 - 1]
    means = expected_best(list(scores), metric)
    for k in range(1, count + 1):
        assert means[k - 1] == pytest.approx(fmean(best(c) for c in combinations(scores, k)))


def test_curve_and_band_are_those_of_opda() -> None:
    from opda.nonparametric import EmpiricalDistribution

    scores = np.random.default_rng(3).random(9)
    curve = tuning_curve(list(scores), "accuracy")
    lower, point, upper = EmpiricalDistribution.confidence_bands(
        scores, 0.95, 0.0, 1.0, method="ld_equal_tailed", generator=np.random.default_rng(20),
        n_jobs=1,
    )  # fmt: skip
    k = np.arange(1, 10)
    assert (curve.best == point.quantile_tuning_curve(k)).all()
    assert (curve.low == upper.quantile_tuning_curve(k)).all()
    assert (curve.high == lower.quantile_tuning_curve(k)).all()
    assert curve.high[-1] == 1.0  # nine trials cannot bound the best of nine


def test_a_loss_is_turned_and_a_failed_trial_is_the_worst() -> None:
    up = tuning_curve([0.2, 0.5, 0.9, nan], "accuracy")
    assert list(up.best) == [0.2, 0.5, 0.9, 0.9]
    assert up.low[0] == 0.0
    down = tuning_curve([0.8, 0.5, 0.1, nan], "loss")
    assert list(down.best) == [0.8, 0.5, 0.1, 0.1]
    assert down.high[0] == inf
    assert down.low[-1] == 0.0
    assert (down.low <= down.best).all()
    assert (down.best <= down.high).all()
    assert np.isnan(expected_best([0.8, nan], "loss")).all()


def test_equal_scores_are_no_fault() -> None:
    curve = tuning_curve([1.0, 1.0, 0.5, 0.5, nan, nan], "accuracy")
    assert ((curve.low <= curve.best) & (curve.best <= curve.high)).all()


def test_without_opda_the_curve_has_no_band(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tuning_curve([0.1, 0.4, 0.3], "accuracy")
    tuning._band_ranks.cache_clear()
    monkeypatch.setattr(tuning, "find_spec", lambda _: None)
    bare = tuning_curve([0.1, 0.4, 0.3], "accuracy")
    tuning._band_ranks.cache_clear()
    assert list(bare.best) == list(whole.best)
    assert np.isnan(bare.low).all()
    assert np.isnan(expected_best([0.1], "accuracy")).all()
    assert not ahead(bare, bare, "accuracy").any()


def test_the_running_best_has_an_interval_from_three_studies_on() -> None:
    two = running_best([[0.1, 0.5, 0.3], [0.4, nan, 0.6]], "accuracy")
    assert list(two.best) == pytest.approx([0.25, 0.45, 0.55])
    assert np.isnan(two.low).all()
    three = running_best([[0.1, 0.5], [0.4, 0.2], [0.3, 0.6]], "accuracy")
    ends = mean_interval([0.5, 0.4, 0.6])
    assert (three.low[1], three.high[1]) == pytest.approx((ends.low, ends.high))
    losses = running_best([[nan, 2.0], [3.0, 1.0]], "loss")
    assert list(losses.best) == [inf, 1.5]


def test_one_is_ahead_where_the_bands_are_apart() -> None:
    def curve(low: list[float], high: list[float]) -> TuningCurve:
        return TuningCurve(np.array(low), np.array(low), np.array(high))

    first = curve([0.1, 0.5, 0.4, 0.6, 0.7], [1.0] * 5)
    second = curve([0.0] * 5, [0.2, 0.3, 0.4, 0.5, 1.0])
    assert list(ahead(first, second, "accuracy")) == [False, True, False, True, False]
    assert not ahead(second, first, "accuracy").any()
    assert list(ahead(second, first, "loss")) == [False, True, False, True, False]
    assert not ahead(first, second, "loss").any()


def test_agreement_is_kendalls() -> None:
    first, second = [1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]
    assert agreement(first, second) == pytest.approx(4 / 6)
    assert np.isnan(agreement(first, [1.0] * 4))


# ------------------------------------------------------------------- simulated searches


def score(
    points: np.ndarray, noise: np.ndarray, *, width: float, cliff: float, top: float = 0.9
) -> np.ndarray:
    """A peak in the first option; beyond `cliff` of the second one trainings fail, at 0."""
    peak = np.exp(-(((points[..., 0] - 0.6) / width) ** 2))
    seen = np.clip(0.1 + (top - 0.1) * peak + noise, 0.0, 1.0)
    return np.where(points[..., 1] > cliff, 0.0, seen)


def points(kind: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """Two options of each trial, in [0, 1)."""
    if kind == "random":
        return rng.random((count, 2))
    return qmc.Halton(2, scramble=True, rng=rng).random(count)


def covered_curves(kind: str, searches: int) -> float:
    """Return the share of simulated searches whose band holds the whole true curve."""
    rng, kept = np.random.default_rng(7), []
    shapes = [(0.1, 0.7), (0.4, 0.9)]
    truth = {}
    for shape in shapes:
        many = rng.random((400_000, 2))
        noise = rng.normal(0, 0.02, len(many))
        truth[shape] = np.sort(score(many, noise, width=shape[0], cliff=shape[1]))
    for number in range(searches):
        shape, count = shapes[number % 2], (8, 16, 32)[number % 3]
        noise = rng.normal(0, 0.02, count)
        scores = score(points(kind, count, rng), noise, width=shape[0], cliff=shape[1])
        curve = tuning_curve(list(scores), "accuracy")
        k = np.arange(1, count + 1)
        true = truth[shape][np.ceil(len(truth[shape]) * 0.5 ** (1 / k)).astype(int) - 1]
        kept.append(bool(((curve.low <= true) & (true <= curve.high)).all()))
    return fmean(kept)


def studies_of(
    kind: str, searches: int, studies: int, rng: np.random.Generator, trials: int = 16
) -> Iterator[tuple[list[float], list[float]]]:
    """Yield the tuned test scores of two families of simulated searches, study by study."""
    for _ in range(searches):
        tuned: tuple[list[float], list[float]] = ([], [])
        for _ in range(studies):
            drawn = points(kind, trials, rng)
            for scores, width in zip(tuned, (0.25, 0.4), strict=True):
                seen = score(drawn, rng.normal(0, 0.02, trials), width=width, cliff=0.9)
                best = drawn[int(seen.argmax())]
                finals = score(
                    np.tile(best, (3, 1)), rng.normal(0, 0.02, 3), width=width, cliff=0.9
                )
                scores.append(fmean(finals))
        yield tuned


def covered_studies(kind: str, searches: int, studies: int) -> tuple[float, float]:
    """Return how often the t interval holds the true tuned score, and the true difference."""
    rng = np.random.default_rng(11)
    long = [*studies_of(kind, 2 * searches, studies, rng)]
    true = [fmean(fmean(pair[i]) for pair in long) for i in range(2)]
    scores, differences = [], []
    for first, second in studies_of(kind, searches, studies, rng):
        for values, wanted, kept in (
            (first, true[0], scores),
            ([a - b for a, b in zip(first, second, strict=True)], true[0] - true[1], differences),
        ):
            ends = mean_interval(values)
            kept.append(ends.low <= wanted <= ends.high)
    return fmean(scores), fmean(differences)


def covered_shares(kind: str, width: float, searches: int) -> float:
    """Return how often the interval holds the share of trials with a score of 0.8 or more."""
    rng = np.random.default_rng(5)

    def share(drawn: np.ndarray) -> np.ndarray:
        noise = rng.normal(0, 0.02, len(drawn))
        return score(drawn, noise, width=width, cliff=0.9) >= 0.8

    true, kept = share(rng.random((200_000, 2))).mean(), []
    for number in range(searches):
        count = (8, 16, 32)[number % 3]
        ends = exact_interval(int(share(points(kind, count, rng)).sum()), count)
        kept.append(bool(ends.low <= true <= ends.high))
    return fmean(kept)


def parted_bands(count: int, searches: int) -> float:
    """Return how often bands of two families are apart whose best scores are 0.9 and 0.5."""
    rng, kept = np.random.default_rng(9), []
    for _ in range(searches):
        drawn = points("random", count, rng)
        first, second = (
            tuning_curve(
                list(score(drawn, rng.normal(0, 0.02, count), width=0.4, cliff=0.9, top=top)),
                "accuracy",
            )
            for top in (0.9, 0.5)
        )
        kept.append(bool(ahead(first, second, "accuracy").any()))
    return fmean(kept)


@pytest.mark.parametrize("width", [0.02, 0.1, 0.4, 50.0])
@pytest.mark.parametrize("kind", ["random", "halton"])
def test_the_share_of_good_trials_is_covered(kind: str, width: float) -> None:
    """From a narrow peak to a family whose options do not matter."""
    assert covered_shares(kind, width, 6 * SEARCHES) >= 0.95


def test_bands_need_as_many_trials_as_is_said() -> None:
    assert parted_bands(BAND_TRIALS // 2, SEARCHES) < 0.1
    assert 0.2 < parted_bands(3 * BAND_TRIALS // 4, SEARCHES) < 0.7
    assert parted_bands(BAND_TRIALS, SEARCHES) > 0.85


@pytest.mark.parametrize("kind", ["random", "halton"])
def test_the_band_covers_the_whole_curve(kind: str) -> None:
    assert covered_curves(kind, SEARCHES) >= 0.95


@pytest.mark.parametrize("studies", [3, 5])
def test_intervals_over_studies_cover(studies: int) -> None:
    for share in covered_studies("halton", 2 * SEARCHES, studies):
        assert 0.90 <= share <= 0.99
