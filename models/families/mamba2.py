"""Mamba-2: linear attention with one data-dependent decay per head (state space duality); Hydra.

    S_t = exp(-dt_t A_h) S_(t-1) + B_t (dt_t x_t)^T,   o_t = S_t^T C_t + D_h x_t
    y = W_O norm(o * silu(z)),   z = W_z u
    [x, B, C] = silu(convolved(W u)),   dt = softplus(W_t u + b)

B and C play the roles of keys and queries; heads of one group share them. A_h is drawn uniformly
from [1, 16], and b so that softplus(b) is log-uniform between `step_min` and `step_max`. D_h starts
at 1.

The bidirectional form, the default, reads the sequence from both ends and adds the outputs. With
`quasi_separable` the layer is Hydra: each direction has separate B, C and W_t, and the outputs f
and r of both directions move by one token,

    o_t = f_(t-1) + r_(t+1) + (D_h + (W_D x_t)_h) x_t,

so that the diagonal has a separate weight. The convolution is centred, A_h starts at 1, and the
norm is applied before the gate.

With `log_linear` a token weighs its past in blocks of 1, 2, 4, ... tokens. lambda_t of a head and a
level is softplus(L * W_l u), and the state stores a sum for each of log2(l) + 1 levels. A_h starts
at 1, 2, ... H, as in the code of that paper.

Cost       The projections take 2 d (3 e + 2 G N + H) operations a token, with e = `expansion` d,
           and each head takes those of `decayed_product` with N channels of keys. State: N e
           numbers, and the last 3 inputs of x, B and C. With `log_linear`, each head takes the
           operations of `log_linear_product`, and the state has N e numbers for each level.
Source     Dao & Gu 2024, arXiv:2405.21060, and the layer of state-spaces/mamba; Hydra: Hwang et al.
           2024, arXiv:2407.09941, and its code; log-linear attention: Guo et al. 2025,
           arXiv:2506.04761.
Notation   the paper's N is `states`, P the width of a head, G `groups`, L the chunk.
Published  The paper's models are causal, with e = 2 d, heads of 64 channels (heads = 2 d / 64), N =
           128, one group, and convolutions of 4 taps with biases. Their blocks have RMSNorm, no
           feed-forward network (model.backbone.feed_forward=none) and no positions
           (model.backbone.positions=none). Hydra has N = 64, 7 taps, and one b for both directions.
Differs    One norm covers all groups together.
"""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.linear_map import projection
from lra.models.mixer import Count, Need, Site, Unsupported, options
from lra.models.ops.gated.decayed_product import decayed_product
from lra.models.ops.gated.head_norm import GatedHeadNorm
from lra.models.ops.gated.layer import Borders, Parts, ShortConvolutions, by_head
from lra.models.ops.gated.log_linear_layer import LogLinearMixer
from lra.models.ops.gated.steps import step_biases
from lra.models.ops.numerics import full_precision, sum_dtype
from lra.models.ops.recurrent.layer import BOTH_WAYS


