"""State tracking: products in a group (Merrill et al., arXiv:2404.08819; Liu et al., 2210.10749).

    213 312 132 …      elements of S3, written as the images of 1, 2, 3
    213 132 123 …      the product so far: the first element, then the second applied to it, …

The answer at each token is the product so far. The groups differ in difficulty:

    z2        parity                                     2 elements
    z60       addition modulo 60, commutative           60
    s3        permutations of 3, solvable                6
    a4_x_z5   pairs, solvable but not commutative       60
    a5        even permutations of 5, not solvable      60
    s5        permutations of 5, not solvable          120

A fixed number of layers of attention, or of a linear state space model, can follow products in A5
and S5 only up to some length: these models are in TC0, the products are complete for NC1, and the
two classes are believed to differ. A recurrent network can follow them at any length.
`steps=elements` draws any element. `steps=generators` draws two elements that generate the group
(zN: 0 and 1; a product of groups: those of each), so that the product changes slowly. `steps=swaps`
and `steps=three` draw permutations that move at most 2 and 3 things (arXiv:2411.12537: 11 and 31
elements of S5). With `tokens_per_element=4`, three fillers follow each element, and the answer is
asked at the last one: a layer has four steps for each product.
"""

import math
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import ClassVar

import numpy as np
from jaxtyping import Int, UInt64

from lra.conf.choices import by_name
from lra.tasks.diagnostics.base import NOT_ASKED, DiagnosticTask, Rows, below
from lra.tasks.diagnostics.groups import table_of


class Steps(StrEnum):
    """The elements that a row can have."""

    elements = auto()
    generators = auto()
    swaps = auto()
    three = auto()


@by_name
@dataclass(kw_only=True, eq=False)
class Permutations(DiagnosticTask):
    """State tracking: follow the product of group elements."""

    name: ClassVar[str] = "permutations"
    later: ClassVar[frozenset[str]] = frozenset({"tokens_per_element"})

    length: int = 32
    group: str = "a5"
    """The group: zN (addition modulo N), sN (permutations of N), aN (even ones), or a product such
    as a4_x_z5."""
    steps: Steps = Steps.elements
    """Elements of a row: elements (any), generators (few that generate the group), swaps (sN: that
    move at most two things) or three (at most three things)."""
    tokens_per_element: int = 1
    """Tokens of each element: the element, then fillers; the answer is asked at the last one."""
    train_examples: int | None = 100_000

    def __post_init__(self) -> None:
        """Check the options."""
        self.table, each = table_of(self.group), self.tokens_per_element
        order = len(self.table.names)
        if self.steps in (Steps.swaps, Steps.three) and not self.table.moved:
            raise ValueError(
                f"task.steps={self.steps} needs a group of all permutations, for example "
                f"task.group=s5: got {self.group}"
            )
        most = {Steps.swaps: 2, Steps.three: 3}.get(self.steps, 0)
        self.moves = {
            Steps.elements: range(order),
            Steps.generators: list(dict.fromkeys(self.table.generators)),
        }.get(self.steps, [i for i, moved in enumerate(self.table.moved) if moved <= most])
        self.generated_as(
            vocabulary=order + (each > 1),
            difficulty=f"{self.steps} of {self.group.upper()}"
            + (f", {each} tokens each" if each > 1 else ""),
        )
        self.least(each, "at least one element")

    def allowed_length(self, length: int) -> int:
        """Return the next multiple of `tokens_per_element`, from `length` on."""
        each = self.tokens_per_element
        return -(-length // each) * each

    def words(self, length: int) -> int:
        """Return the number of random words for a row: one for each element."""
        return length // self.tokens_per_element

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows that these random words decide."""
        rows = product_rows(words, moves=np.array(self.moves), product=self.table.product)
        each = self.tokens_per_element
        if each == 1:
            return rows
        tokens = np.full((len(words), length), len(self.table.names))
        answers = np.full_like(tokens, NOT_ASKED)
        tokens[:, ::each], answers[:, each - 1 :: each] = rows.tokens, rows.answers
        return Rows(tokens, answers)

    def different_rows(self, length: int) -> float:
        """Return the binary logarithm of the number of different rows."""
        return self.words(length) * math.log2(len(self.moves))

    def token_text(self, token: int) -> str:
        """Return a permutation as the images of 1, 2, …, a remainder as its number, _ as filler."""
        return [*self.table.names, "_"][token]


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
