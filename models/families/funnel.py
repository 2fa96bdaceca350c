"""The attention of Funnel-Transformer: relative positions, with a separate treatment of CLS.

    s_ij = ((q_i + u) . k_j + (q_i + v) . W_r r_{i-j} + (q_i + w) . t) / sqrt(d)

as in Transformer-XL: r is the sinusoid of the distance in both directions, and each layer has
separate u, v, w and W_r. t is the vector for two tokens of one kind. Where position 0 is a CLS
vector, the last two terms are 0 in its row and its column. All other tokens are of one kind. Their
term with t is the same for all keys and is therefore omitted.

The funnel, which halves the sequence between blocks of layers, is an option of the backbone that
works with any family (`model.backbone.pool_blocks`). There i and j are positions of the original
tokens, before pooling.

Cost       For n queries and m keys, attention takes 4 n m D operations and distances take 2 n (n +
           m) D. The funnel saves time because it makes n and m smaller.
Source     Dai et al. 2020, arXiv:2006.03236, section 2.2 and appendix A.2, and the code published
           with it.
Notation   u, v, w are that code's r_w_bias, r_r_bias, r_s_bias; W_r its r_kernel; t one of its two
           seg_embed. D is the width of all heads, d of one.
Differs    All tokens belong to one segment: here, tasks with pairs of texts encode each text
           separately. Queries may have a bias. u, v, w and t are drawn from N(0, 0.02), and W_r is
           Xavier-uniform (the released code draws all of them from U(0, 0.1)). In half precision,
           scores are computed in float32.
"""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import SCORED, Growth, Need, Positions, Share, Site, Unsupported
from lra.models.multi_head import MultiHead
from lra.models.ops.exact import ExactCore
from lra.models.ops.segment_recurrence import attend
from lra.models.positions import At
from lra.models.relative import SinusoidScores, normal_parameter


class FunnelScores(SinusoidScores):
    """Scores by distance and by the kind of two tokens; 0 for pairs that include the CLS vector."""

    no_matrices = ("kind_bias", "kind_vector")
    kind_bias: nn.Parameter | None
    kind_vector: nn.Parameter

    def __init__(self, site: Site, *, dropout: float) -> None:
        """Draw w and t (`kind_bias`, `kind_vector`) for sites with a CLS vector; else use None."""
        super().__init__(site, untied=True, dropout=dropout)
        shape = (site.heads, site.head_width)
        for name in ("kind_bias", "kind_vector"):
            vector = normal_parameter(site, shape, 0.02) if site.cls else None
            self.register_parameter(name, vector)

    def in_order(
        self, q: Float[Tensor, "b h i k"], keys: int, step: int = 1, *, later: bool
    ) -> Float[Tensor, "b h i j"]:
        """Return what is added to the scores if queries and keys have the same positions."""
        return self.zero_at_cls(q, super().in_order(q, keys, step, later=later))

    def between(
        self, q: Float[Tensor, "b h i k"], keys: int, at: At, *, later: bool
    ) -> Float[Tensor, "b h i j"]:
        """Return what is added to the scores if queries and keys have the positions `at`."""
        if at.queries == at.keys and q.shape[2] == keys:
            return self.in_order(q, keys, at.keys.step, later=later)
        return self.zero_at_cls(q, super().between(q, keys, at, later=later))

    def zero_at_cls(
        self, q: Float[Tensor, "b h i k"], scores: Float[Tensor, "b h i j"]
    ) -> Float[Tensor, "b h i j"]:
        """Add the score for tokens of the same kind; set the CLS row and column to 0."""
        if self.kind_bias is None:
            return scores
        w, t = (part[:, None].to(q.dtype) for part in (self.kind_bias, self.kind_vector))
        same_kind = ((q + w) * self.scale * t).sum(-1, keepdim=True)
        return F.pad((scores + same_kind)[..., 1:, 1:], (1, 0, 1, 0))


def by_distance(site: Site) -> bool:
    """Return whether scores depend on sinusoids of distances (positions=transformer_xl)."""
    return site.positions == Positions.transformer_xl


class Funnel(MultiHead):
    """Multi-head attention with Transformer-XL's positions, and a CLS vector that has none.

    Args:
        site: Where it is built; with another encoding than positions=transformer_xl this is exact
            attention.
        position_dropout: Dropout rate of the position sinusoids.

    Raises:
        Unsupported: Asked for a causal model.
    """

    needs = (
        Need(
            "position_dropout",
            words="positions=transformer_xl", holds=lambda site, _: by_distance(site),
        ),
    )  # fmt: skip

    def __init__(self, site: Site, *, position_dropout: Share = 0.0, bias: bool = True) -> None:
        """Make `FunnelScores` with positions=transformer_xl; `ExactCore` makes other encodings."""
        if site.causal:
            raise Unsupported(
                "Funnel-Transformer pools each token with the next one, so it has no causal form: "
                "choose a task whose model reads the whole sequence, or model=transformer_xl"
            )
        relative = FunnelScores(site, dropout=position_dropout) if by_distance(site) else None
        # Attention with positions in the scores stores all scores for backward.
        memory = Growth(2.0 if site.positions in SCORED else 1.0)
        core = ExactCore(site, attend, memory=memory, relative=relative)
        super().__init__(site, core, bias=bias)
