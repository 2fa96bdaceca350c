"""Synthesizer: attention weights predicted from one token (dense) or learned (random).

    o_i = sum_j p_ij x_j W_v,    p = softmax of A over j,    A an n x n matrix per head

The components of A, one or several:

    dense              A_i = W2 relu(W1 x_i + b1) + b2: one logit per position of the longest input
    random             A = R, trained             fixed_random  A = R, drawn and never trained
    factorised_random  A = R1 R2^T, both N x `rank`
    factorised_dense   A_ij = a_i[j mod |a|] b_i[j div |a|], a_i = W_a x_i, b_i = W_b x_i, where
                       |a| |b| = N with |a| near sqrt(N); if N has no such divisor, the next larger
                       product, cut off at N
    dot                A_ij = q_i . k_j / sqrt(d)

Several components are mixed before the softmax: A = sum_c alpha_c A_c, where alpha is the softmax
of one learned number per component and head. N is the longest input; shorter ones use the upper
left part, longer ones raise an error. Causal and padding masks are exact: masked keys are excluded
from the softmax.

Cost: A V takes 2 n^2 D operations, dense 2 n^2 D more, and factorised_random 2 n^2 H rank more.
Numbers of parameters: random H N^2, factorised_random 2 H N rank, dense D^2 + D N, factorised_dense
2 D H sqrt(N).

Source: Tay et al. 2020, arXiv:2005.00743. Notation: the paper's l, d are n, D; its B(X) is A, its
G(X) = X W_v; its vanilla component is dot.

Differences from the paper: R is drawn by Xavier where it is trained. fixed_random draws it from
N(0, 1), since small values would give a plain mean. Where A is the same for the whole batch,
attention dropout drops the same weights for the whole batch.

In the causal form, the state along time stores the values of all tokens, and also their keys if dot
is a component.

variant: lra follows the Long Range Arena code, whose results used [random, dot]: components are
added, without alpha, and the fans by which it draws R count all heads. It applies the padding mask
only together with dot, and so does this variant: without dot, padded tasks need
model.backbone.padding=attended. With it a padded token gives the mean of the values at all
positions, unless causal: a bias of -1e10 on all of its logits makes them equal in float32;
attention dropout is not applied to that mean. Its dense has one W2 for all heads and, by a reshape
instead of a transpose, gives position i of head h the logits of another position: neither padding
nor a causal model is possible.
"""

import math
from enum import StrEnum, auto
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

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
    Traits,
    Unsupported,
    Variant,
    blanked,
)
from lra.models.multi_head import APPLIED, biases
from lra.models.ops import kv_cache
from lra.models.ops.numerics import NEVER, sum_dtype
from lra.models.ops.synthetic import Logits, fused_attention, synthetic_attention
from lra.models.positions import alibi_slopes, rotate


class Component(StrEnum):
    """Components of the scores; several components are added with learned weights."""

    dense = auto()
    random = auto()
    fixed_random = auto()
    factorised_dense = auto()
    factorised_random = auto()
    dot = auto()


