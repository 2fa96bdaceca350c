"""Hashing of tokens to buckets, and sorting of tokens into lists of chunks.

A round of hashing sends every token to a bucket. Tokens are sorted by (bucket, position) and cut
into chunks of C tokens, and each chunk attends to itself and its neighbours. Sorted tokens lie in
lists: all rounds of an example and head one after another (joint), or one list per round. A list is
a ring: before its first chunk comes its last one. In memory, `before` copies of its end precede a
list and `after` copies of its beginning follow it, so that the keys of a chunk are a strided view.
Padding is in no list, and the last chunk of a round may be short: a row of t real tokens has
ceil(t / C) chunks per round, independently of the length of the tensor.

Axis letters besides the project's: r rounds, n slots in all lists, s slots of one list, m chunks
that attend, c tokens of a chunk, w tokens that it sees, t = b l h tokens of all heads.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lra.models.device_kind import device_kind
from lra.models.ops.numerics import full_precision

PASS_ELEMENTS = {"cpu": 1 << 20}
"""Scores worked on at once, by kind of device: a few MB, so that they stay in the cache."""
PASS_ELEMENTS_ELSEWHERE = 1 << 24
LAST = torch.iinfo(torch.int32).max
"""The bucket of padding."""


class Rules(NamedTuple):
    """Which tokens a query attends to, and with what weights."""

    chunk: int
    before: int = 1
    """Chunks seen besides a token's own: those before it in sorted order, and those after it."""
    after: int = 0
    causal: bool = False
    scale: float = 1.0
    joint: bool = True
    """One ring for all rounds: the first chunk of a round looks back into the round before."""
    unit_keys: bool = True
    exclude_self: bool = True
    across_buckets: bool = True
    duplicates: bool = True
    """Whether a key met in several rounds weighs that many times."""


