"""Sums over tokens whose hash codes are equal, in time and memory linear in the length.

    collected   o_i = sum_j [c_i = c_j] v_j
    paired      o_i = sum_j [c_i = c_j] (a_i . b_j) y_j, and the same with i and j exchanged

where i are queries, j keys, c their codes: whole numbers below `codes`. The first sums values in a
table with an entry for each code. The second would need a matrix for each code; instead queries and
keys are sorted together by code and cut into chunks. Inside a chunk all pairs are formed and those
of different codes dropped; of a code that goes on from chunk to chunk, the sum of b_j y_j^T so far
is carried along. However large a bucket, nothing grows faster than the number of tokens.

Cost for one hash and head, n queries and keys each, chunk C: 2 n d additions; and
(8 C + 16 d) n d operations.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lra.models.device_kind import device_kind
from lra.models.ops.numerics import row_slices

CODE_ELEMENTS = 1 << 22
"""Signs worked on at once: 16 MB."""
CHUNK = 64
PASS_ELEMENTS = {"cpu": 1 << 21}
"""Elements of the tokens sorted at once, by kind of device."""
PASS_ELEMENTS_ELSEWHERE = 1 << 26
TABLE_ELEMENTS = 1 << 26
"""Elements of the tables held at once."""


def draw_planes(
    heads: int, width: int, bits: int, generator: torch.Generator
) -> Float[Tensor, "h k p"]:
    """Draw directions of the projections of every head, on the CPU: the same on every machine."""
    return torch.randn(heads, width, bits, generator=generator, dtype=torch.float32, device="cpu")


def hash_codes(
    x: Float[Tensor, "r n k"], planes: Float[Tensor, "h k p"], tau: int
) -> Int[Tensor, "r m n"]:
    """Return m = p / tau codes of tau bits for each vector, by signs of projections on `planes`."""
    rows, length, width = x.shape
    heads, _, bits = planes.shape
    if not bits:
        return torch.zeros(rows, 1, length, dtype=torch.int32, device=x.device)
    hashes = bits // tau
    bit_value = 2.0 ** torch.arange(tau, dtype=x.dtype, device=x.device)
    # A matrix product packs the bits into codes, for a group of up to 8 hashes at a time.
    group = torch.eye(math.gcd(hashes, 8), dtype=x.dtype, device=x.device)
    packing, planes = (group[:, None] * bit_value[:, None]).flatten(0, 1), planes.to(x.dtype)
    by_head = x.view(-1, heads, length, width)
    codes = []
    for part in row_slices(length, max(64, CODE_ELEMENTS // (rows * bits))):
        signs = (by_head[:, :, part] @ planes).gt_(0)
        codes.append((signs.view(-1, len(packing)) @ packing).view(rows, -1, hashes))
    return torch.cat(codes, dim=1).mT.to(torch.int32)


def sum_matches(
    targets: Int[Tensor, "r m n"],
    sources: Int[Tensor, "r m s"],
    values: Float[Tensor, "r s v"],
    codes: int,
) -> Float[Tensor, "r n v"]:
    """Return o_i = sum over m hashes and sources j of [targets_i = sources_j] values_j."""
    rows, hashes, length = targets.shape
    width = values.shape[-1]
    out = values.new_zeros(rows, length, width)
    for part in row_slices(rows, max(1, TABLE_ELEMENTS // (codes * width))):
        part_values, total = values[part], out[part].flatten(0, 1)
        # All rows have their tables in one: row r begins at entry r * `codes`.
        first = codes * torch.arange(part_values.shape[0], device=values.device)[:, None]
        for hash_index in range(hashes):
            table = values.new_zeros(part_values.shape[0] * codes, width)
            table.index_add_(
                0, (sources[part, hash_index] + first).flatten(), part_values.flatten(0, 1)
            )
            total += table.index_select(0, (targets[part, hash_index] + first).flatten())
    return out


class Sides(NamedTuple):
    """Tokens of one side of a sum over pairs: factors of the weights, and vectors to sum."""

    factors: Float[Tensor, "r l d"]
    vectors: Float[Tensor, "r l e"]


def match_sums(
    queries: Sides, keys: Sides, targets: Int[Tensor, "r m n"], sources: Int[Tensor, "r m s"]
) -> tuple[Float[Tensor, "r n e"], Float[Tensor, "r s e"]]:
    """Return weighted sums over all pairs of a query i and a key j with equal codes, in m hashes.

    Query i gets the sum of (a_i . b_j) y_j, with factors a, b and vectors y of the keys; key j gets
    the sum of (a_i . b_j) times the vectors of the queries.
    """
    rows, hashes, _ = targets.shape
    split = sources.shape[2]  # number of keys, which come first
    both = Sides(*(torch.cat(pair, dim=1) for pair in zip(keys, queries, strict=True)))
    length, width = both.factors.shape[1:]
    device = both.factors.device
    elements = PASS_ELEMENTS.get(device_kind(device), PASS_ELEMENTS_ELSEWHERE)
    rows_per_pass = max(1, elements // (length * width))
    out = torch.zeros_like(both.vectors)
    for part in row_slices(rows, rows_per_pass):
        part_sides = Sides(*(x[part] for x in both))
        for hash_part in row_slices(hashes, max(1, rows_per_pass // rows)):
            codes = torch.cat((sources[part, hash_part], targets[part, hash_part]), dim=2)
            out[part] += _sum_pairs(part_sides, codes, split)
    return out[:, split:], out[:, :split]


def _sum_pairs(both: Sides, codes: Int[Tensor, "r m l"], split: int) -> Float[Tensor, "r l e"]:
    """Return the sums of `match_sums` over a few hashes; the first `split` tokens are keys."""
    rows, hashes, length = codes.shape
    # Stable: within a code, keys stay before queries.
    codes, order = codes.flatten(0, 1).sort(dim=1, stable=True)
    positions = torch.empty_like(order)
    positions.scatter_(1, order, torch.arange(length, device=order.device).expand_as(order))
    row = torch.arange(rows, device=order.device).repeat_interleave(hashes)[:, None]
    sorted_rows = (order + length * row).flatten()
    factors, vectors = (
        x.flatten(0, 1).index_select(0, sorted_rows).view(*order.shape, -1) for x in both
    )
    chunks = _Chunks.from_rows(factors, vectors, codes, order >= split)
    summed = (chunks.within() + chunks.across()).flatten(1, 2)
    # Chunks filled the rows, so each row begins at a multiple of the new length.
    positions += summed.shape[1] * torch.arange(len(positions), device=positions.device)[:, None]
    gathered = summed.flatten(0, 1).index_select(0, positions.flatten())
    return gathered.view(rows, hashes, length, -1).sum(1)


class _Chunks(NamedTuple):
    """Sorted tokens in chunks of C: c of them, m chunks."""

    factors: Float[Tensor, "r m c d"]
    vectors: Float[Tensor, "r m c e"]
    codes: Int[Tensor, "r m c"]
    is_query: Bool[Tensor, "r m c"]
    """Whether a token is a query."""

    @classmethod
    def from_rows(
        cls,
        factors: Float[Tensor, "r l d"],
        vectors: Float[Tensor, "r l e"],
        codes: Int[Tensor, "r l"],
        is_query: Bool[Tensor, "r l"],
    ) -> "_Chunks":
        """Cut sorted rows into chunks; the last chunk is filled with tokens of the code -1."""
        rows, length = codes.shape
        chunk = min(CHUNK, length)
        missing = -length % chunk
        if missing:
            factors, vectors = (F.pad(x, (0, 0, 0, missing)) for x in (factors, vectors))
            codes, is_query = F.pad(codes, (0, missing), value=-1), F.pad(is_query, (0, missing))
        shape = rows, -1, chunk
        return cls(
            factors.view(*shape, factors.shape[-1]),
            vectors.view(*shape, vectors.shape[-1]),
            codes.view(shape),
            is_query.view(shape),
        )

    def within(self) -> Float[Tensor, "r m c e"]:
        """Return the sums over pairs of a query and a key in the same chunk."""
        products = self.factors @ self.factors.mT
        excluded = self.codes[..., None] != self.codes[..., None, :]
        excluded |= self.is_query[..., None] == self.is_query[..., None, :]
        return products.masked_fill_(excluded, 0) @ self.vectors

    def across(self) -> Float[Tensor, "r m c e"]:
        """Return the sums over pairs in different chunks, which share the code at the border."""
        first, last = self.codes[..., :1], self.codes[..., -1:]
        joined = F.pad(first[:, 1:] == last[:, :-1], (0, 0, 1, 0))
        joined_next = F.pad(joined[:, 1:], (0, 0, 0, 1))
        whole = first == last  # chunks with a single code, which pass sums on
        # In sorted order, keys come before the queries of their code. So queries pair with keys of
        # earlier chunks by the chunk's first code, and keys with later queries by its last code.
        keys = self.factors * (~self.is_query & (self.codes == last) & joined_next)[..., None]
        queries = self.factors * (self.is_query & (self.codes == first) & joined)[..., None]
        earlier_sums = running_sums(keys.mT @ self.vectors, (joined & whole)[..., None])
        later_sums = running_sums(
            queries.mT @ self.vectors, (joined_next & whole)[..., None], back=True
        )
        for_queries = F.pad(earlier_sums[:, :-1], (0, 0, 0, 0, 1, 0))
        return queries @ for_queries + keys @ F.pad(later_sums[:, 1:], (0, 0, 0, 0, 0, 1))


def running_sums(
    x: Float[Tensor, "r m d e"], goes_on: Bool[Tensor, "r m 1 1"], *, back: bool = False
) -> Float[Tensor, "r m d e"]:
    """Return y_t = x_t + goes_on_t y_(t-1), or y_(t+1) when `back`; may overwrite x.

    Pairs of elements are joined recursively: twice the additions of a loop, in log2(m) steps.
    """
    count = x.shape[1] // 2
    if not count:
        return x
    # With an odd number, the element at the end of the sum has no partner.
    skip = x.shape[1] % 2 if back else 0
    early, late = (slice(skip + side, skip + 2 * count, 2) for side in (0, 1))
    if back:
        early, late = late, early
    gate = goes_on[:, late]
    ends = running_sums(
        x[:, late].addcmul(gate.to(x.dtype), x[:, early]), gate & goes_on[:, early], back=back
    )
    x[:, late] = ends
    # The other element of each pair adds the finished sum of the pair before it.
    if back:
        ends = ends[:, 1 - skip :]
        rest, gates = (part[:, 1 - skip :: 2][:, : ends.shape[1]] for part in (x, goes_on))
    else:
        rest, gates = x[:, 2::2], goes_on[:, 2::2]
        ends = ends[:, : rest.shape[1]]
    rest.addcmul_(gates.to(x.dtype), ends)
    return x
