"""The Canon layer: a residual around a causal convolution of four tokens, separate per channel.

    y_t = x_t + sum_j w_j x_(t - 3 + j),    j = 0 ... 3;  4 numbers per channel, without bias

Taps read neither padding nor another document, and tokens before padding count as neighbours of
those behind it. In models that attend to both sides, a Canon layer also reads only earlier tokens.

Source: Allen-Zhu 2025, arXiv:2512.17351, and the code published with it (PhysicsLM4), whose taps
start as PyTorch's convolutions do, uniformly within 1 / 2 of 0.

Differs: the released layer reads padding as tokens, and starts anew at each segment that is longer
than one token; with a state, ours continues.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lra.models.mixer import Layout, Roles
from lra.models.reading import reading_order
from lra.models.short_convolution import short_convolution

TAPS = 4
"""Tokens that a Canon layer reads, including the current one."""


class Canon(Roles):
    """A Canon layer, with taps from the global random state.

    Args:
        width: Number of channels.
    """

    no_matrices = ("weight",)

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, TAPS))
        nn.init.uniform_(self.weight, -(TAPS**-0.5), TAPS**-0.5)

    def forward(
        self, x: Float[Tensor, "b l d"], layout: Layout, before: Float[Tensor, "b m d"] | None
    ) -> tuple[Float[Tensor, "b l d"], Float[Tensor, "b m d"]]:
        """Return y for the tokens `x`, and the last m = 3 inputs.

        `before` are the inputs before the first token, without padding in the row; None: zeros.
        """
        keep, document = layout.keep, layout.document
        # With a state, the row continues the last document, and stays in its order.
        grouping = document if before is None else None
        order = layout.once(
            "order of Canon layers", (keep, grouping),
            lambda: reading_order(keep, backwards=False, document=grouping),
        )  # fmt: skip
        inputs = order.reorder(x if keep is None else x.masked_fill(~keep[..., None], 0))
        document = None if document is None else order.reorder(document)
        y, after = short_convolution(inputs, self.weight, None, before, document)
        return x + order.back(y.to(x.dtype)), after

    def empty(self, batch_size: int) -> Float[Tensor, "b m d"]:
        """Return zeros for the inputs before the first token."""
        return self.weight.new_zeros(batch_size, TAPS - 1, len(self.weight))
