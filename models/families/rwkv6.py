"""RWKV-6 (Finch): linear attention with data-dependent decay per channel and a current-token bonus.

    S_t = Diag(w_t) S_(t-1) + k_t v_t^T,   o_t = (S_(t-1) + Diag(u) k_t v_t^T)^T r_t
    y = W_O (silu(g) * norm_h(o)),   w = exp(-exp(b_w + tanh(. A_w) B_w))

The decay w_t forgets each channel at a rate that depends on the token, and u is an extra weight for
the current token. Each of w, k, v, r and g is computed from a data-dependent mixture of the current
and the previous token (token shift): x_t + (mu + m_t) (x_(t-1) - x_t), with a separate mu for each
channel, and m_t = tanh((x_t + mu_x (x_(t-1) - x_t)) A) B with a separate B.

Cost       The projections take 10 d^2 + 4 d (5 r + r_w) operations a token, where r and r_w are the
           two ranks, and each head takes those of `decayed_product` with a decay of each channel.
           State: k v numbers a head, and the last token.
Source     Peng et al. 2024, arXiv:2404.05892, and its code, RWKV-LM (x060).
Notation   the paper's lambda is mu above and `mixes` in the code, and u is `bonus`. The norm of
           heads has epsilon 64e-5.
Published  The paper's models are causal, with heads of 64 channels. Their blocks have LayerNorm, a
           gated feed-forward network with squared ReLU over shifted tokens, and no positions:
           model.backbone.positions=none.
Differs    W_O starts at zero in the released code; the other maps are drawn as in that code. The
           feed-forward network is the backbone's.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import Count, Site, options
from lra.models.ops.gated.decayed_product import Reads, decayed_product
from lra.models.ops.gated.layer import Borders, Parts, by_head
from lra.models.ops.gated.token_shift import LowRankMap, ShiftedMixer, of_own_token, previous_tokens
from lra.models.ops.numerics import full_precision, sum_dtype

MIXED = 5
"""Number of mixtures of tokens, from which w, k, v, r and g are computed."""
EPSILON = 64e-5
SMALL = 0.01
"""Largest initial weight of the second factors of low-rank maps."""


def bonus_product(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    g: Float[Tensor, "b h l k"],
    bonus: Float[Tensor, " e"],
    *,
    borders: Borders,
    state: Float[Tensor, "b h k v"] | None = None,
    chunk: int = 32,
) -> tuple[Float[Tensor, "b h l v"], Float[Tensor, "b h k v"]]:
    """Return o_t = (S_(t-1) + Diag(bonus) k_t v_t^T)^T q_t, at least in float32, and the last S.

    `g` has the logarithms of decays, at most 0, and `bonus` the weight u of the current token for
    each of e channels of all heads. `borders` has padding and documents, `state` is S after earlier
    tokens (None: 0), and `chunk`, the tokens per chunk, affects only speed and memory.
    """
    dtype = sum_dtype(q)
    with full_precision(q):
        q, k, v = (x.to(dtype) for x in (q, k, v))
        o, after = decayed_product(
            q, k, v, borders.after_borders(g), state=state, chunk=chunk, keep=borders.keep,
            reads=Reads.before,
        )  # fmt: skip
        return borders.without_first(o) + of_own_token(q, k, v, bonus), after


@options
class RWKV6(ShiftedMixer):
    """Linear attention with data-dependent decays and data-dependent token shift."""

    mix_rank: Count = 32
    """Rank of the maps that predict the mixtures of two tokens."""
    decay_rank: Count = 64
    """Rank of the map that predicts the decay w."""
    chunk: Count = 32
    version = 2  # gradients of strong decays are precise

    def build(self, site: Site) -> None:
        """Make projections, mixtures and decays, with the initial values of the released code."""
        super().build(site)
        width, inner = site.width, site.inner_width
        self.r_proj, self.k_proj, self.v_proj, self.gate_proj = self.projections(
            site, inner, inner, inner, inner
        )
        self.out_proj = self.projection_back(site, inner)
        for layer, gain in (
            (self.r_proj, 1.0), (self.k_proj, 0.1), (self.v_proj, 1.0), (self.gate_proj, 0.1)
        ):  # fmt: skip
            nn.init.orthogonal_(layer.weight, gain=gain)
        # `depth` goes from 0 in the first layer to 1 in the last, `power` from 1 to nearly 0.
        depth, power = site.layer / max(1, site.depth - 1), 1 - site.layer / site.depth
        place, linear = torch.arange(width) / width, torch.arange(inner) / max(1, inner - 1)
        full, half = place**power, place ** (0.5 * power)
        self.first_mix = nn.Parameter(1 - full)
        # Initial mixtures (mu) of w, k, v, r and g.
        self.mixes = nn.Parameter(1 - torch.stack([full, full, full + 0.3 * depth, half, half]))
        self.mix_down = nn.Linear(width, MIXED * self.mix_rank, bias=False)
        nn.init.zeros_(self.mix_down.weight)
        self.mix_up = nn.Parameter(torch.empty(MIXED, self.mix_rank, width).uniform_(-SMALL, SMALL))
        self.decay = LowRankMap(
            width, self.decay_rank, inner, -6 + 5 * linear ** (0.7 + 1.3 * depth)
        )
        nn.init.uniform_(self.decay.up.weight, -SMALL, SMALL)
        zigzag = 0.1 * ((torch.arange(inner) + 1) % 3 - 1)  # 0, 0.1, -0.1 in turn
        self.bonus = nn.Parameter(depth * (1 - linear) + zigzag)
        state = site.heads, site.head_width, site.head_width
        self.complete(site, state=state, bidirectional=self.bidirectional)  # sets traits

    def read(
        self, x: Float[Tensor, "b l d"], before: Parts, borders: Borders
    ) -> tuple[Float[Tensor, "b l e"], Parts]:
        """Return the gated heads for `x`, after the state `before`, and the next state.

        A state has S of each head and the last real token; `borders` has padding, documents.
        """
        state, token = before
        previous, token = previous_tokens(x, token, borders)
        change = previous - x
        low = self.mix_down(x + change * self.first_mix.to(x.dtype)).tanh()
        low = low.unflatten(-1, (MIXED, -1))
        shifts = torch.einsum("b l i r, i r d -> i b l d", low, self.mix_up.to(low.dtype))
        mixes = self.mixes[:, None, None].to(x.dtype) + shifts
        w, k, v, r, g = (x + change * mix for mix in mixes.unbind(0))
        streams = self.r_proj(r), self.k_proj(k), self.v_proj(v), -self.decay(w, nn.Tanh()).exp()
        q, k, v, decays = (by_head(stream, self.heads) for stream in streams)
        o, after = bonus_product(
            q, k, v, decays, self.bonus, borders=borders, state=state, chunk=self.chunk
        )
        with full_precision(x):
            heads = self.normed(o, EPSILON)
        gate = F.silu(self.gate_proj(g))
        return heads.to(gate.dtype) * gate, (after, token)
