"""What every check of the contract kit works on: one factory, one direction, inputs and bounds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from models.mixer import Layout, MixerFactory, Positions, Site, Traits

AGREEMENT = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Largest difference between two ways to compute one thing, relative to the largest value."""
AWKWARD_LENGTHS = (1, 2, 63, 101)
"""Alone, a pair, one below a power of two, a prime."""
OUTLIER = 6.0
"""Standard deviations of what replaces tokens that should not matter."""
ROWS = 3


class Finding(NamedTuple):
    """What one check saw."""

    check: str
    """`direction.name`, e.g. `causal.no_lookahead`."""
    passed: bool
    detail: str
    """The value seen and the value wanted, or why the check does not apply."""


class Seen(NamedTuple):
    """A check's answer, before it has a name."""

    passed: bool
    detail: str


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Fix the global CPU random state inside, and leave it as it was outside."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@dataclass(frozen=True, kw_only=True)
class Case:
    """One factory in one direction."""

    make: MixerFactory
    causal: bool
    max_length: int = 256
    width: int = 32
    heads: int = 2
    dtype: torch.dtype = torch.float64
    seed: int = 0

    @property
    def lengths(self) -> list[int]:
        """The awkward lengths that fit, and the longest."""
        short = [length for length in AWKWARD_LENGTHS if length < self.max_length]
        return [*short, self.max_length]

    @property
    def cuts(self) -> list[int]:
        """Places inside the longest sequence at which it is cut."""
        return self.lengths[:-1]

    def build(
        self,
        *,
        max_length: int | None = None,
        attention_dropout: float = 0.0,
        positions: Positions = Positions.none,
        draw: int | None = None,
    ) -> nn.Module:
        """Build the mixer with its parameters as drawn from the seed, in eval mode.

        `draw` seeds the site's generator otherwise than the parameters.
        """
        site = Site(
            width=self.width,
            heads=self.heads,
            max_length=max_length or self.max_length,
            causal=self.causal,
            attention_dropout=attention_dropout,
            positions=positions,
            generator=torch.Generator().manual_seed(self.seed if draw is None else draw),
        )
        with seeded(self.seed):
            mixer = self.make(site)
        if not isinstance(mixer, nn.Module):
            raise TypeError(f"a mixer must be an nn.Module: got {type(mixer).__name__}")
        return mixer.eval()

    def mixer(self, **options: Any) -> nn.Module:
        """Build the mixer in the kit's dtype, with no parameter left at zero.

        Biases start at zero in most families, which would hide what they do to padding.
        """
        mixer = self.build(**options).to(self.dtype)
        with seeded(self.seed + 1), torch.no_grad():
            for parameter in mixer.parameters():
                if not parameter.any():
                    parameter.normal_(std=0.3)
        return mixer

    def input(
        self, length: int | None = None, *, rows: int = ROWS, salt: int = 0, scale: float = 1.0
    ) -> Float[Tensor, "b l d"]:
        """Return N(0, scale) tokens, the same for the same arguments."""
        generator = torch.Generator().manual_seed(1_000_003 * (salt + 1) + self.seed)
        shape = (rows, length or self.max_length, self.width)
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        return (drawn * scale).to(self.dtype)

    def noise(self, like: Float[Tensor, "b l d"], salt: int = 99) -> Float[Tensor, "b l d"]:
        """Return outliers that replace tokens which should not matter."""
        return self.input(like.shape[1], rows=like.shape[0], salt=salt, scale=OUTLIER)

    def keep(self) -> Bool[Tensor, "b l"]:
        """Return padding behind one full row, one of 63 tokens (or half) and one of one token."""
        ends = torch.tensor([self.max_length, min(63, self.max_length // 2 + 1), 1])
        return torch.arange(self.max_length)[None] < ends[:, None]

    def holes(self) -> Bool[Tensor, "b l"]:
        """Return padding at random places, in front and in the middle as well."""
        generator = torch.Generator().manual_seed(self.seed + 5)
        return torch.rand(ROWS, self.max_length, generator=generator) < 0.6

    def agree(
        self, what: str, seen: Tensor, wanted: Tensor, tolerance: float | None = None
    ) -> Seen:
        """Compare two tensors against the tolerance of their dtype."""
        tolerance = AGREEMENT[self.dtype] if tolerance is None else tolerance
        if seen.shape != wanted.shape:
            return Seen(False, f"{what}: shape {tuple(seen.shape)}, wanted {tuple(wanted.shape)}")
        if not wanted.numel():
            return Seen(True, f"{what}: nothing to compare")
        size = max(wanted.detach().abs().max().item(), 1e-3)
        difference = (seen - wanted).detach().abs().max().item() / size
        # a NaN compares as False, so it fails
        passed = difference <= tolerance
        return Seen(passed, f"{what}: relative difference {difference:.1e}, wanted {tolerance:.0e}")


Check = Callable[[Case], Seen]


def traits_of(mixer: nn.Module) -> Traits:
    """Return what the mixer says about itself; TypeError where it says nothing."""
    traits = getattr(mixer, "traits", None)
    if not isinstance(traits, Traits):
        raise TypeError(f"a mixer needs `self.traits = Traits(...)`: got traits={traits!r}")
    return traits


def call(
    mixer: nn.Module, x: Float[Tensor, "b l d"], keep: Bool[Tensor, "b l"] | None = None
) -> Tensor:
    """Run one pass."""
    return cast(Tensor, mixer(x, Layout(keep=keep)))


def worst(seen: list[Seen]) -> Seen:
    """Return the first failure, or the last success."""
    for one in seen:
        if not one.passed:
            return one
    return seen[-1]
