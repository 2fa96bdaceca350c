"""Embedding and softmax of a large vocabulary in groups: rare ids have narrower vectors.

Ids are sorted by frequency. Group g contains the ids from one cut-off to the next. Its table has
`width / shrink ** g` columns, and a matrix projects its vectors to the model's width. The head
computes probabilities of the frequent ids and of each further group, then those within a group
(arXiv:1609.04309). A tied head uses the transposed tables and matrices of the embedding.

Source: Baevski & Auli 2019, arXiv:1809.10853. With `shrink=1` no group has a matrix, as in
Transformer-XL on WikiText-103 (arXiv:1901.02860), except that the head there has biases.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.backbone.heads import ADAPTIVE_ELEMENTS, TokenHead, no_smoothing
from lra.models.tuning import Tuning


class AdaptiveEmbedding(nn.Module):
    """An embedding whose rare ids have narrower vectors, which a matrix projects to the full width.

    Tables are drawn from N(0, 1 / their width), matrices Xavier-uniform.

    Args:
        vocabulary: Number of ids.
        width: Width of the resulting vectors, d.
        cutoffs: First id of each group of rarer ids, ascending.
        shrink: Factor by which each group's table is narrower than the one before, at least 1.
    """

    def __init__(self, vocabulary: int, width: int, cutoffs: list[int], shrink: float) -> None:
        """Draw a table for each group and, unless `shrink` is 1, a matrix to the full width."""
        super().__init__()
        self.edges = [0, *cutoffs, vocabulary]
        self.width = width
        widths = [int(width // shrink**group) for group in range(len(self.edges) - 1)]
        tables = []
        for (first, end), table_width in zip(pairwise(self.edges), widths, strict=True):
            table = nn.Parameter(torch.empty(end - first, table_width))
            nn.init.normal_(table, std=table_width**-0.5)
            tables.append(table)
        self.tables = nn.ParameterList(tables)
        self.maps: nn.ModuleList | None = None
        if shrink != 1:
            self.maps = nn.ModuleList(
                [nn.Linear(table_width, width, bias=False) for table_width in widths]
            )
            for layer in self.maps:
                nn.init.xavier_uniform_(cast(nn.Linear, layer).weight)

    def tuning(self) -> Mapping[str, Tuning]:
        """Declare that the tables are no matrices for the optimiser."""
        return {f"tables.{group}": Tuning(matrix=False) for group in range(len(self.tables))}

    @property
    def weight(self) -> nn.Parameter:
        """The table of the frequent ids, which has the module's device and type."""
        return cast(nn.Parameter, self.tables[0])

    def forward(self, ids: Int[Tensor, "b l"]) -> Float[Tensor, "b l d"]:
        """Return the vector of each id: look it up in its group's table and project it to d."""
        flat = ids.flatten()
        vectors = self.weight.new_zeros(len(flat), self.width)
        for group, (first, end) in enumerate(pairwise(self.edges)):
            places = ((flat >= first) & (flat < end)).nonzero().squeeze(1)
            rows = F.embedding(flat[places] - first, self.tables[group])
            if self.maps is not None:
                rows = self.maps[group](rows)
            vectors = vectors.index_copy(0, places, rows.to(vectors.dtype))
        return vectors.view(*ids.shape, self.width)

    def inward(self, x: Float[Tensor, "n d"], group: int) -> Float[Tensor, "n k"]:
        """Project n vectors to the width k of this group's table; that of group 0 is d already."""
        if self.maps is None or group == 0:
            return x
        return x @ cast(nn.Linear, self.maps[group]).weight


class TiedAdaptiveHead(TokenHead):
    """Adaptive softmax that uses the tables and matrices of an adaptive embedding, without biases.

    Args:
        embedding: The embedding.
        dropout: Dropout after the projection to the width of a group of rarer ids.
    """

    def __init__(self, embedding: AdaptiveEmbedding, dropout: float = 0.0) -> None:
        """Draw a vector for each group of rarer ids, which scores the group as a whole."""
        super().__init__()
        self.dropout = dropout
        self.embedding = embedding
        self.frequent = embedding.edges[1]
        groups = len(embedding.edges) - 2
        self.groups = nn.Parameter(torch.empty(groups, embedding.width))
        nn.init.normal_(self.groups, std=embedding.width**-0.5)

    def first(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n f"]:
        """Return log-probabilities of the frequent ids, then one of each further group."""
        table = torch.cat((self.embedding.weight, self.groups))
        return F.linear(x, table).log_softmax(-1, dtype=_choose_dtype(x))

    def within(self, x: Float[Tensor, "n d"], group: int) -> Float[Tensor, "n k"]:
        """Return log-probabilities of the ids of a further `group`, given that group."""
        table = cast(nn.Parameter, self.embedding.tables[group])
        units = F.dropout(self.embedding.inward(x, group), self.dropout, self.training)
        return F.linear(units, table).log_softmax(-1, dtype=_choose_dtype(x))

    def forward(self, x: Float[Tensor, "*items d"]) -> Float[Tensor, "*items c"]:
        """Return log-probabilities of all c ids; use it only for small batches, to save memory."""
        flat = x.flatten(0, -2)
        first = self.first(flat)
        parts = [first[:, : self.frequent]]
        for group in range(1, len(self.embedding.tables)):
            column = self.frequent + group - 1  # column of this group in `first`
            parts.append(first[:, column : column + 1] + self.within(flat, group))
        return torch.cat(parts, dim=-1).view(*x.shape[:-1], self.embedding.edges[-1])

    def piece(self) -> int:
        """Return the number of positions that are evaluated at a time."""
        return max(1, ADAPTIVE_ELEMENTS // (self.frequent + len(self.groups)))

    def judge_piece(
        self, x: Float[Tensor, "n d"], target: Int[Tensor, " n"], smoothing: float
    ) -> tuple[Float[Tensor, " n"], Bool[Tensor, " n"] | None]:
        """Return the negative log-likelihood at n positions, and whether the best id is the target.

        In training, the second result is None, because it would double the time. `Unsupported` for
        `smoothing`, which needs scores of all ids.
        """
        no_smoothing(smoothing)
        first = self.first(x)
        edges = torch.tensor(self.embedding.edges[1:-1], device=target.device)
        # A target's group (0: frequent), and its column in `first`: its own, or that of its group.
        group = torch.bucketize(target, edges, right=True)
        column = torch.where(group > 0, self.frequent - 1 + group, target)
        nll = -first.gather(1, column[:, None]).squeeze(1)
        for number in range(1, len(self.embedding.tables)):
            rows = (group == number).nonzero().squeeze(1)
            index = target[rows] - self.embedding.edges[number]
            log_share = self.within(x[rows], number).gather(1, index[:, None]).squeeze(1)
            nll = nll.index_add(0, rows, -log_share.to(nll.dtype))
        if self.training:
            return nll, None
        best = first.argmax(-1)
        # Only where a group of rarer ids is likelier than each frequent id must all ids compete.
        rare = (best >= self.frequent).nonzero().squeeze(1)
        best = best.index_copy(0, rare, self(x[rare]).argmax(-1))
        return nll, best == target


def _choose_dtype(x: Tensor) -> torch.dtype:
    """Return the number type of probabilities: that of `x`, but at least float32."""
    return torch.promote_types(x.dtype, torch.float32)
