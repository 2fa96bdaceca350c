"""The interface of a mixer: what families implement, and what builds, runs and checks them.

Axis letters are fixed for the project: b batch, p sequences per example, l length, d width,
h heads, k and v key and value width per head, c classes. One mask convention: `keep`, True = real
token. Of this project a family imports this module, `lra.models.multi_head`,
`lra.models.positions`, `lra.models.relative` and `lra.models.ops`, and nothing else.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto
from functools import wraps
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lra.conf.bounds import (
    Count as Count,  # noqa: PLC0414  # handed on
    Fraction as Fraction,  # noqa: PLC0414  # handed on
    NonNegative as NonNegative,  # noqa: PLC0414  # handed on
    Positive as Positive,  # noqa: PLC0414  # handed on
    Share as Share,  # noqa: PLC0414  # handed on
    Whole as Whole,  # noqa: PLC0414  # handed on
    check_least as check_least,  # noqa: PLC0414  # handed on
    check_positive as check_positive,  # noqa: PLC0414  # handed on
    check_share as check_share,  # noqa: PLC0414  # handed on
)
from lra.conf.choices import (
    ByName as ByName,  # noqa: PLC0414  # handed on
    by_name,
)
from lra.models.idle import (
    Need as Need,  # noqa: PLC0414  # handed on
    idle_in,
)
from lra.models.made_once import MadeOnce
from lra.models.options import constructor
from lra.models.positions import (
    INSIDE as INSIDE,  # noqa: PLC0414  # handed on
    SCORED as SCORED,  # noqa: PLC0414  # handed on
    Positions as Positions,  # noqa: PLC0414  # handed on
)
from lra.models.tuning import (
    Roles as Roles,  # noqa: PLC0414  # handed on
    TunedModule as TunedModule,  # noqa: PLC0414  # handed on
    Tuning as Tuning,  # noqa: PLC0414  # handed on
)


@dataclass(frozen=True, slots=True, order=True)
class Growth:
    """How a cost grows with the length n: as n^exponent, times log n if `log` is set.

    A family declares it from its mathematics and options, for the fastest-growing term alone; it is
    never fitted to measurements. Instances are ordered: a slower growth is less than a faster one.
    """

    exponent: float
    log: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for an exponent that is negative or not finite."""
        if not 0 <= self.exponent < math.inf:
            raise ValueError(
                f"exponent must be 0 or more, and finite: got {self.exponent}; set 1 for a cost "
                "that grows linearly with the length"
            )

    def at(self, length: float) -> float:
        """Return length^exponent, times log2(length) if `log` is set; `length` is at least 2."""
        return float(length**self.exponent * (math.log2(length) if self.log else 1.0))

    def __str__(self) -> str:
        """Return this growth as tables print it, for example n, n log n, n^1.5 or n²."""
        powers = {0.0: "" if self.log else "1", 1.0: "n", 2.0: "n²", 3.0: "n³"}
        power = powers.get(self.exponent, f"n^{self.exponent:g}")
        return f"{power} log n".strip() if self.log else power


State: TypeAlias = Tensor | tuple[Any, ...] | None
"""What a mixer remembers along time: nested tuples of tensors, batch first, with constant shapes.

Zeros mean empty; an empty slot is masked, never absent. `lra.models.state` maps over it.
"""

M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")
NO_PENALTIES: Mapping[str, Tensor] = MappingProxyType({})


class Unsupported(ValueError):
    """Raised by a constructor or by `initial_state` if a family cannot do what is asked.

    It becomes a row whose status is `unsupported` and whose reason is this message.
    """


class Idle(Unsupported):
    """Raised for an option that has no effect: leave it at its default.

    Args:
        sentence: The message.
        option: Of the family by its name, of the backbone as `backbone.NAME`.
    """

    def __init__(self, sentence: str, option: str) -> None:
        super().__init__(sentence)
        self.option = option

    def __reduce__(self) -> tuple[type["Idle"], tuple[str, str]]:
        """Return the class and its arguments, so that pickle can rebuild it in another process."""
        return type(self), (str(self), self.option)


class Variant(StrEnum):
    """Whether to compute the function of the paper or that of the official LRA code."""

    faithful = auto()
    """The paper's function."""
    lra = auto()
    """The function of the code behind the published Long Range Arena results."""


