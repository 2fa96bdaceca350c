"""QRNN: convolutions compute all gates in parallel, then an elementwise recurrence.

    Z = tanh(W_z * X),  F = sigmoid(W_f * X),  O = sigmoid(W_o * X),  I = sigmoid(W_i * X)
    f:    c_t = f_t c_{t-1} + (1 - f_t) z_t,   h_t = c_t
    fo:   the same c_t,                        h_t = o_t c_t
    ifo:  c_t = f_t c_{t-1} + i_t z_t,         h_t = o_t c_t

where * is a convolution over the last `kernel` tokens. In the causal form, one layer reads from the
first token to the last. In the bidirectional form, the default, a second layer reads from the end,
and each has half the width.

Cost       Each direction takes 2 g k d h operations a token, with g = 2, 3 or 4 maps and k =
           `kernel`, in about 3 sqrt(n) steps one after the other. State: c and the last k - 1
           tokens.
Source     Bradbury et al. 2016, arXiv:1611.01576, equations 3 to 6; zoneout and biases are those of
           salesforce/pytorch-qrnn. Other regularisation is that of `lstm`, except DropConnect.
Published  The paper's models have no positions and no feed-forward networks, as in `lstm`. The
           language model of WikiText-103 in AWD-LSTM's code has kernel=[2,1,1,1] and
           hidden_width=2500.
Differs    In evaluation, zoneout multiplies 1 - f by its expected value, as that code does; ifo has
           no zoneout. Dense connections are unsupported.
"""

from enum import StrEnum, auto
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lra.models.mixer import Count, Need, Share, Site, State, options
from lra.models.ops.numerics import sum_dtype
from lra.models.ops.recurrent.layer import BOTH_WAYS, RecurrentMixer
from lra.models.ops.recurrent.linear_recurrence import linear_recurrence


class PoolingGates(StrEnum):
    """Gates of the recurrence: f (forget), fo (forget and output) or ifo (all three)."""

    f = auto()
    fo = auto()
    ifo = auto()


def gated_pooling(
    z: Float[Tensor, "b l h"],
    f: Float[Tensor, "b l h"],
    i: Float[Tensor, "b l h"],
    start: Float[Tensor, "b h"],
) -> Float[Tensor, "b l h"]:
    """Return c_t = f_t c_{t-1} + i_t z_t of every token, from c = `start`, at least in float32."""
    dtype = sum_dtype(z)
    return linear_recurrence(f.to(dtype), (i * z).to(dtype), start.to(dtype))


def last_tokens(
    x: Float[Tensor, "b l d"], before: Float[Tensor, "b m d"]
) -> Float[Tensor, "b l kd"]:
    """Return each token with the m tokens before it, concatenated along the width, oldest first.

    `before` has the m tokens before the first token of `x`.
    """
    context = torch.cat((before, x), dim=1)
    kernel, length = before.shape[1] + 1, x.shape[1]
    return torch.cat([context[:, shift : shift + length] for shift in range(kernel)], dim=-1)


class QRNNCells(nn.Module):
    """One layer that reads from the first token to the last.

    Args:
        width: Width of its inputs.
        hidden: Width of c and h.
        kernel: Number of tokens that a gate reads, including the current one.
        pooling: Gates of the recurrence.
        zoneout: Share of the cells that stay unchanged in a training pass.
    """

    def __init__(
        self, width: int, hidden: int, kernel: int, pooling: PoolingGates, zoneout: float
    ) -> None:
        """Make one map for all gates: Z and F, then O and I where `pooling` has them."""
        super().__init__()
        self.pooling, self.zoneout = pooling, zoneout
        self.width, self.hidden, self.kernel = width, hidden, kernel
        self.maps = {PoolingGates.f: 2, PoolingGates.fo: 3, PoolingGates.ifo: 4}[pooling]
        self.gates = nn.Linear(kernel * width, self.maps * hidden)

    def forward(
        self, x: Float[Tensor, "b l d"], state: State
    ) -> tuple[Float[Tensor, "b l h"], State]:
        """Return h of every token, and the state: the last c, and tokens that later gates read."""
        c, before = cast(tuple[Tensor, Tensor], self.empty(len(x)) if state is None else state)
        before = before.to(x.dtype)
        inputs = x if self.kernel == 1 else last_tokens(x, before)
        # `others` has O for fo, O and I for ifo.
        z, f, *others = self.gates(inputs).chunk(self.maps, dim=-1)
        z, f = z.tanh(), f.sigmoid()
        if self.pooling == PoolingGates.ifo:
            input_gate = others[1].sigmoid()
        else:
            input_gate = self._apply_zoneout(1 - f)
            f = 1 - input_gate
        cells = gated_pooling(z, f, input_gate, c)
        h = cells.to(z.dtype)
        if others:
            h = others[0].sigmoid() * h
        past = self.kernel - 1
        tail = torch.cat((before, x[:, -past:]), dim=1)[:, -past:] if past else before
        return h, (cells[:, -1].clone(), tail.clone())

    def _apply_zoneout(self, gate: Float[Tensor, "b l h"]) -> Float[Tensor, "b l h"]:
        """Return the input gate 1 - f, set to 0 where zoneout leaves a cell unchanged.

        In evaluation, return the mean over such draws.
        """
        if not self.zoneout:
            return gate
        if not self.training:
            return gate * (1 - self.zoneout)
        return gate * (torch.rand_like(gate) >= self.zoneout)

    def empty(self, batch_size: int) -> State:
        """Return zeros for c and for the tokens before the first."""
        like = self.gates.weight
        cells = like.new_zeros(batch_size, self.hidden, dtype=sum_dtype(like))
        return cells, like.new_zeros(batch_size, self.kernel - 1, self.width)


@options
class QRNN(RecurrentMixer):
    """One layer of a quasi-recurrent network, or one from each end."""

    pooling: PoolingGates = PoolingGates.fo
    kernel: list[Count] = [2]  # noqa: RUF012  read, never written
    zoneout: Share = 0.0
    noise = "zoneout"
    needs = (BOTH_WAYS, Need("zoneout", pooling=(PoolingGates.f, PoolingGates.fo)))

    def cell(self, site: Site, hidden: int) -> QRNNCells:
        """Return cells with states of width `hidden` and this layer's kernel size."""
        return QRNNCells(site.width, hidden, site.at(self.kernel), self.pooling, self.zoneout)
