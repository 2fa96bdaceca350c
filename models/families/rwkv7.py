"""RWKV-7 (Goose): a generalised delta rule with separate keys for removing and adding.

    S_t = (Diag(w_t) - (a_t kappa_t) kappa_t^T) S_(t-1) + k_t v_t^T,   o_t = S_t^T r_t
    y = W_O (g * (norm_h(o) + (sum_h r rho k) v))

The state decays by w_t in each channel, then what it stores at the key kappa_t is removed, and v_t
is added at the key k_t. Each of r, w, k, v, a and g is computed from x_t + mu (x_(t-1) - x_t)
(token shift) with a separate mu for each channel; low(.) is a map of low rank. With k' = W_k .,

    w = exp(-e^(-1/2) sigma(b_w + low(tanh))),   a = sigma(b_a + low),   g = low(sigma)
    kappa = k' xi / |k' xi| by head,   k = k' (1 + (a - 1) alpha)
    v = W_v . + sigma(b_v + low) (v_1 - W_v .) from the second layer on, v_1 being the first layer's

Cost       The projections take 8 d^2 + 4 d r operations a token, where r is the sum of all ranks,
           and each head takes those of `delta_product` with u and a decay of each channel. State: k
           v numbers a head, and the last token.
Source     Peng et al. 2025, arXiv:2503.14456, equations 3 to 19, and its code, RWKV-LM.
Notation   the paper's r_k, kappa's factor and alpha of k are rho, xi and alpha; the norm of heads
           has epsilon 1e-5 times a head's width.
Published  The paper's models are causal, with heads of 64 channels. Their blocks have LayerNorm, a
           feed-forward network with squared ReLU over shifted tokens, and no positions:
           model.backbone.positions=none.
Differs    W_O starts at zero in the released code; the other maps are drawn as in that code. The
           feed-forward network is the backbone's.
"""

import math
from dataclasses import replace
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import Count, Flow, Layout, Site, options
from lra.models.ops.gated.delta_product import delta_product
from lra.models.ops.gated.layer import Borders, Parts, by_head
from lra.models.ops.gated.token_shift import LowRankMap, ShiftedMixer, of_own_token, previous_tokens
from lra.models.ops.numerics import full_precision, sum_dtype

STRONGEST = -math.exp(-0.5)
"""Logarithm of the strongest decay."""
MIXING = (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)
"""Exponents of the initial mixtures mu of r, w, k, v, a and g with the previous token."""
RANK_FACTORS = (2.5, 2.5, 1.7, 5.0)
"""Default ranks of w, a, v and g, as multiples of the square root of the width."""
EPSILON = 1e-5


