"""ListOps by an oracle that evaluates the tree to a depth only: how much does the rest matter?

The first k levels of operators are evaluated. For a deeper one stands the value that is most
frequent in training for such an operator at such a depth. For k = 0 this is what the root operator
tells; when k reaches the depth of the trees, the oracle is right always.
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
    """An operator of a tree."""

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
    # Of equally frequent values the smallest: the same on every machine.
    return {
        key: min(frequencies, key=lambda value: (-frequencies[value], value))
        for key, frequencies in counts.items()
    }


def nodes(tokens: Sequence[int]) -> list[Node]:
    """Return every operator of the first tree with its depth (the root's is 0) and its value."""
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
        if not operators:
            break
    return result


def guess(tokens: Sequence[int], levels: int, most_frequent: dict[tuple[int, int], int]) -> int:
    """Evaluate the first tree down to so many levels of operators."""
    operators: list[int] = []
    arguments: list[list[int]] = [[]]
    hidden = 0
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
    """Return for each tree whether the oracle of that depth is right."""
    rows = data.rows(np.arange(len(data.targets)))
    guesses = np.array([guess(row.tolist(), levels, most_frequent) for row in rows])
    right: Bool[np.ndarray, " n"] = guesses == data.targets
    return right
