"""Performer: linear attention with random features that estimate softmax attention (FAVOR+).

Equation   o_i = phi(q_i) S / phi(q_i) z,  S = sum_j phi(k_j) v_j^T,  z = sum_j phi(k_j)
           over all j, or over j <= i when causal; with x = q / d^(1/4) and y = k / d^(1/4)
Kernels    softmax        phi(x) = exp(W x - |x|^2 / 2) / sqrt(m): the expected value of
                          phi(x) phi(y) is exp(x y)
           hyperbolic     the same for W and for -W, 2 m features: less error for short vectors
           trigonometric  phi(x) = exp(|x|^2 / 2) [cos W x, sin W x] / sqrt(m), 2 m features: the
                          weights and their sum may be negative, and a row whose sum is near 0 grows
                          without bound (a sum of 0 gives 0). Use it only for comparisons.
           relu, exp, gelu, sigmoid, abs, tanh, cos, identity, elu1
                          phi(x) = f(W x) + epsilon, the paper's generalised attention, or
                          f(x) + epsilon with `projected=false`; with gelu, tanh, cos and identity,
                          weights can be negative
Draw       W has m rows, in blocks of d orthogonal ones: the Q of a QR decomposition with the signs
           of R's diagonal. The rows are multiplied by norms of Gaussian vectors (`chi`, unbiased)
           or by sqrt(d) (`sqrt_width`, which estimates a lower bound of exp(x y)).
Cost       Each head takes 8 m d operations per token, and 2 C (m + d) more in the causal form with
           chunks of C tokens. State: m (d + 2) numbers per head.
Source     Choromanski et al. 2020, arXiv:2009.14794.
Notation   the paper's L, d, r or m are l, k, features; its omega are the rows of `projection`.
Differs    To avoid overflow, each query subtracts its largest full exponent, and keys subtract the
           overall or running maximum. The paper subtracts the maximum of W y alone and adds an
           epsilon to every feature. The form here computes the same function, is stable for long
           vectors and, when causal, depends on earlier tokens only. Its denominator has no epsilon.
           In a state, or if the weights of a row still round to 0, each feature subtracts its
           maximum separately, which takes five to ten times as long. Compiled modules return 0 for
           such rows; so does `key_max=global` when causal.
Parity     `stabiliser=reference` is the authors' code: exp(W x - |x|^2 / 2 - c) + epsilon, where c
           is the maximum of W x over the row for queries and over the sequence for keys, epsilon is
           1e-6, and 2e-6 is added to a denominator within 1e-6 of 0. `port` is performer-pytorch:
           for keys, c is the maximum over heads and batch as well, epsilon is 1e-4, and the
           denominator is unchanged. When causal, both need `key_max=global`, by which later keys
           change earlier outputs. `padding=original` sets keys and values to 0 at padding, and they
           stay in the sums. `scaled_twice` applies d^(-1/4) once more, as where both a caller and
           the port scale: in the Nystromformer's and the Skyformer's code scores are q k / d.
Variant    `lra` is the Long Range Arena code: padding is attended to like any token; the kernels
           are f(x) + epsilon without projection and without d^(-1/4); kernel=softmax has
           `stabiliser=reference`, `key_max=global`, `qr_sign_fix=false`, and new draws after each
           step (there: in each call, evaluation included). Other values of these options raise an
           error. Its published rows use kernel=relu; ListOps kernel=softmax, features=2.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum, auto
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from lra.models.mixer import Count, Layout, Need, PaddingRule, Site, Traits, Unsupported, Variant
from lra.models.multi_head import Core, MultiHead
from lra.models.ops.linear.feature_core import FeatureCore
from lra.models.ops.linear.features import NONLINEARITIES, FeatureMaps
from lra.models.ops.linear.random_features import (
    GENERALISED_EPSILON,
    PORT_EPSILON,
    REFERENCE_EPSILON,
    Kernel,
    LevelledFeatures,
    Norms,
    draw_projection,
    generalised_maps,
    largest,
    performer_maps,
    reference_maps,
)
from lra.models.ops.numerics import sum_dtype


class Stabiliser(StrEnum):
    """Number that is subtracted from exponents to avoid overflow."""

    full = auto()
    """Subtract the maximum of the full exponent."""
    reference = auto()
    """As in the authors' code: subtract the maximum of W x, and add an epsilon to every feature."""
    port = auto()
    """As in performer-pytorch, where all keys of the batch share one maximum."""


KeyMax = StrEnum("KeyMax", ["running", "global"])
"""Keys over which a causal model takes the maximum: those so far, or all (which leaks)."""


EVEN = frozenset({Kernel.hyperbolic, Kernel.trigonometric, Kernel.abs, Kernel.cos})
"""Kernels for which W and -W give the same products of features."""


