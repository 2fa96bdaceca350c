"""How a drawn call is made: its mixer, its input and facts, and every way to run one pass."""

import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, Literal, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lra.models.contract.calls import STATE_ENTRIES, Call, cut_pieces, plain_call, precisions_of
from lra.models.contract.case import Case, Result, call, fix_seed, to_dtype, traits_of
from lra.models.contract.facts import Facts, draw_facts, layout_of
from lra.models.contract.guards import guard
from lra.models.contract.states import tensors
from lra.models.made_once import MadeOnce
from lra.models.mixer import Extends, Flow, GatesResidual, Layout, Positions, Remembers
from lra.models.multi_head import MultiHead

RATES = {"none": 0.0, "silent": 1e-12, "drawn": 0.4}
"""Share of weights that are dropped in training; a share of 1e-12 drops none in any check."""
TYPES = {
    "float64": (torch.float64, False),
    "float32": (torch.float32, False),
    "bfloat16": (torch.bfloat16, False),
    "autocast": (torch.float32, True),
}
"""Type of parameters and input, and whether autocast to bfloat16 is on."""
HALF = ("bfloat16", "autocast")
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 0.05, "autocast": 0.05}
"""Largest relative difference; in half precision, of the median token."""
STEPS = 4
"""Most single tokens behind a prompt."""
STRIDES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "length first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "width before length": lambda x: x.mT.contiguous().mT,
    "every other channel": lambda x: torch.stack((x, x), dim=-1)[..., 0],
}
Y = Float[Tensor, "b l d"]


@lru_cache(maxsize=64)
def second_site(case: Case, *, even: bool) -> Case:
    """Return the case at a site that differs in every field in which the mixer can differ.

    `even`: whether the width of a head has to be even, as for rotary positions.
    """
    traits = traits_of(case.build())
    biases = [(name, True) for name in ("qkv_bias", "output_bias") if name in traits.options]
    place = (("layer", 1), ("depth", 3), ("cls", True), *biases)
    other = replace(case, place=place, seed=case.seed + 3, max_length=case.max_length + 13)
    for heads, width in ((3, 15), (1, 40), (4, 24), (4, 4 * case.width)):
        if even and width // heads % 2:
            continue
        tried = replace(other, heads=heads, width=width)
        try:
            if call(tried.mixer(), tried.input(1)).shape[-1] == width:
                return tried
        except Exception:  # noqa: BLE001 - it may need an even width
            continue
    return replace(case, place=place, seed=case.seed + 3)


@lru_cache(maxsize=512)
def shared_mixer(
    case: Case, positions: str, dropout: str, dtype: torch.dtype, purpose: str
) -> nn.Module:
    """Return the mixer that all calls with these settings and this purpose share."""
    del purpose
    mixer = case.mixer(positions=Positions(positions), attention_dropout=RATES[dropout])
    return to_dtype(mixer, dtype)


