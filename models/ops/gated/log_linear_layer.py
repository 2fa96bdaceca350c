"""A layer around states that decay, whose tokens may weigh their past by blocks of 1, 2, 4, ...

    lambda_t = softplus(L * W_l x_t)    for each head and level, L beginning at 1

The state of a row holds a sum for each level but 0, and the place of its next token. Documents are
not supported with it, levels being those of places in a row.
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.linear_map import projection
from lra.models.mixer import Growth, Site
from lra.models.ops.gated.layer import Borders, Parts, Recurrence
from lra.models.ops.gated.log_linear import level_count, log_linear_product, log_linear_steps
from lra.models.ops.numerics import full_precision, sum_dtype


class LogLinearMixer(Recurrence):
    """The frame of families that have log-linear attention as an option.

    Options:
        log_linear: Whether tokens weigh their past in blocks of 1, 2, 4, ... tokens (log-linear
            attention).
    """

    chunk: int
    levels = 0
    """0: past tokens are not weighed."""

    def add_levels(self, site: Site) -> None:
        """Add the weights of the levels; call it after `complete`."""
        self.levels = level_count(site.max_length)
        self.level_map = projection(site.width, site.heads * self.levels, bias=False)
        self.level_scale = nn.Parameter(torch.ones(site.heads, self.levels))
        heads, *sums = self.state_shape
        self.state_shape = heads, self.levels - 1, *sums
        self.traits = replace(
            self.traits,
            supports=self.traits.supports - {"document"},  # levels count from the row's start
            operations=Growth(1.0, log=True),  # l log(l): each token reads every level
            memory=Growth(1.0, log=True),
            summarises=self.traits.causal,
        )

    def held(self, before: Parts) -> tuple[Parts, Parts]:
        """Split `before` into the states (with the next place) and the convolutions' inputs."""
        number = 2 if self.levels else 1
        return before[:number], before[number:]

    def by_levels(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        g: Float[Tensor, "b h l"],
        *,
        x: Float[Tensor, "b l d"],
        held: Parts,
        borders: Borders,
        w: Float[Tensor, "b h l k"] | None = None,
    ) -> tuple[Float[Tensor, "b h l v"], Parts]:
        """Return the outputs of `log_linear_product` or, with a state, `log_linear_steps`."""
        chunk, weights = self.chunk, self._weights(x)
        if borders.whole:
            o = log_linear_product(q, k, v, g, weights, w=w, chunk=chunk, keep=borders.keep)
            return o, held  # the last state is not needed
        state, place = held
        o, *state_after = log_linear_steps(
            q, k, v, g, weights, w=w, state=state, place=place, chunk=chunk
        )
        return o, tuple(state_after)

    def _weights(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b h l n"]:
        """Return lambda = softplus(L * W x), the weight of each of n levels by head and token."""
        with full_precision(x):
            dtype = sum_dtype(x)
            mapped = self.level_map(x).to(dtype).unflatten(-1, self.level_scale.shape)
            return F.softplus(mapped * self.level_scale.to(dtype)).transpose(1, 2)

    def empty(self, batch_size: int) -> Parts:
        """Return zeros for the states; with levels, also the place of the next token."""
        states, *tails = super().empty(batch_size)
        if not self.levels:
            return states, *tails
        return states, states.new_zeros(batch_size, dtype=torch.int64), *tails