def factors(length: int) -> tuple[int, int]:
    """Return two numbers near sqrt(length) with a product of `length`, or slightly more."""
    root = math.isqrt(length)
    inner = next(n for n in range(root, 0, -1) if length % n == 0)
    if 2 * inner < root:  # no divisor is near the root: take the root, rounded up
        inner = math.isqrt(length - 1) + 1
    return inner, -(-length // inner)


def xavier_matrices(*shape: int) -> nn.Parameter:
    """Return a parameter of this shape, whose matrices are each drawn Xavier-uniform."""
    matrices = nn.Parameter(torch.empty(shape))
    for matrix in matrices:
        nn.init.xavier_uniform_(matrix)
    return matrices


class Synthesizer(Family):
    """Attention with predicted or learned weights, from one or several mixed `components`."""

    no_matrices = ("alpha", "dense_bias")
    table: Float[Tensor, "h n n"]
    slopes: Float[Tensor, " h"] | None
    lra_version = 1
    needs = (
        Need(
            "rank",
            words="factorised_random among components",
            holds=lambda _, chosen: Component.factorised_random in chosen.components,
        ),
    )

    def __init__(
        self,
        site: Site,
        *,
        components: list[Component] = [Component.dense],  # noqa: B006  read, never written
        rank: Count = 8,
        bias: bool = True,
        variant: Variant = Variant.faithful,
    ) -> None:
        """Check the options; make the projections and the parameters of each component."""
        super().__init__()
        chosen, self.lra = set(components), variant == Variant.lra
        if (
            not chosen
            or len(chosen) < len(components)
            or {Component.random, Component.fixed_random} <= chosen
        ):
            raise ValueError(
                "components must be a list of one or more different components, and random and "
                f"fixed_random exclude each other: got {[*map(str, components)]}; choose among "
                f"{[*map(str, Component)]}"
            )
        if self.lra and site.causal and Component.dense in chosen:
            raise Unsupported(
                "with variant=lra, the dense component mixes positions, but this model must be "
                "causal: choose variant=faithful, or components without dense"
            )
        self.components, self.causal, self.heads = components, site.causal, site.heads
        self.head_width, self.max_length = site.head_width, site.max_length
        self.dropout, self.rotary = site.attention_dropout, site.positions == Positions.rotary
        alibi = site.positions == Positions.alibi
        self.register_buffer("slopes", alibi_slopes(site.heads) if alibi else None, False)
        has_bias = biases(site, bias)
        self.v_proj = projection(site.width, site.inner_width, bias=has_bias.qkv)
        self.out_proj = projection(site.inner_width, site.width, bias=has_bias.output)
        for component in components:
            self._add_component(component, site, rank, has_bias.qkv)
        self.alpha = None
        if len(components) > 1 and not self.lra:
            self.alpha = nn.Parameter(torch.zeros(len(components), site.heads, 1, 1))
        # A fused kernel can compute components that are inner products of queries and keys.
        products = {Component.dot, Component.dense, Component.factorised_random}
        self.fused = chosen <= products and chosen != {Component.factorised_random} and not alibi
        exact = not self.lra or (Component.dot in chosen and Component.dense not in chosen)
        supports = {"keep": exact, "start": site.causal}  # a start comes only with a state
        self.traits = Traits(
            supports=frozenset(fact for fact, is_supported in supports.items() if is_supported),
            options=APPLIED,
            positions=frozenset({"alibi"} | ({"rotary"} if Component.dot in chosen else set())),
            causal=site.causal,
            max_length=site.max_length,
            operations=Growth(2.0),
            # factorised_dense stores |a| + |b| logits per token, and |a| |b| is the length.
            memory=Growth(1.5 if Component.factorised_dense in chosen else 1.0),
            row_stochastic=True,
            weight_dropout=True,
            random_draws=Component.fixed_random in chosen,
            sees_order=site.causal or site.positions != Positions.none or chosen != {Component.dot},
        )

    def _add_component(self, component: Component, site: Site, rank: int, bias: bool) -> None:
        """Make the parameters of one component; `bias` tells whether projections have biases."""
        width, heads, longest = site.width, site.heads, site.max_length
        match component:
            case Component.dot:
                self.q_proj = projection(width, site.inner_width, bias=bias)
                self.k_proj = projection(width, site.inner_width, bias=bias)
            case Component.dense:
                kinds = 1 if self.lra else heads
                self.dense_in = projection(width, site.inner_width, bias=bias)
                self.dense_out = xavier_matrices(kinds, longest, site.head_width)
                self.dense_bias = nn.Parameter(torch.zeros(kinds, longest, 1))
            case Component.random:
                self.table = xavier_matrices(heads, longest, longest)
                if self.lra:
                    with torch.no_grad():  # that code's fans count all heads together
                        self.table.mul_(heads**-0.5)
            case Component.fixed_random:
                meta = torch.get_default_device().type == "meta"
                table = torch.empty(heads, longest, longest, device="meta" if meta else "cpu")
                if not meta:
                    table.normal_(generator=site.generator)
                self.register_buffer("table", table)
            case Component.factorised_random:
                self.left, self.right = (xavier_matrices(heads, longest, rank) for _ in range(2))
            case Component.factorised_dense:
                inner, outer = factors(longest)
                self.first_proj = projection(width, heads * inner, bias=bias)
                self.second_proj = projection(width, heads * outer, bias=bias)

    def split(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b h l k"]:
        """Fold the width into heads."""
        return x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def shares(self) -> list[tuple[Component, Any]]:
        """Return every component with its alpha, which is 1 if components have no weights."""
        alpha = None if self.alpha is None else self.alpha.softmax(0)
        return [(c, 1.0 if alpha is None else alpha[i]) for i, c in enumerate(self.components)]

    def logits(self, x: Float[Tensor, "b l d"]) -> Logits:
        """Return the factors of the logits A of tokens `x`, with alpha in one factor of each.

        Inner products of all components are concatenated to one pair of queries and keys.
        """
        batch, length = x.shape[:2]
        parts: list[tuple[Tensor, Tensor]] = []
        arguments: dict[str, Any] = {"slopes": self.slopes}
        for component, share in self.shares():
            match component:
                case Component.dot:
                    q, k = self.split(self.q_proj(x)), self.split(self.k_proj(x))
                    if self.rotary:
                        q, k = rotate(q), rotate(k)
                    parts.append((q * (share * self.head_width**-0.5), k))
                case Component.dense:
                    hidden = self.dense_in(x).relu()
                    shape = (batch, self.heads, length, self.head_width)
                    # The LRA code reshapes without a transpose, which mixes positions and heads.
                    hidden = hidden.view(shape) if self.lra else self.split(hidden)
                    ones = hidden.new_ones(*shape[:3], 1)
                    parts += [(hidden * share, self.dense_out[None, :, :length])]
                    parts += [(ones * share, self.dense_bias[None, :, :length])]
                case Component.factorised_random:
                    left, right = self.left[None, :, :length], self.right[None, :, :length]
                    parts.append((left * share, right))
                case Component.factorised_dense:
                    arguments["first"] = self.split(self.first_proj(x)) * share
                    arguments["second"] = self.split(self.second_proj(x))
                case _:
                    weight = None if self.alpha is None else share
                    arguments |= {"table": self.table, "weight": weight}
        if parts:
            # Learned components alone give one set of logits for the whole batch.
            groups = 1 if all(len(q) == 1 for q, _ in parts) and "first" not in arguments else batch
            shape = (groups, self.heads, length, -1)
            queries, keys = (
                torch.cat([part.expand(shape) for part in side], -1)
                for side in zip(*parts, strict=True)
            )
            arguments |= {"queries": queries, "keys": keys}
        return Logits(**arguments)

    def forward(self, x: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b l d"]:
        """Attend with the predicted weights; ValueError for more than `max_length` tokens."""
        if layout.start is not None:
            raise Unsupported(
                "Synthesizer needs the state of earlier tokens for tokens that begin after "
                "position 0: call extend with that state"
            )
        if x.shape[1] > self.max_length:
            raise ValueError(
                f"this Synthesizer predicts weights for at most {self.max_length} tokens: got "
                f"{x.shape[1]} tokens; truncate, or build it with a larger max_length"
            )
        real = blanked(x, layout, self.traits)
        logits, v = self.logits(real), self.split(self.v_proj(real))
        dropout = self.dropout if self.training else 0.0
        attend = fused_attention if self.fused else synthetic_attention
        o = attend(logits, v, keep=layout.keep, causal=self.causal, dropout=dropout)
        mixed: Tensor = self.out_proj(o.transpose(1, 2).flatten(-2))
        if layout.keep is None or not self.lra or self.causal:
            return mixed
        mean = self.out_proj(self.v_proj(x.mean(1, keepdim=True)))
        return mixed.where(layout.keep[..., None], mean)

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return an empty memory of values, and of keys if `dot` is a component."""
        key_width = self.head_width if Component.dot in self.components else 0
        slots = min(memory, self.max_length)
        shape = (batch_size, self.heads, slots, key_width, self.head_width)
        return kv_cache.empty_cache(shape, self.v_proj.weight.new_empty(0))

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Continue from `flow.state`, whose number of tokens gives the position of the new ones."""
        if flow.state is None:
            return flow.with_x(self.forward(flow.x, layout))
        _, stored_values, read_count = cast(tuple[Tensor, ...], flow.state)
        x = flow.x
        v = self.split(self.v_proj(x))
        q = k = v[..., :0]  # without dot, there are no keys to store
        if Component.dot in self.components:
            q, k = self.split(self.q_proj(x)), self.split(self.k_proj(x))
            if self.rotary:
                q, k = rotate(q, read_count), rotate(k, read_count)
        if not kv_cache.fits(flow.state, x.shape[1]):
            raise ValueError(
                "the memory of Synthesizer is full, and it cannot drop the oldest tokens, because "
                f"weights belong to absolute positions: it has {int(read_count.max())} of "
                f"{stored_values.shape[2]} tokens and got {x.shape[1]} more; make the state with a "
                "larger memory, up to max_length, or begin with an empty state"
            )
        cached = kv_cache.append_keys(flow.state, k, v)
        if cached.begins:
            y = self.forward(x, layout._replace(start=None))
            return flow._replace(x=y, state=cached.state)
        logits = self.rows(x, q @ cached.keys.to(q.dtype).mT, read_count)
        weights = logits.masked_fill(~cached.visible, NEVER).softmax(-1)
        weights = F.dropout(weights, self.dropout if self.training else 0.0)
        o = weights.to(v.dtype) @ cached.values.to(v.dtype)
        return flow._replace(x=self.out_proj(o.transpose(1, 2).flatten(-2)), state=cached.state)

    def rows(
        self, x: Float[Tensor, "b l d"], dots: Float[Tensor, "b h l s"], seen: Int[Tensor, " b"]
    ) -> Float[Tensor, "b h l s"]:
        """Return the logits of tokens `x` after `seen` earlier ones, for the first s positions.

        `dots` has the products of queries and keys, for the component dot.
        """
        slots, position = dots.shape[-1], seen[:, None] + torch.arange(x.shape[1], device=x.device)
        total = torch.zeros_like(dots, dtype=sum_dtype(dots))
        for component, share in self.shares():
            match component:
                case Component.dot:
                    part = dots * self.head_width**-0.5
                case Component.dense:
                    hidden = self.split(self.dense_in(x).relu())
                    part = hidden @ self.dense_out[:, :slots].mT + self.dense_bias[:, :slots].mT
                case Component.factorised_random:
                    part = self.left[:, position].transpose(0, 1) @ self.right[:, :slots].mT
                case Component.factorised_dense:
                    first, second = self.split(self.first_proj(x)), self.split(self.second_proj(x))
                    part = (second[..., None] * first[..., None, :]).flatten(-2)[..., :slots]
                case _:
                    part = self.table[:, position, :slots].transpose(0, 1)
            total = total + share * part
        if self.slopes is None:
            return total
        distance = (position[..., None] - torch.arange(slots, device=x.device)).abs()
        return total - self.slopes[:, None, None] * distance[:, None]
