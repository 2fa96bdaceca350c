"""Transformer-XL: segments attend to a memory of earlier inputs, with relative positions.

    s_ij = ((q_i + u) . k_j + (q_i + v) . W_r r_{i-j}) / sqrt(d)

The queries q are those of the segment's n tokens. Keys and values are computed from these tokens
and from the layer's last m inputs. The runner decides where the gradient through this memory is
cut. r is the sinusoid of the distance (`lra.models.relative`). With any other
`model.backbone.positions` this is segment recurrence alone. shaw, t5, alibi and rotary use
distances as well. With learned or sinusoidal positions of the input, the memory stores inputs with
the positions at which they were read.

Cost: a segment has 4 n (m + n) D operations of content and values and 2 n (m + n) D of positions;
training projects keys and values of the memory again. The layers together reach about depth * m
tokens back.

Source: Dai et al. 2019, arXiv:1901.02860, and the code published with it. Notation: d is the width
of a head, D of all heads.

Differences: with pre-norm, the memory stores normed inputs; the released code norms them again. The
bidirectional form has distances of both signs, as in XLNet. Of that code's other encodings
(`attn_type`), 1 is positions=shaw without its bias for each distance. 2 and 3 are positions of the
input, which move with the segment in that code.
"""

from dataclasses import replace
from enum import StrEnum, auto

from lra.models.mixer import SCORED, Growth, Need, Positions, Share, Site, Whole
from lra.models.ops.exact import ExactCore
from lra.models.ops.segment_recurrence import SegmentRecurrence, attend
from lra.models.relative import SinusoidScores


class SameLength(StrEnum):
    """When each token of a segment attends to exactly as many keys as the memory stores."""

    never = auto()
    evaluation = auto()
    always = auto()


def by_distance(site: Site) -> bool:
    """Return whether scores depend on sinusoids of distances (positions=transformer_xl)."""
    return site.positions == Positions.transformer_xl


class TransformerXL(SegmentRecurrence):
    """Multi-head attention to a segment and to the memory before it.

    Args:
        same_length: In which passes every token of a segment attends to the same number of keys, as
            many as the memory stores, so that later tokens of a segment skip the oldest keys.
        clamp: Largest distance between tokens; greater distances count as this one. None:
            unlimited.
        evaluation_clamp: Largest distance between tokens in evaluation; None: `clamp`.
        untied: Whether every layer has separate biases u and v of its scores.
        position_dropout: Dropout rate of the position sinusoids.
    """

    needs = (
        Need("same_length", causal=True),
        Need(
            "clamp", "evaluation_clamp", "untied", "position_dropout",
            words="positions=transformer_xl", holds=lambda site, _: by_distance(site),
        ),
    )  # fmt: skip

    def __init__(
        self,
        site: Site,
        *,
        same_length: SameLength = SameLength.evaluation,
        clamp: Whole | None = None,
        evaluation_clamp: Whole | None = None,
        untied: bool = False,
        position_dropout: Share = 0.0,
        bias: bool = False,
    ) -> None:
        """Make scores with positions=transformer_xl; `ExactCore` makes those of other encodings."""
        relative = None
        if by_distance(site):
            relative = SinusoidScores(
                site, untied=untied, dropout=position_dropout, clamp=clamp,
                evaluation_clamp=evaluation_clamp,
            )  # fmt: skip
        # Attention with positions in the scores stores all scores for backward.
        memory = Growth(2.0 if site.positions in SCORED else 1.0)
        core = ExactCore(site, attend, memory=memory, relative=relative)
        super().__init__(site, core, bias=bias, bias_default=False)
        self.same_length_when = same_length
        self.traits = replace(self.traits, by_segment=same_length == SameLength.never)

    @property
    def same_length(self) -> bool:
        """Whether each token attends to exactly as many keys as the memory stores, now."""
        when = self.same_length_when
        return when == SameLength.always or (when == SameLength.evaluation and not self.training)
