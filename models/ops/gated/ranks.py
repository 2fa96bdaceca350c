"""Heads with several queries, keys and outputs per token: how they are made, and how merged.

    q_hr = rms(x_gr) * w + b_hr            for each head h of group g, and each rank r
    v_hr = E_hr * v_h
    y_h  = sum_r P_hr * silu(Z_hr * z_h) * norm_h(o_hr)

E and P start at 1 / R and Z at 1, for R ranks. They are absent for one rank.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.ops.gated.head_norm import GatedHeadNorm, normed_heads
from lra.models.ops.numerics import sum_dtype
from lra.models.tuning import Roles


class RankedHeads(Roles):
    """Norm the queries or keys of each group, copy them to its heads, and add biases.

    Args:
        heads: Number of heads.
        groups: Number of groups of heads, a divisor of `heads`.
        rank: Number of vectors per token.
        width: Channels of a vector.
    """

    no_matrices = ("bias",)

    def __init__(self, heads: int, groups: int, rank: int, width: int) -> None:
        super().__init__()
        self.shape = rank, groups, 1, width
        self.norm = GatedHeadNorm(width)
        self.bias = nn.Parameter(torch.ones(heads, rank, width))

    def forward(self, x: Float[Tensor, "b l e"]) -> Float[Tensor, "b h l r n"]:
        """Return the vectors of each head, in float32 or float64."""
        vectors: Tensor = self.norm(x.to(sum_dtype(x))).view(*x.shape[:2], *self.shape)
        bias = self.bias.to(vectors.dtype).view(self.shape[1], -1, 1, *self.bias.shape[1:])
        return (vectors.permute(0, 3, 4, 1, 2, 5).contiguous() + bias).flatten(1, 2)


class RankedOutputs(Roles):
    """Spread values over ranks, and gate, norm and merge the outputs of the ranks.

    Args:
        heads: Number of heads.
        rank: Number of inputs and outputs of a head per token.
        width: Channels of a head.
        norm: Whether the outputs of each head and rank are normed before the gate.
    """

    no_matrices = ("input_weight", "gate_weight", "output_weight", "norm_weight")

    def __init__(self, heads: int, rank: int, width: int, *, norm: bool) -> None:
        super().__init__()
        self.rank, self.heads = rank, heads
        shape = heads, rank, width
        self.norm_weight = nn.Parameter(torch.ones(heads, width)) if norm else None
        if rank > 1:
            self.input_weight = nn.Parameter(torch.full(shape, 1 / rank))
            self.gate_weight = nn.Parameter(torch.ones(shape))
            self.output_weight = nn.Parameter(torch.full(shape, 1 / rank))

    def spread(self, v: Float[Tensor, "b h l p"]) -> Float[Tensor, "b h l r p"]:
        """Return the values of each rank."""
        values = v[..., None, :]
        return values if self.rank == 1 else values * self.input_weight.to(v.dtype)[:, None]

    def forward(
        self, o: Float[Tensor, "b l f"], gate: Float[Tensor, "b l e"]
    ) -> Float[Tensor, "b l e"]:
        """Return the sum over ranks of the outputs `o`, behind norm and gate; f is R e."""
        o = o.view(*o.shape[:2], self.rank, self.heads, -1)
        if self.norm_weight is not None:
            o = (normed_heads(o, 1e-5, centred=False) * self.norm_weight).to(o.dtype)
        gate = gate.view(*gate.shape[:2], 1, self.heads, -1)
        if self.rank == 1:
            return (o * F.silu(gate)).flatten(2)
        gates, weights = (
            weight.transpose(0, 1).to(o.dtype) for weight in (self.gate_weight, self.output_weight)
        )
        return (o * F.silu(gate * gates) * weights).sum(2).flatten(2)