@dataclass(frozen=True, kw_only=True)
class PerformerOptions:
    """The options that decide the function, together with the projection."""

    variant: Variant
    kernel: Kernel
    projected: bool
    stabiliser: Stabiliser
    key_max: KeyMax
    feature_epsilon: float | None
    renormalise: bool
    qr_sign_fix: bool
    redraw_every: int
    padding: PaddingRule
    scaled_twice: bool

    @property
    def by_projection(self) -> bool:
        """Whether exponents are taken relative to the maximum of W x."""
        return self.stabiliser != Stabiliser.full

    @property
    def unscaled(self) -> bool:
        """Whether queries and keys are used without the factor d^(-1/4)."""
        return self.variant == Variant.lra and self.kernel.generalised

    @property
    def epsilon(self) -> float:
        """The number that is added to every feature."""
        if self.feature_epsilon is not None:
            return self.feature_epsilon
        if self.kernel.generalised:
            return GENERALISED_EPSILON
        epsilons = {Stabiliser.reference: REFERENCE_EPSILON, Stabiliser.port: PORT_EPSILON}
        return epsilons.get(self.stabiliser, 0.0)

    def check(self, causal: bool) -> None:
        """Raise ValueError for values out of range and options that contradict each other."""
        if self.redraw_every < 0:
            raise ValueError(
                f"redraw_every, a number of optimiser steps, must be 0 (never) or more: got "
                f"{self.redraw_every}"
            )
        if self.epsilon < 0:
            raise ValueError(
                "feature_epsilon, which is added to every feature, must be 0 or more: got "
                f"{self.feature_epsilon}"
            )
        if not (self.projected or self.kernel.generalised):
            raise ValueError(
                "projected=false is only for generalised kernels, such as kernel=relu: got "
                f"kernel={self.kernel}"
            )
        subtracts_projection = self.by_projection
        if subtracts_projection and self.kernel != Kernel.softmax:
            raise ValueError(
                f"stabiliser={self.stabiliser} is only for kernel=softmax: got "
                f"kernel={self.kernel}; choose stabiliser=full"
            )
        if subtracts_projection and causal and self.key_max == KeyMax["running"]:
            raise ValueError(
                f"a causal model with stabiliser={self.stabiliser} cannot use a running maximum, "
                "because the epsilon of earlier features cannot be adjusted to it: choose "
                "key_max=global, with which later keys change earlier outputs, or stabiliser=full"
            )
        if self.kernel.generalised or subtracts_projection:
            return
        # Features are stored relative to their maximum; the division by their sum cancels it.
        if not self.renormalise:
            raise ValueError(
                f"kernel={self.kernel} is computed relative to a maximum, which only the division "
                "by the weights cancels: got renormalise=false; set it to true, or choose a "
                "generalised kernel such as kernel=relu, or stabiliser=reference"
            )
        if self.epsilon:
            raise ValueError(
                f"kernel={self.kernel} is computed relative to a maximum, so an epsilon would have "
                f"another weight for every maximum: got feature_epsilon={self.feature_epsilon}; "
                "leave it null, or choose stabiliser=reference"
            )

    def traits(self, causal: bool) -> Traits:
        """Return the traits of a core with these options."""
        supported = Traits().supports
        if self.kernel.generalised:
            positive = NONLINEARITIES[self.kernel].lowest + self.epsilon > 0
            leak = False
        else:
            # With an epsilon in the denominator, outputs are no exact means of the values.
            positive = self.kernel != Kernel.trigonometric and self.epsilon == 0
            leak = causal and self.key_max == KeyMax["global"]
        original = self.padding == PaddingRule.original
        return Traits(
            supports=supported - {"keep"} if self.variant == Variant.lra or original else supported,
            hides_others=original,
            causal=causal,
            selection_leak=leak,
            row_stochastic=self.renormalise and positive and not leak,
            cross=not causal,
            random_draws=self.projected,
            sees_order=causal,
            by_batch=f"stabiliser={Stabiliser.port}" if self.stabiliser == Stabiliser.port else "",
        )


class PerformerCore(FeatureCore):
    """Attention through random features; `projection` is a buffer, or None without random draws."""

    projection: Float[Tensor, "m k"] | None

    def __init__(
        self,
        projection: Float[Tensor, "m k"] | None,
        options: PerformerOptions,
        *,
        chunk: int,
        causal: bool,
    ) -> None:
        """Register the projection as a buffer, so that it is saved with the weights."""
        super().__init__(options.traits(causal), chunk)
        self.options = options
        self.register_buffer("projection", projection)

    def maps(
        self, q: Float[Tensor, "b h l k"], k: Float[Tensor, "b h s k"], layout: Layout
    ) -> FeatureMaps:
        """Return the feature maps for queries `q` and keys `k`, by the options of the core."""
        options = self.options
        scale = q.shape[-1] ** (-0.5 if options.scaled_twice else -0.25)
        if self.projection is None:
            return generalised_maps(
                options.kernel, q.shape[-1], None, 1.0 if options.unscaled else scale,
                epsilon=options.epsilon, normalise=options.renormalise,
            )  # fmt: skip
        projection = self.projection.to(sum_dtype(q))
        if options.by_projection:
            return reference_maps(
                projection, k, layout.keep, scale,
                epsilon=options.epsilon, normalise=options.renormalise,
                together=options.stabiliser == Stabiliser.port,
            )  # fmt: skip
        maps = performer_maps(
            projection, options.kernel, scale,
            feature_epsilon=options.epsilon, normalise=options.renormalise,
        )  # fmt: skip
        if self.traits.selection_leak:  # key_max=global: one maximum over all keys, also later ones
            level = largest(lambda x: cast(Tensor, maps.key(x)[1]), k, maps.width, layout.keep)
            maps = maps._replace(key=LevelledFeatures(maps.key, level))
        return maps

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s k"],
        v: Float[Tensor, "b h s v"],
        layout: Layout,
    ) -> Float[Tensor, "b h l v"]:
        """Let each query attend to all keys or, if causal, to those up to itself."""
        if self.traits.hides_others and layout.keep is not None:
            k, v = (x.masked_fill(~layout.keep[:, None, :, None], 0.0) for x in (k, v))
        return super().forward(q, k, v, layout)


