"""Performer: softmax attention estimated by positive orthogonal random features (FAVOR+).

Equation   o_i = phi(q_i) S / phi(q_i) z,  S = sum_j phi(k_j) v_j^T,  z = sum_j phi(k_j)
           over all j, or over j <= i when causal; with x = q / d^(1/4) and y = k / d^(1/4)
Features   softmax   phi(x) = exp(W x - |x|^2 / 2) / sqrt(m): the mean of phi(x) phi(y) is exp(x y)
           relu      phi(x) = max(W x, 0) + epsilon: the paper's generalised attention
Draw       W has m rows, in blocks of d orthogonal ones: the Q of a QR decomposition with the signs
           of R's diagonal (so that it is uniform over rotations), times norms that are those of
           Gaussian vectors (`chi`, unbiased) or sqrt(d) (`sqrt_width`, a lower bound of exp(x y)).
Cost       per head and token, forward: 8 m d operations, causal 2 C (m + d) more with chunk C;
           autograd keeps q, k, v, the output and one number per row. State: m (d + 1) per head.
Source     Choromanski et al., "Rethinking Attention with Performers", arXiv:2009.14794.
Notation   the paper's L, d, r or m are l, k, features; its omega are the rows of `projection`.
Differs    exponentials refer to the maximum of each row's full exponent and, along the keys, to the
           overall or running maximum, instead of a maximum of W y alone plus an epsilon in every
           feature: the same function, stable for long vectors, and causal without leak. There is
           no epsilon in the denominator either.
"""

import math
from enum import StrEnum, auto
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from models.families.causal_product import Memory, causal_product, empty_memory
from models.families.feature_product import FeatureMap, FeatureMaps, feature_product, sum_dtype
from models.families.linear import check_chunk, refuse_state
from models.mixer import Layout, Site, State, Traits
from models.multi_head import MultiHead


class Kernel(StrEnum):
    """What the features approximate."""

    softmax = auto()
    relu = auto()


class Norms(StrEnum):
    """Lengths of the rows of the projection."""

    chi = auto()
    sqrt_width = auto()


class SoftmaxFeatures:
    """phi(x) = exp(W x), divided by its largest entry; for keys, times exp(-|x|^2 / 2).

    On the query side that last factor cancels and is left out. `scale` multiplies x on both sides.
    """

    def __init__(self, projection: Float[Tensor, "m k"], scale: float, *, keys: bool) -> None:
        self.projection, self.scale, self.keys = projection * scale, scale, keys

    def __call__(
        self, x: Float[Tensor, "*r k"]
    ) -> tuple[Float[Tensor, "*r m"], Float[Tensor, "*r"] | None]:
        """Return the features and, for keys, the logarithm of the factor left out."""
        exponent = x @ self.projection.T
        top = exponent.amax(-1, keepdim=True)
        phi = exponent.sub_(top).exp_()
        if not self.keys:
            return phi, None
        return phi, torch.add(top[..., 0], x.square().sum(-1), alpha=-0.5 * self.scale**2)

    def pull(
        self, gradient: Float[Tensor, "*r m"], phi: Float[Tensor, "*r m"], x: Float[Tensor, "*r k"]
    ) -> Float[Tensor, "*r k"]:
        """Return the gradient: that of the exponent is gradient times phi."""
        gradient = gradient.mul_(phi)
        pulled = gradient @ self.projection
        if self.keys:
            pulled.addcmul_(gradient.sum(-1, keepdim=True), x, value=-(self.scale**2))
        return pulled


class ReluFeatures:
    """phi(x) = max(W x, 0) + epsilon."""

    def __init__(self, projection: Float[Tensor, "m k"], scale: float, epsilon: float) -> None:
        self.projection, self.epsilon = projection * scale, epsilon

    def __call__(self, x: Float[Tensor, "*r k"]) -> tuple[Float[Tensor, "*r m"], None]:
        """Return the features."""
        return (x @ self.projection.T).relu_().add_(self.epsilon), None

    def pull(
        self, gradient: Float[Tensor, "*r m"], phi: Float[Tensor, "*r m"], x: Float[Tensor, "*r k"]
    ) -> Float[Tensor, "*r k"]:
        """Return the gradient."""
        del x
        return gradient.mul_(phi > self.epsilon) @ self.projection


def draw_projection(
    features: int,
    width: int,
    generator: torch.Generator,
    *,
    orthogonal: bool = True,
    norms: Norms = Norms.chi,
    qr_sign_fix: bool = True,
) -> Float[Tensor, "m k"]:
    """Draw W on the CPU, in float64 and from `generator` alone: the same on every machine.

    Without `qr_sign_fix` the orthogonal blocks are not uniform over rotations and the estimate is
    biased; it exists to repeat published numbers.
    """

    def gaussian(rows: int) -> Tensor:
        return torch.randn(rows, width, generator=generator, dtype=torch.float64, device="cpu")

    if not orthogonal:
        drawn = gaussian(features)
    else:
        parts = []
        for _ in range(math.ceil(features / width)):
            basis, triangle = torch.linalg.qr(gaussian(width))
            parts.append((basis * triangle.diagonal().sign() if qr_sign_fix else basis).T)
        drawn = torch.cat(parts)[:features]
    if norms is Norms.sqrt_width:
        lengths = torch.full((features, 1), math.sqrt(width), dtype=drawn.dtype, device="cpu")
    else:
        lengths = (gaussian(features) if orthogonal else drawn).norm(dim=1, keepdim=True)
    return F.normalize(drawn, dim=1) * lengths