def hash_buckets(
    u: Float[Tensor, "b h l k"], rotations: Float[Tensor, "r h k f"], factors: list[int]
) -> Int[Tensor, "b h r l"]:
    """Return the bucket of every token in each of r rounds of angular hashing.

    Each factor f uses f / 2 columns R of the rotations and gives argmax [u R, -u R], a number below
    f. The bucket combines these numbers, so that it is below the product of the factors.
    """
    rounds, _, _, columns = rotations.shape
    with torch.no_grad(), full_precision(u):
        precise = torch.promote_types(u.dtype, torch.float32)
        turns = rotations.to(precise).permute(1, 2, 0, 3).flatten(2)
        rotated = (u.to(precise) @ turns).view(*u.shape[:3], rounds, columns)
        buckets, stride = torch.zeros((), dtype=torch.int64, device=u.device), 1
        parts = torch.split(rotated, [f // 2 for f in factors], -1)
        for part, factor in zip(parts, factors, strict=True):
            buckets = buckets + stride * torch.cat((part, -part), -1).argmax(-1)
            stride *= factor
        return buckets.transpose(-1, -2)


class ListLayout(NamedTuple):
    """The contents of each slot of a list; one row serves all if no row has padding."""

    token: Int[Tensor, "#b s"]
    """Index of the slot's token in the sorted rounds of the list, one round after another."""
    hidden: Bool[Tensor, "#b s"]
    """True where no query may read the slot."""
    mute: Bool[Tensor, "#b s"]
    """True where the slot is a copy or hidden, so that its output is ignored."""
    ring: Int[Tensor, "#b"]
    """Number of chunks in the list."""


class Frame(NamedTuple):
    """The sizes of one pass."""

    batch: int
    heads: int
    rounds: int
    length: int
    rules: Rules

    @property
    def chunks(self) -> int:
        """Chunks of one round of a row without padding."""
        return -(-self.length // self.rules.chunk)

    @property
    def per_list(self) -> int:
        """Rounds in one list."""
        return self.rounds if self.rules.joint else 1

    @property
    def lists(self) -> int:
        """Number of lists in the batch."""
        return self.batch * self.heads * self.rounds // self.per_list

    @property
    def sides(self) -> int:
        """Neighbouring chunks that a chunk attends to, without itself."""
        return self.rules.before + self.rules.after

    @property
    def stretch(self) -> int:
        """Chunks from the beginning of one list to the beginning of the next."""
        return self.per_list * self.chunks + self.sides

    @property
    def size(self) -> int:
        """Slots in all lists."""
        return self.lists * self.stretch * self.rules.chunk

    @property
    def blocks(self) -> int:
        """Number of chunks whose neighbouring chunks are all in the buffer."""
        return self.lists * self.stretch - self.sides

    def list_layout(self, count: Int[Tensor, " b"] | None, device: torch.device) -> ListLayout:
        """Return the contents of a list's slots, for rows of `count` real tokens; None: all."""
        C, before, after = self.rules.chunk, self.rules.before, self.rules.after
        real = torch.full((1,), self.length, device=device) if count is None else count
        chunks = (-(-real // C)).clamp(min=1)[:, None]
        ring = chunks * self.per_list
        step = torch.arange(self.stretch, device=device) - before  # chunk; below 0: a copy
        ring_chunk = step.remainder(ring)
        offset = (ring_chunk % chunks)[..., None] * C + torch.arange(C, device=device)
        hidden = (offset >= real[:, None, None]) | (step >= ring + after)[..., None]
        copied = ((step < 0) | (step >= ring))[..., None]
        token = (ring_chunk // chunks)[..., None] * self.length + offset.clamp(max=self.length - 1)
        mute = hidden | copied
        return ListLayout(token.flatten(1), hidden.flatten(1), mute.flatten(1), ring[:, 0])

    def by_list(self, x: Tensor) -> Tensor:
        """Repeat `x`, which has one row per example or one for all, for each list."""
        per_row = self.lists // self.batch
        return x.expand(self.batch, *x.shape[1:]).repeat_interleave(per_row, 0)

    def by_chunk(self, x: Tensor) -> Tensor:
        """Repeat `x`, which has one row per example, for each chunk with queries."""
        return self.attending(self.by_list(x).repeat_interleave(self.stretch, 0))

    def attending(self, x: Tensor) -> Tensor:
        """Remove the chunks at both ends, which lack neighbours and have no queries."""
        return x[self.rules.before : self.rules.before + self.blocks]

    def slots_by_chunk(self, x: Float[Tensor, "n *k"]) -> Float[Tensor, "m c *k"]:
        """View slots (of a pass, or all) as m chunks with c queries each."""
        C = self.rules.chunk
        blocks, first = x.shape[0] // C - self.sides, self.rules.before * C
        return x[first : first + blocks * C].view(blocks, C, *x.shape[1:])

    def seen(self, x: Float[Tensor, "n *k"]) -> Float[Tensor, "m w *k"]:
        """View slots (of a pass, or all) as the w keys of each of m chunks; neighbours overlap."""
        C, strides = self.rules.chunk, x.stride()
        blocks = x.shape[0] // C - self.sides
        shape = (blocks, (self.sides + 1) * C, *x.shape[1:])
        return x.as_strided(shape, (C * strides[0], *strides))

    def step(self, device: torch.device) -> int:
        """Return the number of chunks in a pass, whose scores fit into the cache."""
        elements = PASS_ELEMENTS.get(device_kind(device), PASS_ELEMENTS_ELSEWHERE)
        scores = self.rules.chunk**2 * (self.sides + 1)
        return -(-self.blocks // max(1, round(self.blocks * scores / elements)))

    def passes(self, device: torch.device) -> Iterator[slice]:
        """Yield ranges of chunks of bounded size."""
        step = self.step(device)
        for first in range(0, self.blocks, step):
            yield slice(first, min(first + step, self.blocks))

    def covered(self, part: slice) -> slice:
        """Return the slots that hold queries or keys of the chunks in `part`."""
        return slice(part.start * self.rules.chunk, (part.stop + self.sides) * self.rules.chunk)


class Order(NamedTuple):
    """Which token is in which slot; tokens are numbered as the rows of a (b, l, h, k) tensor."""

    tokens: Int[Tensor, " n"]
    """The token in each slot."""
    inverse: Int[Tensor, "r t"]
    """The slot of each token by round; of no meaning for padding."""
    buckets: Int[Tensor, " n"] | None
    """The bucket of each slot, numbered in sorted order; None where buckets hide nothing."""


def arrange(
    buckets: Int[Tensor, "b h r l"], count: Int[Tensor, " b"] | None, frame: Frame
) -> Order:
    """Return each slot's token, sorted by (bucket, position); padding is in the last bucket."""
    batch, heads, rounds, length = buckets.shape
    device, C = buckets.device, frame.rules.chunk
    values, order = buckets.sort(dim=-1, stable=True)
    list_layout = frame.list_layout(count, device)
    by_list = order.reshape(batch, -1, frame.per_list * length)
    index = list_layout.token[:, None].expand(batch, by_list.shape[1], -1)
    row = torch.arange(batch * heads, device=device).view(batch, heads, 1, 1)
    head, example = row % heads, row // heads
    token = by_list.gather(2, index).view(batch, heads, -1, frame.stretch * C)
    tokens = (example * length + token) * heads + head  # rows of a tensor (b, l, h, k)

    # Rounds of a list follow each other without a gap between their chunks.
    round_number = torch.arange(rounds, device=device)[:, None]
    first_slot = (row * (rounds // frame.per_list) + round_number // frame.per_list) * frame.stretch
    chunks = list_layout.ring[:, None, None, None] // frame.per_list
    first_slot = (first_slot + frame.rules.before + round_number % frame.per_list * chunks) * C
    slot = (first_slot + torch.arange(length, device=device)).expand(order.shape)
    inverse = torch.empty_like(order).scatter_(3, order, slot)

    by_token = inverse.permute(2, 0, 3, 1).flatten(1).int()  # (b, h, r, l) becomes (r, b l h)
    if frame.rules.across_buckets:
        return Order(tokens.flatten().int(), by_token, None)
    starts = values.new_zeros(values.shape)
    starts[..., 1:] = values[..., 1:] != values[..., :-1]  # 1 where a new bucket begins
    bucket = (starts.cumsum(-1) + round_number * length).view(by_list.shape).gather(2, index)
    return Order(tokens.flatten().int(), by_token, bucket.flatten().int())
