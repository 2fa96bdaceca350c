"""What is added to attention scores by the distance of a query and a key.

A family whose scores are written out, and that names the encoding in `Traits.positions`, makes its
`RelativeScores` by `relative_scores` and adds them before the softmax; every other family is
refused by the model. ALiBi is of this kind, too, and older here: families keep its slopes.

What is added is scaled as scores are, by 1 / sqrt(k), already. Distances are the query's position
less the key's; those of keys that lie out of sight may be anything.

A key behind its query, at a negative distance, is in sight where a model looks both ways, and in
a causal one under a prefix mask. It adds what the encoding says of that distance, however many
tokens follow:

    transformer_xl   the vector of its sinusoid, R_-t
    shaw, t5         looking both ways, its own vector or bucket; causal, where the table has one
                     sign, that of distance 0, which all keys behind share
    alibi            what the key as far before adds
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lra.models.mixer import Positions, Roles, Site
from lra.models.positions import At, precise, sinusoid

BUCKETS, LONGEST = 32, 128
"""T5's, at every size: buckets of distances, and the distance from which all are one bucket."""


class RelativeScores(Roles, ABC):
    """Scores by distance, and by the queries where an encoding uses them (Shaw, Transformer-XL)."""

    def queries(self, q: Float[Tensor, "b h l k"]) -> Float[Tensor, "b h l k"]:
        """Return what meets the keys: the queries."""
        return q

    @abstractmethod
    def forward(
        self, q: Float[Tensor, "b h i k"], distance: Int[Tensor, "#b i j"], *, later: bool
    ) -> Float[Tensor, "#b h i j"]:
        """Return what is added for keys at any distances.

        Here and below, `later` says whether keys behind a query may be in sight.
        """

    def in_order(
        self, q: Float[Tensor, "b h i k"], keys: int, step: int = 1, *, later: bool
    ) -> Float[Tensor, "#b h i j"]:
        """Return what is added where `keys` follow one another and the last is the last query's.

        Neighbours are `step` positions from each other.
        """
        position = torch.arange(0, keys * step, step, device=q.device)
        distance = position[keys - q.shape[2] :, None] - position
        return cast(Tensor, self(q, distance[None], later=later))

    def between(
        self, q: Float[Tensor, "b h i k"], keys: int, at: At, *, later: bool
    ) -> Float[Tensor, "#b h i j"]:
        """Return what is added where queries and keys stand `at` steps of their own."""
        distance = at.distance(q.shape[2], keys, q.device)
        return cast(Tensor, self(q, distance[None], later=later))


class BucketScores(RelativeScores):
    """T5's: a learned number for each head and each bucket of distances.

    Half of the buckets are single distances, the other half grow as their logarithm; not causal,
    the two signs have half of the buckets each. Numbers are drawn from N(0, 1 / width).

    Source: Raffel et al. 2020, arXiv:1910.10683, section 2.1, and the code published with it.
    Differences: scores are divided by sqrt(k) before, as everywhere here; T5 does not.
    """

    no_matrices = ("weight",)

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.causal = site.causal
        self.weight = normal_parameter(site, (BUCKETS, site.heads), site.width**-0.5)

    def forward(
        self, q: Float[Tensor, "b h i k"], distance: Int[Tensor, "#b i j"], *, later: bool
    ) -> Float[Tensor, "#b h i j"]:
        """Return the numbers of the buckets."""
        del q, later
        return self.weight[bucket(distance, causal=self.causal)].movedim(-1, 1)


def bucket(
    distance: Int[Tensor, "*d"], *, causal: bool, buckets: int = BUCKETS, longest: int = LONGEST
) -> Int[Tensor, "*d"]:
    """Return the bucket of each distance; causal: keys that lie behind count as distance 0."""
    first = torch.zeros_like(distance)
    if causal:
        distance = distance.clamp(min=0)
    else:
        buckets //= 2
        first, distance = buckets * (distance < 0), distance.abs()
    single = buckets // 2
    grown = torch.log(distance.clamp(min=1).float() / single) / math.log(longest / single)
    far = (single + (grown * (buckets - single)).long()).clamp(max=buckets - 1)
    return first + torch.where(distance < single, distance, far)


