"""The norms of a stack."""

from collections.abc import Mapping
from enum import StrEnum, auto
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.tuning import Tuning

NORM_EPSILON = 1e-5
"""Number that norms add to the variance, unless you set `norm_epsilon`."""


Condition: TypeAlias = Float[Tensor, "b d"] | None
"""The vector of each row for conditional norms; None: no norm is conditional."""


class NormKind(StrEnum):
    """Over which axes vectors are normed, and what is learned."""

    layer = auto()
    """Mean 0 and variance 1 over the channels, then a scale and a shift for each."""
    rms = auto()
    """Mean square 1 over the channels, then a scale for each (arXiv:1910.07467)."""
    scale = auto()
    """Mean square 1 over the channels, then one scale (ScaleNorm, arXiv:1910.05895)."""
    batch = auto()
    """Mean 0 and variance 1 over all positions of all examples; in evaluation, by running means."""
    conditional = auto()
    """As layer, but scale and shift also depend linearly on the condition of the row."""


class ScaleNorm(nn.Module):
    """s x / sqrt(mean of x^2 + epsilon): the paper's g x / |x| with g = s sqrt(d), s = 1 at first.

    Args:
        epsilon: Added to the mean square.
    """

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Float[Tensor, "*items d"]) -> Float[Tensor, "*items d"]:
        """Norm each vector of d channels; the mean is computed in float32 or float64."""
        square = x.to(torch.promote_types(x.dtype, torch.float32)).square()
        inverse = (square.mean(-1, keepdim=True) + self.epsilon).rsqrt()
        return x * (inverse * self.weight).to(x.dtype)


class PreciseRMSNorm(nn.RMSNorm):
    """RMSNorm in the precision of its weights, also under autocast."""

    def forward(self, x: Float[Tensor, "*items d"]) -> Float[Tensor, "*items d"]:
        """Norm each vector of d channels."""
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


class TokenBatchNorm(nn.BatchNorm1d):
    """Batch normalisation (arXiv:1502.03167) of vectors along a length, padding included."""

    def forward(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        """Norm each channel over all b x l vectors; ValueError in training if there is only one."""
        if not x.numel():
            return x
        return super().forward(x.flatten(0, 1)).view_as(x)


class ConditionalNorm(nn.LayerNorm):
    """Layer norm with scale g + A c and shift b + B c, for the condition vector c of a row.

    A and B start as zeros, so it starts as the plain layer norm. As g and b, they never decay.

    Args:
        width: Channels of the tokens, and of c.
        epsilon: Added to the variance.
    """

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__(width, epsilon)
        self.scale_map = nn.Parameter(torch.zeros(width, width))
        self.shift_map = nn.Parameter(torch.zeros(width, width))

    def tuning(self) -> Mapping[str, Tuning]:
        """Return that the maps never decay, and so stay zeros under `initial_deviation`."""
        return dict.fromkeys(("scale_map", "shift_map"), Tuning(weight_decay=0.0, matrix=False))

    def forward(  # type: ignore[override]
        self, x: Float[Tensor, "b l d"], condition: Float[Tensor, "b d"]
    ) -> Float[Tensor, "b l d"]:
        """Norm each vector of d channels; scale and shift it by the condition of its row."""
        scale = self.weight + F.linear(condition, self.scale_map)
        shift = self.bias + F.linear(condition, self.shift_map)
        plain = F.layer_norm(x, self.normalized_shape, eps=self.eps)
        return plain * scale[:, None] + shift[:, None]


def apply_norm(
    norm: nn.Module, x: Float[Tensor, "b l d"], condition: Condition
) -> Float[Tensor, "b l d"]:
    """Return `norm(x)`; a conditional norm also reads the `condition` of each row."""
    y: Tensor = norm(x, condition) if isinstance(norm, ConditionalNorm) else norm(x)
    return y


def norm_of(kind: NormKind, width: int, epsilon: float) -> nn.Module:
    """Return a norm of this kind for vectors of `width` channels."""
    match kind:
        case NormKind.layer:
            return nn.LayerNorm(width, epsilon)
        case NormKind.rms:
            return nn.RMSNorm(width, epsilon)
        case NormKind.scale:
            return ScaleNorm(epsilon)
        case NormKind.batch:
            return TokenBatchNorm(width, epsilon)
        case NormKind.conditional:
            return ConditionalNorm(width, epsilon)
