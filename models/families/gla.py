"""Gated linear attention: a state whose channels of keys decay by what each token says.

    S_t = Diag(alpha_t) S_(t-1) + k_t v_t^T,   o_t = S_t^T q_t / sqrt(k)
    y = W_O (silu(W_G x) * norm_h(o)),   alpha_t = sigma(W_2 W_1 x_t + b)^(1 / divisor)

The divisor, 16, lets a gate begin near 0.96.

Cost       8 d^2 + 49 d operations a token for the projections of half as wide keys, and per head
           those of `decayed_product` with a decay of each channel. State: k v numbers a head.
Source     Yang et al. 2023, arXiv:2312.06635, equations 3 to 6 and section 4.4, and its layer in
           flash-linear-attention.
Notation   the paper's d_k is `key_expansion` times the width of a head, its tau is `gate_divisor`,
           the rank of its W_alpha is `gate_rank`.
Published  causal, 4 heads, keys half as wide, without biases and convolutions, in blocks of a gated
           network and RMSNorm, and no positions: model.backbone.positions=none.
"""

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from lra.models.mixer import Site, check_least, check_positive
from lra.models.multi_head import biases, projection
from lra.models.ops.gated.decayed_product import decayed_product
from lra.models.ops.gated.head_norm import Gate, GatedHeadNorm
from lra.models.ops.gated.layer import Borders, GatedMixer, Parts, ShortConvolutions, by_head
from lra.models.ops.numerics import full_precision, sum_dtype
from lra.models.ops.recurrent.layer import BOTH_WAYS


class GLA(GatedMixer):
    """Heads with a vector gate, normed and gated.

    Args:
        key_expansion: Width of a head's queries and keys, in widths of a head.
        value_expansion: Width of a head's values, in widths of a head.
        gate_rank: Channels between the two maps of a decay.
        gate_divisor: Root that is taken of a decay.
        convolution: Tokens that the convolution of queries, keys and values sees, a SiLU behind it;
            None: there is none.
        gate: What the gate of the outputs passes.
    """

    version = 2  # biases of gates do not decay
    undecayed = ("decay_up.bias",)
    needs = (BOTH_WAYS,)

    def __init__(
        self,
        site: Site,
        *,
        key_expansion: float = 0.5,
        value_expansion: int = 1,
        gate_rank: int = 16,
        gate_divisor: float = 16.0,
        convolution: int | None = None,
        gate: Gate = Gate.silu,
        bidirectional: bool = True,
        bias: bool = False,
        chunk: int = 32,
    ) -> None:
        super().__init__()
        check_least(1, value_expansion=value_expansion, gate_rank=gate_rank, chunk=chunk)
        check_positive(gate_divisor=gate_divisor)
        key_width = key_expansion * site.head_width
        if key_width < 1 or key_width != int(key_width):
            raise ValueError(
                f"key_expansion must give heads a whole number of channels: got {key_expansion} of "
                f"{site.head_width}; change it, heads or head_width"
            )
        self.heads, self.chunk, self.divisor = site.heads, chunk, gate_divisor
        self.key_width, self.value_expansion = int(key_width), value_expansion
        self.value_width = value_expansion * site.head_width
        has = biases(site, bias, default=False)
        keys, values = site.heads * self.key_width, site.heads * self.value_width
        self.q_proj = projection(site.width, keys, bias=has.qkv)
        self.k_proj = projection(site.width, keys, bias=has.qkv)
        self.v_proj = projection(site.width, values, bias=has.qkv)
        self.decay_down = projection(site.width, gate_rank, bias=False)
        self.decay_up = projection(gate_rank, keys, bias=True)
        self.convolutions = ShortConvolutions((keys, keys, values), convolution)
        if gate != Gate.none:
            self.gate_proj = projection(site.width, values, bias=has.qkv)
        self.norm = GatedHeadNorm(self.value_width, gate=gate)
        self.out_proj = projection(values, site.width, bias=has.output)
        state = site.heads, self.key_width, self.value_width
        self.complete(site, state=state, bidirectional=bidirectional)

    def read(
        self, x: Float[Tensor, "b l d"], before: Parts, borders: Borders
    ) -> tuple[Float[Tensor, "b l e"], Parts]:
        """Return what tokens read, and the states and inputs of convolutions behind the last."""
        state, *inputs = before
        streams = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        projected, tails = self.convolutions(streams, inputs, borders)
        if len(self.convolutions):
            projected = [F.silu(each) for each in projected]
        q, k, v = (by_head(each, self.heads) for each in projected)
        with full_precision(x):
            logits = self.decay_up(self.decay_down(x)).to(sum_dtype(x))
            g = borders.after_borders(by_head(F.logsigmoid(logits) / self.divisor, self.heads))
        o, after = decayed_product(
            q * self.key_width**-0.5, k, v, g, state=state, chunk=self.chunk, keep=borders.keep
        )
        return o.transpose(1, 2).flatten(2), (after, *tails)
