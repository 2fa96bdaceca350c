"""Random ListOps trees, generated in blocks of many trees, level by level.

The official recursion draws one node at a time. This module draws all nodes of one level of many
trees as one array, which gives the same distribution. Each node is a digit with probability 3/4
(always at `max_depth`), or else an operator with 2 … `max_args` arguments. Trees outside the strict
length bounds are dropped; a tree that is certain to become too long is dropped early.

Block b of seed s depends on (s, b) alone, and blocks are used in order, so the number of processes
cannot change the data. The generator draws only raw 64-bit words, for which NumPy guarantees the
same stream on every platform and in every version.
"""

import hashlib
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from itertools import count, pairwise
from time import perf_counter
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, UInt8, UInt32

from lra.tasks.classification.listops.text import (
    CLOSE,
    FIRST_DIGIT,
    FIRST_OPERATOR,
    MAX,
    MED,
    MIN,
    SM,
)
from lra.tasks.data.bars import tqdm
from lra.tasks.data.storage import RaggedRows
from lra.tasks.data.workers import in_order

BLOCK_TREES = 16384
OPERATOR_BELOW = np.uint32(1 << 30)
"""A node with a 32-bit word below this is an operator (probability 1/4); bits 28, 29 choose it."""
FRACTION_BITS = 28
FRACTION = np.uint32((1 << FRACTION_BITS) - 1)
"""Mask of the low 28 bits: a fraction that decides the digit, or the number of arguments."""
STALLED_BLOCKS = 64
"""Successive blocks without a new tree, after which the generator gives up."""
SERIAL_S = 2.0
"""Seconds of work up to which one process is faster than starting others."""
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of trees: min_length < tokens < max_length; on level max_depth are digits only."""

    min_length: int
    max_length: int
    max_depth: int
    max_args: int

    def __post_init__(self) -> None:
        """Raise ValueError for limits that no tree satisfies."""
        if self.max_depth < 1 or self.max_args < 2:
            raise ValueError(
                "task.max_depth must be at least 1, and task.max_args at least 2: got "
                f"max_depth={self.max_depth}, max_args={self.max_args}"
            )
        if self.min_length < 0 or self.max_length < self.min_length + 2:
            raise ValueError(
                "ListOps generates trees with more than min_length and fewer than max_length "
                f"tokens: got min_length={self.min_length}, max_length={self.max_length}, which "
                "exclude all trees; raise max_length"
            )
        longest = self.longest(1)
        if longest <= self.min_length:
            raise ValueError(
                f"the longest tree with max_depth={self.max_depth}, max_args={self.max_args} has "
                f"{longest} tokens, which is not more than min_length={self.min_length}; lower "
                "min_length or raise max_depth"
            )

    def longest(self, depth: int) -> int:
        """Return the most tokens of a subtree with its root at `depth`; 0 below the leaves.

        Numbers above `max_length` are cut to it.
        """
        if depth > self.max_depth:
            return 0
        tokens = 1
        for _ in range(self.max_depth - depth):
            tokens = min(2 + self.max_args * tokens, self.max_length)
        return tokens


class TreeBlock(NamedTuple):
    """The accepted trees of one block, and a digest of each."""

    trees: RaggedRows
    digests: bytes


class _Level(NamedTuple):
    """The nodes of one depth of all trees, in the order of their parents."""

    tree: Int[np.ndarray, " n"]
    """Number of each node's tree."""
    symbol: UInt8[np.ndarray, " n"]
    """Token id of each node: a digit or an operator."""
    operators: Int[np.ndarray, " m"]
    """Numbers of the nodes that are operators."""
    arity: Int[np.ndarray, " m"]
    """Number of arguments of each operator."""


def grow(limits: Limits, seed: int, block: int) -> TreeBlock:
    """Draw block number `block` of `seed` and return its accepted trees."""
    levels = _draw_block(limits, np.random.PCG64(np.random.SeedSequence((seed, block))))
    sizes, values = _measure(levels)
    trees = _place_tokens(levels, sizes, values)
    flat, bounds = trees.tokens.tobytes(), trees.offsets.tolist()
    digests = [
        hashlib.blake2b(flat[start:end], digest_size=DIGEST_BYTES).digest()
        for start, end in pairwise(bounds)
    ]
    return TreeBlock(trees, b"".join(digests))


