"""MesaNet: linear attention that solves a regularised least-squares problem at every token.

    Phi_t = argmin sum_(j <= t) a_tj beta_j |Phi k_j - v_j|^2 / 2 + tr(Phi Lambda Phi^T) / 2
    o_t = Phi_t q_t = G_t (H_t + Lambda)^-1 q_t,   y = W_O norm_h(o)
    H_t = gamma_t H_(t-1) + beta_t k_t k_t^T,   G_t = gamma_t G_(t-1) + beta_t v_t k_t^T

Phi_t is the linear map from keys to values that fits the decaying past best. Here a_tj =
gamma_(j+1) ... gamma_t, gamma = sigma(W_a x + b_a) and beta = sigma(W_b x + b_b). q and k are W x,
convolved over 4 tokens, passed through SiLU and divided by their Euclidean norm. Each head has a
diagonal Lambda, softplus(.) + `ridge_min`, which starts at 1. Conjugate gradients solve the system
in `steps` steps; backward differentiates the solution.

Cost       The projections take 8 d^2 operations a token. Each head takes those of `steps`
           `decayed_product`s of keys, which backward repeats, and of one of values. State: 2 k^2
           numbers a head, and the last 3 inputs of the convolutions.
Source     von Oswald et al. 2025, arXiv:2506.05233, and its layer in flash-linear-attention.
Notation   the paper's Delta e is y.
Published  The paper's models are causal, with heads of 128 channels, convolutions of 4 taps and 30
           steps. Their blocks have a feed-forward network gated by SiLU, RMSNorm and no positions:
           model.backbone.positions=none.
Differs    Queries and keys are divided by the root of Lambda, and Lambda becomes 1. The solution is
           the same, and so is each step where Lambda is equal in all channels. Decoding uses the
           same number of steps.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.kernels.door import door
from lra.models.linear_map import projection
from lra.models.mixer import Count, Fraction, Site, options
from lra.models.ops.gated.decayed_product import decayed_product
from lra.models.ops.gated.decayed_solve import decayed_solve
from lra.models.ops.gated.head_norm import Gate, unit_heads
from lra.models.ops.gated.layer import Borders, CausalRecurrence, Parts, ShortConvolutions, by_head
from lra.models.ops.numerics import full_precision, sum_dtype


@door
def least_squares(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    beta: Float[Tensor, "b h l"],
    g: Float[Tensor, "b h l"],
    *,
    ridge: Float[Tensor, "h k"],
    before: Parts | tuple[None, None] = (None, None),
    steps: int = 30,
    chunk: int = 32,
    keep: Bool[Tensor, "b l"] | None = None,
) -> tuple[Float[Tensor, "b h l v"], Parts]:
    """Return o of the module's docstring, in the type of `v`, and H and G after the last token.

    H and G are computed from keys that are divided by the root of Lambda, which is `ridge`. `beta`
    is the weight, 0 or more, with which each token enters, and `g` is log gamma, at most 0. Keys
    are in float32 or float64. `before` has H and G before the first token (None: 0), and `keep` is
    False for padding. `steps` is the number of steps of conjugate gradients; `chunk`, the tokens
    per chunk of the parallel form, affects only speed and memory.
    """
    root = ridge.rsqrt()[:, None]
    q, k = q * root, k * root
    old_h, old_g = before
    solved, new_h = decayed_solve(q, k, beta, g, state=old_h, steps=steps, chunk=chunk, keep=keep)
    weighted_keys = beta[..., None] * k
    o, new_g = decayed_product(solved, weighted_keys, v, g, state=old_g, chunk=chunk, keep=keep)
    return o, (new_h, new_g)


@options
class MesaNet(CausalRecurrence):
    """Least squares over the decaying past in each head, with a norm and an optional gate."""

    convolution: int | None = 4
    """Number of tokens that the short convolution of queries and keys reads; None: no
    convolution."""
    steps: Count = 30
    """Number of conjugate gradient steps per token; with as many steps as the head is wide, the
    solution is exact."""
    ridge_min: Fraction = 0.25
    """Lower bound of the regulariser Lambda, between 0 and 1."""
    gate: Gate = Gate.none
    chunk: Count = 32
    version = 2  # biases of gates do not decay
    undecayed = ("ridge", "beta_map.bias", "decay_map.bias")

    def build(self, site: Site) -> None:
        """Make projections, the maps to beta and gamma, and Lambda."""
        width = site.inner_width
        self.q_proj, self.k_proj, self.v_proj = self.projections(site, width, width, width)
        self.beta_map = projection(site.width, site.heads, bias=True)
        self.decay_map = projection(site.width, site.heads, bias=True)
        start = torch.full((site.heads, site.head_width), 1 - self.ridge_min)
        self.ridge = nn.Parameter(start.expm1().log())  # so that Lambda starts at 1
        self.convolutions = ShortConvolutions((width, width), self.convolution)
        # Adds the gate, the norm and the output projection, and sets the traits.
        self.finish(site, keys=site.head_width, values=site.head_width, gate=self.gate)

    def read(
        self, x: Float[Tensor, "b l d"], before: Parts, borders: Borders
    ) -> tuple[Float[Tensor, "b l e"], Parts]:
        """Return the output of each token of `x`, after the state `before`, and the next state.

        A state has H, G and inputs of the convolutions; `borders` has padding and documents.
        """
        old_h, old_g, *inputs = before
        projected, tails = self.convolutions((self.q_proj(x), self.k_proj(x)), inputs, borders)
        v = by_head(self.v_proj(x), self.heads)
        with full_precision(x):
            dtype = sum_dtype(x)
            ridge = F.softplus(self.ridge.to(dtype)) + self.ridge_min
            q, k = (unit_heads(by_head(F.silu(stream), self.heads)) for stream in projected)
            beta = self.beta_map(x).to(dtype).sigmoid().mT
            g = borders.after_borders(F.logsigmoid(self.decay_map(x).to(dtype)).mT)
            o, after = least_squares(
                q, k, v, beta, g, ridge=ridge, before=(old_h, old_g),
                steps=self.steps, chunk=self.chunk, keep=borders.keep,
            )  # fmt: skip
        return o.transpose(1, 2).flatten(2), (*after, *tails)

    def empty(self, batch_size: int) -> Parts:
        """Return zeros for H, G and the inputs of the convolutions."""
        zeros, *tails = super().empty(batch_size)
        return zeros, zeros, *tails
