"""What is said of a choice: where it should be, and nowhere else."""

import math
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from lra.tuning.advance import Words
from tests.lra.tuning.searches import RATE, finished, record, value

LOG = "tag(log, interval(1e-4, 3e-2))"


def said(
    ranges: dict[str, str], best: int | None, *, failing: tuple[int, ...] = (), **options: Any
) -> dict[str, str]:
    """Return the warnings of a search in which the trial `best` is the best."""
    searched = record(["linear"], ranges=ranges, **{"trials": 6, **options})
    option = next(iter(ranges))
    texts = [v.get(option, ("",))[0] for v in searched.trials(searched.arms[0], 0).values()]

    def score(words: Words) -> float | None:
        number = texts.index(value(words, option))
        return None if number in failing else float(number == best)

    (chosen,) = finished(searched, score).choices
    names = [name for name, _ in chosen.marks]
    assert len({*names}) == len(names)
    return dict(chosen.marks)


def order(ranges: dict[str, str], **options: Any) -> list[int]:
    """Return the numbers of trials from the least value of the first option on."""
    searched = record(["linear"], ranges=ranges, **{"trials": 6, **options})
    values = searched.trials(searched.arms[0], 0)
    option = next(iter(ranges))
    return sorted((n for n in values if n), key=lambda n: values[n][option][1])


def test_a_choice_at_an_open_end() -> None:
    numbers = order({RATE: LOG})
    assert not said({RATE: LOG}, numbers[3])
    assert not said({RATE: LOG}, 0)  # the untuned options are no draw
    high = said({RATE: LOG}, numbers[-1])
    assert [*high] == ["at_the_edge"]
    assert high["at_the_edge"].endswith(f"{RATE}=tag(log, interval(0.0001, 0.3))")
    low = said({RATE: LOG}, numbers[0])
    assert low["at_the_edge"].endswith(f"{RATE}=tag(log, interval(1e-05, 0.03))")


@pytest.mark.parametrize("trials", [8, 16, 32])
@pytest.mark.parametrize("text", ["interval(0.5, 4.0)", "choice(1, 2, 4)"])
def test_the_mark_says_how_often_it_is_there_by_chance(trials: int, text: str) -> None:
    """Of an option without effect, beside one that has some; some trials fail."""
    ranges, idle = {RATE: LOG, "optim.b": text}, "optim.b"
    told, marked = [], 0
    for draw in range(150):
        noise = np.random.default_rng(draw)
        searched = record(["linear"], ranges=ranges, trials=trials, draw=draw, final_seeds=[])

        def score(words: Words, noise: np.random.Generator = noise) -> float | None:
            rate = math.log10(float(value(words, RATE) or 1))
            fails = noise.random() < 0.2 or rate > -1.7
            return None if fails else -((rate + 2.7) ** 2) + float(noise.normal(0, 0.3))

        (chosen,) = finished(searched, score).choices
        sentences = [said for name, said in chosen.marks if name == "at_the_edge" and idle in said]
        marked += len(sentences)
        told += [float(said.partition(" % of")[0].rpartition(" ")[2]) for said in sentences]
    rate = 100 * marked / 150
    assert abs(rate - fmean(told)) < 3 * math.sqrt(rate * (100 - rate) / 150) + 1


def test_an_end_that_failed_trials_close_is_none() -> None:
    numbers = order({RATE: LOG})
    assert not said({RATE: LOG}, numbers[-2], failing=(numbers[-1],))


def test_the_limit_of_an_option_is_no_open_end() -> None:
    ranges = {"model.backbone.dropout": "interval(0, 0.5)"}
    numbers = order(ranges)
    assert not said(ranges, numbers[0])
    assert said(ranges, numbers[-1])["at_the_edge"].endswith("interval(0, 1)")


@pytest.mark.parametrize(
    ("text", "marked"),
    [("choice(1, 2)", False), ("choice(1, 2, 4)", True), ("range(1, 9, 2)", True),
     ("choice(x, y, z)", False), ("choice(true, false)", False)],
)  # fmt: skip
def test_choices_of_three_numbers_have_ends(text: str, marked: bool) -> None:
    ranges = {"optim.batch_size": text}
    best = len(record(["linear"], ranges=ranges, sampler="grid").trials(
        record(["linear"]).arms[0], 0)) - 1  # fmt: skip
    assert ("at_the_edge" in said(ranges, best, sampler="grid")) is marked


def test_reused_seeds() -> None:
    numbers = order({RATE: LOG})
    marks = said({RATE: LOG}, numbers[2], final_seeds=[0, 1])
    assert [*marks] == ["seeds_reused"]
    assert "search.final_seeds=[2, 3]" in marks["seeds_reused"]
    assert not said({RATE: LOG}, numbers[2], final_seeds=[4])


@pytest.mark.parametrize(("failing", "marked"), [(1, False), (2, True), (5, True)])
def test_failed_trials(failing: int, marked: bool) -> None:
    numbers = order({RATE: LOG})
    best, others = numbers[2], [n for n in numbers if n != numbers[2]]
    marks = said({RATE: LOG}, best, failing=tuple(others[:failing]))
    assert ("trials_failed" in marks) is marked


@pytest.mark.parametrize(
    ("text", "marked"),
    [("interval(1e-4, 1e-2)", True), ("interval(1e-3, 5e-2)", False), (LOG, False),
     ("interval(0.0, 1)", False)],
)  # fmt: skip
def test_a_rate_on_a_linear_scale(text: str, marked: bool) -> None:
    marks = said({RATE: text}, order({RATE: text})[2])
    assert ("linear_range" in marks) is marked


def test_unequal_budgets() -> None:
    own = {"performer": {"model.mixer.features": "choice(64, 128)"}}
    unequal = finished(record(["linear", "performer"], own=own), lambda _: 0.5)
    for chosen in unequal.choices:
        assert "searched options (2, 3)" in dict(chosen.marks)["unequal_budgets"]
    grid = {"optim.batch_size": "choice(8, 16)"}
    unequal = finished(record(["linear", "performer"], ranges=grid, own=own, sampler="grid"),
                       lambda _: 0.5)  # fmt: skip
    assert "trials (2, 4)" in dict(unequal.choices[0].marks)["unequal_budgets"]
    equal = finished(record(["linear", "performer"]), lambda _: 0.5)
    assert not any(name == "unequal_budgets" for c in equal.choices for name, _ in c.marks)
