"""Random features of queries and keys, whose products estimate a kernel.

With W of m random rows (`draw_projection`) the mean of phi(x) · phi(y) over draws is exp(x · y) for

    positive        phi(x) = exp(W x - |x|^2 / 2) / sqrt(m)
    hyperbolic      positive features of W and of -W: 2 m of them, over sqrt(2)
    trigonometric   phi(x) = exp(|x|^2 / 2) [cos W x, sin W x] / sqrt(m)

Mean squared errors for independent rows, with z = x + y, S = exp(x · y): positive
exp(|z|^2) S^2 (1 - exp(-|z|^2)) / m; hyperbolic that times (1 - exp(-|z|^2)) / 2; trigonometric
exp(|z|^2) S^-2 (1 - exp(-|x - y|^2))^2 / (2 m): small for large weights, large for small ones, the
wrong way round for attention. Orthogonal rows lower that of positive features.

Features f(W x) + epsilon estimate some other kernel. Factors per row are left out of the features,
or returned as logarithms: see `FeatureMap`.
"""

import math
from collections.abc import Callable
from enum import StrEnum, auto
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from lra.models.ops.linear.exponent_sums import Exponential, Exponents
from lra.models.ops.linear.features import (
    NONLINEARITIES,
    FeatureMap,
    FeatureMaps,
    GeneralisedFeatures,
    block_rows,
)
from lra.models.ops.numerics import reciprocal, row_slices, signed_reciprocal, sum_dtype

GENERALISED_EPSILON = 1e-3
REFERENCE_EPSILON = 1e-6
"""In every feature, and the bound below which a denominator is raised."""
PORT_EPSILON = 1e-4
"""The same of performer-pytorch, without the bound."""


class Kernel(StrEnum):
    """Kernel that features estimate: the softmax kernel, or that of an elementwise function f."""

    softmax = auto()
    hyperbolic = auto()
    trigonometric = auto()
    relu = auto()
    exp = auto()
    gelu = auto()
    sigmoid = auto()
    abs = auto()
    tanh = auto()
    cos = auto()
    identity = auto()
    elu1 = auto()

    @property
    def generalised(self) -> bool:
        """Whether it is f(W x) + epsilon."""
        return self.value in NONLINEARITIES


class Norms(StrEnum):
    """Norms of the rows of the random projection."""

    chi = auto()
    sqrt_width = auto()


def draw_projection(
    features: int,
    width: int,
    generator: torch.Generator,
    *,
    orthogonal: bool = True,
    norms: Norms = Norms.chi,
    qr_sign_fix: bool = True,
) -> Float[Tensor, "m k"]:
    """Return the random projection W, drawn on the CPU in float64: the same on every machine.

    Args:
        features: Number of rows, m.
        width: Number of columns, k.
        generator: The source of random numbers.
        orthogonal: Whether each block of k rows is orthogonal.
        norms: Norms of the rows: those of normal vectors (chi), or sqrt(k).
        qr_sign_fix: Whether signs of the QR decomposition are corrected, so that blocks are uniform
            rotations. False gives a biased estimate and reproduces published numbers.
    """
    gaussian = partial(torch.randn, generator=generator, dtype=torch.float64, device="cpu")
    if not orthogonal:
        drawn = gaussian(features, width)
    else:
        parts = []
        for _ in range(math.ceil(features / width)):
            basis, triangle = torch.linalg.qr(gaussian(width, width))
            parts.append((basis * triangle.diagonal().sign() if qr_sign_fix else basis).T)
        drawn = torch.cat(parts)[:features]
    # Rows of a rotation have length 1, so their norms come from further normal vectors.
    if norms == Norms.sqrt_width:
        lengths = torch.full((features, 1), math.sqrt(width), dtype=drawn.dtype, device="cpu")
    else:
        lengths = (gaussian(features, width) if orthogonal else drawn).norm(dim=1, keepdim=True)
    return F.normalize(drawn, dim=1) * lengths


