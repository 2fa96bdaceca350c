"""Titles of figures state what the numbers show, and nothing more."""

import pandas as pd
import pytest

from lra.reports.figures.findings import best_models, clause, costs, front, model_list

LENGTHS = (256, 512, 1024)


def lines(**models: tuple[float, ...]) -> pd.DataFrame:
    """What a figure of times shows: a line for each model, with bands of 1 percent."""
    records = [
        {"model": model, "quantity": "time", "length": length, "value": time,
         "p20": 0.99 * time, "p80": 1.01 * time}
        for model, times in models.items()
        for length, time in zip(LENGTHS, times, strict=True)
    ]  # fmt: skip
    return pd.DataFrame(records)


@pytest.mark.parametrize(
    ("times", "title"),
    [
        ((2.0, 1.5, 1.0), "linear is faster than SDPA from 1,024 tokens on"),
        ((0.5, 0.5, 2.0), "linear is faster than SDPA at every length"),
        ((2.0, 3.0, 8.0), "At 1,024 tokens, linear takes 2.0 times as long as SDPA"),
    ],
)
def test_one_model_is_compared_with_exact_attention(times: tuple[float, ...], title: str) -> None:
    assert costs(lines(sdpa=(1.0, 1.0, 4.0), linear=times)) == title


def test_of_several_models_the_longest_length_counts() -> None:
    data = lines(
        sdpa=(1.0, 2.0, 4.0), gla=(2.0, 2.0, 4.0), linear=(1.0, 1.0, 1.0), identity=(0.1,) * 3
    )
    words = "At 1,024 tokens, linear is faster than SDPA"
    assert costs(data) == words
    assert costs(data[data["model"] != "sdpa"]) == ""


def test_the_best_are_named_with_those_that_the_intervals_cannot_exclude() -> None:
    points = pd.DataFrame({
        "model": ["sdpa", "linear", "gla"], "metric": "accuracy", "value": [0.9, 0.8, 0.3],
        "low": [0.8, 0.7, 0.2], "high": [1.0, 0.85, 0.4],
    })  # fmt: skip
    found = best_models([points])
    assert found == "SDPA has the highest accuracy (90.0 %); the interval of 1 other model overlaps"
    assert best_models([points, points]) == ""
    apart = points.assign(high=[1.0, 0.75, 0.4])
    assert best_models([apart, points]) == ""
    assert best_models([apart, apart, points]) == "SDPA is the best model in 2 of 3 panels"
    assert best_models([points[:1]]) == ""


def test_the_front_has_no_model_that_another_beats_in_both() -> None:
    data = pd.DataFrame({"model": [*"abcd"], "cost": [1, 2, 3, 4], "score": [0.1, 0.5, 0.4, 0.9]})
    assert front(data, "cost", "score", higher=True) == ["a", "b", "d"]
    assert front(data, "cost", "score", higher=False) == ["a"]


def test_few_models_are_named_and_many_counted() -> None:
    assert model_list(["sdpa", "gla"]) == "SDPA and gla"
    assert clause(["gla"], 5, "is", "are") == "gla is"
    assert clause([*"abcd"], 5, "is", "are") == "4 of 5 models are"
    assert clause([*"abcd"], 4, "is", "are") == "all 4 models are"
    assert clause([], 5, "is", "are") == "none of 5 models is"
