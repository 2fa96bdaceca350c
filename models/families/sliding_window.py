"""Sliding-window attention: each token sees its neighbours, and nothing else.

    o_i = sum_j p_ij v_j over j = i + D t, |t| <= w (causal: 0 <= -t <= w), p = softmax of s
    s_ij = q_i k_j / sqrt(d), with ALiBi positions less slope_h |i - j|

Cost: 4 n D (2w + C) operations in blocks of C queries (causal: w + C); memory n H (2w + C). After L
layers a token has seen L w tokens to each side, D times that with dilation D. State: the last w D
keys and values.

Source: Beltagy et al. 2020, arXiv:2004.05150, section 3.1; `longformer` adds the global tokens.
Notation: `window` is the one-sided w; the paper's counts both sides. `dilation` is D.

Differences from the paper: the window includes both ends, so that a token sees 2w + 1 tokens. A
window that covers the sequence is exact attention and runs as such. `longformer` dilates some heads
alone, as the paper does; here all heads of a layer are alike.
"""

from lra.models.mixer import Site
from lra.models.multi_head import MultiHead
from lra.models.ops.banded.sliding_window import SlidingWindowCore


class SlidingWindow(MultiHead):
    """Multi-head attention within a window of its own in every layer."""

    def __init__(
        self,
        site: Site,
        *,
        window: list[int] = [128],  # noqa: B006  read, never written; the schema is this signature
        dilation: list[int] = [1],  # noqa: B006
        block: int | None = None,
        bias: bool = True,
    ) -> None:
        core = SlidingWindowCore(
            site, window=site.at(window), block=block, dilation=site.at(dilation)
        )
        super().__init__(site, core, bias=bias)
