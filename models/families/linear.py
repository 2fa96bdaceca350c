"""Linear attention: a product of elementwise features replaces the softmax kernel; causal: an RNN.

Equation   o_i = phi(q_i) S / phi(q_i) z,  S = sum_j phi(k_j) v_j^T,  z = sum_j phi(k_j)
           where j runs over all tokens, or over j <= i when causal.
Features   elu1      elu(x) + 1 (the paper's)          relu_eps  max(x, 0) + 0.001
           sqr       x^2                               exp       e^x
           softmax_dims  softmax of q over its channels and of k over the length ("efficient
           attention", Shen et al., arXiv:1812.01243); bidirectional only
Cost       Each head takes 4 d^2 operations per token, or 4 d (C + d) in the causal form with chunks
           of C tokens. State: d (d + 1) numbers per head, and the offset of exponential features (0
           for other features).
Source     Katharopoulos, Vyas, Pappas, Fleuret, "Transformers are RNNs", arXiv:2006.16236.
Notation   the paper's N, D, M are l, k, v; its Q, K, V are q, k, v; its S_i, Z_i are [S z] at i.
Undivided  As in the code of the Nystromformer experiments, `denominator=root_length` divides by the
           square root of the length (padding included) instead of by the sum of the weights.
Differs    The denominator has no epsilon. A query without any key gives 0, and every other query an
           exact weighted mean. elu1 is computed as exp(min(x, 0)) + max(x, 0), which stays positive
           far below 0, where elu(x) + 1 rounds to 0.
Variant    `lra` is the Long Range Arena code: elu1, 1e-6 added to the denominator, padding attended
           to like any token, and no causal mask.
"""

from collections.abc import Mapping
from enum import StrEnum, auto
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lra.models.mixer import Layout, Need, Site, Traits, Unsupported, Variant
from lra.models.multi_head import MultiHead
from lra.models.ops.linear.causal_product import causal_product
from lra.models.ops.linear.exponent_sums import Exponential
from lra.models.ops.linear.feature_core import FeatureCore
from lra.models.ops.linear.feature_product import feature_product
from lra.models.ops.linear.features import (
    NONLINEARITIES,
    FeatureMap,
    FeatureMaps,
    GeneralisedFeatures,
)
from lra.models.ops.numerics import sum_dtype

RELU_EPSILON = 1e-3
LRA_EPSILON = 1e-6


class FeatureChoice(StrEnum):
    """Feature map that replaces the softmax of queries and keys."""

    elu1 = auto()
    relu_eps = auto()
    sqr = auto()
    exp = auto()
    softmax_dims = auto()
    """Softmax of queries over channels and of keys over the length; not elementwise."""


class Denominator(StrEnum):
    """Divisor of the weighted sum of values."""

    weights = auto()
    """The sum of the weights (an average)."""
    root_length = auto()
    """The square root of the length."""


BOUNDED = (FeatureChoice.elu1, FeatureChoice.relu_eps, FeatureChoice.sqr)
"""Features that are computed without a running maximum, because they cannot overflow."""
FEATURES: Mapping[FeatureChoice, FeatureMap] = {
    FeatureChoice.elu1: GeneralisedFeatures(NONLINEARITIES["elu1"]),
    FeatureChoice.relu_eps: GeneralisedFeatures(NONLINEARITIES["relu"], epsilon=RELU_EPSILON),
    FeatureChoice.sqr: GeneralisedFeatures(NONLINEARITIES["sqr"]),
    FeatureChoice.exp: Exponential(),
    # The division by the sum of weights gives the softmax of q; `log_shares` gives that of k.
    FeatureChoice.softmax_dims: Exponential(),
}


def log_shares(
    k: Float[Tensor, "b h s k"], keep: Bool[Tensor, "b s"] | None
) -> Float[Tensor, "b h s k"]:
    """Return log softmax of `k` over the length, in each channel; keys at padding get no weight."""
    k = k.to(sum_dtype(k))
    if keep is not None:
        k = k.masked_fill(~keep[:, None, :, None], torch.finfo(k.dtype).min)
    return k.log_softmax(2)


def check_direction(feature_map: FeatureChoice, causal: bool) -> None:
    """Raise `Unsupported` for a causal mixer with feature_map=softmax_dims."""
    if causal and feature_map == FeatureChoice.softmax_dims:
        raise Unsupported(
            "feature_map=softmax_dims computes a softmax over the whole length, so it cannot be "
            "causal: choose feature_map=exp"
        )


