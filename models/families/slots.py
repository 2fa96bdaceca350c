"""Gated slot attention and Raven: softmax attention over a few memory slots that decay.

    K_t = Diag(a_t) K_(t-1) + (1 - a_t) k_t^T       keys of m slots
    V_t = Diag(a_t) V_(t-1) + (1 - a_t) v_t^T       their values
    o_t = V_t^T softmax(K_t q_t),   y = W_O norm(silu(o))
    route=null  a = sigma(W_f x)^(1 / divisor);  q, k = silu(W x)                      GSA
    route=n     a = exp(-e^A softplus(W_a x + b) r),  r = top_n(sigma(W_r x)) / sum;
                q, k = norm_h(silu(W x))                                               Raven

v = silu(W_v x), and the norm of y covers all heads. With `route`, a token changes only the n slots
of each head with the highest scores; the other slots stay as they are.

Cost       The projections take 8 d^2 + 2 d h m operations a token with h heads, and each head those
           of two `decayed_product`s with a decay of each slot. State: 2 m k numbers a head.
Source     Zhang et al. 2024, arXiv:2409.07146, and fla-org/flash-linear-attention (GSA);
           goombalab/raven, 2026 (Raven).
Notation   m is `slots`, tau is `gate_divisor`, topk is `route`, add_gumbel_noise is `noise`.
Published  The models are causal, with 4 heads and without biases; Raven has route=32. Blocks have a
           gated feed-forward network, RMSNorm, no positions (model.backbone.positions=none).
"""

from dataclasses import replace
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.linear_map import projection
from lra.models.mixer import Count, Need, Positive, Site, options
from lra.models.ops.gated.head_norm import GatedHeadNorm
from lra.models.ops.gated.layer import Borders, Parts, Recurrence, ShortConvolutions, by_head
from lra.models.ops.gated.slot_product import slot_attention
from lra.models.ops.gated.steps import step_biases
from lra.models.ops.numerics import full_precision, sum_dtype
from lra.models.ops.recurrent.layer import BOTH_WAYS


@options
class GatedSlots(Recurrence):
    """Softmax attention over memory slots: gated (GSA), or routed (Raven)."""

    slots: Count = 64
    """Number of memory slots of each head, m."""
    route: Count | None = None
    """Number of slots that a token changes (Raven); None: all, each with its gate (GSA)."""
    noise: bool = True
    """Whether Gumbel noise is added to the router's logits in training."""
    gate_divisor: Positive = 8.0
    """Number by which logarithms of decays are divided; the larger, the slower slots forget."""
    chunk: Count = 32
    undecayed = ("log_rate", "step_bias")
    needs = (
        BOTH_WAYS,
        Need("noise", words="route set to a number", holds=lambda _, o: o.route is not None),
        Need("gate_divisor", route=None),
    )

    def build(self, site: Site) -> None:
        """Make projections, gates and norms; ValueError if there are fewer slots than `route`."""
        width, slots = site.inner_width, site.heads * self.slots
        if self.route is not None and self.route > self.slots:
            sizes = f"route={self.route}, slots={self.slots}"
            raise ValueError(f"route must be at most slots: got {sizes}; set null to change all")
        self.q_proj, self.k_proj, self.v_proj = self.projections(site, width, width, width)
        self.slot_map = projection(site.width, slots, bias=False)
        if self.route is not None:
            self.decay_map = projection(site.width, site.heads, bias=False)
            rates = torch.empty(site.heads).uniform_(0, 16).clamp(min=1e-6)
            self.log_rate = nn.Parameter(rates.log())
            self.step_bias = nn.Parameter(step_biases(site.heads))
            self.q_norm = GatedHeadNorm(site.head_width, epsilon=1e-6)
            self.k_norm = GatedHeadNorm(site.head_width, epsilon=1e-6)
        self.joint_norm = GatedHeadNorm(width)
        self.out_proj = self.projection_back(site, width)
        self.convolutions = ShortConvolutions((), None)  # none, but the base class asks for them
        state = site.heads, self.slots, 2 * site.head_width
        self.complete(site, state=state, bidirectional=self.bidirectional)  # sets traits
        self.traits = replace(self.traits, training_noise=self.noise and self.route is not None)

    def log_decays(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b h l m"]:
        """Return log a of each slot, in float32 or float64."""
        with full_precision(x):
            logits = by_head(self.slot_map(x).to(sum_dtype(x)), self.heads)
            if self.route is None:
                return F.logsigmoid(logits) / self.gate_divisor
            if self.training and self.noise:
                logits = logits - torch.empty_like(logits).exponential_().log()
            scores, chosen = logits.sigmoid().topk(self.route, dim=-1)
            shares = scores / (scores.sum(-1, keepdim=True) + 1e-9)
            steps = F.softplus(self.decay_map(x).to(logits) + self.step_bias.to(logits))
            rates = (-self.log_rate.to(logits).exp() * steps).transpose(1, 2)
            return rates[..., None] * torch.zeros_like(logits).scatter(-1, chosen, shares)

    def read(
        self, x: Float[Tensor, "b l d"], before: Parts, borders: Borders
    ) -> tuple[Float[Tensor, "b l e"], Parts]:
        """Return the output of each token of `x`, after the state `before`, and the next state.

        A state has K and V of each head, side by side; `borders` has padding and documents.
        """
        q, k, v = F.silu(self.q_proj(x)), F.silu(self.k_proj(x)), F.silu(self.v_proj(x))
        if self.route is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (by_head(part, self.heads) for part in (q, k, v))
        g = self.log_decays(x)
        o, after = slot_attention(
            q, k, v, -torch.expm1(g), borders.after_borders(g),
            state=before[0], chunk=self.chunk, keep=borders.keep,
        )  # fmt: skip
        return o.transpose(1, 2).flatten(2), (after,)

    def merged(
        self, o: Float[Tensor, "b l e"], x: Float[Tensor, "b l d"]
    ) -> Float[Tensor, "b l d"]:
        """Return W_O norm(silu(o)); `x` is not read, because there is no output gate."""
        del x
        return cast(Tensor, self.out_proj(self.joint_norm(F.silu(o))))
