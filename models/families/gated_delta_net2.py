"""Gated DeltaNet-2: a delta rule that erases by key channel and writes by value channel.

    S_t = Diag(alpha_t) S_(t-1) + k_t (w_t * v_t - (Diag(alpha_t) S_(t-1))^T (b_t * k_t))^T
    o_t = S_t^T q_t / sqrt(k),   y = W_O (sigma(W_4 W_3 x + c) * norm_h(o))

b_t = sigma(W_b x_t) has a number for each key channel, the amount that is erased there, and w_t =
sigma(W_w x_t) one for each value channel, the amount that is written. Queries, keys, values and
alpha_t are those of `kimi_delta`, which is the case that b_t and w_t are one number. With
`negative_eigenvalues` b_t reaches 2.

I - k (b * k)^T has the eigenvalue 1 - sum(b k^2), at least 0 (-1 with `negative_eigenvalues`), and
1 in all other directions, but it can lengthen a vector, by up to 15 % (41 %). Two tokens that
alternate can multiply a state that does not decay by 1.25 (1.62) with each pair, so that it grows
without bound. The factors of `delta_net`, `gated_delta_net` and `kimi_delta` lengthen no vector.

Cost       The projections take 12 d^2 + 4 d (r + g) operations a token, where r and g are the ranks
           of both gates, and each head takes those of `delta_product` with a decay of each channel.
           State: k v numbers a head, and the last 3 inputs of each convolution.
Source     arXiv:2605.22791, and its layer in flash-linear-attention.
Notation   the paper's ranks equal the width of a head.
Published  The paper's models are causal, with convolutions of 4 taps, 16 heads of 128 channels and
           without biases.
"""

from jaxtyping import Float
from torch import Tensor

from lra.models.linear_map import projection
from lra.models.mixer import Count, Site, options
from lra.models.ops.gated.channel_decay_layer import ChannelDecay
from lra.models.ops.gated.delta_layer import RuleInputs
from lra.models.ops.gated.layer import by_head


@options
class GatedDeltaNet2(ChannelDecay):
    """A delta rule with separate gates of what is erased and of what is written."""

    convolution: int | None = 4
    gate_rank: Count | None = None
    """Rank of the maps that predict decays and the output gate; None: the head width."""
    negative_eigenvalues: bool = False
    """Whether the erase gate b reaches 2 instead of 1, which allows negative eigenvalues."""
    chunk: Count = 32

    def add_rates(self, site: Site) -> None:
        """Make the maps to the erase gate b and the write gate w."""
        self.erase_map = projection(site.width, site.inner_width, bias=False)
        self.write_map = projection(site.width, site.inner_width, bias=False)

    def rule_inputs(
        self,
        x: Float[Tensor, "b l d"],
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
    ) -> RuleInputs:
        """Return q, b * k and k, which read and write the state, and w * v, which is written."""
        erase, write = (
            by_head(layer(x), self.heads).to(k.dtype).sigmoid()
            for layer in (self.erase_map, self.write_map)
        )
        erase = 2 * erase if self.negative_eigenvalues else erase
        return RuleInputs(q, erase * k, k, write.to(v.dtype) * v)
