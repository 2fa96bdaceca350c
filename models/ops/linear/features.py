"""Maps from queries and keys to features, whose inner products are the weights of attention.

`lra.models.ops.linear.feature_product` explains the factors by which features are divided. The axis
letter m stands for features.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lra.models.device_kind import device_kind
from lra.models.ops.linear.exponent_sums import Exponents
from lra.models.ops.numerics import reciprocal

CPU_BLOCK = 2**20
"""Elements of one block of features on a CPU: 4 MB in float32, a few of which stay in cache."""
CPU_ROWS = 2**12
"""Rows of all heads in one block on a CPU: more cost memory, and no longer save time."""
DEVICE_BLOCK = 2**26
"""Elements of one block of features on other devices: large, so that few kernels are launched."""
MINIMUM_ROWS = 64


@runtime_checkable
class FeatureMap(Protocol):
    """An elementwise or projected map from queries or keys to non-negative features."""

    def __call__(
        self, x: Float[Tensor, "*r k"]
    ) -> tuple[Float[Tensor, "*r m"], Float[Tensor, "*r"] | None]:
        """Return the features, and the logarithm of the factor that divides them (None: 1).

        The features are in new memory, which the caller may overwrite.
        """
        ...

    def pull(
        self, gradient: Float[Tensor, "*r m"], phi: Float[Tensor, "*r m"], x: Float[Tensor, "*r k"]
    ) -> Float[Tensor, "*r k"]:
        """Return the gradient of `x` from `gradient`, that of its features `phi`.

        The factor of the features counts as a constant. `gradient` and `phi` may be overwritten.
        """
        ...


def block_rows(x: Float[Tensor, "b h l k"], features: int) -> int:
    """Return the number of positions per block, so that the features of all heads fit into it."""
    heads = max(1, x.shape[0] * x.shape[1])
    if device_kind(x.device) != "cpu":
        return max(MINIMUM_ROWS, DEVICE_BLOCK // (heads * features))
    return max(MINIMUM_ROWS, min(CPU_BLOCK // features, CPU_ROWS) // heads)


def rows_at_once(x: Float[Tensor, "b h l k"], features: int) -> int:
    """Return how many rows to compute at once: all, if their features fit into a CPU's block.

    Otherwise it is the rows of one block. Up to this size, whole sequences take less time than
    blocks on any device.
    """
    fits_in_block = x.shape[0] * x.shape[1] * x.shape[2] * features <= CPU_BLOCK
    return x.shape[2] if fits_in_block and x.shape[2] else block_rows(x, features)


class Nonlinearity(NamedTuple):
    """An elementwise function and its derivative."""

    value: Callable[[Tensor], Tensor]
    """f(u), in new memory."""
    slope: Callable[[Tensor, float], Tensor | float]
    """f'(u), from f(u) + epsilon, which may be overwritten, and epsilon; or from u."""
    of_input: bool = False
    """Whether `slope` is a function of u."""
    lowest: float = 0.0
    """The infimum of f: below 0, weights and their sums may be negative."""
    over: Callable[[Tensor], Tensor] | None = None
    """f(u), written over u; None: there is no such function."""


def _gelu_slope(u: Tensor, _: float) -> Tensor:
    """Return the derivative of GELU at u: Phi(u) + u phi(u), with the normal distribution."""
    density = torch.exp(-0.5 * u.square()) / math.sqrt(2 * math.pi)
    slope: Tensor = torch.special.ndtr(u) + u * density
    return slope


