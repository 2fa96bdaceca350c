"""The four projections around an attention core, shared so that weights load across families."""

from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lra.models.canon import TAPS, Canon
from lra.models.linear_map import projection
from lra.models.mixer import (
    SCORED,
    Family,
    Flow,
    Layout,
    Positions,
    Site,
    State,
    Traits,
    Unsupported,
    blanked,
)
from lra.models.positions import (
    ROTARY_BASE,
    At,
    Rotation,
    Spacing,
    add_sinusoids,
    rotate,
    rotation,
)


@runtime_checkable
class Core(Protocol):
    """A map from queries, keys and values to values, with the modules that a family needs.

    A core with a state along time also has
    `initial_state(shape, like) -> State`, shape = (b, h, memory, k, v), zeros = empty, and
    `extend(q, k, v, layout, state) -> (o, state)`.
    """

    traits: Traits

    def __call__(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s k"],
        v: Float[Tensor, "b h s v"],
        layout: Layout,
    ) -> Float[Tensor, "b h l v"]:
        """Return the attention output of queries `q` on keys `k` and values `v`.

        `layout.keep` is True for real keys; None means that all keys are real.
        """
        ...


@runtime_checkable
class HasCore(Protocol):
    """A mixer whose attention is a function of queries, keys and values."""

    def attention_core(self) -> Core:
        """Return the attention function; raise `Unsupported` if these options have none."""
        ...


APPLIED = frozenset({"head_width", "qkv_bias", "output_bias"})
"""Options of the site that `MultiHead` applies for any core."""
TURNED = frozenset({"rotary_base", "rotary_share"})
"""Options of rotary positions that it applies where it alone rotates queries and keys."""


class Biases(NamedTuple):
    """Which projections of a family have biases."""

    qkv: bool
    output: bool


def biases(site: Site, bias: bool, *, default: bool = True) -> Biases:
    """Return which projections have biases.

    The backbone's options `qkv_bias` and `output_bias` decide; where one is None, `bias` decides.

    Args:
        site: Holds the options of the backbone.
        bias: The family's option.
        default: The default of that option.

    Raises:
        ValueError: The backbone's options are set, and `bias` differs from its default.
    """
    requested = {name: getattr(site, name) for name in ("qkv_bias", "output_bias")}
    requested = {name: value for name, value in requested.items() if value is not None}
    if requested and bias != default:
        given = ", ".join(
            f"model.backbone.{key}={str(requested[key]).lower()}" for key in requested
        )
        raise ValueError(
            f"bias={str(bias).lower()} of the family and {given} both decide which projections "
            f"have biases: leave bias at {str(default).lower()}, or set the other to null"
        )
    return Biases(requested.get("qkv_bias", bias), requested.get("output_bias", bias))


class HeadCounts(NamedTuple):
    """Numbers of heads of each kind, if they differ from `site.heads`."""

    queries: int
    keys: int
    values: int
    outputs: int
    """Number of heads in the core's output."""


NORM_EPSILON = 1e-6
"""Added to the mean square of a head's queries and keys."""

Place: TypeAlias = Int[Tensor, " b"] | Spacing | Rotation | None
"""The position of each row's first token, or of all its tokens; None: the first is at 0.

With rotary positions, a `Rotation` that was computed from it may take its place."""


