import hashlib
import random
from collections import Counter

import numpy as np
import pytest

from lra.tasks.classification.listops import trees as listops_trees
from lra.tasks.classification.listops.text import CLOSE, FIRST_OPERATOR, decode, solve
from lra.tasks.classification.listops.trees import Limits, distinct_trees, grow

SMALL = Limits(min_length=3, max_length=40, max_depth=3, max_args=4)


def literal(limits, draw):
    """The recursion as it is defined, one node at a time: words of a tree in plain form."""

    def generate(depth):
        r = draw.random() if depth < limits.max_depth else 1.0
        if r > 0.25:
            return [str(draw.randint(0, 9))]
        number = draw.randint(2, limits.max_args)
        arguments = [generate(depth + 1) for _ in range(number)]
        operator = draw.choice(["[MIN", "[MAX", "[MED", "[SM"])
        return [operator, *(word for argument in arguments for word in argument), "]"]

    while True:
        words = generate(1)
        if limits.min_length < len(words) < limits.max_length:
            return words


def rows(block):
    return block.trees.rows(np.arange(len(block.trees.targets)))


def distance(one, other):
    """Total variation between two samples."""
    p, q = Counter(one), Counter(other)
    return sum(abs(p[k] / len(one) - q[k] / len(other)) for k in p | q) / 2


def test_same_distribution_as_the_literal_recursion():
    draw = random.Random(0)
    wanted = [literal(SMALL, draw) for _ in range(6000)]
    found = [decode(row).split() for seed in range(2) for row in rows(grow(SMALL, seed, 0))][:6000]
    assert len(found) == 6000
    assert distance([len(w) for w in wanted], [len(f) for f in found]) < 0.05
    assert distance([w[0] for w in wanted], [f[0] for f in found]) < 0.03
    assert distance([w[1][0] for w in wanted], [f[1][0] for f in found]) < 0.05
    assert distance([w[-2] for w in wanted], [f[-2] for f in found]) < 0.05


def test_the_two_samples_of_one_recursion_differ_as_little():
    # Guards the tolerance above: it must not accept trees with another number of arguments.
    other = Limits(min_length=3, max_length=40, max_depth=3, max_args=5)
    found = [len(row) for row in rows(grow(SMALL, 0, 0))]
    assert distance(found, [len(row) for row in rows(grow(other, 0, 0))]) > 0.1


@pytest.mark.parametrize(
    "limits",
    [
        SMALL,
        Limits(min_length=50, max_length=150, max_depth=4, max_args=10),
        Limits(min_length=0, max_length=2, max_depth=1, max_args=2),
        Limits(min_length=0, max_length=300, max_depth=5, max_args=20),
        Limits(min_length=500, max_length=2000, max_depth=10, max_args=10),
    ],
    ids=str,
)
def test_every_tree_keeps_the_limits_and_its_target_is_its_value(limits):
    block = grow(limits, 3, 0)
    assert len(block.trees.targets) > 100
    for row, target in list(zip(rows(block), block.trees.targets, strict=True))[:300]:
        assert limits.min_length < len(row) < limits.max_length
        assert solve(row) == target
        opens = ((row >= FIRST_OPERATOR) & (row < CLOSE)).astype(int)
        assert np.cumsum(opens - (row == CLOSE)).max() < limits.max_depth


def test_digests_tell_trees_apart():
    block = grow(SMALL, 0, 0)
    size = listops_trees.DIGEST_BYTES
    digests = [block.digests[i : i + size] for i in range(0, len(block.digests), size)]
    assert len(digests) == len(block.trees.targets)
    assert len(set(digests)) == len({row.tobytes() for row in rows(block)}) < len(digests)


def test_trees_are_pinned_for_ever():
    # The same words on every platform; another value here is another data set: raise VERSION.
    [part] = distinct_trees(SMALL, seed=0, number=1000, processes=1)
    assert hashlib.sha256(part.tokens.tobytes()).hexdigest()[:16] == "10312f92fa275673"


def test_processes_do_not_change_the_trees(monkeypatch):
    limits = Limits(min_length=50, max_length=150, max_depth=4, max_args=10)
    alone = distinct_trees(limits, seed=1, number=5000, processes=1)
    monkeypatch.setattr(listops_trees, "SERIAL_S", 0.0)
    shared = distinct_trees(limits, seed=1, number=5000, processes=3)
    assert len(alone) == len(shared) > 3
    for one, other in zip(alone, shared, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.targets, other.targets)


def test_trees_are_distinct_and_exhaustion_is_an_error(monkeypatch):
    few = Limits(min_length=1, max_length=5, max_depth=2, max_args=2)
    parts = distinct_trees(few, seed=0, number=400, processes=1)
    texts = {row.tobytes() for part in parts for row in part.rows(np.arange(len(part.targets)))}
    assert len(texts) == 400
    monkeypatch.setattr(listops_trees, "STALLED_BLOCKS", 2)
    with pytest.raises(
        ValueError, match=r"found only 400 of 401 different trees: .* fewer examples"
    ):
        distinct_trees(few, seed=0, number=401, processes=1)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"max_depth": 0}, "max_depth=0"),
        ({"max_args": 1}, "max_args=1"),
        ({"min_length": -1}, "min_length=-1"),
        ({"max_length": 4}, "raise max_length"),
        ({"min_length": 30}, "has 26 tokens, which is not more than min_length=30"),
    ],
)
def test_impossible_limits_are_refused(change, wanted):
    good = {"min_length": 3, "max_length": 40, "max_depth": 3, "max_args": 4}
    with pytest.raises(ValueError, match=wanted):
        Limits(**{**good, **change})
