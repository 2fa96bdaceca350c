"""How close attention is to low rank: its matrices, and the products of its projections.

    spectrum      sum_{i <= k} s_i / sum_i s_i        s: singular values of an attention matrix
    projections   sum_{i <= k} s_i^2 / sum_i s_i^2    s: singular values of W_Q W_K^T, for one head
                                                      and for all heads concatenated

The spectrum is a mean over examples, as in figure 1 of Wang et al. 2020, arXiv:2006.04768
(Linformer), who report k = n / 4. The projections are as in figure 1 of Cordonnier et al. 2020,
arXiv:2006.16362. W_Q of one head is [d, k], and of all heads concatenated [d, h k], so the product
for all heads is the sum of the products of the heads.
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
"""A spectrum is stored at so many points: the largest 1/64, 2/64, … of all singular values."""
QUARTER = POINTS // 4
"""Number of the point for the largest quarter of all singular values."""


class Spectrum:
    """Cumulated singular values of attention matrices, averaged over the added examples."""

    def __init__(self) -> None:
        self.sums: dict[int, Tensor] = {}
        self.examples: dict[int, int] = {}

    def add(self, layer: int, weights: Float[Tensor, "b h l s"], rows: KeptTokens) -> None:
        """Add the weights of one layer for one batch; padding is cut from each matrix."""
        for matrices, real in zip(weights, rows.real, strict=True):
            values = torch.linalg.svdvals(matrices[:, real][:, :, real])
            shares = (values.cumsum(-1) / values.sum(-1, keepdim=True)).cpu()
            count = shares.shape[-1]
            # Matrices differ in size, so curves are added at equal fractions of their sizes.
            # Index of the last of the ceil(count point / POINTS) largest values, from 0.
            indices = [-(-count * point // POINTS) - 1 for point in range(1, POINTS + 1)]
            self.sums[layer] = self.sums.get(layer, 0) + shares[:, indices]
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
    """Fraction of the squared singular values of W_Q W_K^T in the first 1, 2, … dimensions."""

    heads: Float[Tensor, "h k"]
    """The fractions of each head."""
    together: Float[Tensor, " m"]
    """The fractions for all heads concatenated; m is the smaller of d and h k."""


def energies(mixer: nn.Module) -> Energies | None:
    """Return the energies of the product W_Q W_K^T of each head of a mixer, and of all heads.

    None is returned if the mixer has no linear maps to queries and keys. The maps are read from the
    queries and keys of unit vectors at position 0, minus those of zeros, so that biases cancel.
    """
    attention = attention_of(mixer)
    queries, keys = (getattr(attention, name, None) for name in ("q_proj", "k_proj"))
    if not (isinstance(queries, nn.Linear) and isinstance(keys, nn.Linear)):
        return None
    if not isinstance(attention, MultiHead):
        return None
    width = queries.in_features
    # [d, 1, d]: d sequences of one unit vector; the projections of all heads become [h, d, k].
    unit = torch.eye(width, dtype=queries.weight.dtype, device=queries.weight.device)[:, None]
    with torch.no_grad():
        w_q, w_k = (
            (project(unit, None) - project(torch.zeros_like(unit), None))[:, :, 0]
            .transpose(0, 1)
            .double()
            for project in (attention.queries, attention.keys)
        )
    w_k = w_k.repeat_interleave(len(w_q) // len(w_k), dim=0)  # heads may share keys
    products = w_q @ w_k.mT
    head_rank = min(attention.key_width, width)
    joint_rank = min(len(w_q) * attention.key_width, width)
    return Energies(
        _compute_energy(products)[:, :head_rank].cpu(),
        _compute_energy(products.sum(0))[:joint_rank].cpu(),
    )


def _compute_energy(matrix: Float[Tensor, "*n d d"]) -> Float[Tensor, "*n d"]:
    """Return sum_{i <= k} s_i^2 / sum_i s_i^2 for k = 1 … d, with the singular values s."""
    squares = torch.linalg.svdvals(matrix).square()
    shares: Tensor = squares.cumsum(-1) / squares.sum(-1, keepdim=True)
    return shares.clamp(0, 1)


def projection_rows(mixers: dict[int, nn.Module]) -> Iterator[Measurement]:
    """Yield the energy curve of each head and of all heads (`all`), for layers that have one.

    The value of a row is the energy in a quarter of the dimensions; its samples are the curve.
    """
    for layer, mixer in mixers.items():
        curves = energies(mixer)
        if curves is None:
            continue
        named = {str(head): curve for head, curve in enumerate(curves.heads)}
        for head, curve in {**named, "all": curves.together}.items():
            quarter = max(0, -(-len(curve) // 4) - 1)  # index, from 0, of the quarter rounded up
            yield Measurement(
                metric="projection_energy",
                value=float(curve[quarter]),
                samples=tuple(round(float(share), 6) for share in curve),
                labels={"layer": str(layer), "head": head},
            )
