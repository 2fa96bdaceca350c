"""Sliding-window attention: each token attends to the neighbours within a fixed distance.

    o_i = sum_j p_ij v_j over j = i + D t, |t| <= w (causal: 0 <= -t <= w), p = softmax of s
    s_ij = q_i k_j / sqrt(d), minus slope_h |i - j| with ALiBi positions

Cost: attention takes 4 n D (2w + C) operations in blocks of C queries (causal: w + C in place of 2w
+ C), where D is the width of all heads. Memory is n H (2w + C). After L layers a token depends on L
w tokens to each side, or on L w times the dilation. State: the last w keys and values, times the
dilation.

Source: Beltagy et al. 2020, arXiv:2004.05150, section 3.1; `longformer` adds the global tokens.
Notation: `window` is the one-sided w; the window of the paper counts both sides. In the equation, D
is `dilation`.

Differences from the paper: the window includes both ends, so that a token attends to 2w + 1 tokens.
A window that covers the sequence runs as exact attention. All heads of a layer have the same
dilation; in the paper and in `longformer`, only some heads are dilated.
"""

from lra.models.mixer import Site
from lra.models.multi_head import MultiHead
from lra.models.ops.banded.sliding_window import SlidingWindowCore


class SlidingWindow(MultiHead):
    """Multi-head attention within a window, whose size and dilation may differ between layers.

    Args:
        sink: Whether each head has a learned logit in the denominator of its softmax, which takes
            weight from all keys.

    Raises:
        Unsupported: `sink` is set, and positions are ALiBi's.
    """

    undecayed = ("core.sinks",)

    turns_alone = True

    def __init__(
        self,
        site: Site,
        *,
        window: list[int] = [128],  # noqa: B006  read, never written; the schema is this signature
        dilation: list[int] = [1],  # noqa: B006
        block: int | None = None,
        bias: bool = True,
        sink: bool = False,
        qk_norm: bool = False,
        head_gate: bool = False,
    ) -> None:
        core = SlidingWindowCore(
            site, window=site.at(window), block=block, dilation=site.at(dilation), sink=sink
        )
        super().__init__(site, core, bias=bias, qk_norm=qk_norm, head_gate=head_gate)
