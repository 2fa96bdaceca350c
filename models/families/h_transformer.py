"""H-Transformer-1D: hierarchical attention; distant tokens are averaged in growing clusters.

    o_i = sum_j p_ij v_j,   p_i = softmax over j of  Q(i, a) . K(j, a) / sqrt(d)

where a = a(i, j) is the first level at which i and j are in the same block or in neighbouring
blocks. A block of level a consists of C clusters of 2^a tokens, and Q(i, a), K(j, a) are the means
of q and k over the clusters of i and j: at level 0 the tokens themselves. When causal, j <= i, and
Q(i, a) is the query of the first token of i's cluster, since a mean would depend on later ones.

Cost       Each head takes 20 C d operations per token (12 C d of them at level 0), or 12 C d in the
           causal form.
Source     Zhu and Soricut 2021, arXiv:2107.11906.
Notation   the paper's numerical rank N_r is `block`, C. Up to 2 C tokens, attention is exact.
Differs    Any length works: the last block of each level is filled with empty clusters, where the
           paper needs C times a power of two. Clusters are made of projected queries, keys and
           values, as in the last version of the published code. A cluster is the mean of its real
           tokens (that code: the mean of its halves' means), and in a causal query the first real
           token represents its cluster. To avoid overflow, each token subtracts its maximum over
           all levels (that code: one maximum per head and example). The relative bias of that code
           is an option: one number for each head and distance in clusters, the same at all levels.

In the causal form, the state along time stores two blocks of each level: 2 C (d_k + d_v) numbers
and a query per level and head, so that it grows as log n. A decoding step takes 8 C d operations
per level.
"""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lra.models.mixer import Layout, Roles, Site, State, Traits
from lra.models.multi_head import MultiHead
from lra.models.ops.hierarchical import state as hierarchy_state
from lra.models.ops.hierarchical.attention import hierarchical_attention
from lra.models.ops.hierarchical.state import ClusterState
from lra.models.ops.numerics import sum_dtype


class HTransformerCore(Roles):
    """Hierarchical attention, optionally with a relative bias."""

    no_matrices = ("relative",)

    def __init__(self, site: Site, *, block: int, relative_bias: bool) -> None:
        """Draw the bias, and set the traits: up to 2 C tokens, attention is exact."""
        super().__init__()
        if block < 2 or block % 2:
            raise ValueError(
                "block, the number of clusters of a block, must be even and at least 2: got "
                f"{block}; use {max(2, block + block % 2)}"
            )
        self.block, self.dropout = block, site.attention_dropout
        self.relative: nn.Parameter | None = None
        if relative_bias:  # for distances from 1 - 2 C to 2 C - 1 clusters
            self.relative = nn.Parameter(torch.empty(site.heads, 4 * block - 1).normal_(std=0.1))
        exact = site.max_length <= 2 * block and not (site.causal or relative_bias)
        self.traits = Traits(
            causal=site.causal, row_stochastic=True, weight_dropout=True, sees_order=not exact
        )

    def bias(self, dtype: torch.dtype) -> Float[Tensor, "h c s"] | None:
        """Return the bias by distance, for c clusters of a block and the 3 c clusters around them.

        It has the type `dtype`; None means that there is no relative bias.
        """
        if self.relative is None:
            return None
        key = torch.arange(3 * self.block, device=self.relative.device)
        query = torch.arange(self.block, 2 * self.block, device=self.relative.device)
        return self.relative.to(dtype)[:, key - query[:, None] + 2 * self.block - 1]

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        layout: Layout,
    ) -> Float[Tensor, "b h l v"]:
        """Return the hierarchical attention of the whole sequence."""
        return hierarchical_attention(
            q, k, v, block=self.block, causal=self.traits.causal, keep=layout.keep,
            bias=self.bias(sum_dtype(q)), dropout=self.dropout if self.training else 0.0,
        )  # fmt: skip

    def initial_state(self, shape: tuple[int, int, int, int, int], like: Tensor) -> State:
        """Return two empty blocks for each level that `memory` tokens need."""
        return tuple(hierarchy_state.empty_clusters(shape, self.block, like))

    def extend(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        layout: Layout,
        state: State,
    ) -> tuple[Float[Tensor, "b h l v"], State]:
        """Continue from `state`, one token after another; all tokens at once if it is empty.

        Raises ValueError for more tokens than the levels of the state can store.
        """
        clusters = ClusterState(*cast(tuple[Tensor, ...], state))
        read_count = 0 if clusters.seen.device.type == "meta" else int(clusters.seen.max())
        if read_count + q.shape[2] > clusters.capacity:
            raise ValueError(
                f"this state was made for up to {clusters.capacity} tokens: it has read "
                f"{read_count} tokens and got {q.shape[2]} more; make the state with a larger "
                "memory"
            )
        if not read_count:
            o = self(q, k, v, layout._replace(start=None))
            return o, tuple(hierarchy_state.state_behind(clusters, q, k, v))
        bias, dropout = self.bias(sum_dtype(q)), self.dropout if self.training else 0.0
        outputs = []
        for token in range(q.shape[2]):
            parts = (x[:, :, token] for x in (q, k, v))
            o, clusters = hierarchy_state.attend_next(clusters, *parts, bias=bias, dropout=dropout)
            outputs.append(o)
        return torch.stack(outputs, 2), tuple(clusters)


class HTransformer(MultiHead):
    """Hierarchical attention between the four projections."""

    def __init__(
        self, site: Site, *, block: int = 16, relative_bias: bool = False, bias: bool = True
    ) -> None:
        core = HTransformerCore(site, block=block, relative_bias=relative_bias)
        super().__init__(site, core, bias=bias)
