"""Mamba: a selective state space; step size, input and output maps depend on each token.

    h_t = exp(dt_t A) h_(t-1) + dt_t u_t B_t^T,   o_t = h_t C_t + D u_t
    y = W_O (o * silu(z)),   [u, z] = W x,   u = silu(convolved(u)),   [r, B, C] = W_u u
    dt = softplus(W_t r + b)

Each channel has N states. A is negative and starts at -1, ..., -N in every channel. b starts so
that softplus(b) is log-uniform between the smallest and the largest step. D starts at 1.

Cost       The projections take 2 (3 d e + e (2 r + 2 N)) operations a token, with e = `expansion`
           d. The scan takes those of `selective_scan`, in about 3 sqrt(n) steps one after the
           other. State: e N numbers, and the last 3 inputs of the convolution.
Source     Gu & Dao 2023, arXiv:2312.00752, and the layer of state-spaces/mamba.
Notation   the paper's N is `states`, its E `expansion`, the rank of its steps `step_rank`.
Published  The paper's models are causal, with e = 2 d, N = 16, convolutions of 4 taps with biases,
           and steps of rank ceil(d / 16). Their blocks have RMSNorm, no feed-forward network
           (model.backbone.feed_forward=none) and no positions (model.backbone.positions=none).
"""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.linear_map import projection
from lra.models.mixer import Count, Site, options
from lra.models.ops.gated.head_norm import GatedHeadNorm
from lra.models.ops.gated.layer import Borders, Parts, Recurrence, ShortConvolutions
from lra.models.ops.gated.steps import step_biases
from lra.models.ops.numerics import full_precision, sum_dtype
from lra.models.ops.recurrent.selective_scan import selective_scan


@options
class Mamba(Recurrence):
    """A selective state space between two gated projections; it has no heads."""

    expansion: Count = 2
    """Inner width, as a multiple of the model's width."""
    states: Count = 16
    """Number of states of each channel, N."""
    convolution: int | None = 4
    """Number of tokens that the short convolution of the inputs reads; None: no convolution."""
    step_rank: Count | None = None
    """Rank of the map that predicts steps; None: a sixteenth of the model's width."""
    step_min: float = 0.001
    """Smallest initial step size dt."""
    step_max: float = 0.1
    """Largest initial step size dt."""
    inner_norms: bool = False
    """Whether r, B and C are normed (RMSNorm with weights), as in Jamba."""
    undecayed = ("log_rate", "step_bias", "skip")

    def build(self, site: Site) -> None:
        """Make projections, and the parameters of the steps dt and of A (`log_rate` = log -A)."""
        self.rank = rank = -(-site.width // 16) if self.step_rank is None else self.step_rank
        states, width = self.states, self.expansion * site.inner_width
        self.gate_proj, self.input_proj = self.projections(site, width, width)
        self.convolutions = ShortConvolutions([width], self.convolution, bias=True)
        self.choice_map = projection(width, rank + 2 * states, bias=False)
        self.step_map = projection(rank, width, bias=False)
        nn.init.uniform_(self.step_map.weight, -(rank**-0.5), rank**-0.5)
        self.step_bias = nn.Parameter(step_biases(width, self.step_min, self.step_max))
        self.log_rate = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(width, 1))
        self.skip = nn.Parameter(torch.ones(width))
        self.out_proj = self.projection_back(site, width)
        sizes = (rank, states, states) if self.inner_norms else ()
        self.inner = nn.ModuleList(GatedHeadNorm(size, epsilon=1e-6) for size in sizes)
        self.complete(site, state=(width, states), bidirectional=self.bidirectional)  # sets traits

    def read(
        self, x: Float[Tensor, "b l d"], before: Parts, borders: Borders
    ) -> tuple[Float[Tensor, "b l e"], Parts]:
        """Return the output of each token of `x`, after the state `before`, and the next state.

        A state has h, and inputs of the convolution; `borders` has padding and documents.
        """
        state, *inputs = before
        (u,), tails = self.convolutions([self.input_proj(x)], inputs, borders, silu=True)
        parameters = self.choice_map(u)
        parts = parameters.split((self.rank, self.states, self.states), -1)
        if self.inner_norms:
            parts = tuple(norm(part) for norm, part in zip(self.inner, parts, strict=True))
        low_rank, write, read = parts
        logits, dtype = self.step_map(low_rank), sum_dtype(x)
        with full_precision(x):
            dt = F.softplus(logits.to(dtype) + self.step_bias.to(dtype))
            if borders.keep is not None:  # a step of 0 leaves the state unchanged
                dt = dt.masked_fill(~borders.keep[..., None], 0)
            rates = -self.log_rate.to(dtype).exp()
        o, after = selective_scan(
            u, dt, rates, write, read,
            state=None if borders.whole else state, begins=borders.begins(),
        )  # fmt: skip
        if not borders.backwards:  # once, because the outputs of both directions are added
            o = o + self.skip.to(u.dtype) * u
        return o, (after, *tails)

    def merged(
        self, o: Float[Tensor, "b l e"], x: Float[Tensor, "b l d"]
    ) -> Float[Tensor, "b l d"]:
        """Gate the outputs by `x`, and project them."""
        return cast(Tensor, self.out_proj(o * F.silu(self.gate_proj(x))))