def _draw_block(limits: Limits, bits: np.random.PCG64) -> list[_Level]:
    """Draw all levels of one block, and return the nodes of the trees within the length limits.

    `length` counts the tokens so far of each tree, brackets included, and `pending` its nodes on
    the next level. A 32-bit word decides a node; for an operator, bits 28 and 29 choose which, and
    the low 28 bits its number of arguments.
    """
    tree = np.arange(BLOCK_TREES, dtype=np.int32)
    alive = np.ones(BLOCK_TREES, bool)
    length, pending = np.zeros(BLOCK_TREES, np.int64), np.ones(BLOCK_TREES, np.int64)
    levels = []
    for depth in range(1, limits.max_depth + 1):
        words = _draw_words(bits, len(tree))
        length += pending
        last = depth == limits.max_depth  # on this level, all nodes are digits
        operators = np.flatnonzero(words < OPERATOR_BELOW) if not last else np.empty(0, np.int64)
        symbol = (((words & FRACTION) * np.uint32(10)) >> FRACTION_BITS).astype(np.uint8)
        symbol += np.uint8(FIRST_DIGIT)
        operator_words = words[operators]
        symbol[operators] = FIRST_OPERATOR + (operator_words >> FRACTION_BITS)
        scaled = (operator_words & FRACTION) * np.uint64(limits.max_args - 1)
        arity = 2 + (scaled >> np.uint64(FRACTION_BITS)).astype(np.int32)
        owner = tree[operators]
        length += np.bincount(owner, minlength=BLOCK_TREES)
        pending = np.bincount(owner, weights=arity, minlength=BLOCK_TREES).astype(np.int64)
        longest = limits.longest(depth + 1)
        # Drop trees that are too long already, or too short even with the largest subtrees.
        alive &= length + pending < limits.max_length
        alive &= length + pending * longest > limits.min_length
        levels.append(_Level(tree, symbol, operators, arity))
        grows = alive[owner]
        tree = np.repeat(owner[grows], arity[grows])
        if not len(tree):
            break
    return [_drop_trees(level, alive) for level in levels]