class Path:
    """A drawn call of a case with its mixer, input and facts."""

    def __init__(self, case: Case, call: Call, purpose: str = "calls") -> None:
        even = call.positions == "rotary"
        self.call = call
        self.case = case if call.site == "first" else second_site(case, even=even)
        self.dtype, self.auto = TYPES[call.precision]
        self.mixer = shared_mixer(self.case, call.positions, call.dropout, self.dtype, purpose)
        self.traits = traits_of(self.mixer)
        self.x = self.case.input(call.length, rows=call.rows, salt=call.seed).to(self.dtype)
        generator = torch.Generator().manual_seed(call.seed)
        drawn = draw_facts(call.mask, call.rows, call.length, generator)
        self.facts: Facts = {name: fact.to(case.device) for name, fact in drawn.items()}
        self.source, self.masks = random.Random(call.seed), call.mask.split("+")
        self.pieces, self.watches = draw_pieces(call), False
        self.drop: Callable[[Tensor], Tensor] = nn.Identity()
        # One cache for all masks of a path: what is looked up by name alone is stale.
        self.derived = MadeOnce() if self.facts else None
        keep = torch.ones(self.x.shape[:2], dtype=torch.bool, device=self.x.device)
        self.real: Bool[Tensor, "b l"] = self.facts.get("keep", keep)
        """Tokens whose outputs mean something: all but padding."""

    @property
    def draws(self) -> bool:
        """Whether the pass draws numbers that change its result."""
        dropped = self.call.dropout == "drawn" and self.traits.weight_dropout
        return self.call.training and (dropped or self.traits.training_noise)

    @property
    def chooses(self) -> bool:
        """Whether rounding may change a choice, such as that of a bucket."""
        return self.traits.random_draws or self.traits.selection_leak

    @property
    def exact(self) -> bool:
        """Whether the call is in the kit's own precision."""
        return self.call.precision == precisions_of(self.case)[0]

    @property
    def comparable(self) -> bool:
        """Whether another input of the same tokens gives the same numbers."""
        return not self.draws and (self.exact or not self.chooses)

    def layout(self, facts: Facts) -> Layout:
        """Return a layout with these facts, and the cache of the path."""
        return layout_of(facts)._replace(derived=self.derived)

    def disturb(self) -> None:
        """Let mixers of other sites fill the cache of the masks, as other layers of a stack do."""
        if self.derived is None:
            return
        self.derived = MadeOnce()
        heads = 1 if self.case.heads > 1 else 2
        for other in (
            replace(self.case, causal=not self.case.causal),
            replace(self.case, heads=heads),
        ):
            with suppress(Exception), torch.no_grad():  # not every site is possible
                mixer = shared_mixer(other, self.call.positions, "none", self.dtype, "others")
                mixer(self.x, self.layout(self.facts))

    def run(
        self,
        x: Tensor | None = None,
        facts: Facts | None = None,
        *,
        residual: Tensor | None = None,
        seed: int = 17,
        watched: Mapping[str, Tensor] | None = None,
    ) -> Y:
        """Return the output for this input and these facts, by default those of the call.

        Args:
            x: The input, which is laid out in memory as the call says.
            facts: Fields of the layout.
            residual: That of `gated_extend`, by default the input.
            seed: Of the global random states.
            watched: Tensors that the pass must not change, besides its input and states: see
                `guard`; None watches nothing.
        """
        x = STRIDES[self.call.strides](self.x if x is None else x)
        facts = self.facts if facts is None else facts
        self.watches, self.residual = watched is not None, x if residual is None else residual
        self.mixer.train(self.call.training)
        with ExitStack() as stack:
            stack.enter_context(fix_seed(seed))
            stack.enter_context(torch.autocast(x.device.type, torch.bfloat16, enabled=self.auto))
            if self.call.gradient == "inference_mode":
                stack.enter_context(torch.inference_mode())
            else:
                stack.enter_context(torch.set_grad_enabled(self.call.gradient == "recorded"))
            if watched is not None:
                stack.enter_context(guard(self.mixer, {**watched, "x": x}))
            return ENTRIES[self.call.entry](self, x, facts)

    @cached_property
    def y(self) -> Y:
        """Return the output of the call."""
        return self.run().detach()

    @cached_property
    def steady(self) -> Bool[Tensor, "b l"] | Literal[True]:
        """Tokens that are rounded no more than most: others' gradients differ, too."""
        if self.exact or self.draws:
            return True
        wanted = self.plain.y.double()
        error: Tensor = (self.y.double() - wanted).norm(dim=-1) / wanted.norm(dim=-1)
        least = 1e-3 if self.call.precision in HALF else 1e-6
        return error <= (2 * error[self.real].median()).clamp(min=least)

    @cached_property
    def plain(self) -> "Path":
        """Return the path of `forward` in evaluation in the kit's precision, by another mixer."""
        same = ("mask", "rows", "length", "positions", "seed")
        settings = {name: getattr(self.call, name) for name in same}
        return Path(self.case, plain_call(self.case)._replace(**settings), "plain")

    def gradients(
        self, direction: Tensor, x: Tensor | None = None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return y, <x + y, direction> and what it depends on: the input x and parameters."""
        x = self.x.clone().requires_grad_() if x is None else x
        learnt = {n: p for n, p in self.mixer.named_parameters() if p.requires_grad}
        y = self.run(x)
        return y, ((x + y) * direction.to(x)).sum(), {"the input": x, **learnt}

    def agree(
        self, what: str, seen: Tensor, wanted: Tensor, tolerance: float | None = None
    ) -> Result:
        """Compare with the tolerance of the precision; in half precision, the median token."""
        tolerance = TOLERANCE[self.call.precision] if tolerance is None else tolerance
        seen, wanted = seen.detach().double(), wanted.detach().double()
        by_median = self.call.precision in HALF or (
            self.chooses and self.call.precision == "float32"
        )
        if seen.shape != wanted.shape or not by_median or not wanted.numel():
            return self.case.agree(what, seen, wanted, tolerance)
        size = wanted.norm(dim=-1)
        size = size.clamp(min=max(0.01 * float(size.max()), 1e-3))
        median = ((seen - wanted).norm(dim=-1) / size).median().item()
        text = f"{what}: relative difference of the median token {median:.1e}"
        return Result(median <= tolerance, f"{text}, wanted {tolerance:.0e}")


def draw_pieces(call: Call) -> list[int]:
    """Return the lengths of the pieces in which a stream is read."""
    source = random.Random(call.seed + 1)
    if call.entry == "prefill":
        steps = source.randint(1, min(STEPS, call.length))
        return [*[call.length - steps] * (call.length > steps), *[1] * steps]
    return cut_pieces(call.length, source) if call.entry in STATE_ENTRIES else [call.length]


def _forward(path: Path, x: Tensor, facts: Facts) -> Tensor:
    return cast(Tensor, path.mixer(x, path.layout(facts)))


def _extend(path: Path, x: Tensor, facts: Facts) -> Tensor:
    return cast(Extends, path.mixer).extend(Flow(x), path.layout(facts)).x


def _gated_extend(path: Path, x: Tensor, facts: Facts) -> Tensor:
    mixer = cast(GatesResidual, path.mixer)
    return mixer.gated_extend(Flow(x), path.layout(facts), path.residual, path.drop).x


def _attend(path: Path, x: Tensor, facts: Facts) -> Tensor:
    layout = path.layout(facts)
    return cast(Tensor, cast(Any, path.mixer).attend(x, layout, x, layout))


def _attention_core(path: Path, x: Tensor, facts: Facts) -> Tensor:
    mixer, layout = cast(MultiHead, path.mixer), path.layout(facts)
    o = mixer.attention_core()(*mixer.project(x, layout), layout)
    return mixer.merge(mixer.gated(o, x, layout))


def _stream(path: Path, x: Tensor, facts: Facts) -> Tensor:
    del facts
    mixer, outputs, place = cast(Remembers, path.mixer), [], 0
    state = mixer.initial_state(len(x), x.shape[1])
    for piece in torch.split(x, path.pieces, dim=1):
        start = torch.full((len(x),), place, device=x.device)
        layout = Layout(start=start if "start" in path.traits.supports else None)
        parts = {f"tensor {n} of the state": t for n, t in enumerate(tensors(state))}
        with guard(path.mixer, parts) if path.watches else nullcontext():
            flow = mixer.extend(Flow(piece, state), layout)
        state, place = flow.state, place + piece.shape[1]
        outputs.append(flow.x)
    return torch.cat(outputs, dim=1)


ENTRIES: Mapping[str, Callable[[Path, Tensor, Facts], Tensor]] = {
    "forward": _forward,
    "extend": _extend,
    "gated_extend": _gated_extend,
    "attend": _attend,
    "attention_core": _attention_core,
    **dict.fromkeys(STATE_ENTRIES, _stream),
}