class Performer(MultiHead):
    """FAVOR+ attention between the four projections.

    `features=None` means k ln k features for heads of width k. `feature_epsilon=None` means 0.001
    for f(W x), 1e-6 for `stabiliser=reference`, 1e-4 for `stabiliser=port`, else 0. The projection
    is drawn again every `redraw_every` optimiser steps; 0: never. `chunk` is the number of tokens
    per chunk of the causal form; it affects only speed and memory.
    """

    needs = (
        Need("chunk", causal=True),
        Need("features", "orthogonal", "norms", "qr_sign_fix", "redraw_every", projected=True),
        Need("qr_sign_fix", orthogonal=True),
        Need(
            "qr_sign_fix",
            words="a kernel whose features depend on the sign of W x",
            holds=lambda _, chosen: chosen.kernel not in EVEN,
        ),
        Need(
            "key_max",
            words="a causal model, or stabiliser=reference or port",
            holds=lambda site, chosen: site.causal or chosen.stabiliser != Stabiliser.full,
        ),
        Need(
            "key_max",
            words="kernel=softmax, hyperbolic or trigonometric",
            holds=lambda _, chosen: not chosen.kernel.generalised,
        ),
        Need("padding", variant=Variant.faithful),
        Need(
            "scaled_twice",
            words="d^(-1/4): variant=faithful, or kernel=softmax",
            holds=lambda _, chosen: not (chosen.variant == "lra" and chosen.kernel.generalised),
        ),
    )

    @classmethod
    def fixed(cls, options: Any) -> Mapping[str, Any]:
        """Return the options that `variant=lra` fixes, with their values."""
        if options.variant != Variant.lra:
            return {}
        if options.kernel.generalised:
            return {"projected": False}
        return {
            "stabiliser": Stabiliser.reference, "key_max": KeyMax["global"],
            "qr_sign_fix": False, "redraw_every": 1,
        }  # fmt: skip

    def __init__(
        self,
        site: Site,
        *,
        variant: Variant = Variant.faithful,
        kernel: Kernel = Kernel.softmax,
        projected: bool = True,
        features: Count | None = 256,
        orthogonal: bool = True,
        norms: Norms = Norms.chi,
        qr_sign_fix: bool = True,
        stabiliser: Stabiliser = Stabiliser.full,
        key_max: KeyMax = KeyMax.running,
        feature_epsilon: float | None = None,
        renormalise: bool = True,
        redraw_every: int = 1000,
        padding: PaddingRule = PaddingRule.exact,
        scaled_twice: bool = False,
        chunk: int = 64,
    ) -> None:
        """Check the options, and draw the random projection."""
        width = site.head_width
        if features is None:
            features = max(1, round(width * math.log(width)))
        options = PerformerOptions(
            variant=variant, kernel=kernel, projected=projected, stabiliser=stabiliser,
            key_max=key_max, feature_epsilon=feature_epsilon, renormalise=renormalise,
            qr_sign_fix=qr_sign_fix, redraw_every=redraw_every,
            padding=padding, scaled_twice=scaled_twice,
        )  # fmt: skip
        options = replace(options, **self.fixed(options))
        options.check(site.causal)
        draw = partial(
            draw_projection, features, width,
            orthogonal=orthogonal, norms=norms, qr_sign_fix=options.qr_sign_fix,
        )  # fmt: skip
        # Drawn on the CPU, then moved to the device and type of parameters, which may be meta.
        projection = draw(site.generator).to(torch.empty(())) if options.projected else None
        super().__init__(site, PerformerCore(projection, options, chunk=chunk, causal=site.causal))
        self.draw, self.redraw_every = draw, options.redraw_every

    def attention_core(self) -> Core:
        """Return the core; raise `Unsupported` if its kernel does not estimate softmax."""
        kernel = cast(PerformerCore, self.core).options.kernel
        if kernel.generalised:
            raise Unsupported(
                f"kernel={kernel} does not estimate softmax attention: choose kernel=softmax, "
                "hyperbolic or trigonometric"
            )
        return super().attention_core()

    def after_step(self, step: int, generator: torch.Generator) -> None:
        """Draw a new projection every `redraw_every` steps."""
        projection = cast(PerformerCore, self.core).projection
        if projection is not None and self.redraw_every and step % self.redraw_every == 0:
            projection.copy_(self.draw(generator))