class PaddingRule(StrEnum):
    """How the family treats padding if a weight of 0 does not exclude it."""

    exact = auto()
    """Padding has no effect: a padded row equals the same row alone."""
    original = auto()
    """As in the authors' code, where padding counts, mostly as zeros."""

    @property
    def traits(self) -> dict[str, Any]:
        """Return arguments of `Traits` for a family with this rule, to pass as `**rule.traits`.

        With `original`, padding affects the outputs, so `supports` lacks "keep".
        """
        if self == PaddingRule.exact:
            return {}
        return {"supports": Traits().supports - {"keep"}, "hides_others": True}


SITE_OPTIONS: Mapping[str, str] = MappingProxyType(
    {"head_width": "own_head_width"}
    | {name: name for name in ("qkv_bias", "output_bias", "rotary_base", "rotary_share")}
)
"""Options of the backbone that only some mixers can apply, each with its field of `Site`. None in
that field is the default, which every mixer supports."""


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The facts of a place for a mixer. New facts go here, not into a family's signature."""

    width: int
    heads: int
    max_length: int
    causal: bool = False
    layer: int = 0
    depth: int = 1
    """Layers with separate weights; `layer` counts these."""
    attention_dropout: float = 0.0
    positions: Positions = Positions.none
    """One of `INSIDE` if the mixer itself must apply the positions; else `none`."""
    relative_distance: int = 64
    """Largest distance that `positions=shaw` distinguishes."""
    source_length: int = 0
    target_length: int = 0
    """Tokens of the longest source and target; 0: none."""
    cls: bool = False
    """Whether position 0 is a CLS vector, at which tasks read the answer."""
    generator: torch.Generator = field(default_factory=torch.Generator)
    """For draws at construction; seeded from (run seed, layer)."""
    own_head_width: int | None = None
    """Width of one head if it differs from `width / heads`; None = equal. See `head_width`."""
    qkv_bias: bool | None = None
    """Whether projections to queries, keys and values have biases; None = the family's `bias`."""
    output_bias: bool | None = None
    """Whether the projection back has a bias; None = the family's `bias`."""
    rotary_base: float | None = None
    rotary_share: float | None = None
    """Base of rotary angles (None = 10,000), and share of channels that rotate (None = all)."""
    canon: bool = False
    """Whether queries, keys and values pass a Canon layer; the mixer then has it as `canon`."""
    shared: dict[str, nn.Module] = field(default_factory=dict)
    """Modules that several layers share; one mapping per model."""

    @property
    def head_width(self) -> int:
        """Width of one head, `own_head_width` or width / heads; ValueError if that is not whole."""
        if self.own_head_width is not None:
            return self.own_head_width
        if self.width % self.heads:
            raise ValueError(
                f"heads must divide width: got heads={self.heads}, width={self.width}; set "
                f"model.backbone.width to a multiple of {self.heads}, or set "
                "model.backbone.head_width"
            )
        return self.width // self.heads

    @property
    def inner_width(self) -> int:
        """Width of all heads together, for queries, keys and values."""
        return self.heads * self.head_width

    def share(self, name: str, make: Callable[[], M]) -> M:
        """Return the module that all layers share under `name`; the first call makes it."""
        if name not in self.shared:
            self.shared[name] = make()
        return cast(M, self.shared[name])

    def at(self, values: list[T]) -> T:
        """Return this layer's entry of `values`, which has one entry for all layers or one each."""
        if len(values) == 1:
            return values[0]
        if len(values) != self.depth:
            raise ValueError(
                f"an option with one value for each layer takes 1 value (for all layers) or "
                f"depth={self.depth} values: got {len(values)} values"
            )
        return values[self.layer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What this mixer guarantees. `lra verify` chooses its checks from these fields."""

    supports: frozenset[str] = frozenset({"keep", "start"})
    """Fields of `Layout` that it respects exactly."""
    hides_others: bool = False
    """True: `keep` also hides tokens other than padding; `supports` then lacks it."""
    positions: frozenset[str] = frozenset()
    """Encodings among `Positions` that it applies itself if the site asks for them."""
    options: frozenset[str] = frozenset()
    """Options of the site, among `SITE_OPTIONS`, that it applies. A mixer that lacks one is refused
    if the option differs from its default."""
    causal: bool = False
    """True: an output depends on earlier tokens and its own token alone."""
    max_length: int | None = None
    operations: Growth = Growth(1.0)
    """Of products, convolutions and Fourier transforms, forward and backward, or of what is
    computed element by element where that grows faster; a table or a number of buckets that the
    site's longest input decides grows with it."""
    memory: Growth = Growth(1.0)
    """Growth of the activations that autograd saves."""
    reach: int | None = None
    """Largest distance of a token on which an output depends; None: unlimited."""
    selection_leak: bool = False
    """Causal values, but later tokens change earlier choices (hashing)."""
    row_stochastic: bool = False
    """Each output is a weighted mean of the values: enables the V = 1 and implied-matrix tests."""
    weight_dropout: bool = False
    """True: `attention_dropout` has weights to act on."""
    cross: bool = False
    """True: keys and values may have another length than the queries (cross attention)."""
    by_batch: str = ""
    """The option, as `name=value`, by which examples of a batch change each other; "": none."""
    shared_query_key: bool = False
    """One vector is query and key: the attention core ignores `k`."""
    surrogate_gradient: bool = False
    """True: backward is intentionally not the derivative of forward."""
    training_noise: bool = False
    """True: training draws other noise than dropout."""
    random_draws: bool = False
    """Draws of `site.generator` decide the function, for example hashes or random blocks."""
    simulated: bool = False
    """A dense mask imitates sparsity: excluded from tables of speed."""
    reversible: bool = True
    """False: layers pass on more than tokens (`Flow.stream`, `Flow.penalties`)."""
    in_streams: frozenset[str] = frozenset()
    """Names of parameters that learn only from tokens after a memory."""
    by_segment: bool = False
    """All tokens of a segment attend to the whole memory before it, so late ones reach further
    back."""
    summarises: bool = False
    """Its state grows with its memory, and includes earlier tokens as well, in a summary or a
    longer window."""
    keeps_length: bool = True
    """True: one output for each token; False: a stack that answers with other tokens."""
    remark: str = ""
    """What readers of a trained model's scores need to know of these options; "": nothing."""
    sees_order: bool = True
    """False: tokens are a set. Permuting them (a CLS vector stays) permutes the outputs in the same
    way, so an answer for a sequence depends on order only through positions."""


def looked_at(mask: Bool[Tensor, "..."]) -> bool:
    """Return whether Python code may read the values of `mask` cheaply.

    It may not on a GPU (reading would wait for the device), for a meta or fake tensor (which has no
    values), or while torch.compile traces.
    """
    on_cpu = mask.device.type == "cpu" and type(mask) is Tensor
    return on_cpu and not torch.compiler.is_compiling()


class Layout(NamedTuple):
    """Read-only facts about the tokens of one pass. None means the default, and the fast path.

    The model derives `keep` from padding and `start` from a state along time. The batch contains
    masks and `condition`. A stack refuses facts that one of its mixers does not support.
    """

    keep: Bool[Tensor, "b l"] | None = None
    """True = real token."""
    start: Int[Tensor, " b"] | None = None
    """Absolute position of x[:, 0]."""
    is_global: Bool[Tensor, "b l"] | None = None
    """True = this token attends to all and all attend to it, as far as causality and padding
    allow."""
    document: Int[Tensor, "b l"] | None = None
    """Document number of each token; tokens attend only within a document."""
    prefix: Int[Tensor, " b"] | None = None
    """Prefix language model: the first `prefix` tokens attend to each other."""
    order: Int[Tensor, "b l"] | None = None
    """Ranks, for a bidirectional mixer: a token attends to those with no higher rank."""
    derived: MadeOnce | None = None
    """Cache for what layers compute from these facts; None: each layer computes it."""
    unread: bool = False
    """A promise of the model: inputs at padding are normed, and outputs at padding are unused."""
    uniform: Float[Tensor, "b l"] | None = None
    """Random numbers for samples of a generator, which runs before all layers."""
    masked_per_row: Float[Tensor, " b"] | None = None
    """Mean number of samples in the rows of the whole batch; None: this is the whole batch."""
    condition: Int[Tensor, " b"] | Float[Tensor, "b d"] | None = None
    """What a row is generated under: an id in a batch, a vector in the model, for norms."""

    def once(self, name: Hashable, made_of: Sequence[object], make: Callable[[], T]) -> T:
        """Return what `make` returns, computed once for all layers of a pass: see `MadeOnce.of`."""
        # torch.compile fuses the computation with its use, which is faster than a cache.
        if torch.compiler.is_compiling() or self.derived is None:
            return make()
        return self.derived.of(name, made_of, make)

    def blanked(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        """Return `x` with zeros at the padding that `keep` marks; without `keep`, `x` itself."""
        keep = self.keep
        if keep is None:
            return x
        if not looked_at(keep):
            return x.masked_fill(~keep[..., None], 0.0)
        # index_fill by row numbers takes a third of the time of masked_fill by a broadcast mask.
        rows = self.once("rows", (keep,), lambda: (~keep).flatten().nonzero()[:, 0])
        return x.flatten(0, 1).index_fill(0, rows, 0.0).view_as(x)


FACTS = Layout._fields[: Layout._fields.index("derived")]
"""Names of the facts in a layout."""
MASKS = ("document", "prefix", "order")
"""Facts that decide which tokens attend to each other, besides padding."""


def blanked(x: Float[Tensor, "b l d"], layout: Layout, traits: Traits) -> Float[Tensor, "b l d"]:
    """Return `x` with zeros at padding if the mixer's `traits` support `keep`, else `x` itself.

    Giving padding a weight of 0 is not enough: if its values overflow, for example in an
    exponential, then 0 times infinity is NaN, in the sum or in its gradient.
    """
    return layout.blanked(x) if "keep" in traits.supports else x


class Flow(NamedTuple):
    """The input and output of a layer: tokens, state, stream and penalties."""

    x: Float[Tensor, "b l d"]
    state: State = None
    """State along time. The runner detaches it; a mixer must not."""
    stream: State = None
    """Stream along depth."""
    penalties: Mapping[str, Tensor] = NO_PENALTIES
    """Penalties on activations; never mutated."""

    def with_x(self, x: Float[Tensor, "b l d"]) -> "Flow":
        """Return a new Flow with `x` as its tokens and everything else unchanged.

        It does not call `_replace`, whose result PyTorch 2.11 loses at the end of a compiled graph.
        """
        return Flow(x, *self[1:])

    def add_penalty(self, name: str, value: Tensor) -> "Flow":
        """Return a new Flow with `value` added to the penalty `name`."""
        total = self.penalties[name] + value if name in self.penalties else value
        return self._replace(penalties={**self.penalties, name: total})


def _skip_empty_batches(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `method` (such as `extend`) so that it returns an input without tokens unchanged.

    The wrapper also refuses a state if the mixer is not causal or the batch is padded: a state
    does not store how many real tokens each row had.
    """

    @wraps(method)
    def mix(self: Any, x: Any, layout: Layout, *rest: Any) -> Any:
        """Call `method` if `x`, a tensor or a Flow, has tokens."""
        tensor, state = (x.x, x.state) if isinstance(x, Flow) else (x, None)
        if state is not None:
            _check_causal(self)
            if layout.keep is not None:
                raise ValueError("a state can continue only rows without padding: pass keep=None")
        return method(self, x, layout, *rest) if tensor.numel() else x

    return mix


def _require_causal(method: Callable[..., State]) -> Callable[..., State]:
    """Wrap `initial_state` so that it raises `Unsupported` unless the mixer is causal."""

    @wraps(method)
    def initial_state(self: Any, batch_size: int, memory: int) -> State:
        _check_causal(self)
        return method(self, batch_size, memory)

    return initial_state


def _check_causal(mixer: "Mixer") -> None:
    """Raise `Unsupported` if `mixer` attends to later tokens, because it then has no state."""
    if not mixer.traits.causal:
        raise Unsupported(
            "a model that attends to later tokens has no state that continues from token to "
            "token: build it with causal=True"
        )


def _refuse_idle_options(family: type, construct: Callable[..., None]) -> Callable[..., None]:
    """Wrap the constructor of `family` so that it raises `Idle` for an option without effect."""

    @wraps(construct)
    def build(self: Any, site: Site, **given: Any) -> None:
        construct(self, site, **given)  # first, because it checks the values
        for name, sentence in idle_in(family, site, given).items():
            raise Idle(sentence, name)

    return build


class Family(ByName, Roles):
    """Base class of families.

    Enum options may be given by name (see `lra.conf.choices`); an option that has no effect raises
    an error (see `lra.models.idle`). `forward`, `extend` and `gated_extend` return a batch without
    rows or tokens unchanged, so no family has to handle it. A state can continue only rows without
    padding, of a causal mixer; this class refuses anything else for all families.

    Constructors raise ValueError for values out of range. The docstring of a family describes an
    argument or option of its base class only if its meaning differs.

    Options:
        site: Where it is built.
        bidirectional: Whether tokens also depend on later tokens, in models that allow it.
    """

    version: ClassVar[int] = 1
    """Increased if the same options give other numbers than before; part of every run's key."""
    lra_version: ClassVar[int] = 0
    """Increased if only `variant=lra` changed; keys of its runs use version + lra_version."""
    needs: ClassVar[Sequence[Need]] = ()
    """Which options have an effect only together with which others."""

    @classmethod
    def fixed(cls, options: Any) -> Mapping[str, object]:
        """Return the options that `variant=lra` fixes, each with the value that then applies.

        You may leave such an option at its default or set it to this value; anything else raises
        an error. None means that the variant does not use the option. A string that is no value of
        the option describes what the variant does instead. This base class fixes nothing.

        Args:
            options: All options as attributes.
        """
        del options
        return {}

    def forward(self, x: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b l d"]:
        """Mix the tokens along the length by calling `extend` without a state."""
        return cast(Extends, self).extend(Flow(x), layout).x

    def __init_subclass__(cls, **options: Any) -> None:
        """Wrap the subclass's constructor and methods with the checks of this base class."""
        if "__init__" in vars(cls) and {"needs", "fixed"} & vars(cls).keys():
            cls.__init__ = _refuse_idle_options(cls, cls.__init__)  # type: ignore[method-assign]
        super().__init_subclass__(**options)
        for name in {"forward", "extend", "gated_extend"} & vars(cls).keys():
            setattr(cls, name, _skip_empty_batches(vars(cls)[name]))
        if "initial_state" in vars(cls):
            cls.initial_state = _require_causal(cls.initial_state)  # type: ignore[attr-defined]


F = TypeVar("F", bound=Family)


def options(family: type[F]) -> type[F]:
    """Give a family a constructor made from its annotated attributes: see `lra.models.options`."""
    family.declares = True  # type: ignore[attr-defined]
    build = _refuse_idle_options(family, constructor(family, Site))
    family.__init__ = by_name(build)  # type: ignore[method-assign]
    return family


@runtime_checkable
class Mixer(Protocol):
    """The smallest interface of a family."""

    traits: Traits

    def __call__(self, x: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b l d"]:
        """Mix the tokens along the length; return a tensor of the same shape as `x`."""
        ...


@runtime_checkable
class Extends(Protocol):
    """A mixer with `extend`, which reads a prompt, a segment or one token in a single call."""

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Mix `flow.x` after `flow.state`; with state None, the outputs are those of `forward`."""
        ...


@runtime_checkable
class Remembers(Extends, Protocol):
    """A mixer with a state along time."""

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return the empty state for `memory` tokens; raise `Unsupported` if there is none.

        A state that grows with its memory stores only the last `memory` tokens, newest included.
        """
        ...


@runtime_checkable
class GatesResidual(Protocol):
    """A mixer with a gate u between its output and the residual: x + u (h - x)."""

    def gated_extend(
        self,
        flow: Flow,
        layout: Layout,
        residual: Float[Tensor, "b l d"],
        dropout: Callable[[Tensor], Tensor],
    ) -> Flow:
        """Return u (h - residual), with h from `flow`; `extend` is this with x as the residual.

        The mixer applies `dropout` itself, before the gate; the block then applies none.
        """
        ...


@runtime_checkable
class Penalised(Protocol):
    """A mixer with a penalty that depends only on its parameters."""

    def penalties(self) -> Mapping[str, Float[Tensor, ""]]:
        """Return named scalars that are added to the training loss."""
        ...


@runtime_checkable
class AfterStep(Protocol):
    """A module that changes after a step, for example by clamping or redrawing."""

    def after_step(self, step: int, generator: torch.Generator) -> None:
        """Change the module after optimiser step number `step`, which counts from 1.

        The trainer calls it under no_grad, with the same arguments on every rank.
        """
        ...


MixerFactory: TypeAlias = Callable[[Site], Mixer]
"""A class or function `Family(site, *, options)` whose options are set."""
