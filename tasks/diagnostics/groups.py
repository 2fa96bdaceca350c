"""Finite groups by name: cyclic, symmetric and alternating ones, and their products.

z60       addition modulo 60
s5, a5    all, or the even, permutations of 5 things
a4_x_z5   pairs of an element of A4 and one of Z5
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from itertools import permutations
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

MOST_ELEMENTS = 1000
ORDERS: Mapping[str, tuple[int, Callable[[int], int]]] = {
    "z": (2, int),
    "s": (2, math.factorial),
    "a": (3, lambda points: math.factorial(points) // 2),
}
"""Smallest number of each kind of group, and its number of elements by this number."""


class GroupTable(NamedTuple):
    """A group with numbered elements; the neutral element is 0."""

    names: Sequence[str]
    product: Int[np.ndarray, "g g"]
    """Entry [a, b] is the product of a, and then b."""
    generators: Sequence[int]
    """Elements that generate the group: two, or those of each factor of a product."""
    moved: Sequence[int] = ()
    """How many things each element moves; only for all permutations."""


@cache
def table_of(name: str) -> GroupTable:
    """Return the elements of the group `name` and their products.

    Raises:
        ValueError: There is no such group, or it has more than `MOST_ELEMENTS` elements.
    """
    factors = [re.fullmatch("([zsa])([1-9][0-9]{0,3})", part) for part in name.split("_x_")]
    kinds = [(match[1], int(match[2])) for match in factors if match is not None]
    order = math.prod(ORDERS[kind][1](min(number, MOST_ELEMENTS)) for kind, number in kinds)
    small = any(number < ORDERS[kind][0] for kind, number in kinds)
    if len(kinds) < len(factors) or small or order > MOST_ELEMENTS:
        raise ValueError(
            "task.group must be z2, z3, …, s2, s3, …, a3, a4, …, or a product such as a4_x_z5, "
            f"with at most {MOST_ELEMENTS} elements: got {name!r}"
        )
    return reduce(_product, (_factor(kind, number) for kind, number in kinds))


def _factor(kind: str, number: int) -> GroupTable:
    """Return the group z, s or a of a number."""
    if kind == "z":
        element = np.arange(number)
        names = [str(n) for n in range(number)]
        return GroupTable(names, (element[:, None] + element) % number, (0, 1))
    even = kind == "a"
    elements = [p for p in permutations(range(number)) if not even or is_even(p)]
    index = {element: number for number, element in enumerate(elements)}
    product = np.array([[index[tuple(b[i] for i in a)] for b in elements] for a in elements])
    # Generators: a cycle of all points (of all but the first if that is odd, and only even ones
    # are in the group), and a cycle of three (A) or an exchange of two (S).
    fixed = int(even and number % 2 == 0)
    turn = (*range(fixed), *range(fixed + 1, number), fixed)
    other = (1, 2, 0, *range(3, number)) if even else (1, 0, *range(2, number))
    names = ["".join(str(i + 1) for i in element) for element in elements]
    moved = () if even else [sum(i != p for i, p in enumerate(e)) for e in elements]
    return GroupTable(names, product, (index[turn], index[other]), moved)


def _product(first: GroupTable, second: GroupTable) -> GroupTable:
    """Return the group of pairs; the number of a pair is that of the first times the order."""
    order = len(second.names)
    size = len(first.names) * order
    pairs = first.product[:, None, :, None] * order + second.product[:, None]
    both = [order * element for element in first.generators] + list(second.generators)
    return GroupTable(
        [f"{a}/{b}" for a in first.names for b in second.names],
        pairs.reshape(size, size),
        list(dict.fromkeys(both)),
    )


def is_even(element: Sequence[int]) -> bool:
    """Return whether a permutation is even, that is, reverses an even number of pairs."""
    reversed_pairs = sum(element[i] > element[j] for j in range(len(element)) for i in range(j))
    return reversed_pairs % 2 == 0
