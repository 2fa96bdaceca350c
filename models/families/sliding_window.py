"""Sliding-window attention: each token sees its neighbours, and nothing else.

    o_i = sum_j p_ij v_j over j = i + D t, |t| <= w (causal: 0 <= -t <= w), p = softmax of s
    s_ij = q_i k_j / sqrt(d), with ALiBi positions less slope_h |i - j|

Cost: 4 n D (2w + 1) operations forward in the ideal and (2w + C) / (2w + 1) times that in blocks
of C queries (causal: w + 1 and w + C), twice that backward; memory n H (2w + C). Neither dilation
nor ALiBi changes it. After L layers a token has seen L w tokens to each side, D times that with
dilation D. State: the last w D keys and values.

Source: Beltagy et al. 2020, arXiv:2004.05150, section 3.1; `longformer` adds the global tokens.
Notation: `window` is the one-sided w of this page; the paper's window counts both sides, 2w. The
same pattern is "local attention" with an exact window in other code. `dilation` is the distance D
between two tokens that are seen, 1 for neighbours.

Differences from the paper: the window includes both ends, so that a token sees 2w + 1 tokens. A
window that covers the sequence is exact attention and runs as such. `longformer` dilates some heads
alone, as the paper does; here all heads of a layer are alike.
"""

from models.mixer import Site
from models.multi_head import MultiHead
from models.ops.banded.sliding_window import SlidingWindowCore


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
