"""Gated linear attention: linear attention with a data-dependent decay of each key channel.

    S_t = Diag(alpha_t) S_(t-1) + k_t v_t^T,   o_t = S_t^T q_t / sqrt(k)
    y = W_O (silu(W_G x) * norm_h(o)),   alpha_t = sigma(W_2 W_1 x_t + b)^(1 / divisor)

With the default divisor of 16, decays start near 0.96.

Cost       The projections take 8 d^2 + 49 d operations a token (keys are half as wide as values),
           and each head takes those of `decayed_product` with a decay of each channel. State: k v
           numbers a head.
Source     Yang et al. 2023, arXiv:2312.06635, equations 3 to 6 and section 4.4, and its layer in
           flash-linear-attention.
Notation   the paper's d_k is `key_expansion` times the width of a head, its tau is `gate_divisor`,
           the rank of its W_alpha is `gate_rank`.
Published  The paper's models are causal, with 4 heads, keys half as wide as values, and without
           biases and convolutions. Their blocks have a gated feed-forward network, RMSNorm and no
           positions: model.backbone.positions=none.
"""

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from lra.models.linear_map import projection
from lra.models.mixer import Count, Positive, Site, options
from lra.models.ops.gated.decayed_product import decayed_product
from lra.models.ops.gated.head_norm import Gate
from lra.models.ops.gated.layer import Borders, Parts, Recurrence, ShortConvolutions, by_head
from lra.models.ops.numerics import full_precision, sum_dtype


@options
class GLA(Recurrence):
    """Gated linear attention with a decay of each key channel."""

    key_expansion: float = 0.5
    """Width of a head's queries and keys, as a multiple of the head width."""
    value_expansion: Count = 1
    gate_rank: Count = 16
    """Rank of the map that predicts decays."""
    gate_divisor: Positive = 16.0
    """Number by which the logarithms of decays are divided; with a larger number, the state forgets
    more slowly."""
    convolution: int | None = None
    gate: Gate = Gate.silu
    chunk: Count = 32
    version = 2  # biases of gates do not decay
    undecayed = ("decay_up.bias",)

    def build(self, site: Site) -> None:
        """Make projections and gates; ValueError if keys would not have a whole width."""
        key_width = self.key_expansion * site.head_width
        if key_width < 1 or key_width != int(key_width):
            raise ValueError(
                "key_expansion * head_width, the width of a head's keys, must be a whole number: "
                f"got key_expansion={self.key_expansion}, head_width={site.head_width}; change "
                "key_expansion, heads or head_width"
            )
        key_width, value_width = int(key_width), self.value_expansion * site.head_width
        keys, values = site.heads * key_width, site.heads * value_width
        self.q_proj, self.k_proj, self.v_proj = self.projections(site, keys, keys, values)
        self.decay_down = projection(site.width, self.gate_rank, bias=False)
        self.decay_up = projection(self.gate_rank, keys, bias=True)
        self.convolutions = ShortConvolutions((keys, keys, values), self.convolution)
        # Adds the gate, the norm and the output projection, and sets the traits.
        self.finish(site, keys=key_width, values=value_width, gate=self.gate)

    def read(
        self, x: Float[Tensor, "b l d"], before: Parts, borders: Borders
    ) -> tuple[Float[Tensor, "b l e"], Parts]:
        """Return the output of each token of `x`, after the state `before`, and the next state.

        A state has S of each head, and inputs of convolutions; `borders` has padding, documents.
        """
        state, *inputs = before
        streams = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        projected, tails = self.convolutions(streams, inputs, borders, silu=True)
        q, k, v = (by_head(stream, self.heads) for stream in projected)
        with full_precision(x):
            logits = self.decay_up(self.decay_down(x)).to(sum_dtype(x))
            g = borders.after_borders(by_head(F.logsigmoid(logits) / self.gate_divisor, self.heads))
        o, after = decayed_product(
            q * q.shape[-1] ** -0.5, k, v, g, state=state, chunk=self.chunk, keep=borders.keep
        )
        return o.transpose(1, 2).flatten(2), (after, *tails)
