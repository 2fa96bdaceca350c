"""Speed and time left of a training: only what this process has seen of its steps."""

import random

import pytest
from fuzz import cases

from lra.runners.training.pace import WINDOW_S, Pace


def after(pace: Pace, *seconds: float) -> int:
    """Take a step for each number; return the number of the last."""
    step = pace.begun
    for spent in seconds:
        step += 1
        pace.stepped(step, spent)
    return step


def test_nothing_is_known_before_the_first_step() -> None:
    pace = Pace(0, 100, 0)
    assert pace.step_s is None
    assert pace.left_s(0) is None


def test_a_training_resumed_at_90_percent_judges_by_its_own_steps() -> None:
    pace = Pace(900, 1000, 0)
    assert pace.left_s(900) is None
    step = after(pace, 10.0)
    assert pace.left_s(step) == pytest.approx(99 * 10.0)
    step = after(pace := Pace(900, 1000, 0), *[10.0] * 20)
    assert pace.left_s(step) == pytest.approx(80 * 10.0)


def test_a_first_step_that_compiles_does_not_count_once_there_are_others() -> None:
    pace = Pace(0, 100, 0)
    step = after(pace, 60.0, 0.5, 0.5, 0.5)
    assert pace.step_s == pytest.approx(0.5)
    assert pace.left_s(step) == pytest.approx(96 * 0.5)


def test_validations_are_known_once_one_was_seen() -> None:
    pace = Pace(0, 95, 10)
    step = after(pace, *[1.0] * 10)
    assert pace.left_s(step) == pytest.approx(85)
    pace.validated(30.0)
    assert pace.left_s(step) == pytest.approx(85 + 9 * 30.0)  # after 20, 30, ... 90 and 95
    assert pace.step_s == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(cases(6)))
def test_it_lies_between_the_quickest_and_the_slowest_step_of_the_window(seed: int) -> None:
    draw = random.Random(seed)
    begun, typical = draw.randrange(1000), 10 ** draw.uniform(-4, 2)
    pace, seen = Pace(begun, 10**6, 0), [draw.uniform(0.5, 2) * typical for _ in range(3000)]
    step = begun
    for number, spent in enumerate(seen):
        step += 1
        pace.stepped(step, spent)
        assert pace.step_s is not None
        late = max(1, number - int((1.1 * WINDOW_S + 2 * typical) / (0.5 * typical)))
        window = seen[late : number + 1] or seen[:1]
        assert min(window) * 0.999 <= pace.step_s <= max(window) * 1.001
        assert len(pace.marks) < 250


def test_a_change_of_speed_shows_within_the_window() -> None:
    pace = Pace(0, 10**6, 0)
    after(pace, *[1.0] * 200)
    for number in range(130):
        pace.stepped(201 + number, 0.5)
    assert pace.step_s == pytest.approx(0.5)
