"""What it takes to compare a family with another public implementation of it.

A peer is never needed by the project: its package is imported when a pair is made, and `Missing`
says how to install it. Nothing is timed here; `peers.runner` does that, after
`disagreement`.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lra.models.mixer import Layout, Mixer, Site

Mix = Callable[..., Tensor]
View = Callable[[Tensor], Tensor]


WAY_OUT = "pip install 'lra[parity]' brings what ours is compared with"


class Missing(ImportError):
    """The package of a peer is not installed; the message says how to install it."""


def package(name: str, way_out: str = WAY_OUT) -> Any:
    """Import a peer's module. Raises `Missing` where its package is absent."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise Missing(f"{error}; {way_out}") from error


class PeerCase(NamedTuple):
    """What both sides share."""

    length: int
    causal: bool = False
    heads: int = 8
    head_width: int = 64
    batch: int = 1
    dtype: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")
    seed: int = 0

    @property
    def width(self) -> int:
        """Width of a layer."""
        return self.heads * self.head_width

    def site(self) -> Site:
        """Return the place where ours is built."""
        return Site(
            width=self.width,
            heads=self.heads,
            max_length=self.length,
            causal=self.causal,
            generator=torch.Generator().manual_seed(self.seed),
        )

    def heads_of_inputs(self, number: int = 3) -> tuple[Float[Tensor, "b h l k"], ...]:
        """Draw queries, keys, values, …: standard normal leaves."""
        return self._drawn((self.batch, self.heads, self.length, self.head_width), number)

    def tokens(self) -> tuple[Float[Tensor, "b l d"]]:
        """Draw the input of a layer: standard normal, a leaf."""
        (x,) = self._drawn((self.batch, self.length, self.width), 1)
        return (x,)

    def _drawn(self, shape: tuple[int, ...], number: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(self.seed + 1)
        drawn = (
            torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(number)
        )
        return tuple(x.to(self.device, self.dtype).requires_grad_() for x in drawn)

    def placed(self, module: Any) -> Any:
        """Move a module to the case's device and precision, in evaluation mode."""
        return module.to(self.device, self.dtype).eval()


class Twins(NamedTuple):
    """A parameter of ours, and where its values stand in one of theirs."""

    ours: nn.Parameter
    theirs: nn.Parameter
    view: View
    """From theirs to ours: a transpose, some rows; a view of the same memory."""


class PeerPair(NamedTuple):
    """Ours and theirs, with equal weights, ready to be called on the same inputs."""

    ours: Mix
    theirs: Mix
    inputs: tuple[Tensor, ...]
    weights: tuple[Twins, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One public implementation of one of our families."""

    name: str
    """Package and what of it, as in `performer-pytorch FastAttention`."""
    distribution: str
    """The package on the index."""
    family: str
    """Ours: a name in conf/model."""
    setting: str
    """The options of both in a few words."""
    make: Callable[[PeerCase], PeerPair]
    bidirectional: bool = True
    causal: bool = False
    tolerance: float = 1e-12
    """Largest relative error in float64 at which both are one function: round-off, or what the
    peer does in float32 whatever its inputs are."""
    rounding: float = 2e-5
    """Largest relative error that rounding may leave in float32."""
    same: bool = True
    """Computes the same function; False: shown as unlike, and no ratio is taken."""
    multiple: int = 1
    """Lengths must be multiples of this."""
    note: str = ""
    """What had to be set or patched for both to be one function, or why they are two."""
    way_out: str = WAY_OUT
    """How to install it."""

    def pair(self, case: PeerCase) -> PeerPair:
        """Make ours and theirs.

        Raises:
            Missing: The package is absent.
            ValueError: The peer offers neither this direction nor this length.
        """
        if not (self.causal if case.causal else self.bidirectional):
            kind = "causal" if case.causal else "bidirectional"
            raise ValueError(f"{self.name} has no {kind} form to compare with")
        if case.length % self.multiple:
            raise ValueError(
                f"{self.name} takes multiples of {self.multiple} tokens: got {case.length}"
            )
        self.version()  # knows how this one is installed; an import that fails does not
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(case.seed)
            return self.make(case)

    def version(self) -> str:
        """Return the installed version. Raises `Missing`."""
        try:
            return version(self.distribution)
        except PackageNotFoundError as error:
            raise Missing(f"{self.distribution} is not installed; {self.way_out}") from error


def cotangent(pair: PeerPair) -> Tensor:
    """Draw the gradient of the output, standard normal: the same for both sides."""
    with torch.no_grad():
        out = pair.ours(*pair.inputs)
    generator = torch.Generator().manual_seed(2)
    return torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)


def gradients(
    mix: Mix, inputs: tuple[Tensor, ...], weights: list[nn.Parameter], pulled: Tensor
) -> list[Tensor]:
    """Return the output, and the gradients of inputs and weights for the output's, `pulled`."""
    out = mix(*inputs)
    return [out.detach(), *torch.autograd.grad(out, [*inputs, *weights], pulled)]


def disagreement(pair: PeerPair, *, backward: bool = True) -> float:
    """Return the largest error of output and gradients, relative to the largest value of each.

    Without `backward`, outputs alone are compared.
    """
    if not backward:
        with torch.no_grad():
            return _apart(pair.ours(*pair.inputs), pair.theirs(*pair.inputs))
    pulled = cotangent(pair)
    ours = gradients(pair.ours, pair.inputs, [twins.ours for twins in pair.weights], pulled)
    theirs = gradients(pair.theirs, pair.inputs, [twins.theirs for twins in pair.weights], pulled)
    views: list[View] = [torch.Tensor.detach] * (1 + len(pair.inputs))
    views += [twins.view for twins in pair.weights]
    return max(_apart(a, view(b)) for a, b, view in zip(ours, theirs, views, strict=True))


def _apart(ours: Tensor, theirs: Tensor) -> float:
    largest = ours.abs().max().clamp(min=torch.finfo(ours.dtype).tiny)
    return float((ours - theirs).abs().max() / largest)


def projections(ours: Any, theirs: Any, names: tuple[str, str, str]) -> tuple[Twins, ...]:
    """Copy the projections of queries, keys and values, with biases, and return what to compare.

    The bias of the keys moves all scores of a query alike: its gradient is rounding error alone.
    """
    made = [
        twins(getattr(getattr(ours, f"{own}_proj"), kind), getattr(getattr(theirs, other), kind))
        for own, other in zip("qkv", names, strict=True)
        for kind in ("weight", "bias")
    ]
    return tuple(pair for index, pair in enumerate(made) if index != KEY_BIAS)


KEY_BIAS = 3


def core_of(mixer: Any, case: PeerCase) -> Mix:
    """Return the core of one of our layers as a function of queries, keys and values."""
    core = case.placed(mixer.core)
    layout = Layout()
    return lambda q, k, v: core(q, k, v, layout)


def layer_of(mixer: Mixer) -> Mix:
    """Return one of our layers as a function of its input."""
    layout = Layout()
    return lambda x: mixer(x, layout)


class Given(nn.Module):
    """Stands for a projection whose result is known: lets a layer be used as a core."""

    def __init__(self) -> None:
        super().__init__()
        self.value = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """Return the known result."""
        del x
        return self.value


def side_by_side(x: Float[Tensor, "b h l k"]) -> Float[Tensor, "b l d"]:
    """Join the heads."""
    return x.transpose(1, 2).flatten(2)


def by_heads(x: Float[Tensor, "b l d"], heads: int) -> Float[Tensor, "b h l k"]:
    """Part the heads."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def twins(ours: Any, theirs: Any, view: View = torch.Tensor.detach) -> Twins:
    """Copy a parameter of ours to its place in one of theirs.

    Raises:
        ValueError: The shapes differ.
    """
    target = view(theirs.data)
    if target.shape != ours.shape:
        raise ValueError(f"weights differ in shape: ours {ours.shape}, theirs {target.shape}")
    with torch.no_grad():
        target.copy_(ours)
    return Twins(ours, theirs, view)
