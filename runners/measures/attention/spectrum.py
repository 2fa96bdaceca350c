"""How close attention is to low rank: its matrices, and the maps of its scores.

    spectrum      sum_{i <= k} s_i / sum_i s_i        s: singular values of a matrix of weights
    projections   sum_{i <= k} s_i^2 / sum_i s_i^2    s: of W_Q W_K^T, of one head, and of all
                                                      heads concatenated

The first, a mean over examples, is that of figure 1 of Wang et al. 2020, arXiv:2006.04768
(Linformer), who look at k = n / 4. The second is that of figure 1 of Cordonnier et al. 2020,
arXiv:2006.16362: W_Q of one head is [d, k], of all heads concatenated [d, h k], so that the
second product is the sum of those of the heads.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lra.models.backbone.attention_weights import attention_of
from lra.models.multi_head import MultiHead
from lra.runners.measures.attention.reading import KeptTokens
from lra.runners.records import Measurement

POINTS = 64
"""Fractions of all singular values at which a spectrum is stored."""
QUARTER = POINTS // 4


class Spectrum:
    """Means over examples of cumulated singular values."""

    def __init__(self) -> None:
        self.sums: dict[int, Tensor] = {}
        self.examples: dict[int, int] = {}

    def add(self, layer: int, weights: Float[Tensor, "b h l s"], rows: KeptTokens) -> None:
        """Add the weights of one layer; padding is excluded from a matrix."""
        for matrices, real in zip(weights, rows.real, strict=True):
            values = torch.linalg.svdvals(matrices[:, real][:, :, real])
            shares = (values.cumsum(-1) / values.sum(-1, keepdim=True)).cpu()
            count = shares.shape[-1]
            ends = [-(-count * point // POINTS) - 1 for point in range(1, POINTS + 1)]
            self.sums[layer] = self.sums.get(layer, 0) + shares[:, ends]
            self.examples[layer] = self.examples.get(layer, 0) + 1

    def measurements(self) -> Iterator[Measurement]:
        """Yield the spectrum of each head."""
        for layer, sums in sorted(self.sums.items()):
            for head, curve in enumerate((sums / self.examples[layer]).clamp(0, 1).tolist()):
                yield Measurement(
                    metric="singular_value_share",
                    value=curve[QUARTER - 1],
                    samples=tuple(round(share, 6) for share in curve),
                    labels={"layer": str(layer), "head": str(head)},
                )


class Energies(NamedTuple):
    """Captured energy of key-query products by the number of dimensions."""

    heads: Float[Tensor, "h k"]
    together: Float[Tensor, " m"]
    """Of all heads concatenated, m the smaller of d and h k."""


def energies(mixer: nn.Module) -> Energies | None:
    """Return the energies of a mixer's attention; None if it lacks two projections of this kind.

    The products are read off what the attention makes of unit vectors at position 0, less what it
    makes of zeros, which is due to biases and positions.
    """
    attention = attention_of(mixer)
    queries, keys = (getattr(attention, name, None) for name in ("q_proj", "k_proj"))
    if not (isinstance(queries, nn.Linear) and isinstance(keys, nn.Linear)):
        return None
    if not isinstance(attention, MultiHead):
        return None
    width = queries.in_features
    unit = torch.eye(width, dtype=queries.weight.dtype, device=queries.weight.device)[:, None]
    with torch.no_grad():
        w_q, w_k = (
            (project(unit, None) - project(torch.zeros_like(unit), None))[:, :, 0]
            .transpose(0, 1)
            .double()
            for project in (attention.queries, attention.keys)
        )
    w_k = w_k.repeat_interleave(len(w_q) // len(w_k), dim=0)
    products = w_q @ w_k.mT
    few = min(attention.key_width, width)
    whole = min(len(w_q) * attention.key_width, width)
    return Energies(_energy(products)[:, :few].cpu(), _energy(products.sum(0))[:whole].cpu())


def _energy(matrix: Float[Tensor, "*n d d"]) -> Float[Tensor, "*n d"]:
    squares = torch.linalg.svdvals(matrix).square()
    shares: Tensor = squares.cumsum(-1) / squares.sum(-1, keepdim=True)
    return shares.clamp(0, 1)


def projection_rows(mixers: dict[int, nn.Module]) -> Iterator[Measurement]:
    """Yield the energy curves of each layer that has them."""
    for layer, mixer in mixers.items():
        curves = energies(mixer)
        if curves is None:
            continue
        named = {str(head): curve for head, curve in enumerate(curves.heads)}
        for head, curve in {**named, "all": curves.together}.items():
            quarter = max(0, -(-len(curve) // 4) - 1)
            yield Measurement(
                metric="projection_energy",
                value=float(curve[quarter]),
                samples=tuple(round(float(share), 6) for share in curve),
                labels={"layer": str(layer), "head": head},
            )
