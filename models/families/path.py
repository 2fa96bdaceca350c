"""PaTH attention: softmax attention whose positions are accumulated reflections.

    o_i = sum_(j <= i) p_ij v_j,   p_ij = softmax_j(q_i^T H_i H_(i-1) ... H_(j+1) k_j / sqrt(k))
    H_t = I - beta_t w_t w_t^T,   beta_t = 2 sigma(W_b x_t + b),   w = W_2 W_1 x

w is convolved over 3 tokens, passed through SiLU and divided by its length. H_t shrinks or reflects
what earlier keys hold along w_t, so scores depend on all tokens between query and key. With
`forget` (PaTH-FoX), forget gates also lower scores, as in `forgetting`.

Cost       Scores take (1 + k / `chunk`) times the operations of `softmax`; backward computes them
           again. State: values, keys, each rewritten by every H_t, and 2 inputs of the convolution.
Source     Yang et al. 2025, arXiv:2505.16381, and its layer in flash-linear-attention.
Notation   the paper's d is k.
Published  The paper's models are causal: model.backbone.positions=none. Only beta has a bias.
Differs    Heads never share keys. Released code divides F_i - F_j by sqrt(k): `forget_scale=head`.
"""

from dataclasses import replace
from itertools import pairwise
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.linear_map import projection
from lra.models.mixer import Count, Growth, Layout, Need, Site, State, options
from lra.models.multi_head import norm_heads
from lra.models.ops.exact import refuse_in_stream, visibility
from lra.models.ops.gated.fades import ForgetScale
from lra.models.ops.gated.head_norm import unit_heads
from lra.models.ops.gated.layer import Borders, CausalRecurrence, Parts, ShortConvolutions, by_head
from lra.models.ops.kv_cache import empty_cache
from lra.models.ops.numerics import full_precision, sum_dtype
from lra.models.ops.reflections import reflected_attention, reflections, stream_attention


@options
class PathAttention(CausalRecurrence):
    """Attention through accumulated reflections, with optional forget gates."""

    rank: Count | None = 32
    """Rank of the map to w; None: a full matrix."""
    convolution: int | None = 3
    """Number of tokens that the convolution of w reads, before SiLU; None: neither of them."""
    negative_eigenvalues: bool = True
    """Whether beta reaches 2, which is a reflection, instead of 1."""
    forget: bool = False
    """Whether forget gates lower the scores of older keys."""
    forget_scale: ForgetScale = ForgetScale.none
    qk_norm: bool = False
    """Whether RMSNorm, with weights shared by all heads, is applied to queries and keys."""
    chunk: Count = 128
    needs = (Need("forget_scale", forget=True),)
    undecayed = ("beta_map.bias", "forget_map.bias")

    def build(self, site: Site) -> None:
        """Make the projections and the maps to w, beta and forget gates."""
        width, self.dropout = site.inner_width, site.attention_dropout
        self.q_proj, self.k_proj, self.v_proj = self.projections(site, width, width, width)
        self.out_proj = self.projection_back(site, width)
        ends = [site.width, *([] if self.rank is None else [self.rank]), width]
        self.axis_maps = nn.Sequential(*(projection(*each, bias=False) for each in pairwise(ends)))
        self.convolutions = ShortConvolutions((width,), self.convolution)
        self.beta_map = projection(site.width, site.heads, bias=True)
        self.forget_map = projection(site.width, site.heads, bias=True) if self.forget else None
        self.q_norm, self.k_norm = (
            nn.RMSNorm(site.head_width, 1e-5) if self.qk_norm else None for _ in range(2)
        )
        self.complete(site, state=(site.heads, site.head_width), bidirectional=False)
        self.traits = replace(
            self.traits, operations=Growth(2.0), row_stochastic=True, weight_dropout=True,
            summarises=self.convolution is not None,  # the oldest w reads older tokens
        )  # fmt: skip

    def read(
        self, x: Float[Tensor, "b l d"], before: Parts, borders: Borders
    ) -> tuple[Float[Tensor, "b l e"], Parts]:
        """Return the heads' outputs for `x`, after the state `before`, and the next state.

        A state is that of `stream_attention`, then inputs of the convolution. Padding comes last,
        where no token attends to it.
        """
        count = len(before) - len(self.convolutions)
        memory, inputs = before[:count], before[count:]
        q, k, v = (by_head(m(x), self.heads) for m in (self.q_proj, self.k_proj, self.v_proj))
        q = q if self.q_norm is None else norm_heads(q, self.q_norm)
        k = k if self.k_norm is None else norm_heads(k, self.k_norm)
        (w,), tails = self.convolutions([self.axis_maps(x)], inputs, borders, silu=True)
        with full_precision(x):
            dtype = sum_dtype(x)
            beta = self.beta_map(x).to(dtype).sigmoid().mT * (1.0 + self.negative_eigenvalues)
            g = None
            if self.forget_map is not None:
                unit = q.shape[3] ** -0.5 if self.forget_scale == ForgetScale.head else 1.0
                g = F.logsigmoid(self.forget_map(x).to(dtype)).mT * unit
            w = unit_heads(by_head(w, self.heads))
        chunk, dropout = min(self.chunk, x.shape[1]), self.dropout if self.training else 0.0
        facts = Layout(document=borders.document)
        if borders.whole:
            visible = visibility(facts, x.shape[1], causal=True, device=x.device)
            o = reflected_attention(
                q, k, v, w, beta, chunk=chunk, g=g, visible=visible, dropout=dropout
            )
        else:
            refuse_in_stream(facts)
            with full_precision(x):
                new = reflections(q, k, w, beta, chunk=chunk)
            o, memory = stream_attention(new, v, memory, g=g, dropout=dropout)
        return o.transpose(1, 2).flatten(2), (*memory, *tails)

    def merged(
        self, o: Float[Tensor, "b l e"], x: Float[Tensor, "b l d"]
    ) -> Float[Tensor, "b l d"]:
        """Return W_O o: heads have no norm and no gate."""
        del x
        return cast(Tensor, self.out_proj(o))

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return the empty memory of `memory` tokens, whose keys and gates are float32 at least."""
        heads, width = self.state_shape
        cache = empty_cache((batch_size, heads, memory, width, width), self.out_proj.weight)
        keys, *rest = cast(Parts, cache)
        keys = keys.to(sum_dtype(keys))
        gates = [torch.zeros_like(keys[..., 0])] if self.forget else []
        return (keys, *rest, *gates, *self.convolutions.empty(batch_size))
