"""Relative positions: numbers that are added to attention scores, by the distance of the tokens.

A family that computes scores, and names the encoding in `Traits.positions`, calls
`relative_scores` and adds the result before the softmax; the model refuses the encoding for other
families. ALiBi also adds such numbers, but families compute them from `alibi_slopes`.

The numbers are already divided by sqrt(k), like scores. A distance is the query's position minus
the key's position; for keys that a mask hides, the numbers may be anything.

A query may attend to later keys, at negative distances, if the model is bidirectional or has a
prefix mask. Such a key at distance -t adds, however many tokens follow:

    transformer_xl   the score of the sinusoid of -t, R_-t
    shaw, t5         in a bidirectional model, the score of a separate vector or bucket; in a causal
                     model, whose table has no negative distances, the score of distance 0
    alibi            the same as the key at distance t
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lra.models.linear_map import projection
from lra.models.mixer import Positions, Roles, Site
from lra.models.positions import At, precise, sinusoid

BUCKETS, LONGEST = 32, 128
"""T5's values: the number of buckets, and the distance from which all share the last bucket."""


class RelativeScores(Roles, ABC):
    """Numbers added to scores, which depend on the distance, and for some encodings on the query.

    Shapes: q is [batch, heads, i queries, k]; results are [batch, heads, i queries, j keys].
    """

    def queries(self, q: Float[Tensor, "b h l k"]) -> Float[Tensor, "b h l k"]:
        """Return the queries for the products with the keys; by default `q` itself."""
        return q

    @abstractmethod
    def forward(
        self, q: Float[Tensor, "b h i k"], distance: Int[Tensor, "#b i j"], *, later: bool
    ) -> Float[Tensor, "#b h i j"]:
        """Return the numbers for keys at any `distance` from each query.

        Here and below, `later` says whether a query may attend to keys after it.
        """

    def in_order(
        self, q: Float[Tensor, "b h i k"], keys: int, step: int = 1, *, later: bool
    ) -> Float[Tensor, "#b h i j"]:
        """Return the numbers for `keys` consecutive keys, the last at the last query's position.

        Neighbouring queries, and neighbouring keys, are `step` positions apart.
        """
        position = torch.arange(0, keys * step, step, device=q.device)
        distance = position[keys - q.shape[2] :, None] - position
        return cast(Tensor, self(q, distance[None], later=later))

    def between(
        self, q: Float[Tensor, "b h i k"], keys: int, at: At, *, later: bool
    ) -> Float[Tensor, "#b h i j"]:
        """Return the numbers for queries and keys at the separate positions `at`."""
        distance = at.distance(q.shape[2], keys, q.device)
        return cast(Tensor, self(q, distance[None], later=later))


class BucketScores(RelativeScores):
    """T5's relative positions: a learned number for each head and each bucket of distances.

    Half of the buckets hold one distance each; the widths of the others grow with the logarithm of
    the distance. In a bidirectional model, each sign of the distance has half of the buckets.
    Numbers are drawn from N(0, 1 / width).

    Source: Raffel et al. 2020, arXiv:1910.10683, section 2.1, and the code published with it.
    Differences: all scores are divided by sqrt(k); T5 does not divide them.
    """

    no_matrices = ("weight",)

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.causal = site.causal
        self.weight = normal_parameter(site, (BUCKETS, site.heads), site.width**-0.5)

    def forward(
        self, q: Float[Tensor, "b h i k"], distance: Int[Tensor, "#b i j"], *, later: bool
    ) -> Float[Tensor, "#b h i j"]:
        """Return the number of each distance's bucket, [1, h, i, j]; it does not depend on `q`."""
        del q, later
        return self.weight[bucket(distance, causal=self.causal)].movedim(-1, 1)


def bucket(
    distance: Int[Tensor, "*d"], *, causal: bool, buckets: int = BUCKETS, longest: int = LONGEST
) -> Int[Tensor, "*d"]:
    """Return the number of each distance's bucket, from 0 to buckets - 1.

    With s buckets of one distance each, distance t >= s is in bucket
    s + (buckets - s) log(t / s) / log(longest / s), rounded down, at most the last one. If
    `causal`, negative distances count as 0; if not, they use the second half of the buckets.
    """
    offset = torch.zeros_like(distance)
    if causal:
        distance = distance.clamp(min=0)
    else:
        buckets //= 2
        offset, distance = buckets * (distance < 0), distance.abs()
    single = buckets // 2
    fraction = torch.log(distance.clamp(min=1).float() / single) / math.log(longest / single)
    wide = (single + (fraction * (buckets - single)).long()).clamp(max=buckets - 1)
    return offset + torch.where(distance < single, distance, wide)


