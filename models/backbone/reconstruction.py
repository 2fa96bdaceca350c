"""From the last vector of a row back to all of its tokens (MAD, arXiv:2403.17844).

    y_t = z + p_t,  then twice  y <- GELU(W norm(y) + b),  then  norm(y)

z is the stack's output at the last token, p_t the sinusoid of position t. The head then gives the
token at t. So z must hold the whole row.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.backbone.heads import Pooling, pool
from lra.models.backbone.norms import NormKind, norm_of
from lra.models.backbone.placing import sinusoid_like
from lra.models.linear_map import projection


class RowDecoder(nn.Module):
    """Two maps that do not mix positions, each after a norm, and a last norm.

    Args:
        width: Number of channels, d.
        norm: Kind of the three norms.
        epsilon: Number that the norms add to the variance.
    """

    def __init__(self, width: int, norm: NormKind, epsilon: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norm_of(norm, width, epsilon) for _ in range(3))
        self.maps = nn.ModuleList(projection(width, width) for _ in range(2))

    def forward(
        self, x: Float[Tensor, "b l d"], keep: Bool[Tensor, "b l"] | None
    ) -> Float[Tensor, "b l d"]:
        """Return a vector for each position, from the vector at the last real token of `x` alone.

        `keep` is True for real tokens; None means that all are real.
        """
        position = torch.arange(x.shape[1], device=x.device)[None]
        y = pool(x, keep, Pooling.last)[:, None] + sinusoid_like(position, x)
        for norm, linear in zip(self.norms, self.maps, strict=False):
            y = F.gelu(linear(norm(y)))
        normed: Tensor = self.norms[-1](y)
        return normed
