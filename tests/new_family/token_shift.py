"""The token before: the shortest memory there is, of the past alone.

    y_t = W x_(t-1),   x_0 = 0

Cost       2 l D^2 operations. State: one token, D numbers.
Source     the token shift of Peng et al. 2023, arXiv:2305.13048, with nothing mixed in.
Notation   theirs mixes x_t and x_(t-1) with weights mu and 1 - mu for each channel; here mu is 0
           for all of them, and one map stands behind, for the three that read the mixture there.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lra.models.mixer import Family, Layout, Site, Traits, Unsupported, blanked


class TokenShift(Family):
    """A map of the token before.

    Args:
        scale: what the map is multiplied by.
    """

    def __init__(self, site: Site, *, scale: float = 1.0) -> None:
        super().__init__()
        if not site.causal:
            raise Unsupported("the token before is of the past: choose a causal task")
        if scale <= 0:
            raise ValueError(f"scale must be above 0: got {scale}; 1 is usual")
        self.traits, self.scale = Traits(causal=True), scale
        self.out = nn.Linear(site.width, site.width)

    def forward(self, x: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b l d"]:
        """Mix along the length."""
        x = blanked(x, layout, self.traits)
        return self.scale * self.out(torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), dim=1))