def performer_maps(
    projection: Float[Tensor, "m k"],
    kernel: Kernel = Kernel.softmax,
    *,
    feature_epsilon: float = 1e-3,
    normalise: bool = True,
) -> FeatureMaps:
    """Return the feature maps of queries and keys, the factor d^(-1/4) folded into W."""
    features, width = projection.shape
    scale = width**-0.25
    if kernel is Kernel.relu:
        relu: FeatureMap = ReluFeatures(projection, scale, feature_epsilon)
        return FeatureMaps(relu, relu, features, normalise)
    return FeatureMaps(
        SoftmaxFeatures(projection, scale, keys=False),
        SoftmaxFeatures(projection, scale, keys=True),
        features,
    )


class PerformerCore(nn.Module):
    """Attention through random features of a projection that is a buffer."""

    projection: Float[Tensor, "m k"]

    def __init__(
        self,
        projection: Float[Tensor, "m k"],
        kernel: Kernel,
        *,
        feature_epsilon: float,
        renormalise: bool,
        chunk: int,
        causal: bool,
    ) -> None:
        super().__init__()
        check_chunk(chunk)
        self.register_buffer("projection", projection)
        self.kernel, self.chunk = kernel, chunk
        self.feature_epsilon, self.renormalise = feature_epsilon, renormalise
        self.traits = Traits(causal=causal, row_stochastic=renormalise, random_draws=True)

    def maps(self, like: Tensor) -> FeatureMaps:
        """Return the feature maps in the dtype of the sums."""
        return performer_maps(
            self.projection.to(sum_dtype(like)),
            self.kernel,
            feature_epsilon=self.feature_epsilon,
            normalise=self.renormalise,
        )

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s k"],
        v: Float[Tensor, "b h s v"],
        layout: Layout,
    ) -> Float[Tensor, "b h l v"]:
        """Attend."""
        maps = self.maps(v)
        if not self.traits.causal:
            return feature_product(q, k, v, maps, layout.keep)
        return causal_product(q, k, v, maps, chunk=self.chunk, keep=layout.keep)[0]

    def initial_state(self, shape: tuple[int, ...], like: Tensor) -> State:
        """Return the empty sums: their size does not depend on the memory asked for."""
        refuse_state(self.traits)
        return empty_memory(shape, self.projection.shape[0], like)

    def extend(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        layout: Layout,
        state: tuple[Tensor, Tensor],
    ) -> tuple[Float[Tensor, "b h l v"], tuple[Tensor, Tensor]]:
        """Continue after what `state` has seen."""
        return causal_product(
            q, k, v, self.maps(v), chunk=self.chunk, keep=layout.keep, memory=Memory(*state)
        )


class Performer(MultiHead):
    """FAVOR+ attention between the four projections.

    `features=None` takes k ln k features for heads of width k. `feature_epsilon` belongs to the
    relu kernel. The projection is drawn again every `redraw_every` optimiser steps, 0 = never.
    `chunk` is the number of tokens whose causal weights are formed directly; it changes speed and
    memory, never the result.
    """

    def __init__(
        self,
        site: Site,
        *,
        kernel: Kernel = Kernel.softmax,
        features: int | None = 256,
        orthogonal: bool = True,
        norms: Norms = Norms.chi,
        qr_sign_fix: bool = True,
        feature_epsilon: float = 1e-3,
        renormalise: bool = True,
        redraw_every: int = 1000,
        chunk: int = 64,
    ) -> None:
        width = site.head_width
        if features is None:
            features = max(1, round(width * math.log(width)))
        if features < 1:
            raise ValueError(f"features counts random directions: got {features}; use 1 or more")
        if redraw_every < 0:
            raise ValueError(f"redraw_every counts steps: got {redraw_every}; use 0 for never")
        if feature_epsilon < 0:
            raise ValueError(
                f"features must not be negative: got feature_epsilon={feature_epsilon}"
            )
        if kernel is Kernel.softmax and not renormalise:
            raise ValueError(
                "renormalise=False needs kernel=relu: softmax features are kept as ratios to their "
                "maximum, which only the division undoes"
            )
        draw = partial(
            draw_projection,
            features,
            width,
            orthogonal=orthogonal,
            norms=norms,
            qr_sign_fix=qr_sign_fix,
        )
        # Drawn on the CPU, then where and how the module's parameters are: also the meta device.
        place = torch.empty(())
        core = PerformerCore(
            draw(site.generator).to(place),
            kernel,
            feature_epsilon=feature_epsilon,
            renormalise=renormalise,
            chunk=chunk,
            causal=site.causal,
        )
        super().__init__(site, core)
        self.draw, self.redraw_every = draw, redraw_every

    def after_step(self, step: int, generator: torch.Generator) -> None:
        """Draw the projection again when its time has come."""
        if self.redraw_every and step % self.redraw_every == 0:
            projection = cast(PerformerCore, self.core).projection
            projection.copy_(self.draw(generator))
