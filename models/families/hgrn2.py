"""HGRN2: gated linear attention whose keys are 1 minus the decay; deeper layers forget less.

    S_t = Diag(alpha_t) S_(t-1) + (1 - alpha_t) v_t^T,   o_t = S_t^T q_t / sqrt(k)
    y = W_O norm(o),   alpha_t = gamma + (1 - gamma) sigma(W_f x_t),   q = silu(W_q x)

gamma of layer i is a lower bound for the decays, the same for all tokens. It is 0 in the first
layer. In layer i it is the sum of the weights of layers 1 to i in a softmax over the layers. These
weights are learned for each channel.

Cost       The projections take 8 d^2 operations a token, and each head takes those of
           `decayed_product` with a decay of each channel. State: k v numbers a head.
Source     Qin et al. 2024, arXiv:2404.07904, equations 7 to 9; lower bounds: arXiv:2311.04823; its
           layer in flash-linear-attention.
Notation   the paper's expansion ratio is the width of a head, its beta is gamma.
Published  The paper's models are causal, with heads of 128 channels and without biases. Their
           blocks have a gated feed-forward network, RMSNorm and no positions:
           model.backbone.positions=none.
"""

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import Count, Roles, Site, options
from lra.models.ops.gated.decayed_product import decayed_product
from lra.models.ops.gated.head_norm import GatedHeadNorm
from lra.models.ops.gated.layer import Borders, Parts, Recurrence, ShortConvolutions, by_head
from lra.models.ops.numerics import full_precision, sum_dtype


class LowerBounds(Roles):
    """Learned lower bounds of the decays of each layer, from one table for all layers.

    Args:
        depth: Number of layers.
        width: Number of channels of the keys of all heads.
    """

    undecayed = ("table",)

    def __init__(self, depth: int, width: int) -> None:
        """Make a table of zeros, with which bounds rise from layer to layer in equal steps."""
        super().__init__()
        self.table = nn.Parameter(torch.zeros(depth, width))

    def forward(self, layer: int, dtype: torch.dtype) -> Float[Tensor, " e"]:
        """Return gamma, the lower bounds of the decays of number `layer` (1 or more)."""
        return self.table.to(dtype).softmax(0)[1 : layer + 1].sum(0)


@options
class HGRN2(Recurrence):
    """Gated linear attention whose keys are 1 minus the decays; one norm covers all heads."""

    lower_bounds: bool = True
    """Whether decays of later layers have a learned lower bound."""
    chunk: Count = 32
    version = 2  # gradients of strong decays are precise

    def build(self, site: Site) -> None:
        """Make projections, lower bounds and the norm."""
        self.layer, width = site.layer, site.inner_width
        self.q_proj, self.forget_proj, self.input_proj = self.projections(site, width, width, width)
        self.bounds: LowerBounds | None = None
        if self.lower_bounds and site.layer > 0:
            self.bounds = site.share("hgrn2_bounds", partial(LowerBounds, site.depth, width))
        self.norm = GatedHeadNorm(width)
        self.out_proj = self.projection_back(site, width)
        self.convolutions = ShortConvolutions((), None)  # none, but the base class asks for them
        state = site.heads, site.head_width, site.head_width
        self.complete(site, state=state, bidirectional=self.bidirectional)  # sets traits

    def gates(
        self, x: Float[Tensor, "b l d"]
    ) -> tuple[Float[Tensor, "b l e"], Float[Tensor, "b l e"]]:
        """Return log alpha and 1 - alpha, alpha = gamma + (1 - gamma) sigma(logits).

        Both are in float32 or float64; logarithms keep decays near 0 exact.
        """
        logits = self.forget_proj(x).to(sum_dtype(x))
        if self.bounds is None:
            return F.logsigmoid(logits), (-logits).sigmoid()
        bound = self.bounds(self.layer, logits.dtype)
        log_rest = torch.log1p(-bound)
        return torch.logaddexp(bound.log(), log_rest + F.logsigmoid(logits)), (
            log_rest.exp() * (-logits).sigmoid()
        )

    def read(
        self, x: Float[Tensor, "b l d"], before: Parts, borders: Borders
    ) -> tuple[Float[Tensor, "b l e"], Parts]:
        """Return the output of each token of `x`, after the state `before`, and the next state.

        A state has S of each head. `borders` has padding and the borders of documents.
        """
        with full_precision(x):
            g, k = (by_head(gate, self.heads) for gate in self.gates(x))
            g = borders.after_borders(g)
        q = by_head(F.silu(self.q_proj(x)), self.heads)
        v = by_head(self.input_proj(x), self.heads)
        o, after = decayed_product(
            q * q.shape[-1] ** -0.5, k, v, g, state=before[0], chunk=self.chunk, keep=borders.keep
        )
        return o.transpose(1, 2).flatten(2), (after,)