class PositiveFeatures(Exponents):
    """phi(x) = exp(W x), divided by its largest entry; for keys, times exp(-|x|^2 / 2).

    For queries, this last factor cancels and is omitted. `scale` multiplies x of queries and keys.
    Hyperbolic features are positive features of W and -W together.
    """

    def __init__(self, projection: Float[Tensor, "m k"], scale: float, *, keys: bool) -> None:
        self.projection, self.scale, self.keys = projection * scale, scale, keys

    def __call__(
        self, x: Float[Tensor, "*r k"]
    ) -> tuple[Float[Tensor, "*r m"], Float[Tensor, "*r"] | None]:
        """Return the features and, for keys, the logarithm of the omitted factor."""
        exponent = x @ self.projection.T
        top = exponent.amax(-1, keepdim=True)
        phi = exponent.sub_(top).exp_()
        if not self.keys:
            return phi, None
        return phi, torch.add(top[..., 0], x.square().sum(-1), alpha=-0.5 * self.scale**2)

    def pull(
        self, gradient: Float[Tensor, "*r m"], phi: Float[Tensor, "*r m"], x: Float[Tensor, "*r k"]
    ) -> Float[Tensor, "*r k"]:
        """Return the gradient of `x` from that of its features `phi`."""
        gradient = gradient.mul_(phi)
        pulled = gradient @ self.projection
        if self.keys:  # the gradient through exp(-|x|^2 / 2)
            pulled.addcmul_(gradient.sum(-1, keepdim=True), x, value=-(self.scale**2))
        return pulled

    def exponents(self, x: Float[Tensor, "*r k"]) -> Float[Tensor, "*r m"]:
        """Return the logarithms of the features."""
        exponent = x @ self.projection.T
        if not self.keys:
            return exponent
        return exponent - 0.5 * self.scale**2 * x.square().sum(-1, keepdim=True)


class TrigonometricFeatures:
    """phi(x) = [cos W x, sin W x]; for keys, times exp(|x|^2 / 2)."""

    def __init__(self, projection: Float[Tensor, "m k"], scale: float, *, keys: bool) -> None:
        self.projection, self.scale, self.keys = projection * scale, scale, keys

    def __call__(
        self, x: Float[Tensor, "*r k"]
    ) -> tuple[Float[Tensor, "*r m"], Float[Tensor, "*r"] | None]:
        """Return the features and, for keys, the logarithm of the omitted factor."""
        angle = x @ self.projection.T
        phi = torch.cat((angle.cos(), angle.sin()), dim=-1)
        return phi, x.square().sum(-1) * (0.5 * self.scale**2) if self.keys else None

    def pull(
        self, gradient: Float[Tensor, "*r m"], phi: Float[Tensor, "*r m"], x: Float[Tensor, "*r k"]
    ) -> Float[Tensor, "*r k"]:
        """Return the gradient of `x` from that of its features `phi`."""
        (g_cos, g_sin), (cos, sin) = gradient.chunk(2, dim=-1), phi.chunk(2, dim=-1)
        pulled = (g_sin * cos).addcmul_(g_cos, sin, value=-1) @ self.projection
        if self.keys:  # the gradient through exp(|x|^2 / 2)
            pulled.addcmul_(gradient.mul_(phi).sum(-1, keepdim=True), x, value=self.scale**2)
        return pulled


class ReferenceFeatures:
    """Positive features as in the authors' code: (exp(W x - |x|^2 / 2 - top) + epsilon) / sqrt(m).

    `top` is the largest entry of W x: of each row for queries, of all real rows for keys. It gets
    no gradient. Because epsilon is added after the division by exp(top), the result depends on
    `top`; where |x|^2 / 2 is large, only epsilon remains.
    """

    def __init__(
        self,
        projection: Float[Tensor, "m k"],
        scale: float,
        epsilon: float,
        top: Float[Tensor, "b h"] | None = None,
    ) -> None:
        self.projection, self.scale, self.top = projection * scale, scale, top
        self.ratio = len(projection) ** -0.5  # 1 / sqrt(m)
        self.epsilon = epsilon * self.ratio

    def __call__(self, x: Float[Tensor, "*r k"]) -> tuple[Float[Tensor, "*r m"], None]:
        """Return the features."""
        exponent = x @ self.projection.T
        if self.top is None:
            top = exponent.amax(-1, keepdim=True)
        else:
            top = self.top.view(*self.top.shape, *[1] * (x.ndim - 2))
        square = x.square().sum(-1, keepdim=True)
        exponent.sub_(top).sub_(square, alpha=0.5 * self.scale**2)
        return exponent.exp_().mul_(self.ratio).add_(self.epsilon), None

    def pull(
        self, gradient: Float[Tensor, "*r m"], phi: Float[Tensor, "*r m"], x: Float[Tensor, "*r k"]
    ) -> Float[Tensor, "*r k"]:
        """Return the gradient of `x` from that of its features `phi`."""
        gradient = gradient.mul_(phi.sub_(self.epsilon))
        pulled = gradient @ self.projection
        return pulled.addcmul_(gradient.sum(-1, keepdim=True), x, value=-(self.scale**2))


