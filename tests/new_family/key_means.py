"""Attention to the means of runs of keys and values.

    o_i = sum_s p_is v̄_s,   p the softmax over the runs s of q_i k̄_s / sqrt(k)

with k̄, v̄ the means over the real tokens of a run; as many runs of equal length as `runs` in the
longest sequence, fewer in a shorter one.

Cost       4 l m D operations for m runs, beside the projections; memory l (m h + D).
Source     the pooling of Wang et al. 2020, arXiv:2006.04768, as a fixed map.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import Layout, Site, Traits, Unsupported, check_least
from lra.models.multi_head import MultiHead


class RunsCore(nn.Module):
    """Attends to means of runs."""

    def __init__(self, runs: int, max_length: int) -> None:
        super().__init__()
        self.runs, self.tokens = runs, math.ceil(max_length / runs)
        self.traits = Traits(row_stochastic=True)

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        layout: Layout,
    ) -> Float[Tensor, "b h l v"]:
        """Attend."""
        run = (torch.arange(k.shape[2], device=k.device) // self.tokens).clamp(max=self.runs - 1)
        weights = F.one_hot(run, self.runs).to(k).expand(len(k), 1, -1, -1)
        if layout.keep is not None:
            weights = weights * layout.keep[:, None, :, None].to(k)
        counts = weights.sum(2)[..., None]
        keys, values = (weights.mT @ x / counts.clamp(min=1) for x in (k, v))
        scores = (q @ keys.mT / math.sqrt(k.shape[-1])).masked_fill(counts.mT == 0, -1e30)
        return scores.softmax(-1) @ values


class KeyMeans(MultiHead):
    """Attention to means of runs of keys and values.

    Args:
        runs: number of the runs.
    """

    def __init__(self, site: Site, *, runs: int = 8) -> None:
        if site.causal:
            raise Unsupported("a mean over a run sees later tokens: choose a bidirectional task")
        check_least(1, runs=runs)
        super().__init__(site, RunsCore(runs, site.max_length))
