"""Calls of our operations that kernels of flash-linear-attention take, and what they return."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lra.models.families.mesa_net import least_squares
from lra.models.kernels.door import Operation
from lra.models.kernels.kernel import PublicKernel
from lra.models.kernels.providers import all_kernels
from lra.models.ops.gated.decayed_product import Reads, decayed_product
from lra.models.ops.gated.delta_product import delta_product
from lra.models.ops.gated.log_linear import log_linear_product
from lra.models.ops.gated.slot_product import slot_attention
from lra.models.ops.linear.causal_product import Memory, causal_product
from lra.models.ops.linear.features import NONLINEARITIES, FeatureMaps, GeneralisedFeatures
from lra.models.ops.linear.random_features import Kernel as Softmax, performer_maps

MASKS = ("none", "right", "left", "holes", "documents")


@dataclass(frozen=True)
class Draws:
    """Draws arguments of one call: `documents` begin where a gate is -inf."""

    dtype: torch.dtype = torch.float32
    mask: str = "none"
    with_state: bool = True
    batch: int = 2
    heads: int = 3
    length: int = 20
    key: int = 8
    value: int = 6
    slots: int = 5
    generator: torch.Generator = field(
        init=False, default_factory=lambda: torch.Generator().manual_seed(1)
    )

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        drawn = torch.randn(shape, generator=self.generator).to(dtype or self.dtype)
        return drawn.requires_grad_()

    def rows(self, *width: int, dtype: torch.dtype | None = None) -> Tensor:
        return self.normal(self.batch, self.heads, self.length, *width, dtype=dtype)

    def unit(self) -> Tensor:
        return F.normalize(self.rows(self.key).detach(), dim=-1).requires_grad_()

    def rates(self, *width: int) -> Tensor:
        return self.rows(*width, dtype=torch.float32).detach().sigmoid().requires_grad_()

    def decays(self, *width: int) -> Tensor:
        g = F.logsigmoid(self.rows(*width, dtype=torch.float32).detach())
        if self.mask == "documents":
            g[:, :, [7, 13]] = -torch.inf
        return g.requires_grad_()

    def state(self, key: int, value: int) -> Tensor | None:
        shape = self.batch, self.heads, key, value
        return self.normal(*shape, dtype=torch.float32) if self.with_state else None

    def keep(self) -> Tensor | None:
        keep = torch.ones(self.batch, self.length, dtype=torch.bool)
        if self.mask == "right":
            keep[1, self.length // 2 :] = False
        elif self.mask == "left":
            keep[0, : self.length // 3] = False
        elif self.mask == "holes":
            keep[:, 2::5] = False
        return None if self.mask in {"none", "documents"} else keep


Arguments = dict[str, Any]


def decayed(
    draws: Draws,
    *,
    by_channel: bool = False,
    constant: bool = False,
    reads: Reads = Reads.after,
) -> Arguments:
    g = draws.decays(draws.key) if by_channel else draws.decays()
    return {
        "q": draws.rows(draws.key), "k": draws.rows(draws.key), "v": draws.rows(draws.value),
        "g": torch.linspace(-1, -0.1, draws.heads) if constant else g,
        "state": draws.state(draws.key, draws.value), "keep": draws.keep(), "reads": reads,
    }  # fmt: skip


def delta(draws: Draws, *, by_channel: bool, form: str = "beta", early: bool = False) -> Arguments:
    """`form` says by which keys tokens write: beta k, w, or w and u."""
    return {
        "q": draws.rows(draws.key), "k": draws.unit(), "v": draws.rows(draws.value),
        "g": draws.decays(draws.key) if by_channel else draws.decays(),
        "w": None if form == "beta" else draws.unit(),
        "beta": draws.rates() if form == "beta" else None,
        "u": draws.unit() if form == "w and u" else None,
        "state": draws.state(draws.key, draws.value), "keep": draws.keep(), "early": early,
    }  # fmt: skip


def plain_maps(draws: Draws, *, normalise: bool) -> FeatureMaps:
    phi = GeneralisedFeatures(NONLINEARITIES["elu1"])
    return FeatureMaps(phi, phi, draws.key, normalise)


def random_maps(draws: Draws, kernel: Softmax, features: int) -> FeatureMaps:
    projection = draws.normal(features, draws.key, dtype=torch.float32).detach()
    maps = performer_maps(projection, kernel)
    # Sums of cosines may be near 0, so that a quotient of them has large errors.
    return maps._replace(normalise=kernel != Softmax.trigonometric)


def features(draws: Draws, maps: Callable[[Draws], FeatureMaps], state: bool = True) -> Arguments:
    chosen, memory = maps(draws), None
    if draws.with_state and state:
        shape = draws.batch, draws.heads, chosen.width, draws.value + 1
        sums = draws.normal(*shape, dtype=torch.float32).detach().abs()
        memory = Memory(sums, torch.zeros(shape[:2]))
    return {
        "q": draws.rows(draws.key), "k": draws.rows(draws.key), "v": draws.rows(draws.value),
        "maps": chosen, "chunk": 8, "keep": draws.keep(), "memory": memory,
    }  # fmt: skip


def levels(draws: Draws) -> Arguments:
    return {
        "q": draws.rows(draws.key), "k": draws.rows(draws.key), "v": draws.rows(draws.value),
        "g": draws.decays(), "weights": draws.rates(8), "keep": draws.keep(),
    }  # fmt: skip


def slots(draws: Draws) -> Arguments:
    number = draws.slots
    return {
        "q": draws.rows(draws.key), "k": draws.rows(draws.key), "v": draws.rows(draws.value),
        "s": draws.rates(number), "g": draws.decays(number),
        "state": draws.state(number, draws.key + draws.value), "keep": draws.keep(),
    }  # fmt: skip


def mesa(draws: Draws) -> Arguments:
    draws = replace(draws, value=draws.key)
    before: tuple[Tensor | None, Tensor | None] = (None, None)
    if draws.with_state:
        h = draws.normal(draws.batch, draws.heads, draws.key, draws.key, dtype=torch.float32)
        before = (h @ h.mT).detach(), draws.normal(*h.shape, dtype=torch.float32).detach()
    ridge = torch.linspace(0.3, 1.2, draws.heads * draws.key).view(draws.heads, draws.key)
    return {
        "q": draws.unit(), "k": draws.unit(), "v": draws.rows(draws.value),
        "beta": draws.rates(), "g": draws.decays(), "ridge": ridge.requires_grad_(),
        "before": before, "keep": draws.keep(),
    }  # fmt: skip


@dataclass(frozen=True)
class FlaCase:
    """A kind of call, the kernel that takes it, and what it cannot have."""

    own: Operation
    function: str
    make: Callable[[Draws], Arguments]
    masks: tuple[str, ...] = MASKS
    states: bool = True
    takes: bool = True
    """Whether `takes` agrees for the small float32 calls of these tests."""

    @property
    def kernel(self) -> PublicKernel:
        found = [k for k in all_kernels()[self.own.__name__] if k.name == self.function]
        assert len(found) == 1
        return found[0]

    def arguments(self, draws: Draws) -> Arguments:
        """Return all arguments of the call by name, as a session passes them."""
        bound = inspect.signature(self.own).bind(**self.make(draws))
        bound.apply_defaults()
        return dict(bound.arguments)


PADDED = MASKS[:-1]
"""For calls without gates of tokens."""
DPLR = "chunk_dplr_delta_rule"
CASES = {
    "head": FlaCase(decayed_product, "chunk_simple_gla", decayed),
    "constant": FlaCase(
        decayed_product, "chunk_simple_gla", partial(decayed, constant=True), PADDED
    ),
    "head before": FlaCase(
        decayed_product, "chunk_simple_gla", partial(decayed, reads=Reads.before)
    ),
    "channel": FlaCase(decayed_product, "chunk_gla", partial(decayed, by_channel=True)),
    "channel before": FlaCase(
        decayed_product, "chunk_gla", partial(decayed, by_channel=True, reads=Reads.before)
    ),
    "delta head": FlaCase(
        delta_product, "chunk_gated_delta_rule", partial(delta, by_channel=False)
    ),
    "delta channel": FlaCase(delta_product, "chunk_kda", partial(delta, by_channel=True)),
    "early": FlaCase(
        delta_product, "chunk_comba", partial(delta, by_channel=False, form="w", early=True)
    ),
    "early beta": FlaCase(
        delta_product, "chunk_comba", partial(delta, by_channel=False, early=True)
    ),
    "general head": FlaCase(
        delta_product, DPLR, partial(delta, by_channel=False, form="w"), takes=False
    ),
    "general channel": FlaCase(
        delta_product, DPLR, partial(delta, by_channel=True, form="w"), takes=False
    ),
    "general early": FlaCase(
        delta_product, DPLR, partial(delta, by_channel=True, form="w", early=True), takes=False
    ),
    "general beta": FlaCase(
        delta_product, DPLR, partial(delta, by_channel=True, early=True), takes=False
    ),
    "additions": FlaCase(
        delta_product, DPLR, partial(delta, by_channel=True, form="w and u"), takes=False
    ),
    "features": FlaCase(
        causal_product, "chunk_simple_gla",
        partial(features, maps=partial(plain_maps, normalise=True)), PADDED,
    ),
    "feature sums": FlaCase(
        causal_product, "chunk_simple_gla",
        partial(features, maps=partial(plain_maps, normalise=False)), PADDED,
    ),
    "positive": FlaCase(
        causal_product, "chunk_simple_gla",
        partial(
            features, state=False,
            maps=partial(random_maps, kernel=Softmax.softmax, features=9),
        ), PADDED, states=False,
    ),
    "trigonometric": FlaCase(
        causal_product, "chunk_simple_gla",
        partial(features, maps=partial(random_maps, kernel=Softmax.trigonometric, features=64)),
        PADDED,
    ),
    "levels": FlaCase(
        log_linear_product, "chunk_log_linear_attn", levels, ("none", "right"), states=False,
        takes=False,
    ),
    "slots": FlaCase(slot_attention, "chunk_gsa", slots),
    "least squares": FlaCase(least_squares, "chunk_mesa_net", mesa),
}  # fmt: skip


def in_place(kernel: PublicKernel, function: Callable[..., Any]) -> PublicKernel:
    """Return the kernel on a CPU, with another function in the package's place."""
    copy = replace(kernel, devices=("cpu",))
    vars(copy).update(loaded=function, version="0.6.0", missing="")
    return copy


