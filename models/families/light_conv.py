"""LightConv: a depthwise convolution whose kernels are shared by the channels of a head.

    z = GLU(x W_1 + b_1)
    o_i = sum_t softmax(W_h)_t z_(i + t - P),    y = o W_2 + b_2

with one kernel W_h of K taps per head, for all tokens, and P = K - 1 in a causal layer, else
floor((K - 1) / 2). Channels of a head lie side by side.

Cost       6 n d^2 operations for the projections forward (4 without the gate) and 2 n K d for the
           convolution (2 n (K + 31) d as it is computed here), twice that backward; memory O(n d).
           State: the last K - 1 gated tokens.
Source     Wu et al. 2019, arXiv:1901.10430, equations 3 to 5. Initialisation, where the gate and
           dropout stand, as in fairseq (modules/lightweight_convolution.py, models/lightconv.py).
Published  with kernels 3, 7, 15, 31, 31, 31, 31 in seven layers, 16 heads at width 1,024,
           post-norm.
Differs    A kernel longer than the text is normalised over all its taps; one of that code's forms
           normalises over those that the text has, the others as here. Its `renorm_padding`, off by
           default, is left out.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from models.mixer import Site
from models.ops.convolution.dynamic import dynamic_convolution
from models.ops.convolution.layer import GatedConvolution, normalised
from models.ops.convolution.shared import shared_convolution


class LightConv(GatedConvolution):
    """A gated convolution with one kernel per head."""

    def __init__(
        self,
        site: Site,
        *,
        kernel: list[int] = [31],  # noqa: B006  read, never written; the schema is this signature
        glu: bool = True,
        input_dropout: float = 0.0,
    ) -> None:
        super().__init__(site, kernel=kernel, glu=glu, input_dropout=input_dropout)
        # Drawn as for a convolution of one channel per head.
        self.weight = nn.Parameter(torch.empty(self.heads, 1, self.taps))
        nn.init.xavier_uniform_(self.weight)

    def convolve(self, z: Float[Tensor, "b h l v"], past: int) -> Float[Tensor, "b h l v"]:
        """Convolve every head's channels with its kernel."""
        del past
        taps = normalised(self.weight[:, 0])
        if not self.dropping():
            return shared_convolution(z, taps, self.left)
        every = taps[None, :, None].expand(*z.shape[:3], self.taps)
        return dynamic_convolution(z, self.dropped(every), self.left)