class MultiHead(Family):
    """q, k and v projections from `site.width` to all heads, `core`, and a projection back.

    This class also applies rotary and position-infused encodings, before the core, if the site
    asks for them.

    Args:
        core: The function of queries, keys and values between the projections.
        bias: Whether projections have biases, unless the backbone sets this (`qkv_bias`,
            `output_bias`).
        bias_default: The default of that option of the family.
        mean_at_padding: Whether the output at a padded token is the mean of the values at all
            positions, padding included; if not, it attends to the real keys like any token. The
            Long Range Arena's code gives this mean, because in float32 a bias of -1e10 on every
            score makes all scores equal.
        heads: Numbers of heads of each projection; None: `site.heads` for all.
        key_width: Width of a head of queries and of keys; None: `site.head_width`. Heads of values
            always have `site.head_width`.
        output_gate: Whether a sigmoid gate, computed from the layer's input, multiplies each
            channel of the attention output (Qiu et al. 2025, arXiv:2505.06708, elementwise).
        qk_norm: Whether RMSNorm, with weights shared by all heads, is applied to queries and keys
            before rotary positions (Qwen3, arXiv:2505.09388).
        head_gate: Whether one sigmoid gate for each head multiplies the attention output (Qiu et
            al., headwise); it takes the place of `output_gate`.
        joint_qk_norm: Whether that norm is over all heads together, each channel with a separate
            weight (OLMo 2, arXiv:2501.00656); it takes the place of `qk_norm`.
    """

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    out_proj: nn.Linear
    gate_proj: nn.Linear | None
    q_norm: nn.RMSNorm | None
    k_norm: nn.RMSNorm | None
    infusible: ClassVar[bool] = True
    """Whether every query and key comes from `project`, which adds infused positions."""
    turns_alone: ClassVar[bool] = False
    """Whether `rotate_heads` alone rotates queries and keys, so that options may choose angles."""
    weighs_padding: bool = True
    """Whether finite numbers at padding may change other outputs slightly. False if their weights
    are exactly 0: then unread padding may contain anything."""

    def __init__(
        self,
        site: Site,
        core: Core,
        *,
        bias: bool = True,
        bias_default: bool = True,
        mean_at_padding: bool = False,
        heads: HeadCounts | None = None,
        key_width: int | None = None,
        output_gate: bool = False,
        qk_norm: bool = False,
        joint_qk_norm: bool = False,
        head_gate: bool = False,
    ) -> None:
        """Make the projections, and join the traits of `core` with those of this class."""
        super().__init__()
        self.mean_at_padding = mean_at_padding
        self.heads, self.head_width = site.heads, site.head_width
        self.head_counts = HeadCounts(*4 * [site.heads]) if heads is None else heads
        self.key_width = site.head_width if key_width is None else key_width
        self.rotary = site.positions == Positions.rotary
        self.infused = site.positions == Positions.position_infused
        self.scored = site.positions in SCORED
        self.positions_inside = site.positions != Positions.none
        self.rotary_base = ROTARY_BASE if site.rotary_base is None else site.rotary_base
        self.rotary_width = self.key_width
        if site.rotary_share is not None:
            self.rotary_width = 2 * int(site.rotary_share * self.key_width / 2)
        if self.rotary and self.rotary_width < 1:
            raise ValueError(
                f"rotary_share={site.rotary_share} of a head of {self.key_width} channels is less "
                "than one pair: set a larger share, or positions=none"
            )
        if self.rotary and self.key_width % 2:
            width_text = (
                _describe_head_width(site) if key_width is None else f"key_width={key_width}"
            )
            raise ValueError(
                f"rotary positions need an even head width: got {width_text}; change heads, "
                "head_width, or positions"
            )
        biased, counts = biases(site, bias, default=bias_default), self.head_counts
        input_widths = (
            counts.queries * self.key_width,
            counts.keys * self.key_width,
            counts.values * self.head_width,
        )
        for name, width in zip(("q_proj", "k_proj", "v_proj"), input_widths, strict=True):
            self.add_module(name, projection(site.width, width, bias=biased.qkv))
        width = counts.outputs * self.head_width
        self.out_proj = projection(width, site.width, bias=biased.output)
        # Drawn last, so that all other weights are equal with and without the gate.
        self.gate_proj = projection(site.width, width, bias=biased.qkv) if output_gate else None
        if head_gate:
            self.gate_proj = projection(site.width, counts.outputs, bias=biased.qkv)
        self.head_gate = head_gate
        self.q_norm, self.k_norm = (
            nn.RMSNorm(self.key_width, NORM_EPSILON) if qk_norm else None for _ in range(2)
        )
        if joint_qk_norm:
            self.q_norm, self.k_norm = (
                nn.RMSNorm(width, NORM_EPSILON) for width in input_widths[:2]
            )
        self.joint_norm = joint_qk_norm
        self.core = cast(nn.Module, core)
        encodings = core.traits.positions | {Positions.rotary.value}
        if self.infusible:
            encodings |= {Positions.position_infused.value}
        options = core.traits.options | APPLIED | (TURNED if self.turns_alone else set())
        sees_order = core.traits.sees_order or self.positions_inside
        self.traits = replace(
            core.traits, positions=encodings, options=options, sees_order=sees_order
        )
        self.canon: Canon | None = None
        projects = all(getattr(type(self), n) is getattr(MultiHead, n) for n in _PROJECTED)
        if site.canon and projects and not mean_at_padding:
            self.canon = Canon(sum(input_widths))
            reach = None if core.traits.reach is None else core.traits.reach + TAPS - 1
            self.traits = replace(
                self.traits, sees_order=True, cross=False, row_stochastic=False, reach=reach,
                summarises=True,
                supports=self.traits.supports - {"order"},
            )  # fmt: skip

    @property
    def attends_at(self) -> bool:
        """Whether `attend` accepts separate positions of queries and keys.

        It does not if the core itself depends on order, because a core counts positions from 0; nor
        with `mean_at_padding`, which only `forward` computes.
        """
        traits = cast(Core, self.core).traits
        return (
            traits.cross
            and not (traits.causal or traits.sees_order)
            and not self.mean_at_padding
            and self.canon is None
        )

    @property
    def attends_in_order(self) -> bool:
        """Whether `attend` accepts a rank for each query, which limits it to keys up to it."""
        return self.attends_at and "order" in cast(Core, self.core).traits.supports

    def attention_core(self) -> Core:
        """Return the core between the projections, so that it can be measured alone.

        Raises:
            Unsupported: In subclasses, if their options compute no function of q, k and v.
        """
        return cast(Core, self.core)

    def split(
        self, x: Float[Tensor, "b l d"], width: int | None = None
    ) -> Float[Tensor, "b h l k"]:
        """Split the last axis of `x` into heads of this width; None: `head_width`."""
        width = self.head_width if width is None else width
        return x.reshape(*x.shape[:2], x.shape[-1] // width, width).transpose(1, 2)

    def queries(self, placed: Float[Tensor, "b l d"], place: Place) -> Float[Tensor, "b h l k"]:
        """Project `placed` (tokens, with infused positions) to queries; norm and rotate them."""
        q = self.split_heads(self.q_proj(placed), self.q_norm)
        return self.rotate_heads(q, place) if self.rotary else q

    def keys(self, placed: Float[Tensor, "b l d"], place: Place) -> Float[Tensor, "b g l k"]:
        """Project `placed` to g heads of keys, as `queries` does for queries."""
        k = self.split_heads(self.k_proj(placed), self.k_norm)
        return self.rotate_heads(k, place) if self.rotary else k

    def split_heads(
        self, x: Float[Tensor, "b l d"], norm: nn.RMSNorm | None
    ) -> Float[Tensor, "b h l k"]:
        """Split projected queries or keys `x` into heads; norm each head, or all together."""
        if norm is None or not self.joint_norm:
            heads = self.split(x, self.key_width)
            return heads if norm is None else norm_heads(heads, norm)
        return self.split(norm_heads(x[:, None], norm)[:, 0], self.key_width)

    def rotate_heads(self, x: Float[Tensor, "b h l k"], place: Place) -> Float[Tensor, "b h l k"]:
        """Return heads of queries or keys `x`, rotated by their positions."""
        return rotate(x, place if isinstance(place, Rotation) else self.angles(x, place))

    def angles(self, x: Tensor, place: Int[Tensor, " b"] | Spacing | None) -> Rotation:
        """Return the rotation of a head's channels at the position of each token of `x`."""
        return rotation(x, self.rotary_width, place, self.rotary_base)

    def project(
        self, x: Float[Tensor, "b l d"], layout: Layout
    ) -> tuple[Float[Tensor, "b h l k"], Float[Tensor, "b g l k"], Float[Tensor, "b c l v"]]:
        """Return queries (h heads), keys (g) and values (c) of `x`, with positions applied."""
        return self._project_after(None, x, layout)[0]

    def _project_after(
        self, before: Tensor | None, x: Float[Tensor, "b l d"], layout: Layout
    ) -> tuple[tuple[Tensor, Tensor, Tensor], State]:
        """Return what `project` does, and the state of the Canon layer, if there is one.

        `before` is its state before the first token; None: zeros.
        """
        if self.weighs_padding or not layout.unread:  # else padding may contain anything
            x = blanked(x, layout, self.traits)
        place = layout.start
        placed = add_sinusoids(x, place) if self.infused else x
        # The angles are computed once for queries and keys.
        angles: Place = self.angles(x, place) if self.rotary else place
        if self.canon is None:
            queries, keys = self.queries(placed, angles), self.keys(placed, angles)
            return (queries, keys, self.split(self.v_proj(x))), None
        q = self.split_heads(self.q_proj(placed), self.q_norm).transpose(1, 2).flatten(2)
        k = self.split_heads(self.k_proj(placed), self.k_norm).transpose(1, 2).flatten(2)
        v = self.v_proj(x)
        convolved, after = self.canon(torch.cat((q, k, v), dim=-1), layout, before)
        q, k, v = convolved.split([part.shape[-1] for part in (q, k, v)], dim=-1)
        q, k = (self.split(part, self.key_width) for part in (q, k))
        if self.rotary:
            q, k = self.rotate_heads(q, angles), self.rotate_heads(k, angles)
        return (q, k, self.split(v)), after

    def gated(
        self, o: Float[Tensor, "b h l v"], x: Float[Tensor, "b l d"], layout: Layout
    ) -> Float[Tensor, "b h l v"]:
        """Multiply the heads' outputs `o` by sigmoid gates of the input `x`, if there are gates."""
        if self.gate_proj is None:
            return o
        gate: Tensor = self.gate_proj(blanked(x, layout, self.traits))
        return o * self.split(gate.sigmoid(), 1 if self.head_gate else None)

    def merge(self, o: Float[Tensor, "b h l k"]) -> Float[Tensor, "b l d"]:
        """Concatenate the heads and project them back to the width of the model."""
        mixed: Tensor = self.out_proj(o.transpose(1, 2).flatten(-2))
        return mixed

    def forward(self, x: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b l d"]:
        """Project `x`, apply the core, then gate and project its output back."""
        q, k, v = self.project(x, layout)
        y = self.merge(self.gated(self.core(q, k, v, layout), x, layout))
        if layout.keep is None or not self.mean_at_padding:
            return y
        return y.where(layout.keep[..., None], self.out_proj(self.v_proj(x.mean(1, keepdim=True))))

    def attend(
        self,
        x: Float[Tensor, "b l d"],
        layout: Layout,
        source: Float[Tensor, "b s d"],
        source_layout: Layout,
        at: At | None = None,
    ) -> Float[Tensor, "b l d"]:
        """Cross attention: every token of `x` attends to the real tokens of `source`.

        `at` has the positions of both in one common order; None: they have no common order. If
        `layout.order` is set, a token attends only to source tokens up to its own rank.

        Raises:
            Unsupported: The core is causal or has no cross attention, or the mixer applies
                positions and `at` is None, or it cannot use `at`.
        """
        core = cast(Core, self.core)
        traits = core.traits
        name = type(self).__name__
        if self.canon is not None:
            raise Unsupported(
                "a Canon layer reads queries with the tokens before them, which cross attention "
                f"does not have: build {name} with canon=False"
            )
        if not traits.cross:
            raise Unsupported(
                f"{name} has no cross attention (its traits.cross is False): choose softmax or sdpa"
            )
        if at is not None and not self.attends_at:
            raise Unsupported(
                f"{name} counts positions itself, so it cannot attend at the positions that the "
                "caller gives (attends_at=False): call it with at=None"
            )
        if traits.causal or (self.positions_inside and at is None):
            raise Unsupported(
                "cross attention reads the whole source and applies no positions inside the mixer: "
                f"build {name} with causal=False and positions=none"
            )
        x, source = blanked(x, layout, traits), blanked(source, source_layout, traits)
        query_place, key_place = (None, None) if at is None else at
        placed, placed_source = x, source
        if self.infused:
            placed = add_sinusoids(x, query_place)
            placed_source = add_sinusoids(source, key_place)
        q, k = self.queries(placed, query_place), self.keys(placed_source, key_place)
        v = self.split(self.v_proj(source))
        key_facts = Layout(keep=source_layout.keep)
        if layout.order is not None and self.attends_in_order:
            key_facts = key_facts._replace(order=source_layout.order)
            o = cast(Any, core)(q, k, v, key_facts, at, ranks=layout.order)
        elif at is not None and self.scored:
            o = cast(Any, core)(q, k, v, key_facts, at)
        else:
            o = core(q, k, v, key_facts)
        return self.merge(self.gated(o, x, layout))

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Mix `flow.x`, continuing from `flow.state`; if the state is None, call `forward`."""
        if flow.state is None:
            return flow.with_x(self.forward(flow.x, layout))
        core: Any = self.core
        if not hasattr(core, "extend"):
            raise Unsupported(
                f"{type(core).__name__} has no method `extend`, so it cannot continue from a "
                "state: call it without a state, or choose another family"
            )
        if self.canon is None:
            q, k, v = self.project(flow.x, layout)
            o, state = core.extend(q, k, v, layout, flow.state)
        else:
            of_core, before = cast(tuple[State, Tensor], flow.state)
            (q, k, v), after = self._project_after(before, flow.x, layout)
            o, of_core = core.extend(q, k, v, layout, of_core)
            state = of_core, after
        return flow._replace(x=self.merge(self.gated(o, flow.x, layout)), state=state)

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return the core's empty state for `memory` tokens; `Unsupported` if it has none."""
        core: Any = self.core
        if not hasattr(core, "initial_state"):
            raise Unsupported(
                f"{type(core).__name__} has no state that continues from token to token, so it "
                "cannot write one token at a time: choose another family, or run the whole "
                "sequence through forward"
            )
        like = self.q_proj.weight.new_empty(0)
        state: State = core.initial_state(
            (batch_size, self.head_counts.keys, memory, self.key_width, self.head_width), like
        )
        return state if self.canon is None else (state, self.canon.empty(batch_size))


_PROJECTED = ("project", "queries", "keys", "forward", "extend", "initial_state")
"""Methods that a family must share with `MultiHead`, so that it has a Canon layer in them."""


def norm_heads(x: Float[Tensor, "b h l k"], norm: nn.RMSNorm) -> Float[Tensor, "b h l k"]:
    """Norm each head of `x` in the precision of the norm's weights, also under autocast."""
    return cast(Tensor, norm(x.to(norm.weight.dtype))).to(x.dtype)


def _describe_head_width(site: Site) -> str:
    """Return text for a message: the width of a head, and the options that it comes from."""
    if site.own_head_width is not None:
        return f"head_width={site.own_head_width}"
    return f"{site.head_width} (width={site.width} / heads={site.heads})"
