"""Forgetting Transformer: softmax attention with forget gates that reduce scores of older keys.

    o_i = sum_(j <= i) p_ij v_j,   p_ij = softmax_j(q_i · k_j / sqrt(k) + F_i - F_j)
    F_i = sum_(t <= i) log f_t,   f_t = sigma(w_f · x_t + b_f), one number for each head

With `output_norm` and `output_gate`: y = W_O (sigma(W_G x) * norm_h(o)).

The bidirectional form is the default and an addition of this project: with -|F_i - F_j| a later key
fades like an earlier one, also under a prefix mask. Padding and tokens of other documents leave
scores unchanged.

Cost       The layer takes as many operations as `softmax`, and backward computes the scores again.
           State: keys and values, as in `sdpa`, and one number per head and token.
Source     Lin et al. 2025, arXiv:2503.02130, equations 6 to 10, and the code,
           zhixuan-lin/forgetting-transformer.
Notation   the paper's d is k. F is summed outwards from the first query of each block.
Published  The paper's models are causal and without positions, in blocks with SwiGLU and RMSNorm.
           The only bias is b_f, which starts at 0. The block "Pro" has `output_norm`, `output_gate`
           and `qk_norm`. It also mixes keys and values with those of the token before, which is
           unsupported here. In the paper, `gate_start=times` is used for gates that are the same
           for all tokens.
Differs    All heads share the weights of the norms.
"""

import math
from enum import StrEnum, auto
from functools import partial
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lra.models.kernels.door import door
from lra.models.linear_map import projection
from lra.models.mixer import Growth, Layout, Need, Site, State, Traits, blanked
from lra.models.multi_head import MultiHead
from lra.models.ops import kv_cache, window_cache
from lra.models.ops.exact import refuse_in_stream, softmax_attention, visibility, weighted_values
from lra.models.ops.gated.blockwise import FEW
from lra.models.ops.gated.fades import Fades
from lra.models.ops.gated.head_norm import GatedHeadNorm
from lra.models.ops.linear.features import block_rows
from lra.models.ops.numerics import full_precision, row_slices, sum_dtype
from lra.models.ops.recurrent.layer import BOTH_WAYS

SHORT = 512
"""Number of tokens from which scores are computed again in backward instead of stored."""


class GateStart(StrEnum):
    """Initial values of the forget gates."""

    zero = auto()
    """Gates start at 0.5 (b_f = 0)."""
    times = auto()
    """Forgetting times of heads are spaced log-evenly from `time_min` to `time_max` tokens."""


@door
def fading_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    g: Float[Tensor, "b h s"],
    *,
    causal: bool,
    visible: Bool[Tensor, "#b 1 #l s"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "b h l v"]:
    """Return softmax attention whose scores are lowered by forget gates.

    Some queries are processed at a time, and their scores are computed again in backward. If there
    are few pairs of query and key, all queries are processed together and their scores are stored.

    The queries are those of the last l of s tokens, and `g` has the logarithm of each token's gate.
    `visible` is True where query i may attend to key j; None: `causal` decides whether later keys
    are hidden. `dropout` is the probability that a weight is set to 0.
    """
    # `plain`: nothing but causality hides keys, so later keys are left out instead of masked.
    offset, plain, parts = k.shape[2] - q.shape[2], causal and visible is None, []
    is_small = math.prod(q.shape[:3]) * k.shape[2] <= FEW and k.shape[2] < SHORT
    for rows in row_slices(q.shape[2], q.shape[2] if is_small else block_rows(q, k.shape[2])):
        keys = slice(0, offset + rows.stop if plain else None)
        mask = visible if visible is None or visible.shape[2] == 1 else visible[:, :, rows]
        attend = partial(_attend, first=offset + rows.start, plain=plain, dropout=dropout)
        part = q[:, :, rows], k[:, :, keys], v[:, :, keys], g[..., keys], mask
        parts.append(
            checkpoint(attend, *part, use_reentrant=False, preserve_rng_state=dropout > 0)
            if torch.is_grad_enabled() and not is_small
            else attend(*part)
        )
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def _attend(
    q: Float[Tensor, "b h r k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    g: Float[Tensor, "b h s"],
    visible: Bool[Tensor, "#b 1 #r s"] | None,
    *,
    first: int,
    plain: bool,
    dropout: float,
) -> Float[Tensor, "b h r v"]:
    """Return the attention of r consecutive queries; the first belongs to key number `first`.

    With `plain`, queries attend to all keys up to their own, and `visible` is None.
    """
    fade: Tensor = Fades.apply(g, first, q.shape[2], not plain)  # type: ignore[no-untyped-call]
    if plain:
        scores = fade.add_((q * q.shape[-1] ** -0.5) @ k.mT)
        return weighted_values(scores, v, causal=False, visible=None, dropout=dropout, bias=None)
    return softmax_attention(q, k, v, visible=visible, dropout=dropout, bias=fade)


class ForgettingCore(nn.Module):
    """`fading_attention` with masks and a memory.

    The last channel of a key is the logarithm of its token's gate.

    Args:
        site: Where it is built.
        causal: Whether later keys are hidden.
    """

    def __init__(self, site: Site, *, causal: bool) -> None:
        """Set the traits; memory is linear, because backward computes scores again."""
        super().__init__()
        self.dropout = site.attention_dropout
        self.traits = Traits(
            supports=frozenset({"keep", "start", "document", "prefix"}),
            causal=causal,
            operations=Growth(2.0),
            memory=Growth(1.0),
            row_stochastic=True,
            weight_dropout=True,
        )

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l wider"],
        v: Float[Tensor, "b h l v"],
        layout: Layout,
    ) -> Float[Tensor, "b h l v"]:
        """Attend over the whole sequence or, if the layout has documents, within them."""
        causal = self.traits.causal
        visible = visibility(layout, q.shape[2], causal=causal, device=q.device)
        if layout.document is None or visible is None:
            return self._attend(q, k, v, causal=causal, visible=visible)
        # Sort tokens by document, so that sums of gates within a document skip other documents.
        order = layout.document.argsort(dim=1, stable=True)[:, None, :, None]
        q, k, v = (x.take_along_dim(order, 2) for x in (q, k, v))
        visible = visible.take_along_dim(order, 2).take_along_dim(order.mT, 3)
        o = self._attend(q, k, v, causal=causal, visible=visible)
        return o.take_along_dim(order.argsort(2), 2)

    def _attend(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s wider"],
        v: Float[Tensor, "b h s v"],
        *,
        causal: bool,
        visible: Bool[Tensor, "#b 1 #l s"] | None,
    ) -> Float[Tensor, "b h l v"]:
        """Split gates from keys, and attend."""
        keys, g = k[..., :-1].to(q.dtype), k[..., -1].to(sum_dtype(k))
        dropout = self.dropout if self.training else 0.0
        return fading_attention(q, keys, v, g, causal=causal, visible=visible, dropout=dropout)

    def initial_state(self, shape: tuple[int, int, int, int, int], like: Tensor) -> State:
        """Return an empty memory of the last tokens; the logarithms of gates stay in float32."""
        batch, heads, memory, width, value_width = shape
        if memory < 1:
            raise ValueError(f"memory, a number of tokens, must be at least 1: got {memory}")
        with_gates = (batch, heads, memory, width + 1, value_width)
        keys, *rest = cast(tuple[Tensor, ...], window_cache.empty_window(with_gates, memory, like))
        return keys.to(sum_dtype(like)), *rest

    def extend(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l wider"],
        v: Float[Tensor, "b h l v"],
        layout: Layout,
        state: State,
    ) -> tuple[Float[Tensor, "b h l v"], State]:
        """Let each new query attend to the last `memory` tokens up to itself; update the state."""
        refuse_in_stream(layout)
        window, length = window_cache.append_window(state, k, v), q.shape[2]
        after = (*window.after, window.seen + length)
        if kv_cache.begins(state, length):
            return self._attend(q, k, v, causal=True, visible=None), after
        key = torch.arange(window.keys.shape[2], device=q.device)
        memory = len(key) - length
        distance = key[memory:, None] - key
        # A slot more than `seen` tokens before the first query is still empty.
        visible = (distance >= 0) & (distance < memory)
        visible = visible & (key >= memory - window.seen[:, None, None])
        o = self._attend(q, window.keys, window.values, causal=True, visible=visible[:, None])
        return o, after


