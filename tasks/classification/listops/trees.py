"""Random ListOps trees, a whole block at once, level by level.

The official recursion draws one node at a time. Drawing all nodes of one level of many trees as
one array gives the same distribution: below the root, each node is a digit with probability 3/4
(always at `max_depth`), else an operator with 2 … `max_args` arguments. Trees outside the strict
length bounds are dropped, those that must overflow as soon as that is certain.

Block b of seed s depends on (s, b) alone, and blocks are used in order: the number of processes
cannot change the data. Only raw 64-bit words are drawn, whose stream NumPy guarantees on every
platform and version.
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
"""A 32-bit word below this is an operator: exactly 1/4. Its next two bits say which."""
FRACTION_BITS = 28
FRACTION = np.uint32((1 << FRACTION_BITS) - 1)
"""The rest of a word is a fraction: the digit, or the number of arguments."""
STALLED_BLOCKS = 64
"""Blocks in a row without a new tree after which the request counts as impossible."""
SERIAL_S = 2.0
"""Work of fewer seconds is done before other processes would have started."""
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Which trees are wanted: min_length < tokens < max_length, operators nest < max_depth."""

    min_length: int
    max_length: int
    max_depth: int
    max_args: int

    def __post_init__(self) -> None:
        """Refuse limits that no tree meets."""
        if self.max_depth < 1 or self.max_args < 2:
            raise ValueError(
                f"ListOps needs max_depth >= 1 and max_args >= 2: got max_depth={self.max_depth}, "
                f"max_args={self.max_args}"
            )
        if self.min_length < 0 or self.max_length < self.min_length + 2:
            raise ValueError(
                "ListOps needs trees with min_length < tokens < max_length: got "
                f"min_length={self.min_length}, max_length={self.max_length}, which excludes "
                "all; raise max_length"
            )
        longest = self.longest(1)
        if longest <= self.min_length:
            raise ValueError(
                f"the longest tree of max_depth={self.max_depth}, max_args={self.max_args} has "
                f"{longest} tokens, wanted more than min_length={self.min_length}; lower "
                "min_length or raise max_depth"
            )

    def longest(self, depth: int) -> int:
        """Return the most tokens of a subtree whose root stands at `depth`; 0 below the leaves."""
        if depth > self.max_depth:
            return 0
        tokens = 1
        for _ in range(self.max_depth - depth):
            # Beyond max_length the exact number makes no difference.
            tokens = min(2 + self.max_args * tokens, self.max_length)
        return tokens


class TreeBlock(NamedTuple):
    """The accepted trees of one block, and a digest of each."""

    trees: RaggedRows
    digests: bytes


class _Level(NamedTuple):
    """The nodes of one depth, in the order of their parents."""

    tree: Int[np.ndarray, " n"]
    symbol: UInt8[np.ndarray, " n"]
    operators: Int[np.ndarray, " m"]
    """Which nodes are operators."""
    arity: Int[np.ndarray, " m"]
    """Arguments of each operator."""


def grow(limits: Limits, seed: int, block: int) -> TreeBlock:
    """Draw block number `block` of `seed` and return its accepted trees."""
    levels = _draw_block(limits, np.random.PCG64(np.random.SeedSequence((seed, block))))
    sizes, values = _measure(levels)
    trees = _placed_tokens(levels, sizes, values)
    flat, bounds = trees.tokens.tobytes(), trees.offsets.tolist()
    digests = [
        hashlib.blake2b(flat[start:end], digest_size=DIGEST_BYTES).digest()
        for start, end in pairwise(bounds)
    ]
    return TreeBlock(trees, b"".join(digests))


def _draw_block(limits: Limits, bits: np.random.PCG64) -> list[_Level]:
    """Draw all levels of one block; return the nodes of the trees that keep the length bounds."""
    tree = np.arange(BLOCK_TREES, dtype=np.int32)
    alive = np.ones(BLOCK_TREES, bool)
    length, pending = np.zeros(BLOCK_TREES, np.int64), np.ones(BLOCK_TREES, np.int64)
    levels = []
    for depth in range(1, limits.max_depth + 1):
        words = _words(bits, len(tree))
        length += pending
        # Nodes of the last level are digits, whatever was drawn.
        last = depth == limits.max_depth
        operators = np.flatnonzero(words < OPERATOR_BELOW) if not last else np.empty(0, np.int64)
        symbol = (((words & FRACTION) * np.uint32(10)) >> FRACTION_BITS).astype(np.uint8)
        symbol += np.uint8(FIRST_DIGIT)
        chosen = words[operators]
        symbol[operators] = FIRST_OPERATOR + (chosen >> FRACTION_BITS)
        choices = np.uint64(limits.max_args - 1)
        arity = 2 + ((chosen & FRACTION) * choices >> np.uint64(FRACTION_BITS)).astype(np.int32)
        owner = tree[operators]
        length += np.bincount(owner, minlength=BLOCK_TREES)
        pending = np.bincount(owner, weights=arity, minlength=BLOCK_TREES).astype(np.int64)
        longest = limits.longest(depth + 1)
        alive &= length + pending < limits.max_length
        alive &= length + pending * longest > limits.min_length
        levels.append(_Level(tree, symbol, operators, arity))
        grows = alive[owner]
        tree = np.repeat(owner[grows], arity[grows])
        if not len(tree):
            break
    return [_surviving(level, alive) for level in levels]


