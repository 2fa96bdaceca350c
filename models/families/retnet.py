"""RetNet: linear attention with a fixed exponential decay per head (retention).

    S_t = gamma S_(t-1) + k_t v_t^T,   o_t = S_t^T q_t,   gamma_h = 1 - 2^(-5 - h), h = 0, 1, ...
    y = W_O (silu(W_G x) * norm_h(o)),   q = R_t W_Q x_t,   k = R_t W_K x_t / sqrt(k),   v = W_V x_t

R_t rotates pairs of channels by the position t (padding is not counted), so that
o_t = sum_(j <= t) gamma^(t - j) (q_t · k_j) v_j depends on distances alone. norm_h is over the
channels of one head and token.

With `decay=slopes` the decays are those of Lightning Attention. They follow ALiBi's slopes, become
slower from layer to layer and are close to 1 in the last layer (r = 1e-5):

    gamma_h = exp(-2^(-8 (h + 1) / heads) (1 - layer / (layers - 1 + r) + r))

For the whole layer of MiniMax-01, set decay=slopes norm=joint gate=sigmoid activation=silu
rotary=false value_expansion=1. Then y = W_O (sigmoid(W_G x) * norm(o)), where the norm is over all
heads and has weights.

The bidirectional form, the default, has weights gamma^|t - j| over all j: a second pass from the
end reads the state before it adds each token.

Cost       The projections take 16 d^2 operations a token with `value_expansion` 2. Each head takes
           C (k + v) + 4 k v in each direction with chunk C, or l (k + v) for short sequences.
           State: k v numbers a head, and the position.
Source     Sun et al. 2023, arXiv:2307.08621, equations 5 to 8, and the code, microsoft/torchscale;
           slopes: Qin et al. 2024, arXiv:2401.04658, in the form of MiniMax-01, arXiv:2501.08313.
Notation   v / k is `value_expansion`.
Published  The paper's models are causal, with heads of 256 channels, `value_expansion` 2, no biases
           and feed-forward networks of width 2 d. The rotation of this layer is their only position
           encoding: model.backbone.positions=none.
Differs    As in the code, GroupNorm has no weights here; the code divides by the root mean square
           alone (`norm=rms`). The code scales rows, which the norm undoes, so this is omitted.
           Channels are paired (i, i + k/2), but (2 i, 2 i + 1) in the code. The slowest pair
           rotates by slightly more than 1/10,000 per token; in the code, by exactly that.
           MiniMax-01 does not scale keys, which its norm undoes.
"""

from enum import StrEnum, auto
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lra.models.linear_map import projection
from lra.models.mixer import Count, Family, Flow, Layout, Site, State, Traits, blanked, options
from lra.models.multi_head import APPLIED, biases
from lra.models.ops.gated.decayed_product import Reads, decayed_product
from lra.models.ops.gated.delta_layer import ACTIVATIONS, StreamActivation
from lra.models.ops.gated.head_norm import Gate, GatedHeadNorm, apply_gate, normed_heads
from lra.models.ops.gated.paired_product import is_cheaper, paired_product
from lra.models.ops.numerics import sum_dtype
from lra.models.ops.recurrent.layer import BOTH_WAYS
from lra.models.positions import rotate, rotation

EPSILON = 1e-6
SLOWEST = 1e-5
"""Factor of ALiBi's slopes in the last layer, approximately (r of the module's docstring)."""


class HeadDecay(StrEnum):
    """Decay rates of the heads."""

    retention = auto()
    """1/32 per token in the first head, half as much in each next head (RetNet)."""
    slopes = auto()
    """ALiBi's slopes, slower from layer to layer (Lightning Attention, MiniMax-01)."""


class HeadNorm(StrEnum):
    """Norm of the output."""

    group = auto()
    """Mean and variance of each head (the paper's GroupNorm)."""
    rms = auto()
    """Root mean square of each head (the code's)."""
    joint = auto()
    """Root mean square of all heads together, with weights (Lightning Attention, MiniMax-01)."""


def layer_factor(site: Site) -> float:
    """Return the factor of ALiBi's slopes in this layer, from 1 (first) to nearly 0 (last)."""
    return 1 - site.layer / (site.depth - 1 + SLOWEST) + SLOWEST


def log_decays(q: Float[Tensor, "b h l k"], factor: float | None = None) -> Float[Tensor, " h"]:
    """Return log gamma of each head.

    It is computed in each call, because a buffer would be rounded if the model is cast.

    Args:
        q: A tensor with the number of heads, device and type.
        factor: Factor of ALiBi's slopes; None: the decays of RetNet.
    """
    heads = q.shape[1]
    head = torch.arange(1, heads + 1, device=q.device, dtype=sum_dtype(q))
    if factor is None:  # `head` counts from 1, h of the module's docstring from 0
        return torch.log1p(-torch.exp2(-4 - head))
    return -factor * torch.exp2(head * (-8 / heads))


def real_positions(layout: Layout) -> Int[Tensor, "b l"] | Int[Tensor, " b"] | None:
    """Return positions that count only real tokens, because a state does not decay over padding.

    Without padding, return `layout.start`.
    """
    if layout.keep is None:
        return layout.start
    real = layout.keep.long()
    before = real.cumsum(1) - real
    return before if layout.start is None else before + layout.start[:, None]


