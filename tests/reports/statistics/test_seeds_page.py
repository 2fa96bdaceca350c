"""What docs/seeds.md says of seeds: its table and its examples, computed and simulated."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import lra
from lra.reports.arena.literature import published_accuracies
from lra.reports.comparison.claims import Claims, claims_sentence, ranked_columns
from lra.reports.statistics.intervals import mean_interval
from lra.reports.statistics.paired_tests import POWER, mean_difference, sign_flip_p
from lra.results.claims import EXAMPLES, SPREAD

PAGE = " ".join((Path(__file__).resolve().parents[3] / "docs/seeds.md").read_text().split())
LINE = re.compile(r"\| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|")
PUBLISHED = "reports/published/tutorial_longer-epyc-2026-11-23.jsonl"
TRIALS = 10_000
EXAMPLES_OF_FIVE = {task: EXAMPLES[task] for task in EXAMPLES if task != "pathx"}


@pytest.mark.parametrize("line", LINE.findall(PAGE), ids=lambda line: f"{line[0]} seeds")
def test_the_table_of_seeds(line: tuple[str, ...]) -> None:
    seeds, rng = int(line[0]), np.random.default_rng(0)
    width, known, estimated, least = map(float, line[1:])
    plain = np.linspace(-1, 1, seeds)
    plain /= plain.std(ddof=1)
    interval = mean_interval([*plain])
    assert interval.high == pytest.approx(width, rel=0.05)
    assert mean_difference([*plain], [0.0] * seeds).detectable == pytest.approx(estimated, rel=0.05)
    assert sign_flip_p([1.0] * seeds) == pytest.approx(least, rel=0.03)
    first, second = rng.normal(0, 1, (2, TRIALS, seeds))
    spread = first.std(axis=1, ddof=1)
    inside = np.abs(first.mean(axis=1)) < interval.high * spread
    assert inside.mean() == pytest.approx(0.95, abs=4 * math.sqrt(0.05 / TRIALS))
    for size in (known, estimated * spread[:, None]):  # as precise as they are printed
        found = stats.ttest_1samp(second + size, 0, axis=1).pvalue < 0.05
        assert found.mean() == pytest.approx(POWER, abs=0.03)
    if seeds == 3:
        found = stats.ttest_1samp(second + known * spread[:, None], 0, axis=1).pvalue < 0.05
        (said,) = re.findall(r"in only (\d+) % of repetitions", PAGE)
        assert 100 * found.mean() == pytest.approx(float(said), abs=1.5)


def test_trainings_that_learn_or_fail_deceive_two_seeds() -> None:
    """The share of equal models of which one is called better; a caution of the output says it."""
    rng = np.random.default_rng(0)
    (rates,) = re.findall(r"in (\d+) % of cases with two seeds, and in (\d+) % with three", PAGE)
    for seeds, said in zip((2, 3), map(float, rates), strict=True):
        learns = rng.random((2, TRIALS, seeds)) < 0.5
        first, second = 0.5 + 0.5 * learns + rng.normal(0, 0.01, learns.shape)
        found = stats.ttest_rel(first, second, axis=1).pvalue < 0.05
        assert 100 * found.mean() == pytest.approx(said, abs=1)


def test_what_the_example_prints() -> None:
    found = lra.compare(PUBLISHED, "linear", "sdpa")
    assert found.verdicts[0] in PAGE
    found = lra.compare(PUBLISHED, "linear", "published=95", margin=15)
    assert found.verdicts[0] in PAGE
    accuracies = published_accuracies("arena")
    for seeds, ranks in ((1, "`53.46 (1–8)` for Longformer"), (3, "it would be `(1–4)`")):
        claims = Claims(
            name="arena", accuracies=accuracies, seeds=seeds, examples=EXAMPLES_OF_FIVE,
            spread=dict.fromkeys(EXAMPLES_OF_FIVE, SPREAD / 100),
        )  # fmt: skip
        columns = ranked_columns(claims)
        assert claims_sentence(columns) in PAGE
        low, high = columns["mean"].ranges[columns["mean"].models.index("Longformer")]
        assert f"({low}–{high})" in ranks
        assert ranks in PAGE
