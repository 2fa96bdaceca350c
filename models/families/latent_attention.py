"""Multi-head latent attention (MLA): one short vector per token gives the keys and values.

    c_t = norm(W_DKV x_t),   k_i = [U_i c_t ; r_t],   v_i = W_i c_t,   r_t = R_t W_KR x_t
    q_i = [Q_i x_t ; R_t Q'_i x_t],   o_i = softmax(q_i k_i' / sqrt(k + r)) v_i

for head i; R_t rotates by the position t. Queries may be compressed as well: Q_i and Q'_i then read
norm(W_DQ x_t) instead of x_t. All heads share the rotary part r_t of the keys; c_t is not rotated.

Cost       Attention takes 4 n^2 h (k + r) operations (values are padded to the width of keys), and
           the projections from c take 4 n c h k. A state stores c + r numbers for each token
           instead of 2 h k. A decoding step can attend to the state without computing keys and
           values (the absorbed form), and does so where that is cheaper:

               s = (U_i' q_i) . c_t + q'_i . r_t,   o_i = W_i (sum_t p_t c_t)

Source     DeepSeek-AI 2024, arXiv:2405.04434, section 2.1 and appendix C, and the released code.
Notation   the paper's d_c, d'_c, d_h and d_h^R are `kv_width`, `query_width`, the head width k and
           `rotary_width`; W^UK and W^UV are `k_up` and `v_up`, W^DKV and W^KR are `kv_proj`, one
           below the other, W^Q (or W^DQ) and W^UQ are `q_proj` and `q_up`.
Published  DeepSeek-V2 has 128 heads of width d_h = 128, d_c = 4 d_h, d_h^R = d_h / 2 and d'_c = 12
           d_h.
Differs    The rotary part exists only with `model.backbone.positions=rotary`. Its channels are
           paired (i, i + r/2), but (2 i, 2 i + 1) in the released weights; only the order of the
           channels differs. Queries are not compressed by default, as in DeepSeek-V2-Lite. YaRN is
           unsupported.
"""

from dataclasses import replace
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lra.models.linear_map import projection
from lra.models.mixer import (
    Count,
    Family,
    Flow,
    Growth,
    Layout,
    Need,
    Positions,
    Site,
    State,
    Unsupported,
    blanked,
)
from lra.models.multi_head import APPLIED, Core, Place, biases
from lra.models.ops import kv_cache
from lra.models.ops.exact import ExactCore, refuse_in_stream
from lra.models.ops.latents import absorbed_attention, absorbs, padded_sdpa
from lra.models.ops.numerics import norm_channels
from lra.models.positions import ROTARY_BASE, At, Rotation, Spacing, rotate, rotation

NORM_EPSILON = 1e-6


class LatentCore(ExactCore):
    """Exact attention with keys that are wider than the values."""

    def __init__(self, site: Site, *, sink: bool) -> None:
        """Set the traits, also those of `LatentAttention`, which applies rotary positions."""
        super().__init__(site, padded_sdpa, memory=Growth(1.0), sink=sink)
        added = frozenset({Positions.alibi.value, Positions.t5.value, Positions.rotary.value})
        inside = site.positions != Positions.none
        self.traits = replace(
            self.traits,
            positions=added,
            options=APPLIED | {"rotary_base"},
            sees_order=site.causal or inside,
        )


