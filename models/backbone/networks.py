"""The position-wise network of a block, with whole or grouped maps.

    y = W_2 act(W_1 x + b_1) + b_2                              two maps
    y = W_2 (silu(W_1 x + b_1) * (W_3 x + b_3)) + b_2           SwiGLU: a third one, which is gated

The inner width is what W_2 reads; SwiGLU has half as many weights again as two maps of that width.
Source: Shazeer 2020, arXiv:2002.05202, equation 6 (whose maps have no biases).

A linear map in groups: contiguous parts of the channels, each with a matrix of its own.

    y = [x_1 W_1 ; … ; x_g W_g] + b,   W_i: in / g -> out / g

It is a linear map whose matrix is block-diagonal, with a g-th of the weights and of the products.
Source: Jiang et al. 2020, arXiv:2008.02496, section 3.2 (ConvBERT's grouped linear operator).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum, auto
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


class GroupedLinear(nn.Module):
    """Each part of the channels by its own matrix; Xavier weights by group, zero biases if any.

    Args:
        inputs: Channels that come in.
        outputs: Channels that go out.
        groups: How many parts both are cut into.
        bias: Whether there is one, over all outputs.

    Raises:
        ValueError: `groups` does not divide both.
    """

    def __init__(self, inputs: int, outputs: int, groups: int, *, bias: bool = True) -> None:
        super().__init__()
        if inputs % groups or outputs % groups:
            raise ValueError(
                f"groups={groups} must divide the inputs and the outputs: got {inputs} and "
                f"{outputs}"
            )
        self.weight = nn.Parameter(torch.empty(groups, outputs // groups, inputs // groups))
        for matrix in self.weight.unbind():
            nn.init.xavier_uniform_(matrix)
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x: Float[Tensor, "*items d"]) -> Float[Tensor, "*items k"]:
        """Map every part of the channels by its matrix."""
        groups, out, wide = self.weight.shape
        parts = x.reshape(math.prod(x.shape[:-1]), groups, wide).transpose(0, 1)
        y = torch.bmm(parts, self.weight.mT).transpose(0, 1)
        y = y.reshape(*x.shape[:-1], groups * out)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def extra_repr(self) -> str:
        """Return its sizes, for a printed model."""
        groups, out, wide = self.weight.shape
        return f"{groups * wide}, {groups * out}, groups={groups}, bias={self.bias is not None}"


class FeedForward(StrEnum):
    """The position-wise network of a block."""

    gelu = auto()
    gelu_tanh = auto()
    """GELU approximated by tanh, as in GPT-2."""
    relu = auto()
    """ReLU, as in the first Transformers."""
    silu = auto()
    """x sigmoid(x), also called Swish."""
    swiglu = auto()
    """SiLU of one map times another, as in Llama: three maps instead of two."""
    none = auto()
    """For mixers that include a network."""


ACTIVATIONS: Mapping[FeedForward, Callable[[], nn.Module]] = {
    FeedForward.gelu: nn.GELU,
    FeedForward.gelu_tanh: partial(nn.GELU, "tanh"),
    FeedForward.relu: nn.ReLU,
    FeedForward.silu: nn.SiLU,
}


class GatedMaps(nn.Module):
    """silu(gate) * value: two maps of the same input, multiplied.

    Args:
        gate: The map behind which SiLU stands.
        value: The map that is gated.
    """

    def __init__(self, gate: nn.Module, value: nn.Module) -> None:
        super().__init__()
        self.gate, self.value = gate, value

    def forward(self, x: Float[Tensor, "*items d"]) -> Float[Tensor, "*items k"]:
        """Apply both maps and multiply the results."""
        gated: Tensor = F.silu(self.gate(x)) * self.value(x)
        return gated


def network_of(
    width: int,
    hidden: int,
    dropout: float,
    *,
    kind: FeedForward = FeedForward.gelu,
    bias: bool = True,
    groups: int = 1,
) -> nn.Sequential:
    """Return the network Linear-activation-dropout-Linear, drawn from the global random state.

    SwiGLU has `GatedMaps` in place of the first two. With `groups`, maps are `GroupedLinear`.
    Weights are Xavier-uniform, biases zero.

    Raises:
        ValueError: `kind` is none, or groups do not divide both widths.
    """
    if kind == FeedForward.none:
        raise ValueError("feed_forward=none has no network: got a call for one")
    inward, outward = (width, hidden), (hidden, width)
    ends = (inward, inward, outward) if kind == FeedForward.swiglu else (inward, outward)
    *first, last = (
        _dense(*ends, bias=bias)
        if groups == 1
        else [GroupedLinear(*end, groups, bias=bias) for end in ends]
    )
    if kind == FeedForward.swiglu:
        return nn.Sequential(GatedMaps(*first), nn.Dropout(dropout), last)
    return nn.Sequential(*first, ACTIVATIONS[kind](), nn.Dropout(dropout), last)


def _dense(*ends: tuple[int, int], bias: bool) -> Sequence[nn.Module]:
    layers = [nn.Linear(inputs, outputs, bias) for inputs, outputs in ends]
    for layer in layers:  # behind all constructors, which draw as well
        nn.init.xavier_uniform_(layer.weight)
        if bias:
            nn.init.zeros_(layer.bias)
    return layers
