"""RG-LRU: an elementwise recurrence with gates for decay and input, in the block of Griffin.

    h_t = a_t h_(t-1) + sqrt(1 - a_t^2) (i_t * u_t),   a_t = exp(-8 softplus(l) r_t)
    y = W_O (gelu(W_Y x) * h),   u = convolved(W_X x),   r = sigma(W_R u),   i = sigma(W_I u)

W_R and W_I have one block for each head, and biases. At the first token of a row or document, 1
takes the place of the root. exp(-softplus(l)) is the root of a number drawn uniformly from [0.9^2,
0.999^2]. GELU is approximated by tanh. The bidirectional form, the default, reads the sequence from
both ends and adds the outputs h.

Cost       The projections take 6 d e operations a token and the gates 4 e k, where e is the width
           of all heads and k that of one. The scan takes about 3 sqrt(n) steps one after the other.
           State: e numbers, a mark of the first token, and the last 3 inputs of the convolution.
Source     De et al. 2024, arXiv:2402.19427; the first token as in the code,
           google-deepmind/recurrentgemma.
Notation   the paper's Lambda is l (`decay`), its c is 8.
Published  Griffin is causal, with biases and convolutions of 4 taps with biases, and as many blocks
           as heads of attention. A layer of local attention follows two such layers.
"""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import Site, options
from lra.models.ops.block_map import BlockMap
from lra.models.ops.gated.layer import Borders, Parts, Recurrence, ShortConvolutions
from lra.models.ops.numerics import full_precision, sum_dtype
from lra.models.ops.recurrent.linear_recurrence import linear_recurrence

RATE = 8.0
"""Factor of the logarithm of a channel's decay where its gate is 1."""


@options
class RGLRU(Recurrence):
    """A gated linear recurrence between two projections, with gates of one block a head."""

    convolution: int | None = 4
    """Number of tokens that the short convolution reads; None: no convolution."""
    undecayed = ("decay", "decay_bias", "input_bias")

    def build(self, site: Site) -> None:
        """Make projections, gates, the convolution, and the decays."""
        width = site.inner_width
        self.gate_proj, self.input_proj = self.projections(site, width, width)
        self.convolutions = ShortConvolutions([width], self.convolution, bias=True)
        deviation = site.head_width**-0.5
        self.decay_map, self.input_map = (
            BlockMap(width, site.head_width, deviation) for _ in range(2)
        )
        self.decay_bias, self.input_bias = (nn.Parameter(torch.zeros(width)) for _ in range(2))
        rates = -0.5 * torch.empty(width).uniform_(0.9**2, 0.999**2).log()  # softplus(l)
        self.decay = nn.Parameter(rates.expm1().log())
        self.out_proj = self.projection_back(site, width)
        # The last number of a state marks that a token was read.
        self.complete(site, state=(width + 1,), bidirectional=self.bidirectional)  # sets traits

    def read(
        self, x: Float[Tensor, "b l d"], before: Parts, borders: Borders
    ) -> tuple[Float[Tensor, "b l e"], Parts]:
        """Return h at each token of `x`, after the state `before`, and the next state."""
        state, *inputs = before
        (u,), tails = self.convolutions([self.input_proj(x)], inputs, borders)
        decay_logits, input_logits = self.decay_map(u), self.input_map(u)
        with full_precision(x):
            dtype = sum_dtype(x)
            gate = (decay_logits.to(dtype) + self.decay_bias.to(dtype)).sigmoid()
            log_a = -RATE * F.softplus(self.decay.to(dtype)) * gate
            driven = (input_logits.to(dtype) + self.input_bias.to(dtype)).sigmoid() * u.to(dtype)
            first = torch.zeros_like(log_a[..., :1], dtype=torch.bool)
            if (begins := borders.begins()) is not None:
                first = begins[..., None]
            opening = F.pad(state[:, None, -1:] == 0, (0, 0, 0, x.shape[1] - 1))
            root = (-torch.expm1(2 * log_a)).clamp_min(1e-12).sqrt()
            driven = driven * root.masked_fill(first | opening, 1.0)
            a = log_a.exp().masked_fill(first, 0.0)
            if borders.keep is not None:  # padding leaves the state as it was
                real = borders.keep[..., None]
                driven, a = driven.masked_fill(~real, 0.0), a.masked_fill(~real, 1.0)
            h = linear_recurrence(a, driven, state[:, :-1].to(dtype))
        after = torch.cat((h[:, -1], torch.ones_like(h[:, -1, :1])), -1)
        return h.to(x.dtype), (after, *tails)

    def merged(
        self, o: Float[Tensor, "b l e"], x: Float[Tensor, "b l d"]
    ) -> Float[Tensor, "b l d"]:
        """Gate the outputs by `x`, and project them."""
        return cast(Tensor, self.out_proj(o * F.gelu(self.gate_proj(x), approximate="tanh")))
