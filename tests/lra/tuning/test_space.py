"""Points and values: paired between arms, and what they were when there were fewer."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import chisquare, qmc

from lra.errors import ConfigError
from lra.tuning.space import dimension, draw_points, grid_points
from tests.lra.tuning.searches import RATE, record

SPACES = st.dictionaries(
    st.sampled_from(["optim.a", "optim.b", "optim.c", "optim.d"]),
    st.sampled_from(
        ["interval(0, 1)", "tag(log, interval(1e-5, 1))", "interval(2, 9)", "choice(1, 2, 3)",
         "choice(x, y)", "range(1, 9, 2)", "tag(log, interval(1, 64))"]
    ),
    min_size=1,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    SPACES,
    st.sampled_from(["halton", "random"]),
    st.integers(1, 12),
    st.integers(1, 3),
    st.integers(0, 5),
)
def test_arms_are_paired_and_nothing_earlier_changes(
    shared: dict[str, str], sampler: str, trials: int, studies: int, draw: int
) -> None:
    few = record(["linear", "sdpa"], ranges=shared, sampler=sampler, trials=trials, draw=draw)
    own = {
        "performer": {"model.mixer.features": "choice(64, 128)", "model.mixer.b": "interval(0, 1)"}
    }
    many = record(
        ["linear", "performer", "sdpa"], ranges=shared, own=own, sampler=sampler,
        trials=trials + 3, studies=studies, draw=draw,
    )  # fmt: skip
    first = few.trials(few.arms[0], 0)
    assert len({tuple(v.items()) for v in first.values()}) == len(first) <= trials + 1
    assert first == few.trials(few.arms[1], 0)
    for arm in many.arms:
        later = many.trials(arm, 0)
        assert len(first) <= len(later) <= trials + 4
        for number, values in first.items():
            assert values.items() <= later[number].items()
        if arm.model != "performer":
            assert {n: later[n] for n in first} == first


def test_a_study_has_points_and_seeds_of_its_own() -> None:
    two = record(studies=2, seeds=[0, 1])
    assert two.points["0"] != two.points["1"]
    assert two.seeds(1) == [1000, 1001]
    assert two.final_seeds(1) == [1001, 1002, 1003]


def test_stored_points_are_not_drawn_again() -> None:
    before = replace(record(trials=4), points={"0": [[0.5] * 2] * 4})
    after = record(trials=6).extending(before).complete().points["0"]
    assert after[:4] == before.points["0"]
    assert after[4:] == record(trials=6).points["0"][4:]


@pytest.mark.parametrize("text", ["interval(0.25, 4)", "tag(log, interval(0.25, 4))"])
def test_written_numbers_are_short_and_near(text: str) -> None:
    each = dimension("a", text)
    for u in np.linspace(0, 1 - 1e-12, 997):
        word, value = each.at(float(u))
        assert float(word) == value
        assert 0.25 <= value <= 4
        share = math.log(value / 0.25) / math.log(16) if each.log else (value - 0.25) / 3.75
        assert abs(share - u) < 0.001
        assert len(word.replace(".", "").strip("0")) <= 4
    assert each.at(0.0)[1] == 0.25


@pytest.mark.parametrize("text", ["interval(2, 8)", "choice(2,3,4,5,6,7,8)", "range(2,9)"])
def test_whole_numbers_are_uniform(text: str) -> None:
    each = dimension("a", text)
    counts = Counter(each.at(u)[1] for u in np.random.default_rng(0).random(10_000))
    assert sorted(counts) == [2, 3, 4, 5, 6, 7, 8]
    assert chisquare([*counts.values()]).pvalue > 0.001


def test_logarithmic_whole_numbers_reach_both_ends() -> None:
    each = dimension("a", "tag(log, interval(1, 64))")
    values = [each.at(u)[1] for u in np.linspace(0, 1 - 1e-12, 4001)]
    assert values == sorted(values)
    assert (values[0], values[-1]) == (1, 64)
    assert 0.18 < values.count(1) / 4001 < 0.25  # log(1.5 / 0.5) / log(64.5 / 0.5) = 0.226


def test_the_words_of_eight_points() -> None:
    searched = record(ranges={RATE: "tag(log, interval(1e-4, 3e-2))"}, trials=8)
    rates = [values[RATE][0] for n, values in searched.trials(searched.arms[0], 0).items() if n]
    assert rates == [
        "0.00565", "0.000326", "0.0235", "0.00136", "0.00277", "0.00016", "0.0115", "0.000665",
    ]  # fmt: skip


def test_points_are_those_of_scipy() -> None:
    rng = np.random.default_rng([7, 1])
    assert draw_points("halton", 3, 9, (7, 1)) == qmc.Halton(3, rng=rng).random(9).tolist()


def test_a_grid_has_every_combination_and_pairs_what_is_shared() -> None:
    texts = {"optim.a": "choice(1, 2)", "optim.b": "range(0, 3)"}
    own = {"performer": {"model.mixer.c": "choice(x, y)"}}
    searched = record(["linear", "performer"], ranges=texts, own=own, sampler="grid")
    plain, wide = (searched.trials(arm, 0) for arm in searched.arms)
    assert len({tuple(v.items()) for v in plain.values()}) == 7
    assert len({tuple(v.items()) for v in wide.values()}) == 13
    assert all(values.items() <= wide[n].items() for n, values in plain.items())
    assert grid_points([dimension("a", "choice(1, 2)")], 1) == [[0.25], [0.75]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("interval(8, 2)", "smaller one first"),
        ("interval(2, 2)", "smaller one first"),
        ("tag(log, interval(0, 1))", "ends above 0"),
        ("tag(log, interval(-1, 1))", "ends above 0"),
        ("choice(1)", "got 1 value; wanted two"),
        ("choice(1, 2, 1)", "1 occurs twice"),
        ("1,2", "wanted choice(1,2)"),
        ("3", "a single value is no range"),
        ("tag(linear, interval(1, 2))", "wanted no tag, or the tag log"),
        ("tag(log, range(1, 8))", "wanted the tag log only on an interval"),
        ("shuffle(choice(1, 2))", "remove shuffle"),
        ("shuffle(1, 2)", "remove shuffle"),
        ("choice(choice(1, 2), 3)", "one range inside another"),
        ("choice(64", "in quotation marks"),
        ("range(1, 2)", "got 1 value; wanted two"),
        ("range(10, 1)", "got an empty range; wanted two"),
    ],
)
def test_what_is_no_range_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(").replace(")", r"\)")) as error:
        dimension("optim.a", text)
    assert str(error.value).startswith(f"optim.a={text}")
    assert "\n" not in str(error.value)
