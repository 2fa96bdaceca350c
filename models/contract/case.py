"""The case of a check in the contract kit: one factory, one direction, inputs and tolerances."""

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.random import mtrand
from torch import Tensor, nn

from lra.models.mixer import INSIDE, AfterStep, Layout, MixerFactory, Positions, Site, Traits
from lra.models.module import checked_module

AGREEMENT = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Largest difference between two computations of one thing, relative to the largest value."""
AWKWARD_LENGTHS = (1, 2, 63, 101)
"""One token, a pair, one below a power of two, a prime."""
OUTLIER = 6.0
"""Standard deviation of outliers, which replace tokens that should have no effect."""
SHORT = 40
"""Tokens in passes that are repeated for every encoding of positions, or in every precision."""
FEW = 24
"""Below this length, nearly every number of tokens is an edge of some block."""
BLOCK = 16
"""Most sizes of blocks are multiples of it, or a power of two."""
ROWS = 3
TOKENS_OF_CUTS = 2**16
"""All rows that a check makes of cut sequences hold about as many tokens: 256 cuts of 256."""


class Finding(NamedTuple):
    """The finding of one check."""

    check: str
    """`direction.name`, e.g. `causal.no_lookahead`."""
    passed: bool
    detail: str
    """The measured and the wanted value, or why the check does not apply."""
    applies: bool = True
    """False: there was nothing to check, which counts as passed."""


class Result(NamedTuple):
    """The result of a check, without its name."""

    passed: bool
    detail: str
    applies: bool = True

    def because(self, cause: str) -> "Result":
        """Return a failure with its likely cause; a success unchanged."""
        return self if self.passed else Result(False, f"{self.detail}; likely cause: {cause}")


def inapplicable(reason: str) -> Result:
    """Return the result of a check that does not apply."""
    return Result(True, f"not applicable: {reason}", applies=False)


_OPEN: list[np.random.MT19937] = []
"""What numpy draws from in each `fix_seed` that is open."""


@cache
def _generator(_depth: int) -> np.random.MT19937:
    """Return the stand-in generator at this depth of nested contexts, made once and then seeded."""
    return np.random.MT19937()


@contextmanager
def fix_seed(seed: int) -> Iterator[None]:
    """Seed the global random states of torch, numpy and Python inside, then restore them.

    The random state of a GPU is included only if the GPU is in use already. Numpy's state is copied
    by the outermost `fix_seed` alone, because copying takes long; each nested one draws from a
    generator of its own.
    """
    python, arrays = random.getstate(), None if _OPEN else np.random.get_state()
    in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if in_use else []):
        torch.default_generator.manual_seed(seed)
        if in_use:
            torch.cuda.manual_seed(seed)
        random.seed(seed)
        outer, own = mtrand.get_bit_generator(), _generator(len(_OPEN))
        _OPEN.append(own)
        mtrand.set_bit_generator(own)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            mtrand.set_bit_generator(outer)
            _OPEN.pop()
            if arrays is not None:
                np.random.set_state(arrays)


def edges(length: int) -> list[int]:
    """Return the places where chunks, blocks or windows may end, and their neighbours.

    These are the powers of two and three times as much, the thirds, the awkward lengths, and the
    last token.
    """
    powers = [2**power for power in range(length.bit_length())]
    ends = {*powers, *(3 * power for power in powers), length // 3, 2 * length // 3, length}
    near = {end + step for end in ends for step in (-1, 0, 1)} | {*AWKWARD_LENGTHS}
    return sorted(cut for cut in near if 0 < cut < length)


def ends(length: int) -> list[int]:
    """Return a few of the places of `edges`, for checks that try them one by one."""
    tried = {cut for number, cut in enumerate(edges(length)) if cut > FEW or number % 3 == 0}
    return sorted(tried | {*range(BLOCK, length, BLOCK)})


@dataclass(frozen=True, kw_only=True)
class Case:
    """One mixer factory in one direction, with the lengths and inputs of its checks."""

    make: MixerFactory
    causal: bool
    max_length: int = 256
    width: int = 32
    heads: int = 2
    dtype: torch.dtype = torch.float64
    seed: int = 0
    device: str = "cpu"
    """Device of mixers and inputs; both are drawn on the CPU."""
    place: tuple[tuple[str, Any], ...] = ()
    """Further fields of the site, with their values."""

    @property
    def lengths(self) -> list[int]:
        """Return the awkward lengths that fit, and the longest length."""
        short = [length for length in AWKWARD_LENGTHS if length < self.max_length]
        return [*short, self.max_length]

    @property
    def middling(self) -> int:
        """A prime length if one fits, for checks that need no long input."""
        return min(101, self.max_length)

    def cuts(self) -> list[int]:
        """Return where to cut the longest sequence: after every token, or at some places."""
        positions = set(edges(self.max_length))
        spare = TOKENS_OF_CUTS // self.max_length - len(positions)
        others = [cut for cut in range(1, self.max_length) if cut not in positions]
        drawn = random.Random(self.seed).sample(others, max(0, min(spare, len(others))))
        return sorted(positions.union(drawn))

    def inside(self, traits: Traits) -> list[Positions]:
        """Return the encodings that the mixer applies itself and that this width allows."""
        offered = [each for each in sorted(INSIDE) if each.value in traits.positions]
        if (self.width // self.heads) % 2:  # rotary positions turn pairs of channels
            offered = [each for each in offered if each != Positions.rotary]
        return offered

    def build(
        self,
        *,
        max_length: int | None = None,
        attention_dropout: float = 0.0,
        positions: Positions = Positions.none,
        draw: int | None = None,
    ) -> nn.Module:
        """Build the mixer in eval mode; the case's seed decides its parameters.

        `draw` is the seed of the site's generator; None: the case's seed.
        """
        site = self.site(
            max_length=max_length or self.max_length,
            attention_dropout=attention_dropout,
            positions=positions,
            generator=torch.Generator().manual_seed(self.seed if draw is None else draw),
        )
        with fix_seed(self.seed):
            mixer = self.make(site)
        return checked_module(mixer).eval()

    def site(self, **told: Any) -> Site:
        """Return the place where the mixer is built; `told` are further fields."""
        own = {"width": self.width, "heads": self.heads, "max_length": self.max_length}
        return Site(**{**own, "causal": self.causal, **dict(self.place), **told})

    def mixer(self, **options: Any) -> nn.Module:
        """Build the mixer in the kit's dtype, with all zero parameters replaced.

        Biases start at zero in most families, which would hide what they do to padding. The numbers
        are positive, because what is clamped at zero would be dead.
        """
        mixer = to_dtype(self.build(**options), self.dtype)
        with fix_seed(self.seed + 1), torch.no_grad():
            for parameter in mixer.parameters():
                if not parameter.any():
                    parameter.normal_(std=0.3).abs_()
        return mixer.to(self.device)

    def input(
        self, length: int | None = None, *, rows: int = ROWS, salt: int = 0, scale: float = 1.0
    ) -> Float[Tensor, "b l d"]:
        """Return N(0, scale) tokens, equal for equal arguments."""
        generator = torch.Generator().manual_seed(1_000_003 * (salt + 1) + self.seed)
        shape = (rows, length or self.max_length, self.width)
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        return (drawn * scale).to(self.device, self.dtype)

    def noise(self, like: Float[Tensor, "b l d"], salt: int = 99) -> Float[Tensor, "b l d"]:
        """Return outliers for tokens that must have no effect on the result."""
        return self.input(like.shape[1], rows=like.shape[0], salt=salt, scale=OUTLIER)

    def keep(self) -> Bool[Tensor, "b l"]:
        """Return padding after one full row, a row of 63 tokens (or half), and one of one token."""
        return self.before([self.max_length, min(63, self.max_length // 2 + 1), 1])

    def before(self, ends: list[int]) -> Bool[Tensor, "b l"]:
        """Return, for each of `ends`, a mask of the tokens before it in the longest sequence."""
        ahead = torch.arange(self.max_length)[None] < torch.tensor(ends)[:, None]
        return ahead.to(self.device)

    def holes(self) -> Bool[Tensor, "b l"]:
        """Return padding at random places, at the front and in the middle as well."""
        generator = torch.Generator().manual_seed(self.seed + 5)
        return (torch.rand(ROWS, self.max_length, generator=generator) < 0.6).to(self.device)

    def masks(self, traits: Traits) -> dict[str, Bool[Tensor, "b l"] | None]:
        """Return no mask and, if padding is supported, padding at the end and in the middle."""
        if "keep" not in traits.supports:
            return {"no mask": None}
        return {"no mask": None, "padding": self.keep(), "padding in the middle": self.holes()}

    def globals(self) -> Bool[Tensor, "b l"]:
        """Return two global tokens in the first row, one in the second, none in the third."""
        flags = torch.zeros(ROWS, self.max_length, dtype=torch.bool, device=self.device)
        flags[0, 0] = flags[0, self.max_length // 2] = True
        flags[1, self.max_length // 3] = True
        return flags

    def agree(
        self, what: str, seen: Tensor, wanted: Tensor, tolerance: float | None = None
    ) -> Result:
        """Compare the tensor `seen` with `wanted`, by default with the tolerance of their dtype."""
        tolerance = AGREEMENT[self.dtype] if tolerance is None else tolerance
        if seen.shape != wanted.shape:
            return Result(False, f"{what}: shape {tuple(seen.shape)}, wanted {tuple(wanted.shape)}")
        if not wanted.numel():
            return Result(True, f"{what}: nothing to compare")
        size = max(wanted.detach().abs().max().item(), 1e-3)
        difference = (seen - wanted).detach().abs().max().item() / size
        # a NaN compares as False, so it fails
        passed = difference <= tolerance
        return Result(
            passed, f"{what}: relative difference {difference:.1e}, wanted {tolerance:.0e}"
        )


Check = Callable[[Case], Result]
COMPLEX = {torch.float64: torch.complex128}


def to_dtype(mixer: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Convert all floating-point weights; complex ones stay complex, which `Module.to` ends."""
    weights = [*mixer.parameters(), *mixer.buffers()]
    if not any(weight.is_complex() for weight in weights):
        return mixer.to(dtype)
    for weight in weights:
        if weight.is_floating_point() or weight.is_complex():
            kind = COMPLEX.get(dtype, torch.complex64) if weight.is_complex() else dtype
            weight.data = weight.data.to(kind)
    return mixer