def _words(bits: np.random.PCG64, number: int) -> UInt32[np.ndarray, " n"]:
    """Return uniform 32-bit words: the low, then the high half of each 64-bit word."""
    raw: np.ndarray = bits.random_raw((number + 1) // 2)
    return raw.astype("<u8", copy=False).view("<u4")[:number]


def _surviving(level: _Level, alive: Bool[np.ndarray, " r"]) -> _Level:
    """Drop the nodes of the trees that were refused."""
    keep = alive[level.tree]
    stay = keep[level.operators]
    position = np.cumsum(keep) - 1
    return _Level(
        level.tree[keep],
        level.symbol[keep],
        position[level.operators[stay]],
        level.arity[stay],
    )


def _measure(
    levels: list[_Level],
) -> tuple[list[Int[np.ndarray, " _"]], list[UInt8[np.ndarray, " _"]]]:
    """Return by level the tokens and the value of every subtree, from the leaves up."""
    sizes: list[np.ndarray] = []
    values: list[np.ndarray] = []
    for level in reversed(levels):
        size = np.ones(len(level.tree), np.int32)
        value = level.symbol - np.uint8(FIRST_DIGIT)
        if len(level.operators):
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
    """Apply each operator to its run of digits in `arguments`."""
    result = np.empty(len(operator), np.uint8)
    kind = np.repeat(operator, arity)
    for symbol, combine in COMBINE.items():
        mine = operator == symbol
        if mine.any():
            result[mine] = combine(arguments[kind == symbol], arity[mine])
    return result


def _starts(arity: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    starts: np.ndarray = np.cumsum(arity) - arity
    return starts


def _medians(
    arguments: UInt8[np.ndarray, " m"], arity: Int[np.ndarray, " n"]
) -> UInt8[np.ndarray, " n"]:
    # Beyond its arguments a row holds 99, which sorts behind every digit.
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
"""Digits of consecutive runs, and the runs' lengths, to one digit for each run."""


def _placed_tokens(
    levels: list[_Level],
    sizes: list[Int[np.ndarray, " _"]],
    values: list[UInt8[np.ndarray, " _"]],
) -> RaggedRows:
    """Place every token, from the roots down."""
    offsets = np.concatenate(([0], np.cumsum(sizes[0], dtype=np.int64)))
    tokens = np.empty(int(offsets[-1]), np.uint8)
    position = offsets[:-1]
    for depth, level in enumerate(levels):
        tokens[position] = level.symbol
        if not len(level.operators):
            break
        inside = position[level.operators]
        tokens[inside + sizes[depth][level.operators] - 1] = CLOSE
        before = np.cumsum(sizes[depth + 1], dtype=np.int64) - sizes[depth + 1]
        first = before[_starts(level.arity)]
        position = np.repeat(inside + 1 - first, level.arity) + before
    return RaggedRows(tokens, offsets, values[0])


def distinct_trees(limits: Limits, *, seed: int, number: int, processes: int) -> list[RaggedRows]:
    """Return the first `number` distinct accepted trees, block by block, in order.

    Raises:
        ValueError: The limits leave fewer distinct trees than wanted, or almost none.
    """
    distinct: list[RaggedRows] = []
    seen: set[bytes] = set()
    stalled = 0
    with (
        tqdm(desc="ListOps trees", total=number, unit="tree", disable=None) as bar,
        closing(_blocks(limits, seed, number, processes)) as blocks,
    ):
        for block in blocks:
            rows = []
            for row in range(len(block.trees.targets)):
                digest = block.digests[row * DIGEST_BYTES : (row + 1) * DIGEST_BYTES]
                if len(seen) < number and digest not in seen:
                    seen.add(digest)
                    rows.append(row)
            stalled = 0 if rows else stalled + 1
            if stalled == STALLED_BLOCKS:
                raise ValueError(
                    f"only {len(seen)} of {number} wanted distinct trees exist or are likely "
                    f"enough under {limits}: {stalled * BLOCK_TREES} draws gave no new one; "
                    "widen the limits or set fewer examples"
                )
            distinct.append(block.trees.take(np.array(rows, np.int64)))
            bar.update(len(rows))
            if len(seen) == number:
                break
    return distinct


def _blocks(
    limits: Limits, seed: int, number: int, processes: int
) -> Generator[TreeBlock, None, None]:
    """Yield blocks 0, 1, 2 … without end."""
    began = perf_counter()
    first = grow(limits, seed, 0)
    seconds = (perf_counter() - began) * number / max(1, len(first.trees.targets))
    yield first
    if seconds < SERIAL_S:
        processes = 1
    yield from in_order(_grow, ((limits, seed, block) for block in count(1)), processes)


def _grow(job: tuple[Limits, int, int]) -> TreeBlock:
    return grow(*job)