class VectorScores(RelativeScores):
    """Scores q' . R_t by a vector R_t for each distance t; an encoding says q' and R."""

    scale: float

    @abstractmethod
    def vectors(self, distance: Int[Tensor, " t"]) -> Float[Tensor, "#h t k"]:
        """Return R of these distances."""

    def meeting(self, q: Float[Tensor, "b h l k"]) -> Float[Tensor, "b h l k"]:
        """Return what meets the vectors: the queries."""
        return q

    def forward(
        self, q: Float[Tensor, "b h i k"], distance: Int[Tensor, "#b i j"], *, later: bool
    ) -> Float[Tensor, "b h i j"]:
        """Meet the vectors of all distances that may be, and gather."""
        most = distance.shape[-1] - 1
        least = -most if later else 0
        scores = self.products(q, torch.arange(least, most + 1, device=q.device))
        index = distance.clamp(least, most) - least
        return scores.gather(-1, index[:, None].expand(*scores.shape[:3], -1))

    def in_order(
        self, q: Float[Tensor, "b h i k"], keys: int, step: int = 1, *, later: bool
    ) -> Float[Tensor, "b h i j"]:
        """Meet the vectors in falling order, and read each query's row one further to the left.

        The key of query i at j lies (keys - l + i - j) back, so that rows of l x (keys + 1) scores,
        read as rows of `keys` from the l-th on, stand in place: no score is copied.
        """
        length = q.shape[2]
        most, least = keys, 1 - length if later else 0
        falling = torch.arange(most * step, (least - 1) * step, -step, device=q.device)
        scores = self.products(q, falling)
        width = scores.shape[-1] - 1
        behind = scores.flatten(-2)[..., length:]
        return behind.view(*scores.shape[:-1], width)[..., :keys]

    def between(
        self, q: Float[Tensor, "b h i k"], keys: int, at: At, *, later: bool
    ) -> Float[Tensor, "b h i j"]:
        """Meet the vectors of all distances that there are, and gather.

        Raises:
            ValueError: Queries stand off the steps of the keys.
        """
        (first, stride), (first_key, step) = at
        length = q.shape[2]
        if at.queries == at.keys and length == keys:
            return self.in_order(q, keys, step, later=later)
        if stride % step or (first - first_key) % step:
            raise ValueError(
                "with relative positions, the position of each query must be a multiple of the "
                f"step between keys, counted from the first key: got {at}"
            )
        least = first - at.keys.last(keys)
        distances = torch.arange(
            least, at.queries.last(length) - first_key + 1, step, device=q.device
        )
        scores = self.products(q, distances)
        index = (at.distance(length, keys, q.device) - least) // step
        return scores.gather(-1, index.expand(*scores.shape[:3], -1))

    def products(
        self, q: Float[Tensor, "b h i k"], distance: Int[Tensor, " t"]
    ) -> Float[Tensor, "b h i t"]:
        """Meet every query with the vector of every distance."""
        met, vectors = self.meeting(q) * self.scale, self.vectors(distance).to(q.dtype)
        if len(vectors) == 1:
            return met @ vectors[0].mT
        # All queries of a head at once: its vectors are not copied for each example.
        rows = met.transpose(0, 1).reshape(len(vectors), -1, met.shape[-1])
        products = (rows @ vectors.mT).view(len(vectors), met.shape[0], met.shape[2], -1)
        return products.transpose(0, 1)


class ShawScores(VectorScores):
    """Shaw's: a learned vector for each distance up to `site.relative_distance`, both ways.

    Larger distances count as that one. One table for all heads, of each layer its own, N(0, 1/k).

    Source: Shaw et al. 2018, arXiv:1803.02155, section 3.2. Differences: values gain no vectors,
    which the paper found to make no difference (table 3); causal, distances have one sign.
    """

    no_matrices = ("weight",)

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.causal, self.scale = site.causal, site.head_width**-0.5
        self.reach = site.relative_distance
        rows = self.reach + 1 if site.causal else 2 * self.reach + 1
        self.weight = normal_parameter(site, (rows, site.head_width), site.head_width**-0.5)

    def vectors(self, distance: Int[Tensor, " t"]) -> Float[Tensor, "1 t k"]:
        """Look them up."""
        least = 0 if self.causal else -self.reach
        return self.weight[distance.clamp(least, self.reach) - least][None]