@options
class RWKV7(ShiftedMixer):
    """A generalised delta rule over shifted tokens."""

    ranks: list[int] | None = None
    """Ranks of the maps that predict decay w, rate a, values v and gate g; None: about 2.5, 2.5,
    1.7 and 5 times the square root of the width, in multiples of 32."""
    value_residual: bool = True
    """Whether later layers mix their values with those of the first layer."""
    chunk: Count = 32
    version = 2  # maps and the norm begin as the code's initialiser leaves them

    def build(self, site: Site) -> None:
        """Make projections, mixtures and low-rank maps, with the released initial values.

        Raises ValueError unless `ranks` has four positive numbers.
        """
        super().build(site)
        width, inner, ranks = site.width, site.inner_width, self.ranks
        if ranks is None:
            ranks = [32 * max(1, round(c * width**0.5 / 32)) for c in RANK_FACTORS]
        if len(ranks) != len(RANK_FACTORS) or min(ranks) < 1:
            raise ValueError(
                "ranks must be four numbers (for w, a, v and g), each at least 1, or null: got "
                f"{ranks}"
            )
        self.r_proj, self.k_proj, self.v_proj = self.projections(site, inner, inner, inner)
        for layer, gain in ((self.r_proj, 1.0), (self.k_proj, 0.1), (self.v_proj, 1.0)):
            nn.init.orthogonal_(layer.weight, gain=gain)
        channel = torch.arange(inner)
        linear = channel / max(1, inner - 1)
        middle = (site.head_width - 1) / 2
        # From -1 to 1 over the channels of each head, then squared with its sign.
        zigzag = (channel % site.head_width - middle) / max(middle, 0.5)
        zigzag = zigzag * zigzag.abs()
        depth = site.layer / max(1, site.depth - 1)
        place, power = torch.arange(width) / width, 1 - site.layer / site.depth
        self.mixes = nn.Parameter(torch.stack([1 - place ** (c * power) for c in MIXING]))
        centred = linear - 0.5
        slopes = -6 + 6 * linear ** (1 + depth**0.3) + 0.5 + 2.5 * zigzag
        self.decay = LowRankMap(width, ranks[0], inner, slopes)
        self.rate = LowRankMap(width, ranks[1], inner, -0.19 + 0.3 * zigzag + 0.4 * centred)
        self.residual: LowRankMap | None = None
        if self.value_residual and site.layer > 0:
            self.residual = LowRankMap(width, ranks[2], inner, 0.73 - 0.4 * centred)
        self.gate = LowRankMap(width, ranks[3], inner)
        self.removal_scale = nn.Parameter(0.71 - 0.1 * centred)
        self.addition_scale = nn.Parameter(torch.full((inner,), 1.02))
        self.skip = nn.Parameter(torch.full((inner,), -0.04))
        self.out_proj = self.projection_back(site, inner)
        state = site.heads, site.head_width, site.head_width
        self.complete(site, state=state, bidirectional=self.bidirectional)  # sets traits
        self.sides = 1 if self.traits.causal else 2
        # Values are passed on if a layer follows; `read` does it only where no layer before has.
        self.passes_values = self.value_residual and site.layer < site.depth - 1
        self.value_residual = self.value_residual and site.depth > 1
        self.traits = replace(self.traits, reversible=not self.value_residual)

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Continue from `flow.state`; `flow.stream` has the values of the first layer.

        For `read` and `merged`, these values are concatenated to the channels of the tokens.
        """
        if not self.value_residual:
            return super().extend(flow, layout)
        first = cast(Tensor | None, flow.stream)
        x = flow.x if first is None else torch.cat((flow.x, first), -1)
        after = super().extend(flow.with_x(x), layout)
        y, values = after.x[..., : self.width], after.x[..., self.width :]
        return after._replace(x=y, stream=values if values.shape[-1] else first)

    def read(
        self, x: Float[Tensor, "b l d"], before: Parts, borders: Borders
    ) -> tuple[Float[Tensor, "b l e"], Parts]:
        """Return the gated heads for `x`, after the state `before`, and the next state.

        A state has S of each head and the last real token; `borders` has padding and the borders of
        documents. In the first layer, the values follow the channels if later layers need them.
        """
        x, first = x[..., : self.width], x[..., self.width :]
        state, token = before
        previous, token = previous_tokens(x, token, borders)
        r, w, k, v, a, g = (
            x + mix * (previous - x) for mix in self.mixes.to(x.dtype).unbind(0)
        )  # the mixture of two tokens from which each of them is computed
        values = first_values = self.v_proj(v)
        side, passes_values = int(borders.backwards), self.passes_values and not first.shape[-1]
        if self.residual is not None:
            if first.shape[-1]:
                first_values = first.chunk(self.sides, -1)[side]
            share = self.residual(v).sigmoid().to(values.dtype)
            values = values + (first_values - values) * share
        r, key, gate = self.r_proj(r), self.k_proj(k), self.gate(g, nn.Sigmoid())
        logits, rate = self.decay(w, nn.Tanh()), self.rate(a).sigmoid()
        with full_precision(x):
            dtype = sum_dtype(x)
            r, key, v = (stream.to(dtype) for stream in (r, key, values))
            decays = by_head(STRONGEST * logits.sigmoid(), self.heads)
            removal = F.normalize(
                by_head(key * self.removal_scale.to(dtype), self.heads), dim=-1, eps=1e-12
            )
            key = key * (1 + (rate - 1) * self.addition_scale.to(dtype))
            q, u, v = (by_head(stream, self.heads) for stream in (r, key, v))
            # What is removed is read before the decay, which `delta_product` applies first, so
            # the key is divided by the decay.
            o, after = delta_product(
                q, removal * (-decays).exp(), removal * by_head(rate, self.heads), v,
                borders.after_borders(decays), u=u, state=state, chunk=self.chunk,
                keep=borders.keep,
            )  # fmt: skip
            direct = of_own_token(q, u, v, self.skip).transpose(1, 2).flatten(2)
            heads = self.normed(o, EPSILON * o.shape[-1]) + direct
        y = heads.to(values.dtype) * gate
        if passes_values:  # each direction fills its part; both outputs are added later
            by_side = [torch.zeros_like(first_values)] * self.sides
            by_side[side] = first_values
            y = torch.cat((y, *by_side), -1)
        return y, (after, token)

    def merged(
        self, o: Float[Tensor, "b l e"], x: Float[Tensor, "b l m"]
    ) -> Float[Tensor, "b l o"]:
        """Project the gated heads, and pass the values on unchanged."""
        width = self.out_proj.in_features
        y = super().merged(o[..., :width], x)
        return torch.cat((y, o[..., width:]), -1) if o.shape[-1] > width else y
