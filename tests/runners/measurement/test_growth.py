"""A curve that is continued: powers exactly, no farther than it was seen, and nothing else."""

from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from lra.runners.measurement.growth import foretold

LENGTHS = st.lists(st.integers(1, 2**20), min_size=2, max_size=8, unique=True)
TIMES = st.floats(1e-6, 1e3)


@given(LENGTHS, st.floats(-1.0, 3.0), TIMES)
def test_a_power_law_goes_on_as_it_is(lengths: list[int], power: float, once: float) -> None:
    *before, length = sorted(lengths)
    found = foretold({n: once * n**power for n in before}, length)
    if found is not None:
        assert found.seconds == pytest.approx(once * length**power)


@given(LENGTHS, st.integers(1, 2**21))
def test_it_reaches_no_farther_than_it_was_seen(lengths: list[int], length: int) -> None:
    found = foretold(dict.fromkeys(lengths, 1.0), length)
    shorter = [n for n in lengths if n < length]
    reaching = [n for n in shorter if Fraction(length, max(shorter)) <= Fraction(max(shorter), n)]
    assert (found is None) == (not reaching)
    if found is not None:
        assert found[1:] == (max(reaching), max(shorter))


@given(LENGTHS, st.data(), st.floats(0.5, 2.0))
def test_an_error_of_one_time_weighs_at_most_twice(
    lengths: list[int], data: st.DataObject, error: float
) -> None:
    *before, length = sorted(lengths)
    times = {n: data.draw(TIMES) for n in before}
    wrong = data.draw(st.sampled_from(before))
    true, found = foretold(times, length), foretold({**times, wrong: error * times[wrong]}, length)
    assert (true is None) == (found is None)
    if true is not None and found is not None:
        most = max(error, 1 / error) ** 2 * (1 + 1e-9)
        assert 1 / most <= found.seconds / true.seconds <= most


def test_the_last_growth_counts_and_longer_lengths_do_not() -> None:
    times = {1024: 9.0, 4096: 0.71, 8192: 2.77, 32768: 1.0}
    found = foretold(times, 16384)
    assert found is not None
    assert (found.shorter, found.longer) == (4096, 8192)
    assert found.seconds == pytest.approx(2.77**2 / 0.71)
    assert foretold({256: 1.0}, 512) is None
    assert foretold({}, 512) is None