NONLINEARITIES: Mapping[str, Nonlinearity] = {
    "relu": Nonlinearity(torch.relu, lambda phi, epsilon: phi > epsilon, over=torch.relu_),
    "exp": Nonlinearity(torch.exp, lambda phi, epsilon: phi.sub_(epsilon)),
    "gelu": Nonlinearity(nn.functional.gelu, _gelu_slope, of_input=True, lowest=-0.17),
    "sigmoid": Nonlinearity(
        torch.sigmoid, lambda phi, epsilon: (phi - epsilon) * (1 + epsilon - phi)
    ),
    "abs": Nonlinearity(torch.abs, lambda u, _: u.sign(), of_input=True),
    "tanh": Nonlinearity(
        torch.tanh, lambda phi, epsilon: 1 - phi.sub_(epsilon).square(), lowest=-1.0
    ),
    "cos": Nonlinearity(torch.cos, lambda u, _: -u.sin(), of_input=True, lowest=-1.0),
    "identity": Nonlinearity(torch.clone, lambda *_: 1.0, lowest=-math.inf),
    # elu(u) + 1, computed so that it stays positive where elu(u) + 1 rounds to 0.
    "elu1": Nonlinearity(
        lambda u: u.exp().clamp_(max=1).add_(u.relu()),
        lambda phi, epsilon: (phi.sub_(epsilon) if epsilon else phi).clamp_(max=1),
    ),
    "sqr": Nonlinearity(torch.square, lambda u, _: 2 * u, of_input=True),
}


class GeneralisedFeatures:
    """phi(x) = f(W x) + epsilon or, without W, f(x) + epsilon; `scale` multiplies x."""

    def __init__(
        self,
        function: Nonlinearity,
        *,
        projection: Float[Tensor, "m k"] | None = None,
        scale: float = 1.0,
        epsilon: float = 0.0,
    ) -> None:
        self.function, self.scale, self.epsilon = function, scale, epsilon
        # Scaled once here; `inner` and `pull` apply `scale` themselves only without a projection.
        self.projection = None if projection is None else projection * scale

    def inner(self, x: Float[Tensor, "*r k"]) -> Float[Tensor, "*r m"]:
        """Return the arguments of the function: W x, or x, times `scale`."""
        if self.projection is not None:
            return x @ self.projection.T
        return x if self.scale == 1 else x * self.scale

    def __call__(self, x: Float[Tensor, "*r k"]) -> tuple[Float[Tensor, "*r m"], None]:
        """Return the features."""
        u = self.inner(x)
        function = self.function.value
        if u is not x and self.function.over is not None:  # u is new and can be overwritten
            function = self.function.over
        phi = function(u)
        return phi.add_(self.epsilon) if self.epsilon else phi, None

    def pull(
        self, gradient: Float[Tensor, "*r m"], phi: Float[Tensor, "*r m"], x: Float[Tensor, "*r k"]
    ) -> Float[Tensor, "*r k"]:
        """Return the gradient of `x` from that of its features `phi`."""
        slope_input = self.inner(x) if self.function.of_input else phi
        gradient = gradient.mul_(self.function.slope(slope_input, self.epsilon))
        if self.projection is not None:
            return gradient @ self.projection
        return gradient if self.scale == 1 else gradient.mul_(self.scale)


class PairWeights(NamedTuple):
    """The inner product of features of q and k, as a function of s = `scale` q · k."""

    scale: float
    value: Callable[[Tensor], tuple[Tensor, Tensor]]
    """From s, which it may overwrite, to that function and its slope."""


class FeatureMaps(NamedTuple):
    """The feature maps of queries and keys, and how weights are normalised."""

    query: FeatureMap
    key: FeatureMap
    width: int
    """Number of features, m."""
    normalise: bool = True
    """Whether to divide by the sum of the weights."""
    reciprocal: Callable[[Tensor], Tensor] = reciprocal
    """1 / sum, or what stands for it: 1 / (sum + something constant)."""
    pairs: PairWeights | None = None
    """What the inner products of features are, where they are a function of q · k."""

    @property
    def exponentials(self) -> tuple[Exponents, Exponents] | None:
        """Both maps if they are exponentials, else None."""
        query, key = self.query, self.key
        if isinstance(query, Exponents) and isinstance(key, Exponents):
            return query, key
        return None

    def at_rows(self, rows: slice) -> "FeatureMaps":
        """Return the maps at the positions `rows`; here they do not depend on positions."""
        del rows
        return self
