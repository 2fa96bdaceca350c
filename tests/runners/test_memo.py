import gc

import pytest

from lra.runners.records import Memo


def test_a_value_is_found_once_for_the_very_objects():
    memo, one, equal, found = Memo(), {"a": [1]}, {"a": [1]}, []

    def find():
        found.append(1)

    for objects in ((one,), (one,), (equal,), (one, equal), (equal, one)):
        memo.of("what", objects, find)
    assert len(found) == 4
    memo.of("another", (one,), find)
    assert len(found) == 5


def test_an_object_that_is_gone_is_not_taken_for_another():
    memo = Memo()
    for number in range(1000):
        assert memo.of("what", ([number],), lambda number=number: number) == number
        gc.collect(0)


def test_an_error_is_not_kept():
    memo, one = Memo(), object()
    with pytest.raises(ZeroDivisionError):
        memo.of("what", (one,), lambda: 1 / 0)
    assert memo.of("what", (one,), lambda: 1) == 1
