"""sLSTM (xLSTM): a recurrent network with exponential gates that read the previous output.

    i, f = W c_t + R h_(t-1) + b,   z, o = W x_t + R h_(t-1) + b,   c = silu(convolved(x))
    C_t = sigma(f) C_(t-1) + e^i tanh(z),   n_t = sigma(f) n_(t-1) + e^i,   h_t = sigma(o) C_t / n_t
    y = norm_h(h)

Each gate has separate maps W and R, which act within each head. norm_h normalises heads by mean and
variance.

Cost       Both maps of the gates in h heads take 16 d^2 / h operations a token, in n steps one
           after the other. State: 4 d numbers, and the last 3 inputs of the convolution.
Source     Beck et al. 2024, arXiv:2405.04517, equations 8 to 18 and figure 10, and its package,
           xlstm.
Notation   the paper's m, which bounds exponentials, is in `exponential_lstm`.
Published  The paper's models are causal, with 4 heads, convolutions of 4 taps, and without a map
           after the norm. Their blocks have LayerNorm, a gated feed-forward network with GELU,
           about 4/3 d wide, and no positions: model.backbone.positions=none.
"""

from dataclasses import replace
from enum import StrEnum, auto

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lra.models.mixer import Site
from lra.models.ops.block_map import BlockMap
from lra.models.ops.gated.head_norm import normed_heads
from lra.models.ops.gated.layer import Borders, GatedMixer, Parts, ShortConvolutions
from lra.models.ops.numerics import full_precision, sum_dtype
from lra.models.ops.recurrent.exponential_lstm import exponential_lstm
from lra.models.ops.recurrent.layer import BOTH_WAYS

EPSILON = 1e-5


class ForgetBias(StrEnum):
    """Initial biases of the forget gates of a head, from its first channel to its last."""

    powerlaw = auto()
    """From 5 to -7 by a power law, whose exponent rises from 0.3 in the first layer to 1.6 in the
    last."""
    linear = auto()
    """From 3 to 6, in equal steps."""


class RecurrentDraw(StrEnum):
    """Initial recurrent weights R, which map the last outputs to the gates."""

    zeros = auto()
    uniform = auto()
    """Uniform between -1 and 1, divided by the square root of the width."""


class SLSTM(GatedMixer):
    """A scalar memory with exponential gates.

    Args:
        convolution: Number of tokens that the short convolution before input and forget gates
            reads; None: no convolution and no SiLU.
        forget_bias: Initial biases of forget gates.
        recurrent: Initial recurrent weights R.
    """

    undecayed = ("bias",)
    needs = (BOTH_WAYS,)

    def __init__(
        self,
        site: Site,
        *,
        convolution: int | None = 4,
        forget_bias: ForgetBias = ForgetBias.powerlaw,
        recurrent: RecurrentDraw = RecurrentDraw.zeros,
        bidirectional: bool = True,
    ) -> None:
        """Make the maps and biases of the gates, with the initial values of the xlstm package."""
        super().__init__()
        width, self.heads, head = site.width, site.heads, site.head_width
        self.convolutions = ShortConvolutions([width], convolution, bias=True)
        deviation = (2 / (5 * width)) ** 0.5
        self.input_map, self.forget_map, self.cell_map, self.output_map = (
            BlockMap(width, head, deviation) for _ in range(4)
        )
        self.recurrent = nn.Parameter(torch.zeros(self.heads, head, 4, head))
        if recurrent == RecurrentDraw.uniform:
            nn.init.uniform_(self.recurrent, -(width**-0.5), width**-0.5)
        place = torch.linspace(0, 1, head)
        if forget_bias == ForgetBias.powerlaw:
            power = 0.3 + 1.3 * site.layer / max(1, site.depth - 1)
            biases = 5 - 12 * place**power
        else:
            biases = 3 + 3 * place
        self.bias = nn.Parameter(torch.zeros(4, self.heads, head))  # of i, f, z and o
        with torch.no_grad():
            self.bias[1] = biases
        self.norm_weight = nn.Parameter(torch.ones(width))
        self.complete(site, state=(4, self.heads, head), bidirectional=bidirectional)  # sets traits
        # All heads together are as wide as the model, because no projection follows them.
        self.traits = replace(self.traits, options=frozenset())

    def read(
        self, x: Float[Tensor, "b l d"], before: Parts, borders: Borders
    ) -> tuple[Float[Tensor, "b l d"], Parts]:
        """Return h of each token of `x`, after the state `before`, and the next state.

        A state has h, C, n, m and inputs of the convolution; `borders` has padding, documents.
        """
        state, *inputs = before
        (c,), tails = self.convolutions([x], inputs, borders, silu=True)
        mapped = (self.input_map(c), self.forget_map(c), self.cell_map(x), self.output_map(x))
        gates = torch.stack(mapped, 2).unflatten(-1, (self.heads, -1))  # type: ignore[no-untyped-call]
        with full_precision(x):
            dtype = sum_dtype(x)
            h, after = exponential_lstm(
                gates.to(dtype) + self.bias.to(dtype), self.recurrent, state,
                keep=borders.keep, begins=borders.begins(),
            )  # fmt: skip
        return h.flatten(2).to(x.dtype), (after, *tails)

    def merged(
        self, o: Float[Tensor, "b l d"], x: Float[Tensor, "b l d"]
    ) -> Float[Tensor, "b l d"]:
        """Norm each head of `o`."""
        heads = normed_heads(o.view(*o.shape[:-1], self.heads, -1), EPSILON)
        return heads.flatten(-2).to(x.dtype) * self.norm_weight.to(x.dtype)

    def empty(self, batch_size: int) -> Parts:
        """Return zeros for h, C, n and m, in float32 at least, and for the convolution."""
        shape, dtype = (batch_size, *self.state_shape), sum_dtype(self.bias)
        return self.bias.new_zeros(shape, dtype=dtype), *self.convolutions.empty(batch_size)
