"""The position-wise network of a block, with whole or grouped maps.

    y = W_2 act(W_1 x + b_1) + b_2                              two maps
    y = W_2 (silu(W_1 x + b_1) * (W_3 x + b_3)) + b_2           SwiGLU: a third one, which is gated
    y = W_2 (gelu(W_1 x + b_1) * (W_3 x + b_3)) + b_2           GeGLU

The inner width is the width of W_2's input. SwiGLU has 1.5 times the weights of two maps of equal
inner width. Source: Shazeer 2020, arXiv:2002.05202, equation 6 (without biases there).

In a linear map with g groups, each contiguous part of the channels has a separate matrix:

    y = [x_1 W_1 ; … ; x_g W_g] + b,   W_i: in / g -> out / g

This is a map with a block-diagonal matrix. It has 1 / g of the weights and of the operations.
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

from lra.models.linear_map import LinearMap


class GroupedLinear(nn.Module):
    """A linear map with a separate matrix for each group of channels.

    Matrices are drawn Xavier-uniform, and the bias is zeros.

    Args:
        inputs: Number of input channels.
        outputs: Number of output channels.
        groups: Number of groups, which must divide both.
        bias: Whether the outputs have a bias.

    Raises:
        ValueError: `groups` does not divide `inputs` and `outputs`.
    """

    def __init__(self, inputs: int, outputs: int, groups: int, *, bias: bool = True) -> None:
        super().__init__()
        if inputs % groups or outputs % groups:
            raise ValueError(
                f"groups={groups} must divide the numbers of input and output channels: got "
                f"{inputs} and {outputs}"
            )
        self.weight = nn.Parameter(torch.empty(groups, outputs // groups, inputs // groups))
        for matrix in self.weight.unbind():
            nn.init.xavier_uniform_(matrix)
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x: Float[Tensor, "*items d"]) -> Float[Tensor, "*items k"]:
        """Return the k output channels: multiply each group of input channels by its matrix."""
        groups, group_outputs, group_inputs = self.weight.shape
        parts = x.reshape(math.prod(x.shape[:-1]), groups, group_inputs).transpose(0, 1)
        y = torch.bmm(parts, self.weight.mT).transpose(0, 1)
        y = y.reshape(*x.shape[:-1], groups * group_outputs)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def extra_repr(self) -> str:
        """Return sizes and options, for PyTorch's printout of a model."""
        groups, group_outputs, group_inputs = self.weight.shape
        inputs, outputs = groups * group_inputs, groups * group_outputs
        return f"{inputs}, {outputs}, groups={groups}, bias={self.bias is not None}"


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
    geglu = auto()
    """GELU of one map times another, as in Zamba2."""
    geglu_tanh = auto()
    """As geglu, with GELU approximated by tanh, as in Griffin and Gemma."""
    relu_squared = auto()
    """ReLU(x) squared, as in Primer (arXiv:2109.08668) and Nemotron."""
    identity = auto()
    """No maps: the block adds the norm of its sum to it, as Zoology's models do."""
    none = auto()
    """For mixers that include a network."""


WITHOUT_MAPS = frozenset({FeedForward.identity, FeedForward.none})


class SquaredReLU(nn.Module):
    """The square of ReLU."""

    def forward(self, x: Float[Tensor, "*items d"]) -> Float[Tensor, "*items d"]:
        """Return the square of the positive part of `x`."""
        return F.relu(x).square()


ACTIVATIONS: Mapping[FeedForward, Callable[[], nn.Module]] = {
    FeedForward.gelu: nn.GELU,
    FeedForward.gelu_tanh: partial(nn.GELU, "tanh"),
    FeedForward.relu: nn.ReLU,
    FeedForward.silu: nn.SiLU,
    FeedForward.relu_squared: SquaredReLU,
}
GATES: Mapping[FeedForward, Callable[[Tensor], Tensor]] = {
    FeedForward.swiglu: F.silu,
    FeedForward.geglu: F.gelu,
    FeedForward.geglu_tanh: partial(F.gelu, approximate="tanh"),
}
"""Activation of the gate, for networks with a third map."""


class GatedMaps(nn.Module):
    """act(gate) * value: two maps of the same input, multiplied.

    Args:
        gate: The map whose output goes through the activation.
        value: The map whose output is multiplied by it.
        act: The activation.
    """

    def __init__(
        self, gate: nn.Module, value: nn.Module, act: Callable[[Tensor], Tensor] = F.silu
    ) -> None:
        super().__init__()
        self.gate, self.value, self.act = gate, value, act

    def forward(self, x: Float[Tensor, "*items d"]) -> Float[Tensor, "*items k"]:
        """Apply both maps and multiply the results."""
        gated: Tensor = self.act(self.gate(x)) * self.value(x)
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

    A network of `GATES` has `GatedMaps` in place of the first two. If `groups` is above 1, the maps
    are `GroupedLinear`. Weights are Xavier-uniform, biases zero.

    Raises:
        ValueError: `kind` is none, or `groups` does not divide `width` and `hidden`.
    """
    if kind == FeedForward.none:
        raise ValueError("network_of builds a network: got feed_forward=none; choose another kind")
    if kind == FeedForward.identity:
        return nn.Sequential()
    inward, outward = (width, hidden), (hidden, width)
    ends = (inward, inward, outward) if kind in GATES else (inward, outward)
    *first, last = (
        _make_linear_maps(*ends, bias=bias)
        if groups == 1
        else [GroupedLinear(*end, groups, bias=bias) for end in ends]
    )
    if kind in GATES:
        return nn.Sequential(GatedMaps(first[0], first[1], GATES[kind]), nn.Dropout(dropout), last)
    return nn.Sequential(*first, ACTIVATIONS[kind](), nn.Dropout(dropout), last)


def _make_linear_maps(*ends: tuple[int, int], bias: bool) -> Sequence[nn.Module]:
    """Return a linear map for each pair of widths (input, output), Xavier-uniform."""
    layers = [LinearMap(inputs, outputs, bias) for inputs, outputs in ends]
    # After all constructors: these draw weights, too, and the order of draws decides the weights.
    for layer in layers:
        layer.draw()
    return layers