class LevelledFeatures:
    """Features of keys with their factor multiplied in, relative to one level for all keys."""

    def __init__(self, features: FeatureMap, level: Float[Tensor, "b h"]) -> None:
        self.features, self.level = features, level

    def __call__(self, x: Float[Tensor, "*r k"]) -> tuple[Float[Tensor, "*r m"], None]:
        """Return the features."""
        phi, log = self.features(x)
        if log is None:
            return phi, None
        level = self.level.view(*self.level.shape, *[1] * (log.ndim - 2))
        # Only padding can be above the level.
        return phi.mul_((log - level).clamp_(max=0).exp_()[..., None]), None

    def pull(
        self, gradient: Float[Tensor, "*r m"], phi: Float[Tensor, "*r m"], x: Float[Tensor, "*r k"]
    ) -> Float[Tensor, "*r k"]:
        """Return the gradient of `x`; it is linear in phi, which contains the level's factor."""
        return self.features.pull(gradient, phi, x)


def largest(
    logarithm: Callable[[Tensor], Tensor],
    k: Float[Tensor, "b h s k"],
    features: int,
    keep: Bool[Tensor, "b s"] | None,
) -> Float[Tensor, "b h"]:
    """Return the maximum of `logarithm` over all real keys, as a constant; 0 without real keys."""
    top = k.new_full(k.shape[:2], -torch.inf, dtype=sum_dtype(k))
    with torch.no_grad():
        for rows in row_slices(k.shape[2], block_rows(k, features)):
            logarithms = logarithm(k[:, :, rows].to(top.dtype))
            if keep is not None:
                logarithms = logarithms.masked_fill(~keep[:, None, rows], -torch.inf)
            top = torch.maximum(top, logarithms.amax(-1))
    return top.masked_fill(top == -torch.inf, 0)


def performer_maps(
    projection: Float[Tensor, "m k"],
    kernel: Kernel = Kernel.softmax,
    scale: float | None = None,
    *,
    feature_epsilon: float = GENERALISED_EPSILON,
    normalise: bool = True,
) -> FeatureMaps:
    """Return Performer's feature maps for W = `projection` times `scale`; None: k^(-1/4)."""
    features, width = projection.shape
    scale = width**-0.25 if scale is None else scale
    if kernel.generalised:
        return generalised_maps(
            kernel, features, projection, scale, epsilon=feature_epsilon, normalise=normalise
        )
    if kernel == Kernel.trigonometric:
        return FeatureMaps(
            TrigonometricFeatures(projection, scale, keys=False),
            TrigonometricFeatures(projection, scale, keys=True),
            2 * features,  # cosines and sines
            reciprocal=signed_reciprocal,
        )
    if kernel == Kernel.hyperbolic:  # positive features of W and -W
        projection = torch.cat((projection, -projection))
    return FeatureMaps(
        PositiveFeatures(projection, scale, keys=False),
        PositiveFeatures(projection, scale, keys=True),
        len(projection),
    )


def generalised_maps(
    kernel: Kernel,
    features: int,
    projection: Float[Tensor, "m k"] | None,
    scale: float,
    *,
    epsilon: float,
    normalise: bool,
) -> FeatureMaps:
    """Return the maps f(W x) + epsilon or, without `projection`, f(x) + epsilon, of scaled x."""
    function = NONLINEARITIES[kernel]
    phi: FeatureMap = Exponential(projection, scale, epsilon)
    # A map divided by its largest entry needs normalised outputs, so that the factor cancels.
    if kernel != Kernel.exp or not normalise:
        phi = GeneralisedFeatures(function, projection=projection, scale=scale, epsilon=epsilon)
    signed = function.lowest + epsilon < 0
    return FeatureMaps(
        phi, phi, features, normalise, reciprocal=signed_reciprocal if signed else reciprocal
    )


def guarded_reciprocal(total: Float[Tensor, "*r"], *, guard: float) -> Float[Tensor, "*r"]:
    """Return 1 / total, after adding twice `guard` where |total| is at most `guard`."""
    return (total + 2 * guard * (total.abs() <= guard)).reciprocal()


def reference_maps(
    projection: Float[Tensor, "m k"],
    k: Float[Tensor, "b h s k"],
    keep: Bool[Tensor, "b s"] | None,
    scale: float,
    *,
    epsilon: float,
    normalise: bool,
    together: bool = False,
) -> FeatureMaps:
    """Return the feature maps of the authors' code, which subtract the largest W x of the keys `k`.

    With `together`, return those of performer-pytorch: they subtract the largest W x of all heads
    and examples, and leave small denominators unchanged.
    """
    features, scaled = len(projection), projection * scale
    top = largest(lambda x: (x @ scaled.T).amax(-1), k, features, keep)
    if together:
        top = top.amax().expand_as(top)
    return FeatureMaps(
        ReferenceFeatures(projection, scale, epsilon),
        ReferenceFeatures(projection, scale, epsilon, top),
        features,
        normalise,
        partial(guarded_reciprocal, guard=min(epsilon, REFERENCE_EPSILON))
        if epsilon and not together
        else reciprocal,
    )
