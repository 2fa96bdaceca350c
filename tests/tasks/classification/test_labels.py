"""Labels that are no whole numbers in range are refused and never converted."""

import numpy as np
import pytest

from lra.tasks.classification.labels import whole_labels
from lra.tasks.errors import BadData

GOOD = [0, 9, 3]
BAD = [
    1.7, 1.0, float("nan"), True, False, "1", "1.0", b"1", None, -1, 10, 256, 2**70, -(2**70),
    [1], (1,), {}, np.int64(1),
]  # fmt: skip


@pytest.mark.parametrize("given", [GOOD, *(np.array(GOOD, k) for k in ("u1", "i4", ">i8", "u8"))])
def test_whole_numbers_stay(given):
    found = whole_labels(given, 10, "here")
    assert found.dtype == np.uint8
    assert found.tolist() == GOOD


@pytest.mark.parametrize("bad", BAD)
def test_everything_else_is_refused_with_its_place(bad):
    with pytest.raises(BadData, match=r"here: example 2 has the label .*whole number from 0 to 9"):
        whole_labels([0, 1, bad, 2], 10, "here")


@pytest.mark.parametrize(
    "array",
    [
        np.array([1.0, 2.0]), np.array([1.0, np.nan]), np.array([True]), np.array(["1"]),
        np.array([1, 2], object), np.array([[1], [2]]), np.array(3), np.array([1, 10]),
        np.array([-1]), np.array([2**63], np.uint64), np.array([], int),
    ],
)  # fmt: skip
def test_arrays_of_something_else(array):
    with pytest.raises(BadData, match=r"^here"):
        whole_labels(array, 10, "here")
    with pytest.raises(BadData, match="contains no example"):
        whole_labels([], 10, "here")


def test_a_number_that_python_does_not_spell():
    with pytest.raises(BadData, match=r"example 0 has the label of 16610 bits"):
        whole_labels([10**5000], 10, "here")
