"""State tracking: products in a group (Merrill et al., arXiv:2404.08819; Liu et al., 2210.10749).

    213 312 132 …      elements of S3, written as the images of 1, 2, 3
    213 132 123 …      the product so far: the first element, then the second applied to it, …

The answer at each token is the product so far. The groups differ in difficulty:

    z2    parity                                     2 elements
    z60   addition modulo 60, commutative           60
    s3    permutations of 3, solvable                6
    a5    even permutations of 5, not solvable      60
    s5    permutations of 5, not solvable          120

A fixed number of layers of attention, or of a linear state space model, can follow products in A5
and S5 only up to some length: these models are in TC0, the products are complete for NC1, and the
two classes are believed to differ. A recurrent network can follow them at any length.
`steps=elements` draws any element. `steps=generators` draws two elements that generate the group
(z2, z60: 0 and 1), so that the product changes slowly.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum, auto
from functools import cache
from itertools import permutations
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int, UInt64

from lra.conf.choices import by_name
from lra.tasks.diagnostics.base import DiagnosticTask, Rows, below


class Group(StrEnum):
    """The group of the elements."""

    z2 = auto()
    z60 = auto()
    s3 = auto()
    a5 = auto()
    s5 = auto()


class Steps(StrEnum):
    """The elements that a row can have."""

    elements = auto()
    generators = auto()


class GroupTable(NamedTuple):
    """A group with numbered elements; the neutral element is 0."""

    names: Sequence[str]
    product: Int[np.ndarray, "g g"]
    """Entry [a, b] is the product of a, and then b."""
    generators: Sequence[int]


@by_name
@dataclass(kw_only=True, eq=False)
class Permutations(DiagnosticTask):
    """State tracking: follow the product of group elements."""

    name: ClassVar[str] = "permutations"

    length: int = 32
    group: Group = Group.a5
    """The group: z2, z60, s3, a5 or s5."""
    steps: Steps = Steps.elements
    """Elements of a row: elements (any) or generators (two that generate the group)."""
    train_examples: int | None = 100_000

    def __post_init__(self) -> None:
        """Check the options."""
        self.table = table_of(self.group)
        elements = range(len(self.table.names))
        self.moves = elements if self.steps is Steps.elements else self.table.generators
        self.generated_as(
            vocabulary=len(self.table.names), difficulty=f"{self.steps} of {self.group.upper()}"
        )
        self.least(1, "at least one element")

    def words(self, length: int) -> int:
        """Return the number of random words for a row: one for each token."""
        return length

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows that these random words decide."""
        del length
        return product_rows(words, moves=np.array(self.moves), product=self.table.product)

    def different_rows(self, length: int) -> float:
        """Return the binary logarithm of the number of different rows."""
        return length * math.log2(len(self.moves))

    def token_text(self, token: int) -> str:
        """Return a permutation as the images of 1, 2, …, or a remainder as its number."""
        return self.table.names[token]


@cache
def table_of(group: Group) -> GroupTable:
    """Return the elements of a group and their products."""
    if group in (Group.z2, Group.z60):
        order = int(group[1:])
        number = np.arange(order)
        return GroupTable(
            [str(n) for n in range(order)], (number[:, None] + number) % order, (0, 1)
        )
    points = int(group[1:])
    elements = [p for p in permutations(range(points)) if group is not Group.a5 or is_even(p)]
    index = {element: number for number, element in enumerate(elements)}
    product = np.array([[index[tuple(b[i] for i in a)] for b in elements] for a in elements])
    # Generators: the cycle of all points, and a cycle of three (A5) or an exchange of two (S3, S5).
    turn = (*range(1, points), 0)
    other = (1, 2, 0, 3, 4) if group is Group.a5 else (1, 0, *range(2, points))
    names = ["".join(str(i + 1) for i in element) for element in elements]
    return GroupTable(names, product, (index[turn], index[other]))


def is_even(element: Sequence[int]) -> bool:
    """Return whether a permutation is even, that is, reverses an even number of pairs."""
    reversed_pairs = sum(element[i] > element[j] for j in range(len(element)) for i in range(j))
    return reversed_pairs % 2 == 0


def product_rows(
    words: UInt64[np.ndarray, "n l"],
    *,
    moves: Int[np.ndarray, " m"],
    product: Int[np.ndarray, "g g"],
) -> Rows:
    """Return rows of elements from `moves`, one for each random word, and their products so far."""
    tokens = moves[below(words, len(moves))]
    answers = np.empty_like(tokens)
    state = np.zeros(len(words), tokens.dtype)
    for position in range(words.shape[1]):
        state = product[state, tokens[:, position]]
        answers[:, position] = state
    return Rows(tokens, answers)
