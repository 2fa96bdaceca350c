"""Gated short convolution: a convolution of a few tokens between two multiplicative gates (LFM2).

    y = W_O (c * conv(b * u)),   b = W_B x,   c = W_C x,   u = W_U x

conv is depthwise and causal. A layer reads the last k tokens alone; hybrids put it between layers
of attention. The bidirectional form, the default, adds the convolution from the other end, so that
the token itself counts twice.

Cost       The projections take 8 d^2 operations a token, the convolution 2 k d. State: the last
           k - 1 products b * u.
Source     LiquidAI 2025, arXiv:2511.23404 (LFM2), and transformers, models/lfm2.
Notation   k is `convolution`, in the code conv_L_cache.
Published  LFM2 is causal, with k = 3, without biases. LFM3 has k = 7.
"""

from typing import cast

from jaxtyping import Float
from torch import Tensor

from lra.models.mixer import Site, options
from lra.models.ops.gated.layer import Borders, Parts, Recurrence, ShortConvolutions


@options
class ShortConv(Recurrence):
    """A short convolution between two gates; it has no heads."""

    convolution: int = 3
    """Number of tokens that the convolution reads, including the current one."""

    def build(self, site: Site) -> None:
        """Make the projections and the convolution, which has a bias if projections have.

        Raises:
            ValueError: `convolution` is below 2.
        """
        if self.convolution < 2:
            raise ValueError(
                "convolution, the number of tokens that it reads, must be at least 2: got "
                f"{self.convolution}; 3 is usual"
            )
        width = site.inner_width
        self.write_proj, self.read_proj, self.input_proj = self.projections(site, *[width] * 3)
        biased = self.write_proj.bias is not None
        self.convolutions = ShortConvolutions([width], self.convolution, bias=biased)
        self.out_proj = self.projection_back(site, width)
        self.complete(site, state=(0,), bidirectional=self.bidirectional)  # sets traits

    def read(
        self, x: Float[Tensor, "b l d"], before: Parts, borders: Borders
    ) -> tuple[Float[Tensor, "b l e"], Parts]:
        """Return the convolution at each token of `x`, and the next state: the last products."""
        nothing, *inputs = before
        product = self.write_proj(x) * self.input_proj(x)
        (o,), tails = self.convolutions([product], inputs, borders)
        return o, (nothing, *tails)

    def merged(
        self, o: Float[Tensor, "b l e"], x: Float[Tensor, "b l d"]
    ) -> Float[Tensor, "b l d"]:
        """Gate the outputs by `x`, and project them."""
        return cast(Tensor, self.out_proj(o * self.read_proj(x)))
