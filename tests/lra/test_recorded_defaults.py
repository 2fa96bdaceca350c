"""A default that moves raises the version of what has it."""

import copy
import json

import pytest
from recorded_defaults import RECORD, moved, today


@pytest.fixture(scope="module")
def found():
    return today()


def test_every_default_is_the_recorded_one(found):
    """Where this fails: raise the version, then `python tests/lra/recorded_defaults.py`.

    What is new, an option too, has no rows that a default could lead astray, and needs no record.
    """
    recorded = json.loads(RECORD.read_text())
    assert list(moved(recorded, found)) == []
    for name, facts in recorded.items():
        of_old = {option: found[name]["defaults"].get(option) for option in facts["defaults"]}
        assert {**found[name], "defaults": of_old} == facts


@pytest.mark.parametrize("part", ["model performer", "task listops", "backbone", "runner train"])
def test_a_default_that_moves_is_found_out(part, found):
    option, value = next(iter(found[part]["defaults"].items()))
    other = copy.deepcopy(found)
    other[part]["defaults"][option] = [value]
    (sentence,) = moved(found, other)
    assert part in sentence
    assert option in sentence
    other[part]["version"] += 1
    assert list(moved(found, other)) == []


def test_data_that_move_are_found_out(found):
    other = copy.deepcopy(found)
    other["task listops"]["data"] = ["0"]
    assert list(moved(found, other)) == ["task listops: its default options give other data"]
