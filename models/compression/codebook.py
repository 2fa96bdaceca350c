"""A codebook for each matrix: 8-bit codes of up to 256 numbers, found by k-means.

    min over centres c and codes z of  sum_n (w_n - c[z_n])^2,        z_n < 256

by Lloyd's rounds from the quantiles of the matrix's distinct numbers; on a line the nearest centre
is found by the midpoints between neighbours. A matrix of at most 256 distinct numbers comes back as
it was.

Source: the 8-bit k-means of Lite Transformer (Wu et al. 2020, arXiv:2004.11886), after Han et al.
2015, arXiv:1510.00149.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from lra.models.backbone.model import Backbone
from lra.models.compression.linear_maps import replace_maps

CENTRES = 256
ROUNDS = 50
"""At most; fewer where no code changes."""


def codebook(
    x: Float[Tensor, "*n"], *, centres: int = CENTRES, rounds: int = ROUNDS
) -> tuple[UInt8[Tensor, "*n"], Float[Tensor, " c"]]:
    """Return the code of every number, and the centres, ascending.

    Args:
        x: Numbers.
        centres: At most, up to 256.
        rounds: Of Lloyd's algorithm, at most.

    Raises:
        ValueError: More centres than 8 bits tell apart, or none.
    """
    if not 1 <= centres <= CENTRES:
        raise ValueError(f"centres of 8 bits are 1 to {CENTRES}: got {centres}")
    flat = x.detach().flatten().double()
    distinct = torch.unique(flat)  # sorted
    if len(distinct) <= centres:
        centre_values, codes = distinct, torch.searchsorted(distinct, flat)
        return codes.to(torch.uint8).view(x.shape), centre_values.to(x.dtype)
    at = torch.linspace(0, len(distinct) - 1, centres, dtype=torch.float64).round().long()
    centre_values = distinct[at]
    codes = _nearest(flat, centre_values)
    for _ in range(rounds):
        counts = torch.zeros_like(centre_values).index_add_(0, codes, torch.ones_like(flat))
        sums = torch.zeros_like(centre_values).index_add_(0, codes, flat)
        centre_values = torch.where(counts > 0, sums / counts.clamp_min(1), centre_values)
        before, codes = codes, _nearest(flat, centre_values)
        if torch.equal(before, codes):
            break
    return codes.to(torch.uint8).view(x.shape), centre_values.to(x.dtype)


def _nearest(x: Float[Tensor, " n"], centres: Float[Tensor, " c"]) -> Tensor:
    return torch.searchsorted((centres[1:] + centres[:-1]) / 2, x)


class CodebookLinear(nn.Module):
    """A linear map with codes of its weights: `codes` and `centres` are what is stored."""

    codes: Tensor
    centres: Tensor

    def __init__(self, layer: nn.Linear, centres: int = CENTRES) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        codes, centre_values = codebook(layer.weight, centres=centres)
        self.register_buffer("codes", codes)
        self.register_buffer("centres", centre_values)
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach().clone())

    @property
    def weight(self) -> Float[Tensor, "o i"]:
        """The matrix that the codes stand for."""
        return self.centres[self.codes.int()]

    def forward(self, x: Float[Tensor, "*n i"]) -> Float[Tensor, "*n o"]:
        """Return the product."""
        return F.linear(x, self.weight, self.bias)


def code_weights(model: Backbone, centres: int = CENTRES) -> list[str]:
    """Put maps with codebooks in the place of a model's linear maps; return their names."""
    return replace_maps(model, lambda layer: CodebookLinear(layer, centres))