def linear_maps(
    feature_map: FeatureChoice, width: int, variant: Variant = Variant.faithful
) -> FeatureMaps:
    """Return the feature maps of queries and keys for heads of this width."""
    maps = FeatureMaps(FEATURES[feature_map], FEATURES[feature_map], width)
    if variant == Variant.lra:
        maps = maps._replace(reciprocal=lambda total: (total + LRA_EPSILON).reciprocal())
    return maps


def linear_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    feature_map: FeatureChoice = FeatureChoice.elu1,
    *,
    keep: Bool[Tensor, "b s"] | None = None,
    causal: bool = False,
    chunk: int = 64,
) -> Float[Tensor, "b h l v"]:
    """Let each query attend to all keys that `keep` allows; if causal, to those up to itself."""
    check_direction(feature_map, causal)
    maps = linear_maps(feature_map, q.shape[-1])
    if causal:
        return causal_product(q, k, v, maps, chunk=chunk, keep=keep)[0]
    if feature_map == FeatureChoice.softmax_dims:
        k = log_shares(k, keep)
    return feature_product(q, k, v, maps, keep)


class LinearCore(FeatureCore):
    """`linear_attention` with its options; when causal, with running sums as its state."""

    def __init__(
        self,
        feature_map: FeatureChoice,
        chunk: int,
        variant: Variant,
        denominator: Denominator,
        *,
        causal: bool,
    ) -> None:
        """Check the options together, and set the traits that follow from them."""
        by_length = denominator == Denominator.root_length
        if causal and by_length:
            raise Unsupported(
                "denominator=root_length divides by the square root of the whole length, so it "
                "cannot be causal: choose denominator=weights"
            )
        lra = variant == Variant.lra
        check_direction(feature_map, causal)
        if causal and lra:
            raise Unsupported(
                "with variant=lra, every token attends to later tokens, so the model cannot be "
                "causal: choose variant=faithful"
            )
        supports = Traits().supports
        super().__init__(
            Traits(
                supports=supports - {"keep"} if lra else supports,
                causal=causal,
                row_stochastic=not (lra or by_length),
                cross=not causal,
                sees_order=causal,
            ),
            chunk,
        )
        self.feature_map, self.variant, self.by_length = feature_map, variant, by_length

    def maps(
        self, q: Float[Tensor, "b h l k"], k: Float[Tensor, "b h s k"], layout: Layout
    ) -> FeatureMaps:
        """Return the feature maps, which are the same for all tokens."""
        del k, layout
        maps = linear_maps(self.feature_map, q.shape[-1], self.variant)
        return maps._replace(normalise=not self.by_length)

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s k"],
        v: Float[Tensor, "b h s v"],
        layout: Layout,
    ) -> Float[Tensor, "b h l v"]:
        """Let each query attend to all keys or, if causal, to those up to itself."""
        if self.feature_map == FeatureChoice.softmax_dims:
            k = log_shares(k, layout.keep)
        o = super().forward(q, k, v, layout)
        if not self.by_length:
            return o
        scaled: Tensor = o * k.shape[2] ** -0.5
        return scaled


class LinearAttention(MultiHead):
    """Linear attention between the four projections.

    `chunk` is the number of tokens per chunk of the causal form; it affects only speed and memory.
    """

    needs = (
        Need("chunk", causal=True),
        Need("denominator", variant=Variant.faithful),
        # Other features are relative to their maximum, which only division by the weights undoes.
        Need("denominator", feature_map=BOUNDED),
    )

    @classmethod
    def fixed(cls, options: Any) -> Mapping[str, object]:
        """Return the options that `variant=lra` fixes, with their values."""
        return {"feature_map": FeatureChoice.elu1} if options.variant == Variant.lra else {}

    def __init__(
        self,
        site: Site,
        *,
        variant: Variant = Variant.faithful,
        feature_map: FeatureChoice = FeatureChoice.elu1,
        denominator: Denominator = Denominator.weights,
        chunk: int = 64,
    ) -> None:
        core = LinearCore(feature_map, chunk, variant, denominator, causal=site.causal)
        super().__init__(site, core)
        # Padding may change a running maximum, and with it how other outputs are rounded.
        self.weighs_padding = feature_map not in BOUNDED
