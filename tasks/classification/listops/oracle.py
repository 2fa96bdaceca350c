"""Baselines of ListOps that evaluate only the first levels of a tree.

The oracle of depth k evaluates the first k levels of operators. For an operator below them, it
takes the value that is most frequent in training for this operator at this depth. With k = 0 it
uses only the root operator; if k is the depth of a tree, its answer is always correct.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from lra.tasks.baselines.seen_examples import SeenExamples
from lra.tasks.classification.listops.text import CLOSE, FIRST_DIGIT, FIRST_OPERATOR, OPERATIONS

FIT_TREES = 4000
DEPTHS = (1, 2, 3)


class Node(NamedTuple):
    """An operator of a tree, its depth (0 for the root), and the value of its subtree."""

    depth: int
    operator: int
    value: int


def roots(data: SeenExamples) -> Int[np.ndarray, " n"]:
    """Return the first token of each tree."""
    return np.array([row[0] for row in data.rows(np.arange(len(data.targets)))])


def habits(train: SeenExamples) -> dict[tuple[int, int], int]:
    """Return the most frequent value of each (depth, operator) over the first training trees."""
    counts: dict[tuple[int, int], Counter[int]] = {}
    for row in train.rows(np.arange(min(FIT_TREES, len(train.targets)))):
        for node in nodes(row.tolist()):
            counts.setdefault((node.depth, node.operator), Counter())[node.value] += 1
    # Take the smallest of equally frequent values, so that all machines agree.
    return {
        key: min(frequencies, key=lambda value: (-frequencies[value], value))
        for key, frequencies in counts.items()
    }


def nodes(tokens: Sequence[int]) -> list[Node]:
    """Return the operators of the first tree in `tokens`, ordered by their closing brackets."""
    result, operators, arguments = [], [], [[]]  # type: list[Node], list[int], list[list[int]]
    for token in tokens:
        if token < FIRST_OPERATOR:
            arguments[-1].append(token - FIRST_DIGIT)
        elif token < CLOSE:
            operators.append(token)
            arguments.append([])
        else:
            operator, values = operators.pop(), arguments.pop()
            value = OPERATIONS[operator](values)
            result.append(Node(len(operators), operator, value))
            arguments[-1].append(value)
        if not operators:  # the first tree ends here; filler may follow
            break
    return result


def guess(tokens: Sequence[int], levels: int, most_frequent: dict[tuple[int, int], int]) -> int:
    """Return the value of the first tree in `tokens`, of which `levels` levels are evaluated.

    `most_frequent` is the value by (depth, operator) for operators below these levels; those that
    training never had at their depth count as 0.
    """
    operators: list[int] = []
    arguments: list[list[int]] = [[]]
    hidden = 0  # number of open operators that are not evaluated
    for token in tokens:
        if token >= CLOSE:
            if hidden > 1:
                hidden -= 1
                continue
            if hidden == 1:
                hidden = 0
                continue
            operator, values = operators.pop(), arguments.pop()
            arguments[-1].append(OPERATIONS[operator](values))
        elif token >= FIRST_OPERATOR:
            if hidden:
                hidden += 1
                continue
            if len(operators) >= levels:
                arguments[-1].append(most_frequent.get((len(operators), token), 0))
                hidden = 1
                continue
            operators.append(token)
            arguments.append([])
        elif not hidden:
            arguments[-1].append(token - FIRST_DIGIT)
        if not operators:
            break
    return arguments[0][0]


def oracle_answers(
    data: SeenExamples, levels: int, most_frequent: dict[tuple[int, int], int]
) -> Bool[np.ndarray, " n"]:
    """Return for each tree whether the oracle of depth `levels` answers correctly."""
    rows = data.rows(np.arange(len(data.targets)))
    answers = np.array([guess(row.tolist(), levels, most_frequent) for row in rows])
    correct: Bool[np.ndarray, " n"] = answers == data.targets
    return correct