@options
class RetNet(Family):
    """Retention at several scales, normed by head and gated."""

    value_expansion: Count = 2
    """Width of a head's values, as a multiple of the head width."""
    norm: HeadNorm = HeadNorm.group
    """Norm of the output."""
    decay: HeadDecay = HeadDecay.retention
    """Decay rates of the heads."""
    gate: Gate = Gate.silu
    """Activation of the output gate."""
    activation: StreamActivation = StreamActivation.identity
    """Activation of queries, keys and values."""
    rotary: bool = True
    """Whether rotary positions are applied to queries and keys."""
    bidirectional: bool = True
    bias: bool = False
    """Whether projections have biases, unless the backbone sets this (`qkv_bias`,
    `output_bias`)."""
    chunk: Count = 64
    """Number of tokens per chunk of the parallel form; it affects only speed and memory."""
    needs = (BOTH_WAYS,)

    def build(self, site: Site) -> None:
        """Make projections and the norm; ValueError for rotated heads of an odd width."""
        if self.rotary and site.head_width % 2:
            raise ValueError(
                "rotary=true rotates pairs of channels, so the width of a head must be even: got "
                f"{site.head_width}; change heads or head_width, or set rotary=false"
            )
        self.heads, self.head_width = site.heads, site.head_width
        self.scale = site.head_width**-0.5
        self.factor = layer_factor(site) if self.decay == HeadDecay.slopes else None
        with_biases, width = biases(site, self.bias, default=False), site.inner_width
        values = self.value_expansion * width
        self.q_proj = projection(site.width, width, bias=with_biases.qkv)
        self.k_proj = projection(site.width, width, bias=with_biases.qkv)
        self.v_proj = projection(site.width, values, bias=with_biases.qkv)
        if self.gate != Gate.none:
            self.gate_proj = projection(site.width, values, bias=with_biases.qkv)
        joint = self.norm == HeadNorm.joint
        self.joint_norm = GatedHeadNorm(values, gate=self.gate, epsilon=EPSILON) if joint else None
        self.out_proj = projection(values, site.width, bias=with_biases.output)
        self.traits = Traits(causal=site.causal or not self.bidirectional, options=APPLIED)

    def split(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b h l k"]:
        """Fold the width of all heads into heads."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def project(
        self, x: Float[Tensor, "b l d"], place: Int[Tensor, "b l"] | Int[Tensor, " b"] | None
    ) -> tuple[Float[Tensor, "b h l k"], Float[Tensor, "b h l k"], Float[Tensor, "b h l v"]]:
        """Return queries, keys and values of `x` by head; with `rotary`, q and k are rotated."""
        act = ACTIVATIONS.get(self.activation, nn.Identity())
        q, k, v = (self.split(act(f(x))) for f in (self.q_proj, self.k_proj, self.v_proj))
        if self.rotary:
            angles = rotation(x, self.head_width, place)
            q, k = rotate(q, angles), rotate(k, angles)
        return q, k, v

    def merge(
        self, o: Float[Tensor, "b h l v"], x: Float[Tensor, "b l d"]
    ) -> Float[Tensor, "b l d"]:
        """Norm and gate the output of the heads, join them and project."""
        gate = None if self.gate == Gate.none else self.gate_proj(x)
        if self.joint_norm is not None:
            return cast(Tensor, self.out_proj(self.joint_norm(o.transpose(1, 2).flatten(-2), gate)))
        heads = normed_heads(o, EPSILON, centred=self.norm == HeadNorm.group)
        normed = heads.to(o.dtype).transpose(1, 2).flatten(-2)
        return cast(Tensor, self.out_proj(apply_gate(normed, gate, self.gate)))

    def forward(self, x: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b l d"]:
        """Return the retention over all tokens or, if causal, over those up to each token."""
        x = blanked(x, layout, self.traits)
        q, k, v = self.project(x, real_positions(layout) if self.rotary else None)
        causal, keep = self.traits.causal, layout.keep
        if keep is None and is_cheaper(q, v, self.chunk, causal=causal):
            g = log_decays(q, self.factor)
            return self.merge(paired_product(q, k, v, g, scale=self.scale, causal=causal), x)
        k = k * self.scale
        o = self._retain(q, k, v, keep)
        if not causal:
            # The state before a token has decayed one step less than the distance says.
            gamma = log_decays(q, self.factor)[:, None, None].exp().to(o.dtype)
            o = o + gamma * self._retain(q, k, v, keep, backwards=True)
        return self.merge(o, x)

    def _retain(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        keep: Bool[Tensor, "b l"] | None,
        *,
        backwards: bool = False,
    ) -> Float[Tensor, "b h l v"]:
        """Return the retention of each token over itself and earlier tokens.

        With `backwards`, it is over later tokens, without the token itself.
        """
        reads = Reads.after
        if backwards:
            q, k, v = q.flip(2), k.flip(2), v.flip(2)
            keep, reads = None if keep is None else keep.flip(1), Reads.before
        g = log_decays(q, self.factor)
        o, _ = decayed_product(q, k, v, g, chunk=self.chunk, keep=keep, reads=reads)
        return o.flip(2) if backwards else o

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Continue from `flow.state`, at `layout.start` or at the state's next position."""
        if flow.state is None:
            return flow.with_x(self.forward(flow.x, layout))
        before, position = cast(tuple[Tensor, Tensor], flow.state)
        start = position if layout.start is None else layout.start
        q, k, v = self.project(flow.x, start)
        g = log_decays(q, self.factor)
        o, after = decayed_product(q, k * self.scale, v, g, state=before, chunk=self.chunk)
        return flow._replace(x=self.merge(o, flow.x), state=(after, start + q.shape[2]))

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return zeros and the position of the next token, of one size for any `memory`."""
        del memory
        like = self.q_proj.weight
        value_width = self.value_expansion * self.head_width
        shape = (batch_size, self.heads, self.head_width, value_width)
        state = like.new_zeros(shape, dtype=sum_dtype(like))
        return state, state.new_zeros(batch_size, dtype=torch.int64)
