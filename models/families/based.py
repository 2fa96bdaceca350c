"""Based: linear attention with features of the second-order Taylor polynomial of exp.

    o_i = sum_j w_ij v_j / sum_j w_ij,   w_ij = 1 + s_ij + s_ij^2 / 2,   s_ij = q_i · k_j / sqrt(f)

over all j, or over j <= i when causal. Every weight is at least 1/2. A weight is the product of the
features

    phi(x) = [1, x_a / f^(1/4), x_a^2 / sqrt(2 f), x_a x_b / sqrt(f) for a < b]

of 1 + f + f (f + 1) / 2 numbers: 153 for queries and keys with f = 16 channels a head.

Cost       The cost is that of `linear` with m features: 4 m d operations per head and token, and 2
           C (m + d) more in the causal form with chunks of C tokens. For short sequences, all pairs
           are computed if that is cheaper, which takes 2 l (f + d) operations, or half of that when
           causal. State: m (d + 1) numbers a head, and the offset of exponential features, which is
           0 here.
Source     Arora et al. 2024, arXiv:2402.18668, section 4, and the code, HazyResearch/based.
Notation   the paper's d' is f, `feature_width`; its d is the width of a head of values.
Published  The paper's models are causal. Every fifth layer is this mixer, with 16 heads, rotary
           positions and without biases. The layer after it has sliding-window attention, and the
           others are gated convolutions of 3 taps. `+experiment=based` runs models that combine
           this mixer with sliding-window attention.
Differs    The paper's features contain each product of two channels twice: 273 features instead of
           153. The denominator has no epsilon.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lra.models.mixer import Count, Layout, Need, Site, Traits
from lra.models.multi_head import MultiHead
from lra.models.ops.linear.feature_core import FeatureCore
from lra.models.ops.linear.features import FeatureMaps, PairWeights


def pairs(width: int, device: torch.device) -> Int[Tensor, "2 p"]:
    """Return the two channels a <= b of each of p products, in rows: first all a, then all b."""
    return torch.triu_indices(width, width, device=device)


class TaylorFeatures:
    """The feature map phi of the module's docstring."""

    def __call__(self, x: Float[Tensor, "*r f"]) -> tuple[Float[Tensor, "*r m"], None]:
        """Return the m features of each vector of `x`, and None, because they have no offset."""
        width = x.shape[-1]
        first, second = pairs(width, x.device)
        phi = x.new_empty((*x.shape[:-1], 1 + width + len(first)))
        phi[..., 0] = 1
        torch.mul(x, width**-0.25, out=phi[..., 1 : width + 1])
        # s^2 / 2 contains the product of two channels twice, as a b and b a, but a square once.
        scale = x.new_full(first.shape, width**-0.5).masked_fill(
            first == second, (2 * width) ** -0.5
        )
        torch.mul(x[..., first], x[..., second] * scale, out=phi[..., width + 1 :])
        return phi, None

    def pull(
        self, gradient: Float[Tensor, "*r m"], phi: Float[Tensor, "*r m"], x: Float[Tensor, "*r f"]
    ) -> Float[Tensor, "*r f"]:
        """Return the gradient of `x`, given the `gradient` of its features `phi`.

        The feature x_a x_b / sqrt(f) adds its gradient times x_b / sqrt(f) to channel a.
        """
        del phi
        width = x.shape[-1]
        first, second = pairs(width, x.device)
        feature_of = torch.empty(width, width, dtype=torch.int64, device=x.device)
        number = torch.arange(len(first), device=x.device)
        feature_of[first, second] = feature_of[second, first] = number
        # The square x_a^2 / sqrt(2 f) has the derivative x_a / sqrt(f / 2).
        scale = x.new_full((width, width), width**-0.5).fill_diagonal_((width / 2) ** -0.5)
        products = gradient[..., width + 1 :][..., feature_of.flatten()]
        by_pair = torch.unflatten(products, -1, feature_of.shape).mul_(scale).mul_(x[..., None, :])
        x_gradient: Tensor = by_pair.sum(-1)
        return x_gradient.add_(gradient[..., 1 : width + 1], alpha=width**-0.25)


def taylor_weights(s: Float[Tensor, "*r s"]) -> tuple[Float[Tensor, "*r s"], Float[Tensor, "*r s"]]:
    """Return 1 + s + s^2 / 2, computed as (1 + (1 + s)^2) / 2, and its derivative 1 + s.

    `s` is overwritten.
    """
    slope = s.add_(1)
    return torch.addcmul(slope.new_full((), 0.5), slope, slope, value=0.5), slope


class BasedCore(FeatureCore):
    """Linear attention by Taylor features; when causal, with running sums as its state."""

    def __init__(self, site: Site, chunk: int) -> None:
        """Set the traits: outputs are weighted means, and only causality makes order matter."""
        traits = Traits(
            causal=site.causal,
            row_stochastic=True,
            cross=not site.causal,
            sees_order=site.causal,
        )
        super().__init__(traits, chunk)

    def maps(
        self, q: Float[Tensor, "b h l f"], k: Float[Tensor, "b h s f"], layout: Layout
    ) -> FeatureMaps:
        """Return the feature maps, which depend only on the width of `q`."""
        del k, layout
        width = q.shape[-1]
        number = 1 + width + width * (width + 1) // 2
        weights = PairWeights(width**-0.5, taylor_weights)
        return FeatureMaps(TaylorFeatures(), TaylorFeatures(), number, pairs=weights)


class Based(MultiHead):
    """Based's linear attention between the four projections.

    Args:
        feature_width: Width of a head's queries and keys, f.
        chunk: Number of tokens per chunk of the parallel form; it affects only speed and memory.
    """

    needs = (Need("chunk", causal=True),)

    def __init__(
        self, site: Site, *, feature_width: Count = 16, bias: bool = False, chunk: int = 64
    ) -> None:
        core = BasedCore(site, chunk)
        super().__init__(site, core, bias=bias, bias_default=False, key_width=feature_width)
