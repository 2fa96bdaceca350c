"""The norm of what each head read, and the gate behind it: where gated recurrences end.

    y = norm_h(o) * act(gate)      each head by the root of its mean square, times weights

Variances are float32 at least; the weights are shared by all heads.
"""

from enum import StrEnum, auto

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.ops.numerics import full_precision, sum_dtype


class Gate(StrEnum):
    """Activation of an output gate."""

    none = auto()
    """No output gate."""
    silu = auto()
    sigmoid = auto()


def apply_gate(
    y: Float[Tensor, "*r e"], gate: Float[Tensor, "*r e"] | None, kind: Gate
) -> Float[Tensor, "*r e"]:
    """Return `y` times the activation of `gate`."""
    if gate is None or kind == Gate.none:
        return y
    return y * (F.silu(gate) if kind == Gate.silu else gate.sigmoid())


def normed_heads(
    o: Float[Tensor, "*r v"], epsilon: float, *, centred: bool = True
) -> Float[Tensor, "*r v"]:
    """Return the outputs `o` of heads, each divided by its deviation, in float32 or float64.

    Args:
        o: Outputs; the last axis has the channels of one head.
        epsilon: Added to the variance or the mean square.
        centred: Whether the mean is subtracted first (layer norm instead of RMSNorm).
    """
    norm = F.layer_norm if centred else F.rms_norm
    with full_precision(o):
        return norm(o.to(sum_dtype(o)), o.shape[-1:], eps=epsilon)


def unit_heads(x: Float[Tensor, "*r k"]) -> Float[Tensor, "*r k"]:
    """Return `x` divided by its Euclidean length over the last axis; zeros stay zeros."""
    wide = x.to(sum_dtype(x))
    return wide * (wide.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


class GatedHeadNorm(nn.Module):
    """Norm each head's channels, and gate them.

    Args:
        width: Channels of one head.
        gate: The activation of the gate.
        epsilon: Added to the mean square.
    """

    def __init__(self, width: int, *, gate: Gate = Gate.none, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.gate, self.epsilon = gate, epsilon
        self.weight = nn.Parameter(torch.ones(width))

    def forward(
        self, o: Float[Tensor, "*r e"], gate: Float[Tensor, "*r e"] | None = None
    ) -> Float[Tensor, "*r e"]:
        """Norm the channels of each head, concatenate the heads, and multiply by the gate."""
        heads = o.view(*o.shape[:-1], -1, len(self.weight))
        normed = normed_heads(heads, self.epsilon, centred=False)
        y = (normed * self.weight.to(normed.dtype)).to(o.dtype).flatten(-2)
        return apply_gate(y, gate, self.gate)