class LatentAttention(Family):
    """Attention over keys and values that are made of one compressed vector for each token.

    Args:
        kv_width: Width of the compressed key-value vector; None: 4 times the head width.
        query_width: Width to which queries are compressed; None: no compression.
        rotary_width: Width of the rotary part of queries and keys; None: half the head width, made
            even.
        unrotated: Whether queries and keys have the rotary part although nothing rotates it, as in
            Kimi Linear; only without rotary positions.
        bias: Whether the input and output projections have biases.
        sink: Whether each head has a learned logit in the denominator of its softmax, which takes
            weight from all keys.

    Raises:
        ValueError: `rotary_width` is odd or below 2.
    """

    undecayed = ("core.sinks",)
    needs = (
        Need(
            "rotary_width",
            words="rotary positions (model.backbone.positions=rotary), or unrotated=true",
            holds=lambda site, chosen: site.positions == Positions.rotary or chosen.unrotated,
        ),
    )

    def __init__(
        self,
        site: Site,
        *,
        kv_width: Count | None = None,
        query_width: Count | None = None,
        rotary_width: int | None = None,
        unrotated: bool = False,
        bias: bool = False,
        sink: bool = False,
    ) -> None:
        """Make the projections to queries, to latents, and from latents to keys and values."""
        super().__init__()
        width, heads = site.head_width, site.heads
        with_biases = biases(site, bias, default=False)
        self.heads, self.head_width = heads, width
        self.kv_width = 4 * width if kv_width is None else kv_width
        rotary = 2 * -(-width // 4) if rotary_width is None else rotary_width
        if rotary < 2 or rotary % 2:
            raise ValueError(
                f"rotary_width must be even and at least 2, or null (half a head): got {rotary}"
            )
        self.turns = site.positions == Positions.rotary
        if self.turns and unrotated:
            raise ValueError(
                "unrotated=true is for models without rotary positions: got positions=rotary; set "
                "unrotated=false, or model.backbone.positions=none"
            )
        self.rotary_width = rotary if self.turns or unrotated else 0
        self.rotary_base = ROTARY_BASE if site.rotary_base is None else site.rotary_base
        queries_width = heads * (width + self.rotary_width)
        self.q_proj = projection(
            site.width, queries_width if query_width is None else query_width, bias=with_biases.qkv
        )
        self.q_norm: nn.RMSNorm | None = None
        self.q_up: nn.Linear | None = None
        if query_width is not None:
            self.q_norm = nn.RMSNorm(query_width, NORM_EPSILON)
            self.q_up = projection(query_width, queries_width, bias=False)
        self.kv_proj = projection(
            site.width, self.kv_width + self.rotary_width, bias=with_biases.qkv
        )
        self.kv_norm = nn.RMSNorm(self.kv_width, NORM_EPSILON)
        self.k_up = projection(self.kv_width, heads * width, bias=False)
        self.v_up = projection(self.kv_width, heads * width, bias=False)
        self.out_proj = projection(heads * width, site.width, bias=with_biases.output)
        self.core = LatentCore(site, sink=sink)
        self.traits = self.core.traits
        if unrotated:
            rest = self.traits.positions - {Positions.rotary.value}
            self.traits = replace(self.traits, positions=rest)

    @property
    def attends_at(self) -> bool:
        """Whether `attend` accepts separate positions for queries and keys (`at`)."""
        return self.traits.cross

    def attention_core(self) -> Core:
        """Return the attention between the projections, so that it can be measured alone."""
        return self.core

    def split(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b h l k"]:
        """Fold the width of all heads into heads."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def placed(self, x: Tensor, place: Int[Tensor, " b"] | Spacing | None) -> Place:
        """Return the rotation at `place`; without rotary positions, return `place` itself."""
        return rotation(x, self.rotary_width, place, self.rotary_base) if self.turns else place

    def queries(self, x: Float[Tensor, "b l d"], place: Place) -> Float[Tensor, "b h l k"]:
        """Return the queries of tokens `x`; with rotary positions, their last channels rotated."""
        q = self.q_proj(x)
        if self.q_up is not None:
            q = self.q_up(norm_channels(q, cast(nn.RMSNorm, self.q_norm)))
        q = self.split(q)
        if not self.rotary_width:
            return q
        content, rotary = torch.split(q, [self.head_width, self.rotary_width], -1)
        return torch.cat((content, self.rotate_heads(rotary, place)), -1)

    def rotate_heads(self, x: Float[Tensor, "b h l r"], place: Place) -> Float[Tensor, "b h l r"]:
        """Return the rotary part `x` of queries or keys, rotated by its position if it turns."""
        if not self.turns:
            return x
        known = place if isinstance(place, Rotation) else self.placed(x, place)
        return rotate(x, known)

    def latents(
        self, x: Float[Tensor, "b l d"], place: Place
    ) -> tuple[Float[Tensor, "b 1 l r"], Float[Tensor, "b 1 l c"]]:
        """Return what a state stores for each token: the rotary part r_t of keys, and c_t."""
        content, rotary = torch.split(
            self.kv_proj(x)[:, None], [self.kv_width, self.rotary_width], -1
        )
        return self.rotate_heads(rotary, place), norm_channels(content, self.kv_norm)

    def heads_of(
        self, rotary: Float[Tensor, "b 1 s r"], latent: Float[Tensor, "b 1 s c"]
    ) -> tuple[Float[Tensor, "b h s k"], Float[Tensor, "b h s v"]]:
        """Return k_i and v_i of all heads, computed from the rotary part r_t and c_t (`latent`)."""
        k, v = self.split(self.k_up(latent[:, 0])), self.split(self.v_up(latent[:, 0]))
        return torch.cat((k, rotary.expand(-1, self.heads, -1, -1)), -1), v

    def by_head(self, dtype: torch.dtype) -> tuple[Float[Tensor, "h k c"], Float[Tensor, "h v c"]]:
        """Return the matrices U_i and W_i of each head, which map c_t to keys and to values."""
        shape = (self.heads, self.head_width, self.kv_width)
        return self.k_up.weight.view(shape).to(dtype), self.v_up.weight.view(shape).to(dtype)

    def merge(self, o: Float[Tensor, "b h l v"]) -> Float[Tensor, "b l d"]:
        """Join the heads, and apply the output projection."""
        return cast(Tensor, self.out_proj(o.transpose(1, 2).flatten(-2)))

    def forward(self, x: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b l d"]:
        """Project, attend (causally if the mixer is causal), and project back."""
        x = blanked(x, layout, self.traits)
        place = self.placed(x, layout.start)
        k, v = self.heads_of(*self.latents(x, place))
        return self.merge(self.core(self.queries(x, place), k, v, layout))

    def attend(
        self,
        x: Float[Tensor, "b l d"],
        layout: Layout,
        source: Float[Tensor, "b s d"],
        source_layout: Layout,
        at: At | None = None,
    ) -> Float[Tensor, "b l d"]:
        """Cross attention: every token of `x` attends to the real tokens of `source`.

        `at` has the positions of both in one common order; None: they have no common order.

        Raises:
            Unsupported: The mixer is causal, or it applies positions and `at` is None.
        """
        inside = self.turns or self.core.slopes is not None or self.core.relative is not None
        if self.traits.causal or (inside and at is None):
            raise Unsupported(
                "cross attention reads the whole source and applies no positions inside the mixer: "
                f"build {type(self).__name__} with causal=False and positions=none"
            )
        query_place, key_place = (None, None) if at is None else at
        q = self.queries(blanked(x, layout, self.traits), query_place)
        source = blanked(source, source_layout, self.traits)
        k, v = self.heads_of(*self.latents(source, key_place))
        return self.merge(self.core(q, k, v, Layout(keep=source_layout.keep), at))

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Continue from `flow.state`, by the absorbed form if it is cheaper; None: `forward`."""
        if flow.state is None:
            return flow.with_x(self.forward(flow.x, layout))
        refuse_in_stream(layout)
        place = self.placed(flow.x, layout.start)
        q = self.queries(flow.x, place)
        cache = kv_cache.append_keys(flow.state, *self.latents(flow.x, place))
        rotary, latent = cache.keys.to(q.dtype), cache.values.to(q.dtype)
        q, bias = self.core.remembered(q, cache)
        extra: dict[str, Any] = {"visible": cache.mask, "dropout": self.core.rate(), "bias": bias}
        sizes = {"width": self.head_width, "rotary": self.rotary_width, "latent": self.kv_width}
        if not cache.begins and absorbs(q.shape[2], latent.shape[2], **sizes):
            maps = self.by_head(q.dtype)
            o = absorbed_attention(q, rotary, latent, *maps, sinks=self.core.sinks, **extra)
        else:
            k, v = self.heads_of(rotary, latent)
            o = self.core.attend_with_sinks(q, k, v, causal=True, **extra)
        return flow._replace(x=self.merge(o), state=cache.state)

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return an empty memory of `memory` tokens; `Unsupported` if the mixer is not causal."""
        shape = (batch_size, 1, memory, self.rotary_width, self.kv_width)
        return self.core.initial_state(shape, self.q_proj.weight.new_empty(0))