class VectorScores(RelativeScores):
    """Scores q' . R_t, with a vector R_t for each distance t.

    A subclass defines q' (`meeting`), R (`vectors`) and a factor (`scale`).
    """

    scale: float

    @abstractmethod
    def vectors(self, distance: Int[Tensor, " t"]) -> Float[Tensor, "#h t k"]:
        """Return the vector R_t of each distance t, by head if heads differ."""

    def meeting(self, q: Float[Tensor, "b h l k"]) -> Float[Tensor, "b h l k"]:
        """Return q', the queries for the products with the vectors; by default `q` itself."""
        return q

    def forward(
        self, q: Float[Tensor, "b h i k"], distance: Int[Tensor, "#b i j"], *, later: bool
    ) -> Float[Tensor, "b h i j"]:
        """Compute the scores of every possible distance, then select those of `distance`.

        Among j keys, no visible one is further than j - 1; hidden ones may get any score.
        """
        largest = distance.shape[-1] - 1
        smallest = -largest if later else 0
        scores = self.products(q, torch.arange(smallest, largest + 1, device=q.device))
        index = distance.clamp(smallest, largest) - smallest
        return scores.gather(-1, index[:, None].expand(*scores.shape[:3], -1))

    def in_order(
        self, q: Float[Tensor, "b h i k"], keys: int, step: int = 1, *, later: bool
    ) -> Float[Tensor, "b h i j"]:
        """Compute the scores of all distances in descending order, and shift each query's row.

        Query i of l is (keys - l + i - j) positions after key j, so the row of each query must
        start one entry further left than the row before. A view does this without a copy: flatten
        the rows of w + 1 scores, drop the first l entries, and read the rest as rows of w entries.
        The distance `keys` occurs for no pair; its score only makes the rows one longer.
        """
        length = q.shape[2]
        largest, smallest = keys, 1 - length if later else 0
        descending = torch.arange(largest * step, (smallest - 1) * step, -step, device=q.device)
        scores = self.products(q, descending)
        width = scores.shape[-1] - 1
        shifted = scores.flatten(-2)[..., length:]
        return shifted.view(*scores.shape[:-1], width)[..., :keys]

    def between(
        self, q: Float[Tensor, "b h i k"], keys: int, at: At, *, later: bool
    ) -> Float[Tensor, "b h i j"]:
        """Compute the scores of all distances that occur, then select each pair's score.

        Raises:
            ValueError: A query's position is not a whole number of key steps from the first key.
        """
        (first, stride), (first_key, step) = at
        length = q.shape[2]
        if at.queries == at.keys and length == keys:
            return self.in_order(q, keys, step, later=later)
        if stride % step or (first - first_key) % step:
            raise ValueError(
                "with relative positions, each query must be a whole number of key steps away from "
                f"the first key: got the positions {at}"
            )
        smallest = first - at.keys.last(keys)
        distances = torch.arange(
            smallest, at.queries.last(length) - first_key + 1, step, device=q.device
        )
        scores = self.products(q, distances)
        index = (at.distance(length, keys, q.device) - smallest) // step
        return scores.gather(-1, index.expand(*scores.shape[:3], -1))

    def products(
        self, q: Float[Tensor, "b h i k"], distance: Int[Tensor, " t"]
    ) -> Float[Tensor, "b h i t"]:
        """Return `scale` times q' . R_t, for every query q' and every distance t."""
        queries, vectors = self.meeting(q) * self.scale, self.vectors(distance).to(q.dtype)
        if len(vectors) == 1:  # all heads use the same vectors
            return queries @ vectors[0].mT
        # One product for all examples of a head, so that its vectors are not copied for each.
        rows = queries.transpose(0, 1).reshape(len(vectors), -1, queries.shape[-1])
        products = (rows @ vectors.mT).view(len(vectors), queries.shape[0], queries.shape[2], -1)
        return products.transpose(0, 1)


