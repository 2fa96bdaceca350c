"""Shortformer: cached segments; positions are added to queries and keys, but not to values.

    q = (x + P[m : m + n]) W_q,    k = (y + P[0 : m + n]) W_k,    v = y W_v,    y = (memory, x)

Here x are the segment's n tokens, `memory` are the layer's last m inputs, and P is a table of
sinusoids. The memory stores inputs without positions, and each segment assigns new positions to
them. Softmax attention of q, k and v follows; a token attends to the whole memory and to the
segment up to itself. Until the memory is full, positions count from its first token.

Cost: a segment takes 4 n (m + n) D operations.

Source: Press et al. 2021, arXiv:2012.15832, and the code published with it; its staged training is
an option of the runner (`runner.stages`). Notation: n and m are the paper's L and the length of its
cache.

Differences: positions count from 0 and frequencies fall to 10000^(-(d-2)/d), where fairseq counts
from 2 and ends at 10000^-1. A single token after a full memory has position m; in that code, the
row grows from n + 1 to 2n tokens before it starts anew.
"""

from dataclasses import replace

from lra.models.mixer import SCORED, Growth, Site
from lra.models.ops.exact import ExactCore
from lra.models.ops.segment_recurrence import SegmentRecurrence, attend


class Shortformer(SegmentRecurrence):
    """Multi-head attention to a segment and to cached inputs without positions.

    Args:
        site: Where it is built. With any positions but position_infused, this is plain segment
            recurrence, without added positions.
    """

    def __init__(self, site: Site, *, bias: bool = True) -> None:
        # Attention with positions in the scores stores all scores for backward.
        memory = Growth(2.0 if site.positions in SCORED else 1.0)
        super().__init__(site, ExactCore(site, attend, memory=memory), bias=bias)
        self.traits = replace(self.traits, by_segment=True)