def traits_of(mixer: nn.Module) -> Traits:
    """Return the traits of a mixer; TypeError if it has none."""
    traits = getattr(mixer, "traits", None)
    if not isinstance(traits, Traits):
        raise TypeError(f"a mixer needs `self.traits = Traits(...)`: got traits={traits!r}")
    return traits


def run_after_step(mixer: nn.Module, step: int, seed: int) -> None:
    """Call every `after_step` inside a mixer, each with a generator of this seed."""
    for module in mixer.modules():
        if isinstance(module, AfterStep):
            with torch.no_grad():
                module.after_step(step, torch.Generator().manual_seed(seed))


def call(
    mixer: nn.Module,
    x: Float[Tensor, "b l d"],
    keep: Bool[Tensor, "b l"] | None = None,
    **facts: Bool[Tensor, "b l"] | Int[Tensor, "b ..."] | None,
) -> Tensor:
    """Run one forward pass of `mixer` with these facts of the layout."""
    return cast(Tensor, mixer(x, Layout(keep=keep, **cast(Any, facts))))


def worst(seen: Iterable[Result]) -> Result:
    """Return the first failure among results, or else the last success that applies.

    Results are consumed one by one, so nothing runs after a failure.
    """
    last = inapplicable("nothing was tried")
    for one in seen:
        if not one.passed:
            return one
        last = one if one.applies or not last.applies else last
    return last