def _draw_words(bits: np.random.PCG64, number: int) -> UInt32[np.ndarray, " n"]:
    """Return `number` random 32-bit words: first the low, then the high half of 64-bit words."""
    raw: np.ndarray = bits.random_raw((number + 1) // 2)
    return raw.astype("<u8", copy=False).view("<u4")[:number]


def _drop_trees(level: _Level, alive: Bool[np.ndarray, " r"]) -> _Level:
    """Return `level` without the nodes of the trees at which `alive` is False."""
    keep = alive[level.tree]
    keep_operators = keep[level.operators]
    new_number = np.cumsum(keep) - 1
    return _Level(
        level.tree[keep],
        level.symbol[keep],
        new_number[level.operators[keep_operators]],
        level.arity[keep_operators],
    )


def _measure(
    levels: list[_Level],
) -> tuple[list[Int[np.ndarray, " _"]], list[UInt8[np.ndarray, " _"]]]:
    """Return, by level, the number of tokens and the value of the subtree of each node."""
    sizes: list[np.ndarray] = []
    values: list[np.ndarray] = []
    for level in reversed(levels):
        size = np.ones(len(level.tree), np.int32)
        value = level.symbol - np.uint8(FIRST_DIGIT)
        if len(level.operators):
            # An operator, its closing bracket, and the subtrees of its arguments.
            size[level.operators] = 2 + np.add.reduceat(sizes[-1], _starts(level.arity))
            value[level.operators] = evaluate(
                level.symbol[level.operators], level.arity, values[-1]
            )
        sizes.append(size)
        values.append(value)
    return sizes[::-1], values[::-1]


def evaluate(
    operator: UInt8[np.ndarray, " n"],
    arity: Int[np.ndarray, " n"],
    arguments: UInt8[np.ndarray, " m"],
) -> UInt8[np.ndarray, " n"]:
    """Return the value of each operator; `arity` consecutive digits of `arguments` belong to it."""
    result = np.empty(len(operator), np.uint8)
    operator_of_argument = np.repeat(operator, arity)
    for symbol, combine in COMBINE.items():
        same = operator == symbol
        if same.any():
            result[same] = combine(arguments[operator_of_argument == symbol], arity[same])
    return result


def _starts(arity: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Return the position of each operator's first argument."""
    starts: np.ndarray = np.cumsum(arity) - arity
    return starts


def _medians(
    arguments: UInt8[np.ndarray, " m"], arity: Int[np.ndarray, " n"]
) -> UInt8[np.ndarray, " n"]:
    """Return the median of each operator's arguments, truncated to a whole number."""
    # A row of the table is one operator's arguments, padded with 99, which sorts after all digits.
    table = np.full((len(arity), int(arity.max())), 99, np.uint8)
    table[np.arange(table.shape[1]) < arity[:, None]] = arguments
    table.sort(axis=1)
    row = np.arange(len(arity))
    middle: np.ndarray = (table[row, (arity - 1) // 2] + table[row, arity // 2]) // 2
    return middle


COMBINE: dict[int, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    MIN: lambda arguments, arity: np.minimum.reduceat(arguments, _starts(arity)),
    MAX: lambda arguments, arity: np.maximum.reduceat(arguments, _starts(arity)),
    MED: _medians,
    SM: lambda arguments, arity: np.add.reduceat(arguments, _starts(arity), dtype=np.int32) % 10,
}
"""Function of each operator: (arguments of all operators, arity of each) -> value of each."""


def _place_tokens(
    levels: list[_Level], sizes: list[Int[np.ndarray, " _"]], values: list[UInt8[np.ndarray, " _"]]
) -> RaggedRows:
    """Write the tokens of all trees one after another; return them with the values of the roots.

    Args:
        levels: The nodes of all trees by depth, from the roots down.
        sizes: By depth, the number of tokens in the subtree of each node.
        values: By depth, the value of each node.
    """
    offsets = np.concatenate(([0], np.cumsum(sizes[0], dtype=np.int64)))
    tokens = np.empty(int(offsets[-1]), np.uint8)
    position = offsets[:-1]  # of the first token of each node's subtree
    for depth, level in enumerate(levels):
        tokens[position] = level.symbol
        if not len(level.operators):
            break
        opening = position[level.operators]
        tokens[opening + sizes[depth][level.operators] - 1] = CLOSE
        # A child begins after its parent's operator and the subtrees of its earlier siblings.
        # Their tokens: those before the child in its whole level, less those before its family.
        before_child = np.cumsum(sizes[depth + 1], dtype=np.int64) - sizes[depth + 1]
        before_family = before_child[_starts(level.arity)]
        position = np.repeat(opening + 1 - before_family, level.arity) + before_child
    return RaggedRows(tokens, offsets, values[0])


def distinct_trees(limits: Limits, *, seed: int, number: int, processes: int) -> list[RaggedRows]:
    """Return the first `number` distinct trees within the limits, in the order of blocks.

    Raises:
        ValueError: `STALLED_BLOCKS` successive blocks gave no new tree.
    """
    distinct: list[RaggedRows] = []
    digests: set[bytes] = set()
    stalled = 0
    with (
        tqdm(desc="ListOps trees", total=number, unit="tree", disable=None) as bar,
        closing(_blocks(limits, seed, number, processes)) as blocks,
    ):
        for block in blocks:
            rows = []
            for row in range(len(block.trees.targets)):
                digest = block.digests[row * DIGEST_BYTES : (row + 1) * DIGEST_BYTES]
                if len(digests) < number and digest not in digests:
                    digests.add(digest)
                    rows.append(row)
            stalled = 0 if rows else stalled + 1
            if stalled == STALLED_BLOCKS:
                raise ValueError(
                    f"found only {len(digests)} of {number} different trees: the last "
                    f"{stalled * BLOCK_TREES} random trees gave no new one within {limits}; "
                    "widen the limits, or ask for fewer examples"
                )
            distinct.append(block.trees.take(np.array(rows, np.int64)))
            bar.update(len(rows))
            if len(digests) == number:
                break
    return distinct


def _blocks(
    limits: Limits, seed: int, number: int, processes: int
) -> Generator[TreeBlock, None, None]:
    """Yield blocks 0, 1, 2 … without end; the time of block 0 decides whether one process does."""
    start = perf_counter()
    first = grow(limits, seed, 0)
    seconds = (perf_counter() - start) * number / max(1, len(first.trees.targets))
    yield first
    if seconds < SERIAL_S:
        processes = 1
    yield from in_order(_grow, ((limits, seed, block) for block in count(1)), processes)


def _grow(job: tuple[Limits, int, int]) -> TreeBlock:
    return grow(*job)