class GlobalBiases(Roles):
    """Transformer-XL's u and v: what queries gain before they meet keys, and distances."""

    no_matrices = ("content", "position")

    def __init__(self, site: Site) -> None:
        super().__init__()
        shape = (site.heads, site.head_width)
        self.content, self.position = (normal_parameter(site, shape, 0.02) for _ in range(2))


class SinusoidScores(VectorScores):
    """Transformer-XL's: R_t = W_r r_t of a sinusoid r_t, and two biases of the queries.

        s_ij = ((q_i + u) . k_j + (q_i + v) . W_r r_{i-j}) / sqrt(k)

    W_r is each layer's own, without bias, Xavier-uniform; u and v, N(0, 0.02), are the same in all
    layers unless `untied`.

    Source: Dai et al. 2019, arXiv:1901.02860, section 3.3, and the code published with it;
    distances of both signs as in XLNet, arXiv:1906.08237.

    Args:
        site: Where it is built.
        untied: Whether u and v are this layer's own.
        dropout: Of the sinusoids, while training.
        clamp: Larger distances count as this one; None: none does.
        evaluation_clamp: The same limit in evaluation; None: as in training.
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
        super().__init__()
        self.clamp = clamp
        self.evaluation_clamp = clamp if evaluation_clamp is None else evaluation_clamp
        self.scale = site.head_width**-0.5
        self.width, self.heads = site.width, site.heads
        self.dropout = nn.Dropout(dropout)
        self.r_proj = nn.Linear(site.width, site.inner_width, bias=False)
        nn.init.xavier_uniform_(self.r_proj.weight)
        shared = site.share("positions.transformer_xl", lambda: GlobalBiases(site))
        self.biases = GlobalBiases(site) if untied else shared

    def queries(self, q: Float[Tensor, "b h l k"]) -> Float[Tensor, "b h l k"]:
        """Return q + u."""
        return q + self.biases.content[:, None].to(q.dtype)

    def meeting(self, q: Float[Tensor, "b h l k"]) -> Float[Tensor, "b h l k"]:
        """Return q + v."""
        return q + self.biases.position[:, None].to(q.dtype)

    def vectors(self, distance: Int[Tensor, " t"]) -> Float[Tensor, "h t k"]:
        """Project the sinusoids, by head."""
        weight = self.r_proj.weight
        clamp = self.clamp if self.training else self.evaluation_clamp
        if clamp is not None:
            distance = distance.clamp(-clamp, clamp)
        r = sinusoid(distance, self.width, halves=True, dtype=precise(weight.dtype))
        projected: Tensor = self.r_proj(self.dropout(r.to(weight.dtype)))
        return projected.view(len(distance), self.heads, -1).transpose(0, 1)


def normal_parameter(site: Site, shape: tuple[int, ...], deviation: float) -> nn.Parameter:
    """Return numbers of the site's generator, drawn on the CPU, then where parameters are made."""
    table = torch.empty(shape, device="cpu").normal_(std=deviation, generator=site.generator)
    return nn.Parameter(table.to(torch.empty(()).device))


def relative_scores(site: Site) -> RelativeScores | None:
    """Return the scores of the site's encoding; None: it adds none, or ALiBi's."""
    makers: dict[Positions, Callable[[], RelativeScores]] = {
        Positions.t5: lambda: site.share("positions.t5", lambda: BucketScores(site)),
        Positions.shaw: lambda: ShawScores(site),
        Positions.transformer_xl: lambda: SinusoidScores(site),
    }
    make = makers.get(site.positions)
    return None if make is None else make()