class Forgetting(MultiHead):
    """Multi-head forgetting attention.

    Args:
        gate_start: Initial forget gates.
        time_min: Initial forgetting time of the first head, in tokens.
        time_max: Initial forgetting time of the last head, in tokens.
        output_norm: Whether RMSNorm is applied to the output of each head.

    Raises:
        ValueError: A time is not positive, or `time_min` is above `time_max`.
    """

    version = 2  # biases of gates do not decay
    undecayed = ("forget_map.bias",)
    needs = (BOTH_WAYS, Need("time_min", "time_max", gate_start=GateStart.times))

    def __init__(
        self,
        site: Site,
        *,
        gate_start: GateStart = GateStart.zero,
        time_min: float = 2.0,
        time_max: float = 128.0,
        output_norm: bool = False,
        output_gate: bool = False,
        qk_norm: bool = False,
        bidirectional: bool = True,
        bias: bool = False,
    ) -> None:
        """Make the projections and the forget gates, one for each head, with their first biases."""
        if not 0 < time_min <= time_max:
            raise ValueError(
                "forgetting times must be positive, and time_min at most time_max: got "
                f"time_min={time_min}, time_max={time_max}"
            )
        core = ForgettingCore(site, causal=site.causal or not bidirectional)
        super().__init__(
            site, core, bias=bias, bias_default=False, output_gate=output_gate, qk_norm=qk_norm
        )
        self.forget_map = projection(site.width, site.heads, bias=True)
        if gate_start == GateStart.times:
            times = torch.linspace(math.log(time_min), math.log(time_max), site.heads).exp()
            with torch.no_grad():  # so that f = sigma(b_f) = exp(-1 / time)
                self.forget_map.bias.copy_(-times.reciprocal().expm1().log())
        self.norm = GatedHeadNorm(site.head_width) if output_norm else None

    def project(
        self, x: Float[Tensor, "b l d"], layout: Layout
    ) -> tuple[Float[Tensor, "b h l k"], Float[Tensor, "b h l wider"], Float[Tensor, "b h l v"]]:
        """Return queries, keys with the logarithm of the gate as last channel, and values."""
        x = blanked(x, layout, self.traits)
        q, k, v = super().project(x, layout)
        with full_precision(x):
            g = F.logsigmoid(self.forget_map(x).to(sum_dtype(x))).mT[..., None]
        if layout.keep is not None:
            g = g.masked_fill(~layout.keep[:, None, :, None], 0.0)
        return q, torch.cat((k.to(g.dtype), g), -1), v

    def gated(
        self, o: Float[Tensor, "b h l v"], x: Float[Tensor, "b l d"], layout: Layout
    ) -> Float[Tensor, "b h l v"]:
        """Return `o` after the output norm and the output gate, if the layer has them."""
        return super().gated(o if self.norm is None else self.norm(o), x, layout)
