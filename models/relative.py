"""What is added to attention scores by the distance of a query and a key.

A family whose scores are written out, and that names the encoding in `Traits.positions`, makes its
`RelativeScores` by `relative_scores` and adds them before the softmax; every other family is
refused by the model. ALiBi is of this kind, too, and older here: families keep its slopes.
"""

import math
from typing import Protocol, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from models.mixer import Positions, Site

BUCKETS, LONGEST = 32, 128
"""T5's, at every size: buckets of distances, and the distance from which all are one bucket."""


class RelativeScores(Protocol):
    """Scores by distance, and by the queries where an encoding uses them (Shaw, Transformer-XL)."""

    def __call__(
        self, q: Float[Tensor, "b h i k"], distance: Int[Tensor, "#b i j"]
    ) -> Float[Tensor, "#b h i j"]:
        """Return what is added; `distance` is the query's position less the key's."""
        ...


class BucketScores(nn.Module):
    """T5's: a learned number for each head and each bucket of distances.

    Half of the buckets are single distances, the other half grow as their logarithm; not causal,
    the two signs have half of the buckets each. Numbers are drawn from N(0, 1 / width).

    Source: Raffel et al. 2020, arXiv:1910.10683, section 2.1, and the code published with it.
    Differences: scores are divided by sqrt(k) before, as everywhere here; T5 does not.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.causal = site.causal
        # Drawn on the CPU, then where the module's parameters are: also the meta device.
        drawn = torch.empty(BUCKETS, site.heads, device="cpu")
        drawn.normal_(std=site.width**-0.5, generator=site.generator)
        self.weight = nn.Parameter(drawn.to(torch.empty(()).device))

    def forward(
        self, q: Float[Tensor, "b h i k"], distance: Int[Tensor, "#b i j"]
    ) -> Float[Tensor, "#b h i j"]:
        """Return the numbers of the buckets."""
        del q
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


def relative_scores(site: Site) -> nn.Module | None:
    """Return the scores of the site's encoding, one module for all layers; None: it has none."""
    if site.positions != Positions.t5:
        return None
    return cast(nn.Module, site.share("positions.t5", lambda: BucketScores(site)))
