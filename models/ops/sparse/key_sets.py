"""Sets of keys with their queries, arranged as batches of small dense rectangles of scores.

`Blocks` cuts the sequence into blocks that attend to their neighbours. `Rectangles` groups every
l-th token, or lets all queries attend to some columns of keys. `lra.models.ops.sparse.union`
attends to any union of such sets.

A set copies queries and keys into buffers (`buffer`, `pairs`), views them as rectangles (`queries`,
`keys`), masks hidden keys of a rectangle (`mask`), and cuts the computation into parts (`tiles`).

Axis letters: m rectangles, c queries and w keys of one rectangle, n rectangles that are computed
together, r rows of a buffer.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lra.models.ops.numerics import NEVER

PASS_ELEMENTS = {"cpu": 1 << 20}
"""Scores worked on at once, by kind of device: 4 MB, so that they stay in the cache."""
PASS_ELEMENTS_ELSEWHERE = 1 << 24
FINEST = 32
"""Smallest number of queries in a tile."""


class Tile(NamedTuple):
    """Some rectangles, some of their queries, and the number of keys that these may attend to."""

    rectangles: slice
    queries: slice
    keys: int
    unclear: slice
    """The keys that are hidden from some of the queries."""


def in_reach(
    offset: Int[Tensor, "*r"], *, causal: bool, least: int, most: int | None
) -> Bool[Tensor, "*r"]:
    """Return whether keys are visible, by how many units they come before their queries."""
    offset = offset if causal else offset.abs()  # if causal, below 0 for later keys
    visible = offset >= least
    return visible if most is None else visible & (offset <= most)


class Coordinates(NamedTuple):
    """Positions of queries and keys of a rectangle, in units of a set and in tokens."""

    query_units: Int[Tensor, " c"]
    key_units: Int[Tensor, " w"]
    queries: Int[Tensor, " c"]
    keys: Int[Tensor, " w"]


@dataclass(frozen=True, kw_only=True)
class _Set:
    """The base class of sets of keys.

    A query attends to a key of its rectangle if the distance of their units is from `least` to
    `most`; if `causal`, the key must also come first.
    """

    rows: int
    """Sequences times heads."""
    length: int
    """Number of queries."""
    causal: bool = False
    least: int = 0
    most: int | None = None
    first: int = 0
    """Index of the key at the position of query 0."""
    columns: tuple[int, ...] | None = None
    """The keys of the set, in ascending order; None: all from `first` on."""

    @property
    def has_every_key(self) -> bool:
        """Whether the set contains every key."""
        return self.columns is None and not self.first

    def pick(self, x: Float[Tensor, "b h s k"]) -> Float[Tensor, "b h t k"]:
        """Return the keys that are in the set."""
        if self.columns is None:
            return x[:, :, self.first :]
        return x.index_select(2, torch.tensor(self.columns, device=x.device))

    def give_back(self, target: Float[Tensor, "b h s k"], x: Float[Tensor, "b h t k"]) -> None:
        """Add the rows `x` of the picked keys to `target`: the adjoint of `pick`."""
        if self.columns is None:
            target[:, :, self.first :] += x
        else:
            target.index_add_(2, torch.tensor(self.columns, device=x.device), x)

    def mask(self, coordinates: Coordinates, tile: Tile) -> Float[Tensor, "c w"]:
        """Return 0 for visible and NEVER for hidden keys, among the unclear keys of a tile."""
        offset = coordinates.query_units[tile.queries, None] - coordinates.key_units[tile.unclear]
        visible = in_reach(offset, causal=self.causal, least=self.least, most=self.most)
        return torch.where(visible, 0.0, NEVER)


@dataclass(frozen=True, kw_only=True)
class Blocks(_Set):
    """Blocks of C tokens that attend to themselves and to neighbouring blocks; units are tokens.

    Keys lie one row after another, each after `look_back` empty blocks. The keys of a block are
    then a strided view of the buffer, and nothing is gathered.
    """

    block: int
    look_back: int = 0
    look_forward: int = 0

    @property
    def stride(self) -> int:
        """Distance in the buffer from one row to the next."""
        gap = max(self.look_back, self.look_forward)  # empty blocks between two rows
        return (-(-self.length // self.block) + gap) * self.block

    @property
    def reach(self) -> int:
        """Number of keys that a block attends to."""
        return (1 + self.look_back + self.look_forward) * self.block

    @property
    def padded(self) -> bool:
        """Whether the buffers have slots without a token."""
        return self.stride > self.length or self.reach > self.block

    def buffer(self, x: Float[Tensor, "b h s k"], *, keys: bool) -> tuple[int, int]:
        """Return the shape of the buffer for these tokens."""
        tail = self.reach - self.block if keys else 0
        return self.rows * self.stride + tail, x.shape[-1]

    def pairs(
        self, x: Float[Tensor, "b h s k"], buffer: Float[Tensor, "r k"], *, keys: bool
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield views of tokens and of their slots in the buffer, with equal shapes."""
        rows = buffer[: self.rows * self.stride].view(*x.shape[:2], self.stride, x.shape[-1])
        start = self.look_back * self.block if keys else 0
        yield x, rows[:, :, start : start + x.shape[2]]

    def queries(self, buffer: Float[Tensor, "r k"]) -> Float[Tensor, "m c k"]:
        """View a buffer of queries as m blocks of c queries."""
        return buffer.view(-1, self.block, buffer.shape[-1])

    def keys(self, buffer: Float[Tensor, "r k"]) -> Float[Tensor, "m w k"]:
        """View a buffer of keys as the w keys of each of m blocks; neighbours overlap."""
        count, width = self.rows * self.stride // self.block, buffer.shape[-1]
        return buffer.as_strided((count, self.reach, width), (self.block * width, width, 1))

    def add_to_keys(
        self,
        buffer: Float[Tensor, "r k"],
        tile: Tile,
        weights: Float[Tensor, "n c w"],
        x: Float[Tensor, "n c k"],
        scale: float,
    ) -> None:
        """Add `scale * weights^T x` to the keys, one block at a time, because windows overlap."""
        block, part = self.block, tile.rectangles
        for first in range(0, self.reach, block):
            target = buffer[part.start * block + first : part.stop * block + first]
            columns = weights[:, :, first : first + block]
            target.view(x.shape).add_(torch.bmm(columns.mT, x), alpha=scale)

    def tiles(self, elements: int) -> Iterator[Tile]:
        """Yield tiles with about `elements` scores each."""
        count = self.rows * self.stride // self.block
        step = max(1, elements // (self.block * self.reach))
        masked = self.causal or self.most is not None
        for first in range(0, count, step):
            rectangles = slice(first, min(first + step, count))
            unclear = slice(0, self.reach if masked else 0)
            yield Tile(rectangles, slice(0, self.block), self.reach, unclear)

    def coordinates(self, device: torch.device) -> Coordinates:
        """Return the positions of queries and keys."""
        query = torch.arange(self.block, device=device)
        key = torch.arange(self.reach, device=device) - self.look_back * self.block
        return Coordinates(query, key, query, key)


@dataclass(frozen=True, kw_only=True)
class Rectangles(_Set):
    """Queries and keys whose positions have the same remainder, or all queries and some columns.

    Query a of a rectangle has the unit a // unit, and column j the unit j // unit; without columns,
    keys have units as queries do. If causal, keys after a tile's last query are skipped.
    """

    classes: int = 1
    unit: int = 1
    keys_length: int | None = None
    """Number of keys; None: as many as queries."""

    @property
    def padded(self) -> bool:
        """Whether the buffers have slots without a token."""
        keys = self.length if self.keys_length is None else self.keys_length
        return self.length % self.classes > 0 or keys % self.classes > 0

    def steps(self, length: int) -> int:
        """Return how many of `length` tokens a rectangle has."""
        return -(-length // self.classes)

    def units(self) -> Sequence[int]:
        """Return the unit of each key."""
        if self.columns is None:
            return range(self.steps(self.keys_length or self.length))
        return [(j - self.first) // self.unit for j in self.columns]

    def buffer(self, x: Float[Tensor, "b h s k"], *, keys: bool) -> tuple[int, int, int]:
        """Return the shape of the buffer for these tokens."""
        del keys  # both are laid alike
        return self.rows * self.classes, self.steps(x.shape[2]), x.shape[-1]

    def pairs(
        self, x: Float[Tensor, "b h s k"], buffer: Float[Tensor, "m c k"], *, keys: bool
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield views of tokens and of their slots in the buffer, with equal shapes."""
        del keys
        slots = buffer.view(*x.shape[:2], self.classes, *buffer.shape[1:])
        steps, remaining = divmod(x.shape[2], self.classes)
        whole_length = x.shape[2] - remaining
        whole_steps = x[:, :, :whole_length].view(*x.shape[:2], steps, self.classes, x.shape[3])
        yield whole_steps.transpose(2, 3), slots[:, :, :, :steps]
        if remaining:
            yield x[:, :, whole_length:], slots[:, :, :remaining, steps]

    def queries(self, buffer: Float[Tensor, "m c k"]) -> Float[Tensor, "m c k"]:
        """View a buffer of queries by rectangle."""
        return buffer

    def keys(self, buffer: Float[Tensor, "m w k"]) -> Float[Tensor, "m w k"]:
        """View a buffer of keys by rectangle."""
        return buffer

    def add_to_keys(
        self,
        buffer: Float[Tensor, "m r k"],
        tile: Tile,
        weights: Float[Tensor, "n c w"],
        x: Float[Tensor, "n c k"],
        scale: float,
    ) -> None:
        """Add `scale * weights^T x` to the keys."""
        buffer[tile.rectangles, : tile.keys].add_(torch.bmm(weights.mT, x), alpha=scale)

    def tiles(self, elements: int) -> Iterator[Tile]:
        """Yield tiles with about `elements` scores each, without keys hidden from all queries."""
        count, length, units = self.rows * self.classes, self.steps(self.length), self.units()
        # 16 steps along the causal diagonal waste 3 % of the scores, for any length.
        queries_per_tile = max(FINEST, length // 16) if self.causal else length
        queries_per_tile = max(1, min(queries_per_tile, elements // max(1, len(units))))
        for first in range(0, length, queries_per_tile):
            queries, visible_keys = slice(first, min(first + queries_per_tile, length)), len(units)
            # Only the keys from `clear` to `hidden` are hidden from some of the queries.
            lowest, highest = first // self.unit, (queries.stop - 1) // self.unit
            clear, hidden = bisect_right(units, lowest - self.least), visible_keys
            if self.causal:
                visible_keys = hidden = bisect_right(units, highest - self.least)
            elif self.least:
                hidden = bisect_left(units, highest + self.least)
            else:
                clear = hidden
            rectangles_per_tile = max(1, elements // max(1, (queries.stop - first) * visible_keys))
            for start in range(0, count, rectangles_per_tile) if visible_keys else ():
                rectangles = slice(start, min(start + rectangles_per_tile, count))
                yield Tile(rectangles, queries, visible_keys, slice(clear, hidden))

    def coordinates(self, device: torch.device) -> Coordinates:
        """Return the positions of queries and keys."""
        query = torch.arange(self.steps(self.length), device=device)
        units = torch.tensor(self.units(), device=device)
        if self.columns is None:
            key = units * self.classes  # distance in tokens from the first key of its class
        else:
            key = torch.tensor(self.columns, device=device) - self.first
        return Coordinates(query // self.unit, units, query * self.classes, key)


KeySet: TypeAlias = Blocks | Rectangles
