"""Linear attention: the softmax kernel replaced by a product of elementwise features.

Equation   o_i = phi(q_i) S / phi(q_i) z,  S = sum_j phi(k_j) v_j^T,  z = sum_j phi(k_j)
           over all j, or over j <= i when causal.
Features   elu1      elu(x) + 1 (the paper's)          relu_eps  max(x, 0) + 0.001
           sqr       x^2                               exp       e^x
Cost       per head and token, forward: 4 d^2 operations, causal 4 d (C + d) with chunk C; autograd
           keeps q, k, v, the output and one number per row. State: d (d + 1) numbers per head.
Source     Katharopoulos, Vyas, Pappas, Fleuret, "Transformers are RNNs", arXiv:2006.16236.
Notation   the paper's N, D, M are l, k, v; its Q, K, V are q, k, v; its S_i, Z_i are [S z] at i.
Differs    no epsilon in the denominator: a row with nothing to attend to is 0 and every other row
           is an exact weighted mean. Queries are not divided by sqrt(k), as in the paper. elu1 is
           computed as exp(min(x, 0)) + max(x, 0), which stays positive far below 0 where
           elu(x) + 1 rounds to 0.
"""

from collections.abc import Mapping
from enum import StrEnum, auto

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from models.families.causal_product import Memory, causal_product, empty_memory
from models.families.feature_product import FeatureMap, FeatureMaps, feature_product
from models.mixer import Layout, Site, State, Traits, Unsupported
from models.multi_head import MultiHead

RELU_EPSILON = 1e-3


class FeatureChoice(StrEnum):
    """Elementwise feature maps."""

    elu1 = auto()
    relu_eps = auto()
    sqr = auto()
    exp = auto()


class Elu1:
    """phi(x) = elu(x) + 1."""

    def __call__(self, x: Float[Tensor, "*r k"]) -> tuple[Float[Tensor, "*r k"], None]:
        """Return the features."""
        return x.clamp(max=0).exp_().add_(x.clamp(min=0)), None

    def pull(
        self, gradient: Float[Tensor, "*r k"], phi: Float[Tensor, "*r k"], x: Float[Tensor, "*r k"]
    ) -> Float[Tensor, "*r k"]:
        """Return the gradient: the slope is e^x = phi below 0 and 1 above, min(phi, 1)."""
        del x
        return gradient.mul_(phi.clamp_(max=1))


class ReluEpsilon:
    """phi(x) = max(x, 0) + 0.001."""

    def __call__(self, x: Float[Tensor, "*r k"]) -> tuple[Float[Tensor, "*r k"], None]:
        """Return the features."""
        return x.clamp(min=0).add_(RELU_EPSILON), None

    def pull(
        self, gradient: Float[Tensor, "*r k"], phi: Float[Tensor, "*r k"], x: Float[Tensor, "*r k"]
    ) -> Float[Tensor, "*r k"]:
        """Return the gradient."""
        del phi
        return gradient.mul_(x > 0)


class Square:
    """phi(x) = x^2."""

    def __call__(self, x: Float[Tensor, "*r k"]) -> tuple[Float[Tensor, "*r k"], None]:
        """Return the features."""
        return x.square(), None

    def pull(
        self, gradient: Float[Tensor, "*r k"], phi: Float[Tensor, "*r k"], x: Float[Tensor, "*r k"]
    ) -> Float[Tensor, "*r k"]:
        """Return the gradient."""
        del phi
        return gradient.mul_(x).mul_(2)


class Exponential:
    """phi(x) = e^x, divided by its largest entry."""

    def __call__(
        self, x: Float[Tensor, "*r k"]
    ) -> tuple[Float[Tensor, "*r k"], Float[Tensor, "*r"]]:
        """Return the features and the logarithm of the divisor."""
        top = x.amax(-1, keepdim=True)
        return torch.sub(x, top).exp_(), top[..., 0]

    def pull(
        self, gradient: Float[Tensor, "*r k"], phi: Float[Tensor, "*r k"], x: Float[Tensor, "*r k"]
    ) -> Float[Tensor, "*r k"]:
        """Return the gradient."""
        del x
        return gradient.mul_(phi)


FEATURES: Mapping[FeatureChoice, FeatureMap] = {
    FeatureChoice.elu1: Elu1(),
    FeatureChoice.relu_eps: ReluEpsilon(),
    FeatureChoice.sqr: Square(),
    FeatureChoice.exp: Exponential(),
}


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
    """Attend over all kept keys or, when causal, over those up to each query's own place."""
    features = FEATURES[feature_map]
    maps = FeatureMaps(features, features, q.shape[-1])
    if not causal:
        return feature_product(q, k, v, maps, keep)
    return causal_product(q, k, v, maps, chunk=chunk, keep=keep)[0]


class LinearCore(nn.Module):
    """`linear_attention` with its options, and its state along time when causal."""

    def __init__(self, feature_map: FeatureChoice, chunk: int, *, causal: bool) -> None:
        super().__init__()
        check_chunk(chunk)
        self.feature_map, self.chunk = feature_map, chunk
        self.traits = Traits(causal=causal, row_stochastic=True)

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s k"],
        v: Float[Tensor, "b h s v"],
        layout: Layout,
    ) -> Float[Tensor, "b h l v"]:
        """Attend."""
        return linear_attention(
            q, k, v, self.feature_map,
            keep=layout.keep, causal=self.traits.causal, chunk=self.chunk,
        )  # fmt: skip

    def initial_state(self, shape: tuple[int, ...], like: Tensor) -> State:
        """Return the empty sums: their size does not depend on the memory asked for."""
        refuse_state(self.traits)
        return empty_memory(shape, shape[3], like)

    def extend(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        layout: Layout,
        state: tuple[Tensor, Tensor],
    ) -> tuple[Float[Tensor, "b h l v"], tuple[Tensor, Tensor]]:
        """Continue after what `state` has seen."""
        features = FEATURES[self.feature_map]
        maps = FeatureMaps(features, features, q.shape[-1])
        return causal_product(
            q, k, v, maps, chunk=self.chunk, keep=layout.keep, memory=Memory(*state)
        )


def check_chunk(chunk: int) -> None:
    """Refuse a chunk that holds no token."""
    if chunk < 1:
        raise ValueError(f"chunk counts the tokens of one block: got {chunk}; use 1 or more")


def refuse_state(traits: Traits) -> None:
    """Raise `Unsupported` for a mixer that looks ahead: it cannot go on from a state."""
    if not traits.causal:
        raise Unsupported("a state along time needs a causal mixer: this one sees all tokens")


class LinearAttention(MultiHead):
    """Linear attention between the four projections.

    `chunk` is the number of tokens whose causal weights are formed directly; it changes speed and
    memory, never the result.
    """

    def __init__(
        self,
        site: Site,
        *,
        feature_map: FeatureChoice = FeatureChoice.elu1,
        chunk: int = 64,
    ) -> None:
        super().__init__(site, LinearCore(feature_map, chunk, causal=site.causal))