def results(run: Callable[[Arguments], Any], arguments: Arguments) -> dict[str, Tensor]:
    """Return outputs and states by number, and gradients of all tensors that need one."""
    leaves = {
        name: x.detach().clone().requires_grad_()
        for name, x in arguments.items()
        if isinstance(x, Tensor) and x.requires_grad
    }
    outputs = list(flat(run({**arguments, **leaves})))
    generator = torch.Generator().manual_seed(2)
    loss = sum((x.float() * torch.randn(x.shape, generator=generator)).sum() for x in outputs)
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)  # type: ignore[arg-type]
    found = {f"output {i}": x.detach().float() for i, x in enumerate(outputs)}
    for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
        found[name] = torch.zeros_like(leaf) if gradient is None else gradient.float()
    return found


def flat(x: Any) -> Iterator[Tensor]:
    if isinstance(x, tuple):
        for part in x:
            yield from flat(part)
    elif x is not None:
        yield x


def check_equal(case: FlaCase, function: Callable[..., Any], draws: Draws) -> None:
    """Compare the adapter, with `function` in the package's place, with our form in float32."""
    arguments = case.arguments(draws)
    theirs = results(in_place(case.kernel, function).run, arguments)
    wide = {
        name: x.detach().float().requires_grad_(x.requires_grad)
        if isinstance(x, Tensor) and x.is_floating_point()
        else x
        for name, x in arguments.items()
    }
    ours = results(lambda given: case.own(**given), wide)
    assert theirs.keys() == ours.keys()
    bound = 2e-4 if draws.dtype == torch.float32 else 3e-2
    for name, wanted in ours.items():
        error = (theirs[name] - wanted).abs().max() / wanted.abs().max().clamp(min=1e-3)
        assert error < bound, f"{name}: {error:.2g}"