class ShawScores(VectorScores):
    """Shaw's relative positions: a learned vector for each distance up to `site.relative_distance`.

    Larger distances count as the largest one. Each layer has one table for all heads, drawn from
    N(0, 1/k). In a bidirectional model, each sign of the distance has separate vectors.

    Source: Shaw et al. 2018, arXiv:1803.02155, section 3.2. Differences: no vectors are added to
    values, which made no difference in the paper (table 3).
    """

    no_matrices = ("weight",)

    def __init__(self, site: Site) -> None:
        """Draw a vector for each distance from 0 (bidirectional: from -reach) to reach."""
        super().__init__()
        self.causal, self.scale = site.causal, site.head_width**-0.5
        self.reach = site.relative_distance
        rows = self.reach + 1 if site.causal else 2 * self.reach + 1
        self.weight = normal_parameter(site, (rows, site.head_width), site.head_width**-0.5)

    def vectors(self, distance: Int[Tensor, " t"]) -> Float[Tensor, "1 t k"]:
        """Look up the vector of each distance; they are the same for all heads."""
        smallest = 0 if self.causal else -self.reach
        return self.weight[distance.clamp(smallest, self.reach) - smallest][None]


class GlobalBiases(Roles):
    """Transformer-XL's u (`content`, for products with keys) and v (`position`, for distances)."""

    no_matrices = ("content", "position")

    def __init__(self, site: Site) -> None:
        super().__init__()
        shape = (site.heads, site.head_width)
        self.content, self.position = (normal_parameter(site, shape, 0.02) for _ in range(2))


class SinusoidScores(VectorScores):
    """Transformer-XL's relative positions: R_t = W_r r_t of a sinusoid r_t, and biases u and v.

        s_ij = ((q_i + u) . k_j + (q_i + v) . W_r r_{i-j}) / sqrt(k)

    Each layer has a separate W_r (Xavier-uniform, no bias); all layers share u and v (N(0, 0.02)),
    unless `untied`.

    Source: Dai et al. 2019, arXiv:1901.02860, section 3.3, and the code published with it;
    distances of both signs as in XLNet, arXiv:1906.08237.

    Args:
        site: Where it is built.
        untied: Whether this layer has separate u and v.
        dropout: Dropout of the sinusoids in training.
        clamp: Largest distance; larger ones count as this one. None: no limit.
        evaluation_clamp: The limit in evaluation; None: as in training.
    """

    def __init__(
        self,
        site: Site,
        *,
        untied: bool = False,
        dropout: float = 0.0,
        clamp: int | None = None,
        evaluation_clamp: int | None = None,
    ) -> None:
        """Make W_r; u and v come from the site, which shares them, unless they are `untied`."""
        super().__init__()
        self.clamp = clamp
        self.evaluation_clamp = clamp if evaluation_clamp is None else evaluation_clamp
        self.scale = site.head_width**-0.5
        self.width, self.heads = site.width, site.heads
        self.dropout = nn.Dropout(dropout)
        self.r_proj = projection(site.width, site.inner_width, bias=False)
        shared = site.share("positions.transformer_xl", lambda: GlobalBiases(site))
        self.biases = GlobalBiases(site) if untied else shared

    def queries(self, q: Float[Tensor, "b h l k"]) -> Float[Tensor, "b h l k"]:
        """Return q + u."""
        return q + self.biases.content[:, None].to(q.dtype)

    def meeting(self, q: Float[Tensor, "b h l k"]) -> Float[Tensor, "b h l k"]:
        """Return q + v."""
        return q + self.biases.position[:, None].to(q.dtype)

    def vectors(self, distance: Int[Tensor, " t"]) -> Float[Tensor, "h t k"]:
        """Return W_r r_t for each distance t, split into heads."""
        weight = self.r_proj.weight
        clamp = self.clamp if self.training else self.evaluation_clamp
        if clamp is not None:
            distance = distance.clamp(-clamp, clamp)
        r = sinusoid(distance, self.width, halves=True, dtype=precise(weight.dtype))
        projected: Tensor = self.r_proj(self.dropout(r.to(weight.dtype)))
        return projected.view(len(distance), self.heads, -1).transpose(0, 1)


def normal_parameter(site: Site, shape: tuple[int, ...], deviation: float) -> nn.Parameter:
    """Return a normal parameter with mean 0 and this standard deviation, from the site's generator.

    It is drawn on the CPU, then moved to the default device, so every device gets equal numbers.
    """
    table = torch.empty(shape, device="cpu").normal_(std=deviation, generator=site.generator)
    return nn.Parameter(table.to(torch.empty(()).device))


def relative_scores(site: Site) -> RelativeScores | None:
    """Return the module for `site.positions` (t5: one for all layers); None for other encodings."""
    makers: dict[Positions, Callable[[], RelativeScores]] = {
        Positions.t5: lambda: site.share("positions.t5", lambda: BucketScores(site)),
        Positions.shaw: lambda: ShawScores(site),
        Positions.transformer_xl: lambda: SinusoidScores(site),
    }
    make = makers.get(site.positions)
    return None if make is None else make()