@options
class Mamba2(LogLinearMixer):
    """State space duality, or Hydra's quasi-separable form of it."""

    expansion: Count = 2
    """Width of all heads together, as a multiple of the model's width."""
    states: Count = 128
    """Width of the input and output vectors B and C of a token, N."""
    groups: Count = 1
    """Number of groups of heads; the heads of a group share B and C."""
    convolution: int | None = 4
    """Number of tokens that the short convolution of x, B and C reads; None: no convolution."""
    step_min: float = 0.001
    """Smallest initial step size dt."""
    step_max: float = 0.1
    """Largest initial step size dt."""
    quasi_separable: bool = False
    """Whether to use Hydra's quasiseparable form (arXiv:2407.09941): separate B, C and dt per
    direction, and a separate diagonal."""
    log_linear: bool = False
    output_norm: bool = True
    """Whether the gated output is normed; Falcon-H1 (arXiv:2507.22448) does not."""
    chunk: Count = 64
    version = 2  # with log_linear, A begins as in its code
    undecayed = ("log_rate", "step_bias", "skip", "level_scale")
    needs = (
        BOTH_WAYS,
        Need("quasi_separable", bidirectional=True),
        Need("log_linear", quasi_separable=False),
    )

    def build(self, site: Site) -> None:
        """Make projections, and the parameters of the steps dt and of A (`log_rate`).

        Raises:
            ValueError: `groups`, `convolution` or the steps do not fit.
            Unsupported: The model is causal and `quasi_separable` is set.
        """
        if site.heads % self.groups:
            raise ValueError(
                "groups, the number of groups of heads, must divide heads: got "
                f"groups={self.groups}, heads={site.heads}"
            )
        if self.quasi_separable and site.causal:
            raise Unsupported(
                "quasi_separable=true is a bidirectional form, but this model must be causal: set "
                "quasi_separable=false"
            )
        if self.quasi_separable and self.convolution is not None and not self.convolution % 2:
            raise ValueError(
                "with quasi_separable=true, the convolution is centred, so it must read an odd "
                f"number of tokens: got convolution={self.convolution}; 7 is usual"
            )
        self.sides = 2 if self.quasi_separable else 1
        width, shared = self.expansion * site.inner_width, self.sides * self.groups * self.states
        self.gate_proj, self.input_proj, self.write_proj, self.read_proj = self.projections(
            site, width, width, shared, shared
        )
        self.step_map = projection(site.width, self.sides * site.heads, bias=False)
        self.step_bias = nn.Parameter(step_biases(site.heads, self.step_min, self.step_max))
        self.log_rate = nn.Parameter(torch.zeros(site.heads))  # A = 1, with which Hydra starts
        self.skip = nn.Parameter(torch.ones(site.heads))
        if self.quasi_separable:
            self.skip_map = projection(width, site.heads, bias=False)
        with torch.no_grad():
            if self.log_linear:
                self.log_rate.copy_(torch.arange(1, site.heads + 1).log())
            elif not self.quasi_separable:
                self.log_rate.uniform_(1, 16).log_()
        self.convolutions = ShortConvolutions((width, shared, shared), self.convolution, bias=True)
        self.norm = GatedHeadNorm(width)
        if not self.output_norm:
            self.norm = cast(GatedHeadNorm, nn.Identity())
        self.out_proj = self.projection_back(site, width)
        state = site.heads, self.states, width // site.heads
        self.complete(site, state=state, bidirectional=self.bidirectional)  # sets traits
        if self.log_linear:
            self.add_levels(site)

    def read(
        self, x: Float[Tensor, "b l d"], before: Parts, borders: Borders
    ) -> tuple[Float[Tensor, "b l e"], Parts]:
        """Return the output of each token of `x`, after the state `before`, and the next state.

        A state has S of each head, and inputs of the convolutions. `borders` has padding and the
        borders of documents, and tells the direction.
        """
        states, inputs = self.held(before)
        streams = (self.input_proj(x), self.write_proj(x), self.read_proj(x))
        centred = self.sides == 2
        convolved, tails = self.convolutions(streams, inputs, borders, centred=centred, silu=True)
        v = by_head(convolved[0], self.heads)
        side = int(borders.backwards) if centred else 0
        k, q = (self._copy_to_heads(stream, side) for stream in convolved[1:])
        with full_precision(x):
            dtype = sum_dtype(x)
            steps = self.step_map(x).to(dtype).view(*x.shape[:2], self.sides, -1)[:, :, side]
            steps = F.softplus(steps + self.step_bias.to(dtype)).transpose(1, 2)
            g = borders.after_borders(-steps * self.log_rate.to(dtype).exp()[:, None])
            values = v * steps[..., None]
        if self.levels:
            o, after = self.by_levels(q, k, values, g, x=x, held=states, borders=borders)
        else:
            o, last_state = decayed_product(
                q, k, values, g, state=states[0], chunk=self.chunk, keep=borders.keep
            )
            after = (last_state,)
        o = o.to(v.dtype)
        if centred:  # Hydra: move the output of this direction by one token
            o = borders.without_first(F.pad(o[:, :, :-1], (0, 0, 1, 0)))
        if not borders.backwards:  # once, because the outputs of both directions are added
            skip = self.skip.to(v.dtype)
            if centred:
                skip = skip + self.skip_map(convolved[0])
            o = o + v * skip.expand(*x.shape[:2], -1).transpose(1, 2)[..., None]
        return o.transpose(1, 2).flatten(2), (*after, *tails)

    def _copy_to_heads(self, x: Float[Tensor, "b l e"], side: int) -> Float[Tensor, "b h l n"]:
        """Copy `x` (B or C) of direction `side` to all heads of each group; n is the state size."""
        parts = x.view(*x.shape[:2], self.sides, self.groups, self.states)[:, :, side]
        return parts.transpose(1, 2).repeat_interleave(self.heads // self.groups, 1)

    def merged(
        self, o: Float[Tensor, "b l e"], x: Float[Tensor, "b l d"]
    ) -> Float[Tensor, "b l d"]:
        """Gate, norm and project the outputs `o`; Hydra norms them before the gate."""
        gate = F.silu(self.gate_proj(x))
        y = self.norm(o) * gate if self.sides == 2 else self.norm(o * gate)
        return cast(Tensor, self.out_proj(y))
